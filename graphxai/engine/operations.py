"""The table of operations: everything that the engine knows about an operation of PyTorch.

A row belongs to one ATen operation, or to several that act alike. An operation is added here and
nowhere else: the sets of names at the end of this file are queries of the table, and so are the
rules of both tiers. An operation without a row keeps its ordinary gradient, and is named in a
warning where a rule would have to act on it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from graphxai.engine import fused, rules
from graphxai.engine.rules import BuiltInRule, Saved
from graphxai.rules import norms
from graphxai.rules.operation_rule import ratio_above_zero


@dataclass(frozen=True)
class Operation:
    """A row of the table.

    Args:
        does: what it does to a signal, in the words by which the sets below ask for it.
        rule: its rule under LRP and its relatives, or None for its ordinary gradient.
        positive: the name of its positive rule, or None for its ordinary gradient. By default it
            acts entry by entry, or a warning names it.
        nodes: what it does to the numbers of nodes: they are "viewed", "turned" with the axes,
            "copied", "moved", "reduced", "grouped" or "ordered" along an axis; a "product" is of
            matrices, and an "entry" is combined with others one by one.
        adds: the places of arguments that are added to the signal if they are constant.
        index: the place of the index that says which entries, or into which groups.
        source: the place of the tensor that is put, or summed, where the index says.
        axis: the place of the axis along which entries are put in an order.
        scales: by what an addition multiplies its two terms, for its `alpha`.
        called: the name by which custom rules call it, by default its own.
        saves: what its nodes save, by the number at the end of their names.
        parts: what computes it by other operations, which are recorded in its place.
    """

    name: str
    does: frozenset[str] = frozenset()
    rule: BuiltInRule | None = None
    positive: str | None = "by_entry"
    nodes: str = "entry"
    adds: tuple[int, ...] = ()
    index: int | None = None
    source: int | None = None
    axis: int = 1
    scales: Callable[[float], tuple[float, float]] = lambda alpha: (1, 1)
    called: str = ""
    saves: tuple[Saved | None, ...] = ()
    parts: Callable[..., Any] | None = None


def _rows(names: str, does: str = "", *saves: str | None, **fields: Any) -> list[Operation]:
    """Return the rows of operations that act alike."""
    return [
        Operation(
            name,
            frozenset(does.split()),
            saves=tuple(None if text is None else Saved.read(name, text) for text in saves),
            **{"called": name, **fields},
        )
        for name in names.split()
    ]


def _moves(names: str, nodes: str, does: str = "", *saves: str | None, **fields: Any) -> Any:
    """Return rows that change the shape, the order or the type, or remove entries."""
    return _rows(names, f"same {does}", *saves, nodes=nodes, positive=None, **fields)


def _linear(names: str, does: str = "", *saves: str | None, **fields: Any) -> list[Operation]:
    """Return rows that are linear or piecewise linear, and mostly pass relevance by gradient."""
    return _rows(names, f"linear {does}", *saves, **{"positive": None, **fields})


_RATIO = BuiltInRule("activation", rules.ratio, rules.ratio_backward)
_GELU = BuiltInRule("activation", rules.gelu, rules.gelu_backward)
_RATIO_OF_RESULT = BuiltInRule("activation", rules.ratio)  # where a node has not saved its input
_ABOVE_ZERO = BuiltInRule("activation", ratio_above_zero, adds=True)
_OF_POWER = BuiltInRule("activation", rules.ratio, fits=rules.is_positive_power,
                        otherwise=_ABOVE_ZERO._replace(fits=rules.has_number))  # fmt: skip
_OF_BOUNDED = BuiltInRule("activation", rules.ratio, rules.ratio_backward, rules.has_zero_inside,
                          otherwise=_ABOVE_ZERO)  # fmt: skip
_VARIANCE = BuiltInRule("activation", rules.variance)
_RUNNING = BuiltInRule("layernorm", norms.batch_norm, is_affine=norms.has_running_statistics)
_BATCH = _RUNNING._replace(backward=rules.batch_norm_backward)
_INTO: Any = {"adds": (0, 3), "index": 2, "source": 3}
_INTO_GROUPS: Any = {**_INTO, "nodes": "grouped", "positive": "summed"}
_TERMS: Any = {"positive": "added", "adds": (0, 1)}
_PRODUCT: Any = {"nodes": "product", "positive": "multiplied"}
_PLUS: Any = {**_PRODUCT, "adds": (0,)}

_TABLE: list[Operation] = [
    # the same entries, elsewhere
    *_moves("view", "viewed", "whole entry multiple", ""),
    *_moves("_unsafe_view _reshape_alias", "viewed", "whole", ""),
    *_moves("transpose", "turned", "", "dim0 dim1"),
    *_moves("permute", "turned", "", "dims"),
    *_moves("t", "turned", "", ""),
    *_moves("unsqueeze", "turned", "whole", "dim"),
    *_moves("squeeze", "moved", "whole", "", "dim", "dim"),
    *_moves("expand", "moved", "whole", ""),
    *_moves("repeat", "moved", "whole", "repeats"),
    *_moves("clone", "copied", "whole multiple copies", ""),
    *_moves("_to_copy", "copied", "whole entry multiple", ""),
    *_moves("alias", "copied", "whole", ""),
    *_moves("lift_fresh", "copied", "whole"),
    *_moves("detach", "copied", "whole cuts detaches"),
    *_moves("slice", "moved", "slices", "dim start end step"),
    *_moves("select", "moved", "", "dim index"),
    *_moves("split unsafe_split", "moved", "", "dim split_size"),
    *_moves("split_with_sizes", "moved", "", "dim split_sizes"),
    *_moves("unbind", "moved", "", "dim"),
    *_moves("index", "moved", "looks_up indexes", "@indices:1", index=1),
    *_moves("index_select", "moved", "looks_up indexes", "dim:1 @index:2", index=2),
    *_moves("gather", "moved", "looks_up", "dim:1 @index:2"),
    *_moves("flip", "moved", "", "dims"),
    *_moves("roll", "moved", "", "shifts dims"),
    *_moves("tril triu", "moved", "", "diagonal"),
    *_moves("diagonal", "moved", "", "offset dim1 dim2"),
    *_moves("as_strided", "moved", "", "size stride storage_offset"),
    *_moves("unfold masked_select repeat_interleave", "moved"),
    *_moves("view_as_real", "from_complex"),
    *_linear("view_as_complex", nodes="to_complex"),
    *_moves("sort", "ordered", "puts closed"),
    *_moves("nan_to_num", "entry", "", ""),
    *_moves("lift take _index_put_impl", "entry"),
    # entries joined with others
    *_moves("cat", "moved", "joins lists concatenates", "dim:1", adds=(0,)),
    *_moves("stack", "moved", "joins lists", "dim:1", adds=(0,)),
    *_moves("copy", "moved", "joins puts", adds=(0, 1)),
    *_moves("index_put", "moved", "joins puts", "0,2 accumulate @indices:1", adds=(0, 2),
            index=1, source=2),
    *_moves("index_copy", "moved", "joins", "0,3 dim:1 @index:2", **_INTO),
    *_moves("scatter", "moved", "joins puts fills", "0,3 dim:1 @index:2", **_INTO),
    *_moves("slice_scatter", "moved", "joins", "0,1 dim start end step", adds=(0, 1)),
    *_moves("select_scatter", "moved", adds=(0, 1)),
    *_moves("masked_scatter", "entry", adds=(0, 2)),
    *_moves("where", "entry", "entry", "1,2 @condition:0", adds=(1, 2)),
    *_moves("masked_fill", "entry", "entry fills puts masks", "@mask:1"),
    *_moves("constant_pad_nd", "moved", "fills pads", "pad"),
    *_linear("index_fill", "fills"),
    *_linear("fill", "fills valueless"),
    # sums
    *_rows("sum", "sum gated by_row", "", "dim:1 keepdim:2", nodes="reduced", positive="summed"),
    *_rows("mean", "sum gated averages", "", "dim:1 keepdim:2", nodes="reduced", positive="summed"),
    *_rows("nansum", "sum gated", nodes="reduced", positive="summed"),
    *_rows("scatter_add", "sum", "0,3 dim:1 @index:2", **_INTO_GROUPS),
    *_rows("index_add", "sum", "0,3 dim:1 alpha @index:2", **_INTO_GROUPS),
    *_rows("scatter_reduce", "sum largest", "0,3 dim:1 reduce:4 include_self @index:2",
           **_INTO_GROUPS),
    *_rows("index_reduce", "sum closed", nodes="grouped", positive="summed", index=2, source=3),
    *_rows("cumsum", "sum closed", "dim:1", positive="summed"),
    *_rows("segment_reduce", "sum closed", positive="summed"),
    *_rows("add", "addition entry divides adds", "0,1 alpha", "", scales=lambda a: (1, a),
           **_TERMS),
    *_rows("sub", "addition entry subtracts", "0,1 alpha", "", scales=lambda a: (1, -a), **_TERMS),
    *_rows("rsub", "addition entry complement", None, "", scales=lambda a: (-a, 1), **_TERMS),
    *_linear("neg", "entry scale way keeps_zero multiple negates", "", positive="by_entry"),
    *_linear("_adaptive_avg_pool2d adaptive_avg_pool1d _adaptive_avg_pool3d avg_pool2d avg_pool3d"
             " upsample_nearest2d upsample_bilinear2d col2im", positive="summed"),
    *_linear("_embedding_bag", "closed", positive="summed"),
    # choices
    *_linear("amax", "largest gated statistic way", "dim:1 keepdim:2", nodes="reduced"),
    *_linear("max", "largest gated statistic ties way", "dim:1 keepdim:2", nodes="reduced"),
    *_linear("amin", "statistic closed", "dim:1 keepdim:2", nodes="reduced"),
    *_linear("min", "statistic closed ties", "dim:1 keepdim:2", nodes="reduced"),
    *_linear("maximum", "entry divides clamps", "0,1 @self:0 @other:1", adds=(0, 1)),
    *_linear("minimum", "entry", "0,1 @self:0 @other:1", adds=(0, 1)),
    *_linear("cummax cummin median nanmedian", "closed"),
    *_linear("topk kthvalue", "closed way", nodes="ordered", axis=2),
    *_linear("fmax fmin aminmax max_pool2d_with_indices max_pool3d_with_indices"),
    *_linear("clamp", "entry fills divides way clamps", None, "min:1 max:2", positive="by_entry"),
    *_linear("clamp_min", "entry fills divides way clamps", "min:1", positive="by_entry"),
    *_linear("clamp_max", "entry fills scale", "max:1", positive="by_entry"),
    *_linear("threshold", "entry fills clamps", positive="by_entry"),
    *_linear("relu", "entry clamps kernel", "", positive="by_entry"),
    *_linear("leaky_relu", "entry", "negative_slope:1", "negative_slope:1", positive="by_entry"),
    *_linear("_prelu_kernel", "", "0,1", positive="by_entry"),
    *_linear("abs", "entry scale", "", positive="by_entry"),
    # other linear operations
    *_linear("embedding", "looks_up embeds", "@indices:1"),
    *_linear("_weight_norm_interface", "", "0,1 dim:2"),
    *_linear("zero zeros_like", "valueless of_zeros"),
    *_rows("zeros new_zeros", "valueless of_zeros"),
    *_rows("full_like new_full", "valueless of_number"),
    *_rows("full", "of_number"),
    *_rows("ones_like empty_like rand_like randn_like randint_like new_ones new_empty"
           " new_empty_strided", "valueless"),
    *_linear("trace diag_embed _to_dense _to_sparse _coalesce _values _indices values indices"
             " _to_sparse_csr _sparse_coo_tensor_with_dims_and_tensors"
             " im2col _pack_padded_sequence reflection_pad1d replication_pad1d _conj _neg_view"
             " upsample_nearest1d upsample_linear1d upsample_trilinear3d upsample_bicubic2d"),
    *_linear("_fft_r2c _fft_c2r _fft_c2c", nodes="fft"),
    # products
    *_rows("mul", "scaling entry scale way power keeps_zero multiple times", "0,1 @self:0 @other:1",
           "other:1", positive="multiplied"),
    *_rows("div", "scaling entry scale way multiple quotient", "0,1 @other:1", "other:1",
           positive="quotient"),
    *_rows("mm", "matrix mm by_row", "0,1 @self:0 @mat2:1", **_PRODUCT),
    *_rows("bmm", "matrix mm", "0,1 @self:0 @mat2:1", **_PRODUCT),
    *_rows("mv", "matrix", "0,1 @self:0 @vec:1", **_PRODUCT),
    *_rows("dot", "matrix scale squares", "0,1 @self:0 @tensor:1", **_PRODUCT),
    *_rows("addmm", "matrix mm plus by_row", "0,1,2 alpha beta @mat1:1 @mat2:2", **_PLUS),
    *_rows("baddbmm", "matrix mm plus", "0,1,2 alpha beta @batch1:1 @batch2:2", **_PLUS),
    *_rows("addmv addbmm", "matrix plus", **_PLUS),
    *_rows("addr", "matrix plus", nodes="none", positive="multiplied", adds=(0,)),
    *_rows("vdot", "matrix", "0,1 @self:0 @other:1", **_PRODUCT),
    *_rows("convolution", "matrix", "0,1,2 @input:0 @weight:1", nodes="convolved",
           positive="multiplied", adds=(2,)),
    *_rows("_addmm_activation", "matrix", nodes="none", positive="multiplied"),
    # weights, gates and lengths
    *_rows("_softmax _safe_softmax", "softmax", "dim", called="softmax"),
    *_rows("_sparse_softmax", "softmax"),
    *_rows("_log_softmax", "logarithm log_softmax result", "dim:1",
           rule=BuiltInRule("attention", rules.log_softmax, rules.log_softmax_backward, adds=True)),
    *_rows("logsumexp", "logarithm statistic closed", "dim:1 keepdim:2", nodes="reduced"),
    *_rows("sigmoid", "entry gate kernel result", "", rule=_ABOVE_ZERO),
    *_rows("hardsigmoid", "entry gate kernel", "", rule=_ABOVE_ZERO),
    *_rows("reciprocal", "entry divides inverse result", "", rule=_ABOVE_ZERO),
    *_rows("sqrt", "entry root scale result", "", rule=_RATIO_OF_RESULT),
    *_rows("rsqrt", "entry root scale result", "", rule=_ABOVE_ZERO),
    *_rows("pow", "entry scale power to_a_power", "exponent:1", rule=_OF_POWER),
    *_rows("var", "scale squares closed", "dim correction keepdim", nodes="reduced",
           rule=_VARIANCE),
    *_rows("var_mean", "scale squares closed statistic with_mean", "dim correction keepdim",
           rule=_VARIANCE),
    *_rows("std", "root length scale squares closed", "dim correction keepdim", nodes="reduced"),
    *_rows("std_mean", "root length scale squares closed statistic with_mean"),
    *_rows("linalg_vector_norm", "root length norms scale squares closed",
           "ord:1 dim keepdim", nodes="reduced"),
    *_rows("norm", "root length norms scale squares closed", nodes="reduced"),
    *_rows("_cdist_forward", "root closed", "0,1 p:2 @x1:0 @x2:1", nodes="cdist"),
    *_rows("prod", "closed", nodes="reduced"),
    *_rows("any all", "", nodes="reduced"),
    *_rows("cumprod logcumsumexp _thnn_fused_gru_cell _thnn_fused_lstm_cell", "closed"),
    # functions of single entries, and what f(0) is: zero, or a constant of the ledger
    *_rows("gelu", "entry", "approximate", rule=_GELU),
    *_rows("silu mish hardswish", "entry", "", rule=_RATIO),
    *_rows("elu", "entry", "alpha:1 scale:2 input_scale:3", rule=_RATIO),
    *_rows("celu", "entry", "alpha:1", rule=_RATIO),
    *_rows("softshrink hardshrink", "entry", "lambd:1", rule=_RATIO),
    *_rows("hardtanh", "entry", "min_val:1 max_val:2", rule=_OF_BOUNDED),
    *_rows("tanh", "entry result", "", rule=_RATIO),
    *_rows("log1p asinh atan erf sin sinh", "entry", "", rule=_RATIO_OF_RESULT),
    *_rows("expm1 tan", "entry", rule=_RATIO_OF_RESULT),
    *_rows("exp", "entry kernel exponent result exponential", "", rule=_ABOVE_ZERO),
    *_rows("softplus", "entry kernel", "beta:1 threshold:2", rule=_ABOVE_ZERO),
    *_rows("log", "entry exponent", "", rule=_ABOVE_ZERO),
    *_rows("exp2", "entry result", "", rule=_ABOVE_ZERO),
    *_rows("cos cosh acos erfc log10 log2", "entry", "", rule=_ABOVE_ZERO),
    *_rows("asin atanh", "entry", "", rule=_RATIO),
    *_rows("log_sigmoid_forward", parts=fused.log_sigmoid),
    *_rows("logit eq ge gt le lt ne", "entry"),
    *_rows("sgn sign", "entry cuts"),
    *_rows("round floor ceil trunc frac heaviside", "cuts"),
    # norms
    *_rows("native_layer_norm", "norm closed by_row", "0,2,3 normalized_shape:1", adds=(3,),
           called="layer_norm",
           rule=BuiltInRule("layernorm", norms.layer_norm, rules.layer_norm_backward)),
    *_rows("native_group_norm", "norm closed by_group", "0,1,2 group", adds=(2,),
           called="group_norm",
           rule=BuiltInRule("layernorm", norms.group_norm, rules.group_norm_backward)),
    *_rows("_fused_rms_norm", "norm", "0,2 normalized_shape:1", called="rms_norm",
           rule=BuiltInRule("layernorm", norms.rms_norm, rules.rms_norm_backward)),
    *_rows("native_batch_norm", "norm shifts", "0,1,2 running_mean:3 running_var:4 training:5",
           adds=(2, 3), rule=_BATCH),
    *_rows("cudnn_batch_norm", "norm", rule=_BATCH),
    *_rows("_native_batch_norm_legit_no_training", "norm", adds=(2, 3), rule=_RUNNING),
    *_rows("_native_batch_norm_legit _batch_norm_with_update _batch_norm_no_update", "norm"),
    # fused operations, which are recorded in parts
    *_rows("glu", parts=fused.glu),
    *_rows("lerp", parts=fused.lerp),
    *_rows("addcmul", parts=fused.plus(torch.mul)),
    *_rows("addcdiv", parts=fused.plus(torch.div)),
    *_rows("native_dropout", parts=fused.native_dropout),
    *_rows("rrelu_with_noise", parts=fused.rrelu),
    *_rows("_trilinear", parts=fused.trilinear),
    *_rows("_sparse_addmm", "matrix mm plus", "0,1,2 alpha beta @mat1:1 @mat2:2", **_PLUS,
           parts=fused.sparse_addmm),
    *_rows("_sparse_mm_reduce_impl", parts=fused.sparse_mm_reduce),
    *_rows("_scaled_dot_product_flash_attention_for_cpu", parts=fused.cpu_attention),
    *_rows("scaled_dot_product_attention", parts=fused.attention),
    *_rows("mkldnn_rnn_layer", parts=fused.lstm_layer),
    *_rows("_grouped_mm", parts=fused.grouped_mm),
]  # fmt: skip


class _ByName(dict[str, Operation]):
    """The rows by name. An operation without a row has one that knows nothing."""

    def __missing__(self, name: str) -> Operation:
        return Operation("")


OPERATIONS = _ByName({row.name: row for row in _TABLE})
# what the nodes of PyTorch's autograd graph compute, by their names
NODES_OF_GRAPH: dict[str, Saved] = {
    f"{row.name.strip('_').removesuffix('_forward').title().replace('_', '')}Backward{k}": saved
    for row in _TABLE
    for k, saved in enumerate(row.saves)
    if saved is not None
}
# a write into a view hides what was written; what it loses shows in the sum or in a comparison
NODES_OF_GRAPH["torch::autograd::CopySlices"] = Saved("copy", (), {}, {})
NODES_OF_GRAPH["torch::autograd::CopyBackwards"] = Saved("copy", (0, 1), {}, {})


ADDITION, PASSES_ON = torch.ops.aten.add.Tensor, torch.ops.aten.alias.default  # for lists


def that(*words: str) -> frozenset[str]:
    """Return the names of the operations that do any of these."""
    return frozenset(row.name for row in _TABLE if not row.does.isdisjoint(words))


def moving_ids(*kinds: str) -> frozenset[str]:
    """Return the names of the operations that do one of these to the numbers of nodes."""
    return frozenset(row.name for row in _TABLE if row.nodes in kinds)


SAME, SUMS, ADDITIONS = that("same"), that("sum"), that("addition")
SCALINGS, MATRIX_PRODUCTS = that("scaling"), that("matrix")
PRODUCTS = SCALINGS | MATRIX_PRODUCTS
TIMES, QUOTIENTS, ADDS, SUBTRACTS = map(that, ("times", "quotient", "adds", "subtracts"))
MIXING = PRODUCTS - QUOTIENTS
PLUS_PRODUCT = that("plus")  # the first argument is added
OF_ROWS = that("mm")  # products of matrices, or of batches of them
SOFTMAX, ROOTS, GATES, NORMS = that("softmax"), that("root"), that("gate"), that("norm")
LOGARITHMS, LOG_SOFTMAX = that("logarithm"), that("log_softmax")
EXPONENTIALS, INVERSES, POWERS = that("exponential"), that("inverse"), that("to_a_power")
SAVE_RESULTS = that("result")  # their nodes save their results, and not what these are made from
ENTRYWISE = that("entry")  # functions of single entries, also of several signals
CUTS, DETACHES = that("cuts"), that("detaches")
WHOLE = that("whole")  # they keep all entries
VIEWS, TURNS = moving_ids("viewed"), moving_ids("turned")
MOVES = moving_ids("viewed", "turned", "copied", "moved")
JOINS, LISTS, LOOKUPS = that("joins"), that("lists"), that("looks_up")
CONCATENATES, PADS, EMBEDS = that("concatenates"), that("pads"), that("embeds")
INDEXES, LARGEST, CLAMPS = that("indexes"), that("largest"), that("clamps")
DIVISORS = SAME | that("divides")  # what is between a sum and its use as a divisor
OF_A_SUM = DIVISORS | SUMS
ON_THE_WAY = SAME | SUMS | ADDITIONS | that("way")
KEEP_ROWS = {  # functions called from Python that make each row of integers from the same row
    *("float", "double", "half", "long", "to", "type", "one_hot", "contiguous", "clone"),
    *("add", "sub", "mul", "div", "__rsub__", "__rdiv__"),  # of a number
    *("view", "reshape", "flatten", "squeeze", "unsqueeze", "__getitem__", "cat", "concat"),
}
GATHERED, REDUCE = moving_ids("grouped"), moving_ids("reduced")
VALUELESS = that("valueless")  # their results do not depend on the values of their arguments
