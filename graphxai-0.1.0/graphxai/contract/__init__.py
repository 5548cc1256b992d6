"""The types that explainers share whatever the model: encoded inputs, tasks and targets."""
