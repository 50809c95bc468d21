"""Says in one line what is missing before the virtual environment can be made."""

import importlib.util
import sys

if not (3, 10) <= sys.version_info[:2] <= (3, 14):
    sys.exit(
        "make: Python 3.10 to 3.14 expected, python3 is %d.%d; name another with "
        "`make PYTHON=python3.12`" % sys.version_info[:2]
    )
if importlib.util.find_spec("ensurepip") is None:
    sys.exit("make: Python's venv module is incomplete; apt-get install python3-venv")
