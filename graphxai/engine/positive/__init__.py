"""The positive rules of Chefer et al., CVPR 2021, along a recorded list."""
