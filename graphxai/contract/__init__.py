"""What an explainer works with, whatever the model: encoded inputs, tasks and a target."""
