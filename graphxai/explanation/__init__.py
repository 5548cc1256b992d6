"""Results: explanations that can be drawn, saved and shown in a notebook."""
