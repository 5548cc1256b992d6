"""The search for counterfactuals: what it tries and aims at, and the molecules it finds."""
