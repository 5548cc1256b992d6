"""Run the command line as `python -m graphxai`."""

from .cli.main import program

program()
