"""Serve a page on this machine where changes to molecules can be tried live."""
