"""Gaussian processes as models of their own: fitted, weighed against a network, or adapting one."""
