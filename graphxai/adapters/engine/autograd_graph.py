"""Read a pass from PyTorch's own autograd graph, as the same list of operations that is recorded.

A pass that ran with gradients leaves a graph of nodes, each of which knows what it computed and
from what. So a model may run once, as it is, and be looked at afterwards: its nodes become the
operations of a `Trace`, in which the roles of values are found by the same queries as in a recorded
pass.

The graph says less than a recording. It has no constants, no data that flow past the gradient, and
nothing of functions that have a backward pass of their own. Where that might matter, the pass is
`Opaque`, and has to be recorded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from .trace import WEIGHTS, Op, Ref, RunningModule, Trace

Node: TypeAlias = Any  # a node of PyTorch's autograd graph
Edge: TypeAlias = tuple[Node, int]  # a node, and the number of one of its results
CONSTANT = -1  # in place of a slot: the graph has no gradient for this argument

_NO_MODULE = RunningModule("")


class Opaque(Exception):
    """A pass whose graph does not say enough; the message says where."""


class _NodeKind(NamedTuple):
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
KINDS: dict[str, _NodeKind] = {
    # the same entries, elsewhere
    "ViewBackward0": _NodeKind("view"),
    "UnsafeViewBackward0": _NodeKind("_unsafe_view"),
    "ReshapeAliasBackward0": _NodeKind("_reshape_alias"),
    "TBackward0": _NodeKind("t"),
    "TransposeBackward0": _NodeKind("transpose", numbers=_settings("dim0", "dim1")),
    "PermuteBackward0": _NodeKind("permute", numbers=_settings("dims")),
    "ExpandBackward0": _NodeKind("expand"),
    "UnsqueezeBackward0": _NodeKind("unsqueeze", numbers=_settings("dim")),
    "SqueezeBackward0": _NodeKind("squeeze"),
    "SqueezeBackward1": _NodeKind("squeeze", numbers=_settings("dim")),
    "SqueezeBackward2": _NodeKind("squeeze", numbers=_settings("dim")),
    "SliceBackward0": _NodeKind("slice", numbers=_settings("dim", "start", "end", "step")),
    "SelectBackward0": _NodeKind("select", numbers=_settings("dim", "index")),
    "SplitBackward0": _NodeKind("split", numbers=_settings("dim", "split_size")),
    "SplitWithSizesBackward0": _NodeKind(
        "split_with_sizes", numbers=_settings("dim", "split_sizes")
    ),
    "UnbindBackward0": _NodeKind("unbind", numbers=_settings("dim")),
    "IndexBackward0": _NodeKind("index", constants={1: "indices"}),
    "IndexSelectBackward0": _NodeKind(
        "index_select", numbers={"dim": 1}, constants={2: "index"}
    ),
    "GatherBackward0": _NodeKind("gather", numbers={"dim": 1}, constants={2: "index"}),
    "CloneBackward0": _NodeKind("clone"),
    "ToCopyBackward0": _NodeKind("_to_copy"),
    "AliasBackward0": _NodeKind("alias"),
    "RepeatBackward0": _NodeKind("repeat", numbers=_settings("repeats")),
    "MaskedFillBackward0": _NodeKind("masked_fill", constants={1: "mask"}),
    "CatBackward0": _NodeKind("cat", numbers={"dim": 1}),
    "StackBackward0": _NodeKind("stack", numbers={"dim": 1}),
    "WhereBackward0": _NodeKind("where", (1, 2), {}, {0: "condition"}),
    "FlipBackward0": _NodeKind("flip", numbers=_settings("dims")),
    "RollBackward0": _NodeKind("roll", numbers=_settings("shifts", "dims")),
    "TrilBackward0": _NodeKind("tril", numbers=_settings("diagonal")),
    "TriuBackward0": _NodeKind("triu", numbers=_settings("diagonal")),
    "DiagonalBackward0": _NodeKind("diagonal", numbers=_settings("offset", "dim1", "dim2")),
    "ConstantPadNdBackward0": _NodeKind("constant_pad_nd", numbers=_settings("pad")),
    "IndexPutBackward0": _NodeKind("index_put", (0, 2), _settings("accumulate"), {1: "indices"}),
    # sums
    "SumBackward0": _NodeKind("sum"),
    "SumBackward1": _NodeKind("sum", numbers=_DIM),
    "MeanBackward0": _NodeKind("mean"),
    "MeanBackward1": _NodeKind("mean", numbers=_DIM),
    "ScatterAddBackward0": _NodeKind("scatter_add", (0, 3), {"dim": 1}, {2: "index"}),
    "IndexAddBackward0": _NodeKind(
        "index_add", (0, 3), {"dim": 1, "alpha": None}, {2: "index"}
    ),
    "AddBackward0": _NodeKind("add", _BOTH, _settings("alpha")),
    "SubBackward0": _NodeKind("sub", _BOTH, _settings("alpha")),
    "AddBackward1": _NodeKind("add"),  # a number is added
    "SubBackward1": _NodeKind("sub"),
    "RsubBackward1": _NodeKind("rsub"),
    "NegBackward0": _NodeKind("neg"),
    "CumsumBackward0": _NodeKind("cumsum", numbers={"dim": 1}),
    "ScatterReduceBackward0": _NodeKind(
        "scatter_reduce", (0, 3), {"dim": 1, "reduce": 4, "include_self": None}, {2: "index"}
    ),
    # choices
    "AmaxBackward0": _NodeKind("amax", numbers=_DIM),
    "AminBackward0": _NodeKind("amin", numbers=_DIM),
    "MaxBackward0": _NodeKind("max", numbers=_DIM),
    "MinBackward0": _NodeKind("min", numbers=_DIM),
    "MaximumBackward0": _NodeKind("maximum", _BOTH, {}, {0: "self", 1: "other"}),
    "MinimumBackward0": _NodeKind("minimum", _BOTH, {}, {0: "self", 1: "other"}),
    "ClampBackward1": _NodeKind("clamp", numbers={"min": 1, "max": 2}),
    "ClampMinBackward0": _NodeKind("clamp_min", numbers={"min": 1}),
    "ClampMaxBackward0": _NodeKind("clamp_max", numbers={"max": 1}),
    # products
    "MulBackward0": _NodeKind("mul", _BOTH, {}, {0: "self", 1: "other"}),
    "MulBackward1": _NodeKind("mul", numbers={"other": 1}),
    "DivBackward1": _NodeKind("div", numbers={"other": 1}),
    "DivBackward0": _NodeKind("div", _BOTH, {}, {1: "other"}),
    "MmBackward0": _NodeKind("mm", _BOTH, {}, {0: "self", 1: "mat2"}),
    "BmmBackward0": _NodeKind("bmm", _BOTH, {}, {0: "self", 1: "mat2"}),
    "MvBackward0": _NodeKind("mv", _BOTH, {}, {0: "self", 1: "vec"}),
    "DotBackward0": _NodeKind("dot", _BOTH, {}, {0: "self", 1: "tensor"}),
    "PreluKernelBackward0": _NodeKind("_prelu_kernel", _BOTH),
    "AddmmBackward0": _NodeKind(
        "addmm", (0, 1, 2), _settings("alpha", "beta"), {1: "mat1", 2: "mat2"}
    ),
    "BaddbmmBackward0": _NodeKind(
        "baddbmm", (0, 1, 2), _settings("alpha", "beta"), {1: "batch1", 2: "batch2"}
    ),
    # weights, gates and lengths
    "SoftmaxBackward0": _NodeKind("_softmax", numbers=_settings("dim")),
    "SafeSoftmaxBackward0": _NodeKind("_safe_softmax", numbers=_settings("dim")),
    "ExpBackward0": _NodeKind("exp"),
    "ReciprocalBackward0": _NodeKind("reciprocal"),
    "SigmoidBackward0": _NodeKind("sigmoid"),
    "HardsigmoidBackward0": _NodeKind("hardsigmoid"),
    "SqrtBackward0": _NodeKind("sqrt"),
    "RsqrtBackward0": _NodeKind("rsqrt"),
    "PowBackward0": _NodeKind("pow", numbers={"exponent": 1}),
    "VarBackward0": _NodeKind("var", numbers=_settings("dim", "correction", "keepdim")),
    "VarMeanBackward0": _NodeKind("var_mean", numbers=_settings("dim", "correction", "keepdim")),
    "StdBackward0": _NodeKind("std", numbers=_settings("dim", "correction", "keepdim")),
    "LinalgVectorNormBackward0": _NodeKind(
        "linalg_vector_norm", numbers={"ord": 1, "dim": None, "keepdim": None}
    ),
    # functions of single entries
    "AbsBackward0": _NodeKind("abs"),
    "EluBackward0": _NodeKind("elu", numbers={"alpha": 1, "scale": 2, "input_scale": 3}),
    "CeluBackward0": _NodeKind("celu", numbers={"alpha": 1}),
    "MishBackward0": _NodeKind("mish"),
    "HardswishBackward0": _NodeKind("hardswish"),
    "HardtanhBackward0": _NodeKind("hardtanh", numbers={"min_val": 1, "max_val": 2}),
    "ReluBackward0": _NodeKind("relu"),
    "LeakyReluBackward0": _NodeKind("leaky_relu", numbers={"negative_slope": 1}),
    "GeluBackward0": _NodeKind("gelu", numbers=_settings("approximate")),
    "SiluBackward0": _NodeKind("silu"),
    "ErfBackward0": _NodeKind("erf"),
    # norms
    "NativeLayerNormBackward0": _NodeKind("native_layer_norm", (0, 2, 3), {"normalized_shape": 1}),
    "NativeBatchNormBackward0": _NodeKind(
        "native_batch_norm", (0, 1, 2), {"running_mean": 3, "running_var": 4, "training": 5}
    ),
    "NativeGroupNormBackward0": _NodeKind(
        "native_group_norm", (0, 1, 2), _settings("group", "eps")
    ),
    "FusedRmsNormBackward0": _NodeKind("_fused_rms_norm", (0, 2), {"normalized_shape": 1}),
    # look-ups of weights
    "EmbeddingBackward0": _NodeKind("embedding", constants={1: "indices"}),
}  # fmt: skip
_LISTS = {"cat", "stack"}  # their tensors are one argument, a list


@dataclass(eq=False)
class GraphTrace(Trace):
    """The list of a pass that autograd noted.

    Args:
        places: for each operation, the place of its node in the graph.
        results: for each value that a node results in, the place of the node and the number of the
            result.
        shapes: the shape of each value, or None for a constant.
        parameters: the values of parameters.
    """

    places: list[int] = field(default_factory=list)
    results: dict[int, tuple[int, int]] = field(default_factory=dict)
    shapes: list[torch.Size | None] = field(default_factory=list)
    parameters: set[int] = field(default_factory=set)

    def shape(self, value: int) -> torch.Size:
        """Return the shape of a value."""
        shape = self.shapes[value]
        if shape is None:
            raise Opaque("the shape of a constant")
        return shape


class AutogradGraph:
    """The nodes between some inputs and an output, each after those that it reads.

    inputs: the bits of the inputs, each a tensor that requires a gradient. `structure` is equal for
    passes with the same operations on the same values, whatever their sizes.
    """

    def __init__(self, output: Tensor, inputs: Mapping[Tensor, int]) -> None:
        edge = torch.autograd.graph.get_gradient_edge(output)
        self.output: Edge = (edge.node, edge.output_nr)
        self.bits: dict[Node, int] = {_node_of(tensor): bit for tensor, bit in inputs.items()}
        self.nodes = _in_order(edge.node, self.bits)
        self.place = {node: k for k, node in enumerate(self.nodes)}

    @cached_property
    def structure(self) -> tuple[Any, ...]:
        """What each node computes, from which results of which others."""
        place, bits = self.place, self.bits
        return tuple(
            (
                bits.get(node) or node.name(),
                *((place[n], k) if n is not None else None for n, k in node.next_functions),
            )
            if node not in bits
            else bits[node]
            for node in self.nodes
        )

    def reaches(self, tensor: Tensor) -> bool:
        """Whether the output was computed from a tensor, as far as the gradient goes."""
        return _node_of(tensor) in self.place

    def settings(self, number: int) -> tuple[object, ...]:
        """Return what two nodes of one kind may differ in, beside the values that they read."""
        node = self.nodes[number]
        kind = KINDS[node.name()]
        saved = (*kind.numbers, *kind.constants.values())
        return tuple(_identity(getattr(node, f"_saved_{name}")) for name in saved)

    def trace(self) -> GraphTrace:
        """Return the list of the operations.

        Raises Opaque if the graph does not say enough.
        """
        return _TraceWriter(self).trace


def shape_of(edge: Edge) -> torch.Size:
    """Return the shape of a result of a node."""
    node, number = edge
    return torch.Size(node._input_metadata[number].shape)


def _node_of(tensor: Tensor) -> Node:
    return torch.autograd.graph.get_gradient_edge(tensor).node


def _in_order(root: Node, inputs: Mapping[Node, int]) -> list[Node]:
    """Return all nodes behind a node, up to the inputs, each after those that it reads."""
    ordered: list[Node] = []
    entered: set[Node] = set()
    left: set[Node] = set()
    todo = [root]
    while todo:
        node = todo[-1]
        if node in left:
            todo.pop()
        elif node in entered:
            todo.pop()
            left.add(node)
            ordered.append(node)
        else:
            entered.add(node)
            if node not in inputs:
                todo += [n for n, _ in node.next_functions if n is not None and n not in entered]
    return ordered


class _TraceWriter:
    """Writes the nodes of a graph as operations, one after the other."""

    def __init__(self, graph: AutogradGraph) -> None:
        self.trace = GraphTrace()
        self._place = graph.place
        self._values: dict[Edge, int] = {}
        self._constants: dict[object, int] = {}
        self._with_unseen: set[object] = set()
        for node in graph.nodes:
            if (bit := graph.bits.get(node)) is not None:
                self._result(node, 0, -1, bit, bit)
            elif (name := node.name()) in KINDS:
                self._operation(node, name, KINDS[name])
            elif name.endswith("AccumulateGrad") and isinstance(node.variable, nn.Parameter):
                self.trace.parameters.add(self._result(node, 0, -1, WEIGHTS, 0))
            else:
                raise Opaque(name.removeprefix("torch::autograd::"))
        value = self._values[graph.output]
        self.trace.output = Ref(value, value)

    def _result(self, node: Node, number: int, maker: int, depends: int, live: int) -> int:
        """Add a value that a node results in."""
        value = self.trace.flow.add(len(self.trace.flow.maker), maker, depends, live)
        self.trace.shapes.append(shape_of((node, number)))
        self.trace.results[value] = self._place[node], number
        self._values[node, number] = value
        return value

    def _constant(self, identity: object) -> Ref:
        """Return the value of a constant, which is another one each time if it is not known."""
        value = None if identity is None else self._constants.get(identity)
        if value is None:
            value = self.trace.flow.add(len(self.trace.flow.maker), -1, 0, 0)
            self.trace.shapes.append(None)
            if identity is not None:
                self._constants[identity] = value
        return Ref(CONSTANT, value)

    def _operation(self, node: Node, name: str, kind: _NodeKind) -> None:
        trace, number = self.trace, len(self.trace.ops)
        args, numbers, unseen = self._arguments(node, kind)
        reads = tuple(ref for arg in args for ref in _refs_of(arg))
        depends = live = 0
        for ref in reads:
            depends |= trace.flow.depends[ref.value]
            live |= trace.flow.live[ref.value]
        count = len(node._input_metadata)
        results = (self._result(node, k, number, depends, live) for k in range(count))
        makes = tuple(Ref(value, value) for value in results)
        if unseen and live:
            signals = tuple(ref.value for ref in reads if trace.flow.live[ref.value])
            if (name, signals) in self._with_unseen:
                raise Opaque(f"{kind.name} twice, of the same signal and constants")
            self._with_unseen.add((name, signals))
        op = Op(number, name, name, kind.name, tuple(args), numbers, reads, makes, makes[0],
                _NO_MODULE, False, True, False)  # fmt: skip
        for ref in reads:
            trace.flow.uses[ref.value].append(number)
        trace.ops.append(op)
        trace.places.append(self._place[node])

    def _arguments(self, node: Node, kind: _NodeKind) -> tuple[list[Any], dict[str, Any], bool]:
        """Return an operation's arguments, and whether it has a constant that was not saved."""
        edges, unseen = node.next_functions, False
        placed = [*kind.places, *kind.constants, *(k for k in kind.numbers.values() if k)]
        args: list[Any] = [None] * (1 + max(placed))
        if kind.name in _LISTS:
            args[0] = [self._read(source, k) for source, k in edges]
            unseen = any(ref.slot == CONSTANT for ref in args[0])
        else:
            for place, (source, k) in zip(kind.places, edges, strict=True):
                if source is not None:
                    args[place] = self._read(source, k)
                elif place not in kind.constants:
                    args[place], unseen = self._constant(None), True
        for place, attribute in kind.constants.items():
            if args[place] is None:
                saved = getattr(node, f"_saved_{attribute}")
                unseen = unseen or saved is None
                args[place] = self._constant(None if saved is None else _identity(saved))
        numbers: dict[str, Any] = {}
        for attribute, number_place in kind.numbers.items():
            setting = getattr(node, f"_saved_{attribute}")
            if number_place is None:
                numbers[attribute] = setting
            else:
                args[number_place] = "kept" if isinstance(setting, Tensor) else setting
        return args, numbers, unseen

    def _read(self, source: Node | None, number: int) -> Ref:
        """Return the value that an edge leads to."""
        if source is None:
            return self._constant(None)
        value = self._values[source, number]
        return Ref(value, value)


def _refs_of(arg: Any) -> Iterator[Ref]:
    if type(arg) is Ref:
        yield arg
    elif isinstance(arg, list):
        yield from arg


def _identity(saved: Any) -> object:
    """Return what is equal for constants that are: a number, or where a tensor lies."""
    if isinstance(saved, list | tuple):
        return tuple(map(_identity, saved))
    if not isinstance(saved, Tensor):
        return saved
    if saved.dim() == 0 and saved.device.type == "cpu":
        return saved.dtype, saved.item()
    return saved.data_ptr(), saved.shape, saved.stride(), saved.dtype
