"""`python -m graphxai` is the command line."""

from .cli.main import main

main()
