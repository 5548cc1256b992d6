"""Train any Graphormer: the loop, its objectives, scores and teachers."""
