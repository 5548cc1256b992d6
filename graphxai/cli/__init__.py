"""The command line, one file per subject."""
