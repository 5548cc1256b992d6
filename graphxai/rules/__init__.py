"""One place for each equation of relevance propagation; no model is known here."""
