"""The names of methods as a type, so that editors complete them and type checkers know them."""

from typing import Final, Literal

__all__ = ["DEFAULT_METHOD", "MEASURED_METHODS", "MethodName"]

DEFAULT_METHOD: Final = "lrp"  # explains where nobody chose a method
MEASURED_METHODS: Final = (DEFAULT_METHOD, "gradient_input")  # so does a benchmark

# `python docs/name_types.py` writes these from the registry.
MethodName = Literal[
    "att_cat",
    "attention_flow",
    "attention_last",
    "attn_lrp",
    "best",
    "cam",
    "gae",
    "gae_rollout",
    "gnn_explainer",
    "grad_cam",
    "gradient_input",
    "integrated_gradients",
    "kernel",
    "learned",
    "lrp",
    "lrp_ah",
    "lrp_ah_ln",
    "lrp_ln",
    "lrp_path",
    "lrp_zplus",
    "masked_lrp",
    "occlusion",
    "order_marginals",
    "partial_lrp",
    "path_marginals",
    "random",
    "rollout",
    "saliency",
    "shapley_sampling",
    "smoothgrad",
    "transformer_attribution",
]
