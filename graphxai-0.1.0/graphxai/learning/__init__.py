"""A table of molecules in, a model out: cleaning, training, teachers, calibration, scores."""
