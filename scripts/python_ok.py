"""Says in one line what is missing before the virtual environment can be made."""

import importlib.util
import sys

FOUND = sys.version_info[:2]

if not (3, 10) <= FOUND <= (3, 14):
    # An old Python must be able to read this file: no f-string.
    message = "make: Python 3.10 to 3.14 expected, python3 is {}.{}; `make PYTHON=python3.12`"
    sys.exit(message.format(*FOUND))
if importlib.util.find_spec("ensurepip") is None:
    sys.exit("make: Python's venv module is incomplete; apt-get install python3-venv")
