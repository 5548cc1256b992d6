"""The error of a checkpoint that cannot be read, which is told without importing PyTorch."""

CONFIG = "config.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file, the key and the remedy."""
