"""How the bundled models, and models of your own tables, are trained."""
