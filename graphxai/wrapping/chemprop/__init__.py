"""Explain networks that were trained with chemprop 2."""
