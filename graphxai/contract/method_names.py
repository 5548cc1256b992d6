"""The names of methods as a type, so that editors complete them and type checkers know them."""

from collections.abc import Sequence
from typing import Final, Literal

from graphxai.runtime.options import did_you_mean

DEFAULT_METHOD: Final = "lrp"  # explains where nobody chose a method
MEASURED_METHODS: Final = (DEFAULT_METHOD, "gradient_input")  # so does a benchmark
CONTROLS: Final = ("random", "ones", "reverse")  # join the methods of every report

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
    "ones",
    "order_marginals",
    "partial_lrp",
    "partnered",
    "path_marginals",
    "random",
    "reverse",
    "rollout",
    "saliency",
    "shapley_sampling",
    "shares",
    "smoothgrad",
    "transformer_attribution",
]


def unknown_method(name: str, names: Sequence[str]) -> ValueError:
    """Return the error of a name that no method has, with the names of the methods."""
    known = [*names, "best"]
    return ValueError(
        f"unknown method {name!r}; the methods are: {', '.join(known)}.{did_you_mean(name, known)}"
    )
