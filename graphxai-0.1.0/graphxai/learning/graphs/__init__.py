"""Training on anybody's graphs: a PyG data set in, a checkpoint out."""
