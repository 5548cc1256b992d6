"""What an explainer works with: a model, encoded inputs and a target. It knows no model."""
