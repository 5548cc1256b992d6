"""The error of a file that should hold a model."""

__all__ = ["CheckpointError"]


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file, the key and the remedy."""
