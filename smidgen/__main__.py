"""`python -m smidgen COMMAND`, where no script is installed."""

from smidgen import main

main()
