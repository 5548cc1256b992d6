"""The equations of relevance propagation, each in one place and independent of any model."""
