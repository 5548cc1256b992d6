"""Names of PyTorch's operations, grouped by how the rules treat them.

One name covers the function, the method, the operator and the in-place variant.
"""

import re
from functools import lru_cache
from typing import Any

RATIO = {  # f(0) = 0 and not linear by pieces
    "gelu", "silu", "elu", "elu_", "selu", "selu_", "celu", "celu_", "mish", "hardswish",
    "hardtanh", "hardtanh_", "relu6", "tanh", "tanh_", "softsign", "tanhshrink", "hardshrink",
    "softshrink", "silu_", "mish_", "hardswish_", "relu6_",
}  # fmt: skip
PRODUCTS = {
    "matmul", "bmm", "mm", "mv", "mul", "mul_", "multiply", "einsum", "baddbmm", "addmm",
    "tensordot", "div", "div_", "divide", "true_divide", "dot", "inner", "bilinear", "addcmul",
}  # fmt: skip
QUOTIENTS = {"div", "div_", "divide", "true_divide"}
MULTIPLICATIONS = {"mul", "mul_", "multiply"}
SUMS = {"add", "add_", "sub", "sub_", "rsub", "subtract", "cat", "concat", "concatenate", "stack",
        "hstack", "vstack", "where"}  # fmt: skip
ROOTS = {"sqrt", "sqrt_", "rsqrt", "rsqrt_", "std", "std_mean", "norm", "vector_norm", "cdist"}
SAME_VALUES = {  # only the shape, the order or the type changes, or entries are set to zero
    "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand", "flatten",
    "unflatten", "contiguous", "to", "type", "float", "double", "half", "bfloat16", "type_as",
    "clone", "dropout", "dropout_", "masked_fill", "masked_fill_", "nan_to_num", "index_select",
    "repeat_interleave", "getitem", "expand_as", "view_as", "movedim", "swapaxes", "T", "mT",
    "chunk", "split", "narrow", "select", "gather", "alpha_dropout", "feature_dropout",
}  # fmt: skip
VALUELESS = {  # the result does not depend on the values of the arguments
    "detach", "detach_", "data", "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor",
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "sign",
}  # fmt: skip
LIKE_ANOTHER = {"expand_as", "view_as", "type_as", "reshape_as", "to"}  # in shape or type
GATHERED_SUMS = {"scatter_add_", "scatter_add", "index_add_", "index_add", "scatter_reduce_"}
GATES = {"sigmoid", "hardsigmoid", "special_expit"}  # from minus infinity to infinity, 0 to 1
PLUS_PRODUCT = {"addcmul", "addmm", "baddbmm"}  # of the second and third; the first is added
MULTIPLE = MULTIPLICATIONS - {"mul_"} | QUOTIENTS - {"div_"} | {"neg", "clone", "contiguous"}
EQUAL_FACTORS = {"Polynormer", "PolynormerAttention"}  # modules that multiply two equal signals
STILL_A_GATE = SAME_VALUES | MULTIPLICATIONS | QUOTIENTS | GATHERED_SUMS | {
    "add", "add_", "sub", "sub_", "rsub", "subtract", "neg", "clamp", "clamp_", "clamp_min", "sum",
    "mean", "cat", "stack",
}  # fmt: skip
STILL_A_SUM = SAME_VALUES | {"add", "add_", "clamp", "clamp_", "clamp_min", "clamp_min_"}
# linear or piecewise linear; operations listed neither here nor above cause a warning
KNOWN: set[str] = {
    "mean", "sum", "max", "min", "amax", "amin", "maximum", "minimum", "cummax", "cummin",
    "abs", "neg", "relu", "relu_", "leaky_relu", "leaky_relu_", "prelu", "rrelu", "clamp",
    "clamp_", "clamp_min", "clamp_min_", "clamp_max", "median", "sort", "topk", "nansum",
    "nanmean", "cumsum", "diff", "trace", "diagonal", "diag", "tril", "triu", "pad",
    "constant_pad_nd", "roll", "flip", "setitem", "scatter", "scatter_", "scatter_reduce",
    "index_put", "index_put_", "index_copy", "index_copy_", "index_fill", "index_fill_",
    "masked_scatter", "masked_scatter_", "masked_select", "take", "take_along_dim",
    "segment_reduce", "copy_", "fill_", "zero_", "unbind", "iter", "tensor_split", "positive",
    "requires_grad_", "retain_grad", "detach", "sparse_mm", "spmm", "avg_pool1d", "avg_pool2d",
    "max_pool1d", "max_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "interpolate",
    "unfold", "fold", "tile", "repeat", "ravel", "reshape_as", "unsqueeze_", "squeeze_",
    "transpose_", "t", "swapdims", "moveaxis", "adjoint", "H", "mH", "real", "atleast_2d",
    "broadcast_to", "as_strided", "hstack", "column_stack", "embedding", "embedding_bag",
    "attention", "to_dense", "to_sparse", "coalesce", "values", "pin_memory", "cuda", "cpu",
    "addcdiv", "lerp", "dropout1d", "dropout2d", "dropout3d", "nonzero", "pad_sequence",
    "block_diag", "clamp_max_", "split_with_sizes", "vsplit", "hsplit", "dsplit", "dstack",
    "fliplr", "flipud", "rot90", "unsafe_chunk", "unsafe_split", "slice_scatter",
    "select_scatter", "diagonal_scatter", "max_pool3d",
}  # fmt: skip
ACTIVATION_MODULE = re.compile(r"gelu|silu|swish|mish|selu|celu|elu|softsign|tanh", re.IGNORECASE)


KNOWN |= SAME_VALUES | SUMS | GATHERED_SUMS | PRODUCTS | ROOTS


@lru_cache(maxsize=4096)
def name_of(func: Any) -> str:
    """One name for the variants of an operation: function, method, operator, property."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    name = name.strip("_") + ("_" if name.endswith("_") and not name.endswith("__") else "")
    if name in ("iadd", "isub", "imul", "itruediv"):
        name = {"iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_"}[name]
    aliases = {"radd": "add", "rmul": "mul", "truediv": "div", "rmatmul": "matmul",
               "rtruediv": "reciprocal", "rdiv": "reciprocal", "multiply_": "mul_",
               "divide_": "div_", "true_divide_": "div_", "subtract_": "sub_", "clip": "clamp",
               "clip_": "clamp_", "linalg_vector_norm": "vector_norm", "linalg_norm": "norm",
               "special_expm1": "expm1", "sparse_softmax": "_sparse_softmax"}  # fmt: skip
    return aliases.get(name, name)


def by_arguments(name: str, args: Any, kwargs: Any) -> str:
    """The name of what an operation does where its arguments decide."""
    if "reduce" in name or name in ("pow", "pow_"):
        given = (*args, *kwargs.values())
        if any(isinstance(value, str) and value == "prod" for value in given):
            return "prod"
        if any(isinstance(value, float) and abs(value) == 0.5 for value in given):
            return "sqrt"
    return name
