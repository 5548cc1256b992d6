"""Compute results: from inputs, through batches, to explanations, predictions and pairs."""
