"""Secure aggregation over HTTP."""
