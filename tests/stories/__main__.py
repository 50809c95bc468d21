"""`python -m tests.stories --seed N`: tell stories, and say how fast and what was met."""

import os
import sys
from importlib import import_module

if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names are walked in the same order each time
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.stories", *sys.argv[1:]])

from tests.stories import clock

clock.installed()
sys.exit(import_module("tests.stories.run").main())  # only now: it imports all else
