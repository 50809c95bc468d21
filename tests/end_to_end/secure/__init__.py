"""Secure aggregation by real clients."""
