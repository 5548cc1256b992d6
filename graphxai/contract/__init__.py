"""What an explainer is handed: a model, encoded inputs, a target, random numbers."""
