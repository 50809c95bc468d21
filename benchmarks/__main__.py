"""`python -m benchmarks COMMAND`: errors are reported as by `smidgen`."""

import sys

from smidgen import run_app

run_app("python -m benchmarks", "benchmarks.cli", "simulate", sys.argv[1:])
