"""A table of molecules or graphs in, a model out: one run of stages for both."""
