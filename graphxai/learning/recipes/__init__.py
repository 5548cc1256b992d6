"""Recipes that train the bundled models, and models of what is known."""
