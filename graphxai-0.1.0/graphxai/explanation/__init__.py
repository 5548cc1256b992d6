"""Results of explaining, which can be drawn, saved and shown in a notebook."""
