"""Names of ATen operations, grouped by what they do to a signal."""

from functools import lru_cache
from typing import Any

SAME = {  # they change the shape, the order or the type, or remove entries
    "view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "transpose", "permute", "t",
    "unsqueeze", "squeeze", "clone", "select", "slice", "index", "index_select", "_to_copy",
    "alias", "contiguous", "masked_fill", "split", "split_with_sizes", "unbind", "gather", "where",
    "lift_fresh", "copy", "diagonal", "flip", "unsafe_split", "unsafe_chunk", "native_dropout",
    "nan_to_num", "constant_pad_nd", "repeat", "repeat_interleave", "roll", "tril", "triu",
    "index_put", "as_strided", "unfold", "lift", "detach", "movedim", "masked_select", "narrow",
    "slice_scatter", "select_scatter", "_index_put_impl", "scatter", "view_as_real",
    "masked_scatter", "sort", "cat", "stack", "take", "index_copy",
}  # fmt: skip
MATRIX_PRODUCTS = {"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "addbmm", "addr", "vdot",
                   "_sparse_mm", "convolution", "_addmm_activation"}  # fmt: skip
PRODUCTS = {"mul", "div"} | MATRIX_PRODUCTS
PLUS_PRODUCT = {"addmm", "baddbmm", "addmv", "addbmm", "addr"}  # the first argument is added
SUMS = {"sum", "mean", "scatter_add", "index_add", "scatter_reduce", "cumsum", "segment_reduce",
        "nansum", "index_reduce", "_segment_reduce"}  # fmt: skip
ADDITIONS = {"add", "sub", "rsub"}
SOFTMAX = {"_softmax", "_safe_softmax", "_sparse_softmax"}
ROOTS = {"sqrt", "rsqrt", "std", "std_mean", "linalg_vector_norm", "norm", "_cdist_forward"}
GATES = {"sigmoid", "hardsigmoid"}  # they map all numbers to the interval from 0 to 1
RATIO = {  # f(0) = 0, and f is not piecewise linear
    "gelu", "silu", "elu", "celu", "selu", "mish", "hardswish", "tanh", "softshrink", "hardshrink",
    "relu6", "hardtanh",
}  # fmt: skip
THROUGH_ZERO = {  # f(0) = 0, of powers if the exponent is positive
    "pow", "square", "sqrt", "log1p", "expm1", "asinh", "atan", "erf", "sin", "sinh", "tan",
}  # fmt: skip
# f(0) is not 0, but a constant of the ledger
ABOVE_ZERO = {"softplus", "exp", "cos", "cosh"}
HOMOGENEOUS = {"std", "std_mean", "linalg_vector_norm", "norm"}  # x df/dx sums to f(x)
# functions of single entries, also of several signals
ENTRYWISE = {
    "abs", "acos", "add", "asin", "asinh", "atan", "celu", "clamp", "clamp_max", "clamp_min", "cos",
    "cosh", "div", "elu", "eq", "erf", "erfc", "exp", "exp2", "expm1", "ge", "gelu", "gt",
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "le", "leaky_relu", "log", "log10",
    "log1p", "log2", "log_sigmoid_forward", "logit", "lt", "masked_fill", "maximum", "minimum",
    "mish", "mul", "ne", "neg", "pow", "reciprocal", "relu", "rsqrt", "rsub", "selu", "sgn",
    "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "softshrink", "special_ndtr", "sqrt",
    "square", "sub", "tan", "tanh", "threshold", "_to_copy", "view", "where",
}  # fmt: skip
NORMS = {
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm",
    "_native_batch_norm_legit_no_training", "_native_batch_norm_legit", "cudnn_batch_norm",
    "_batch_norm_with_update", "_batch_norm_no_update",
}  # fmt: skip
# the places of arguments that are added to the signal if they are constant
ADDITIVE: dict[str, tuple[int, ...]] = {
    "add": (0, 1), "sub": (0, 1), "rsub": (0, 1), "addmm": (0,), "baddbmm": (0,), "addmv": (0,),
    "addbmm": (0,), "cat": (0,), "stack": (0,), "where": (1, 2), "copy": (0, 1),
    "index_put": (0, 2), "index_copy": (0, 3), "scatter": (0, 3),
    "masked_scatter": (0, 2), "scatter_add": (0, 3), "index_add": (0, 3), "convolution": (2,),
    "native_layer_norm": (3,), "native_group_norm": (2,), "native_batch_norm": (2, 3),
    "_native_batch_norm_legit_no_training": (2, 3), "slice_scatter": (0, 1),
    "select_scatter": (0, 1), "scatter_reduce": (0, 3), "maximum": (0, 1), "minimum": (0, 1),
}  # fmt: skip
# for sums and norms, how many of the first arguments may be constants
SUMMED = {
    "add": 2, "sub": 2, "rsub": 2, "addmm": 1, "baddbmm": 1, "native_layer_norm": 4,
    "native_batch_norm": 4, "_native_batch_norm_legit_no_training": 4,
}  # fmt: skip
LINEAR_IN = {"mul": {0, 1}, "div": {0}}  # the arguments in which a product is linear
# they put numbers among the entries of their first argument
FILLS = {"masked_fill", "index_fill", "constant_pad_nd", "clamp", "clamp_min", "clamp_max",
         "threshold", "fill"}  # fmt: skip
# other operations that are linear or piecewise linear
LINEAR = {
    "neg", "relu", "leaky_relu", "_prelu_kernel", "prelu", "clamp", "clamp_min",
    "clamp_max", "abs", "max", "min", "amax", "amin", "maximum", "minimum", "cummax", "cummin",
    "median", "topk", "diff", "trace", "diag", "adaptive_avg_pool1d",
    "_adaptive_avg_pool2d", "avg_pool2d", "max_pool2d_with_indices", "avg_pool3d", "embedding",
    "index_fill", "fill", "zero", "zeros_like", "to_dense", "_to_dense", "_to_sparse",
    "_coalesce", "_values", "_indices", "upsample_nearest2d", "upsample_bilinear2d", "col2im",
    "im2col", "real", "threshold", "_embedding_bag", "max_pool3d_with_indices", "aminmax",
    "_pack_padded_sequence", "_pad_packed_sequence", "reflection_pad1d", "replication_pad1d",
    "max_dim", "kthvalue", "_adaptive_avg_pool3d", "values", "indices", "coalesce", "_conj",
    "view_as_complex", "_fft_r2c", "_fft_c2r", "_fft_c2c", "imag", "hardtanh_relu", "nanmedian",
    "_neg_view", "diag_embed", "fmax", "fmin", "upsample_nearest1d", "upsample_linear1d",
    "upsample_trilinear3d", "upsample_bicubic2d",
}  # fmt: skip
KNOWN = SAME | PRODUCTS | SUMS | ADDITIONS | LINEAR


@lru_cache(4096)
def name_of(func: Any) -> str:
    """Return the name of a function of PyTorch, without the underscores of `__array__`."""
    name: str = getattr(func, "__name__", "")
    return name.strip("_") + ("_" if name.endswith("_") and not name.endswith("__") else "")
