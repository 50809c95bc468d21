"""Refuses to shadow the standard library: from Python 3.15 on `profiling` is a standard module.

There the standard one would win for console scripts and under pytest, while `python -m` from the
checkout would break `cProfile`, which torch imports; hence `requires-python` ends below 3.15.
"""

import sys

if sys.version_info >= (3, 15):
    raise ImportError("smidgen's package `profiling` needs Python 3.14 or older; make a 3.14 venv")
