"""Explanations in chemists' terms: fragments, pairs of molecules, activity cliffs."""
