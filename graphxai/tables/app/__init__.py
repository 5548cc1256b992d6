"""A page on this machine where changes to molecules are tried live."""
