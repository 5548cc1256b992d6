"""What comes out: explanations that draw, save and show themselves."""
