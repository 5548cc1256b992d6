"""Explain graph transformers."""
