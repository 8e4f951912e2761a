"""`python -m stoker`: the command line."""

from .engine.cli.main import main

main()
