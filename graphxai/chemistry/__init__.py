"""What an explanation says of a molecule: fragments, pairs of molecules, activity cliffs."""
