"""What an explainer works with: a model, encoded inputs, a target, random numbers."""
