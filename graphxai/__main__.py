"""`python -m graphxai` is the command line."""

from graphxai.cli import main

main()
