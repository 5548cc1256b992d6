"""What a search for counterfactuals tries: exchanges, fragments and transformations."""
