"""Attention between nodes: whose rows are whose, and which entries are of which pair."""
