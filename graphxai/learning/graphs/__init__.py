"""Anybody's graphs as the source of a run: how they are read, and simple models to compare with."""
