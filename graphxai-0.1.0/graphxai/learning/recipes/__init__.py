"""Recipes that train the bundled models, and models of your own tables."""
