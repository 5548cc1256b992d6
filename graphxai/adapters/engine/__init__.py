"""Explain any PyTorch model: record a pass, mark it, replay it under one table of rules."""
