"""What the nodes of PyTorch's autograd graph compute, by their names: ATen operations."""

from collections.abc import Mapping
from typing import NamedTuple


class NodeKind(NamedTuple):
    """What a kind of node computes.

    Args:
        name: the name of its ATen operation.
        places: where its differentiable arguments stand among all arguments.
        numbers: the settings that it saved, each with its place among the arguments, or None if no
            query asks for it.
        constants: by the place of an argument, the name under which it is saved as a constant.
    """

    name: str
    places: tuple[int, ...] = (0,)
    numbers: Mapping[str, int | None] = {}
    constants: Mapping[int, str] = {}


def _settings(*names: str) -> Mapping[str, int | None]:
    """Return settings that no query asks for."""
    return dict.fromkeys(names)


_BOTH = (0, 1)
_DIM: Mapping[str, int | None] = {"dim": 1, "keepdim": 2}
KINDS: dict[str, NodeKind] = {
    # the same entries, elsewhere
    "ViewBackward0": NodeKind("view"),
    "UnsafeViewBackward0": NodeKind("_unsafe_view"),
    "ReshapeAliasBackward0": NodeKind("_reshape_alias"),
    "TBackward0": NodeKind("t"),
    "TransposeBackward0": NodeKind("transpose", numbers=_settings("dim0", "dim1")),
    "PermuteBackward0": NodeKind("permute", numbers=_settings("dims")),
    "ExpandBackward0": NodeKind("expand"),
    "UnsqueezeBackward0": NodeKind("unsqueeze", numbers=_settings("dim")),
    "SqueezeBackward0": NodeKind("squeeze"),
    "SqueezeBackward1": NodeKind("squeeze", numbers=_settings("dim")),
    "SqueezeBackward2": NodeKind("squeeze", numbers=_settings("dim")),
    "SliceBackward0": NodeKind("slice", numbers=_settings("dim", "start", "end", "step")),
    "SelectBackward0": NodeKind("select", numbers=_settings("dim", "index")),
    "SplitBackward0": NodeKind("split", numbers=_settings("dim", "split_size")),
    "SplitWithSizesBackward0": NodeKind(
        "split_with_sizes", numbers=_settings("dim", "split_sizes")
    ),
    "UnbindBackward0": NodeKind("unbind", numbers=_settings("dim")),
    "IndexBackward0": NodeKind("index", constants={1: "indices"}),
    "IndexSelectBackward0": NodeKind(
        "index_select", numbers={"dim": 1}, constants={2: "index"}
    ),
    "GatherBackward0": NodeKind("gather", numbers={"dim": 1}, constants={2: "index"}),
    "CloneBackward0": NodeKind("clone"),
    "ToCopyBackward0": NodeKind("_to_copy"),
    "AliasBackward0": NodeKind("alias"),
    "RepeatBackward0": NodeKind("repeat", numbers=_settings("repeats")),
    "MaskedFillBackward0": NodeKind("masked_fill", constants={1: "mask"}),
    "CatBackward0": NodeKind("cat", numbers={"dim": 1}),
    "StackBackward0": NodeKind("stack", numbers={"dim": 1}),
    "WhereBackward0": NodeKind("where", (1, 2), {}, {0: "condition"}),
    "FlipBackward0": NodeKind("flip", numbers=_settings("dims")),
    "RollBackward0": NodeKind("roll", numbers=_settings("shifts", "dims")),
    "TrilBackward0": NodeKind("tril", numbers=_settings("diagonal")),
    "TriuBackward0": NodeKind("triu", numbers=_settings("diagonal")),
    "DiagonalBackward0": NodeKind("diagonal", numbers=_settings("offset", "dim1", "dim2")),
    "ConstantPadNdBackward0": NodeKind("constant_pad_nd", numbers=_settings("pad")),
    "IndexPutBackward0": NodeKind("index_put", (0, 2), _settings("accumulate"), {1: "indices"}),
    # sums
    "SumBackward0": NodeKind("sum"),
    "SumBackward1": NodeKind("sum", numbers=_DIM),
    "MeanBackward0": NodeKind("mean"),
    "MeanBackward1": NodeKind("mean", numbers=_DIM),
    "ScatterAddBackward0": NodeKind("scatter_add", (0, 3), {"dim": 1}, {2: "index"}),
    "IndexAddBackward0": NodeKind(
        "index_add", (0, 3), {"dim": 1, "alpha": None}, {2: "index"}
    ),
    "AddBackward0": NodeKind("add", _BOTH, _settings("alpha")),
    "SubBackward0": NodeKind("sub", _BOTH, _settings("alpha")),
    "AddBackward1": NodeKind("add"),  # a number is added
    "SubBackward1": NodeKind("sub"),
    "RsubBackward1": NodeKind("rsub"),
    "NegBackward0": NodeKind("neg"),
    "CumsumBackward0": NodeKind("cumsum", numbers={"dim": 1}),
    "ScatterReduceBackward0": NodeKind(
        "scatter_reduce", (0, 3), {"dim": 1, "reduce": 4, "include_self": None}, {2: "index"}
    ),
    # choices
    "AmaxBackward0": NodeKind("amax", numbers=_DIM),
    "AminBackward0": NodeKind("amin", numbers=_DIM),
    "MaxBackward0": NodeKind("max", numbers=_DIM),
    "MinBackward0": NodeKind("min", numbers=_DIM),
    "MaximumBackward0": NodeKind("maximum", _BOTH, {}, {0: "self", 1: "other"}),
    "MinimumBackward0": NodeKind("minimum", _BOTH, {}, {0: "self", 1: "other"}),
    "ClampBackward1": NodeKind("clamp", numbers={"min": 1, "max": 2}),
    "ClampMinBackward0": NodeKind("clamp_min", numbers={"min": 1}),
    "ClampMaxBackward0": NodeKind("clamp_max", numbers={"max": 1}),
    # products
    "MulBackward0": NodeKind("mul", _BOTH, {}, {0: "self", 1: "other"}),
    "MulBackward1": NodeKind("mul", numbers={"other": 1}),
    "DivBackward1": NodeKind("div", numbers={"other": 1}),
    "DivBackward0": NodeKind("div", _BOTH, {}, {1: "other"}),
    "MmBackward0": NodeKind("mm", _BOTH, {}, {0: "self", 1: "mat2"}),
    "BmmBackward0": NodeKind("bmm", _BOTH, {}, {0: "self", 1: "mat2"}),
    "MvBackward0": NodeKind("mv", _BOTH, {}, {0: "self", 1: "vec"}),
    "DotBackward0": NodeKind("dot", _BOTH, {}, {0: "self", 1: "tensor"}),
    "PreluKernelBackward0": NodeKind("_prelu_kernel", _BOTH),
    "AddmmBackward0": NodeKind(
        "addmm", (0, 1, 2), _settings("alpha", "beta"), {1: "mat1", 2: "mat2"}
    ),
    "BaddbmmBackward0": NodeKind(
        "baddbmm", (0, 1, 2), _settings("alpha", "beta"), {1: "batch1", 2: "batch2"}
    ),
    # weights, gates and lengths
    "SoftmaxBackward0": NodeKind("_softmax", numbers=_settings("dim")),
    "SafeSoftmaxBackward0": NodeKind("_safe_softmax", numbers=_settings("dim")),
    "ExpBackward0": NodeKind("exp"),
    "ReciprocalBackward0": NodeKind("reciprocal"),
    "SigmoidBackward0": NodeKind("sigmoid"),
    "HardsigmoidBackward0": NodeKind("hardsigmoid"),
    "SqrtBackward0": NodeKind("sqrt"),
    "RsqrtBackward0": NodeKind("rsqrt"),
    "PowBackward0": NodeKind("pow", numbers={"exponent": 1}),
    "VarBackward0": NodeKind("var", numbers=_settings("dim", "correction", "keepdim")),
    "VarMeanBackward0": NodeKind("var_mean", numbers=_settings("dim", "correction", "keepdim")),
    "StdBackward0": NodeKind("std", numbers=_settings("dim", "correction", "keepdim")),
    "LinalgVectorNormBackward0": NodeKind(
        "linalg_vector_norm", numbers={"ord": 1, "dim": None, "keepdim": None}
    ),
    # functions of single entries
    "AbsBackward0": NodeKind("abs"),
    "EluBackward0": NodeKind("elu", numbers={"alpha": 1, "scale": 2, "input_scale": 3}),
    "CeluBackward0": NodeKind("celu", numbers={"alpha": 1}),
    "MishBackward0": NodeKind("mish"),
    "HardswishBackward0": NodeKind("hardswish"),
    "HardtanhBackward0": NodeKind("hardtanh", numbers={"min_val": 1, "max_val": 2}),
    "HardshrinkBackward0": NodeKind("hardshrink", numbers={"lambd": 1}),
    "SoftshrinkBackward0": NodeKind("softshrink", numbers={"lambd": 1}),
    "ReluBackward0": NodeKind("relu"),
    "LeakyReluBackward0": NodeKind("leaky_relu", numbers={"negative_slope": 1}),
    "GeluBackward0": NodeKind("gelu", numbers=_settings("approximate")),
    "SiluBackward0": NodeKind("silu"),
    "ErfBackward0": NodeKind("erf"),
    "Log1PBackward0": NodeKind("log1p"),
    "AsinhBackward0": NodeKind("asinh"),
    "AtanBackward0": NodeKind("atan"),
    "SinBackward0": NodeKind("sin"),
    "SinhBackward0": NodeKind("sinh"),
    # norms
    "NativeLayerNormBackward0": NodeKind("native_layer_norm", (0, 2, 3), {"normalized_shape": 1}),
    "NativeBatchNormBackward0": NodeKind(
        "native_batch_norm", (0, 1, 2), {"running_mean": 3, "running_var": 4, "training": 5}
    ),
    "NativeGroupNormBackward0": NodeKind("native_group_norm", (0, 1, 2), _settings("group")),
    "FusedRmsNormBackward0": NodeKind("_fused_rms_norm", (0, 2), {"normalized_shape": 1}),
    # look-ups of weights
    "EmbeddingBackward0": NodeKind("embedding", constants={1: "indices"}),
}  # fmt: skip
LISTS = {"cat", "stack"}  # their tensors are one argument, a list
