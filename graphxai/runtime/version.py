"""The version of the package, for the code and for the wheel."""

VERSION = "0.1.0rc1"
