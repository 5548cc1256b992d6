"""Teach a network from a table: forests, Gaussian processes, and how they are stacked."""
