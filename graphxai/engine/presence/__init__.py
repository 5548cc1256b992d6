"""Passes in which nodes are absent, and the marginals of all of them."""
