"""Read a pass from PyTorch's own autograd graph, as the same list of operations that is recorded.

A pass that ran with gradients leaves a graph of nodes, each of which knows what it computed and
from what. So a model may run once, as it is, and be looked at afterwards: its nodes become the
operations of a `Trace`, in which the roles of values are found by the same queries as in a recorded
pass.

The graph says less than a recording. It has no constants, no data that flow past the gradient, and
nothing of functions that have a backward pass of their own. Where that might matter, the pass is
`Opaque`, and has to be recorded.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphxai.engine import operations as kinds
from graphxai.engine.recording import EXITS, operation_kind
from graphxai.engine.rules import Node, as_given, saved
from graphxai.engine.trace import WEIGHTS, Op, Opaque, Ref, RunningModule, Trace, refs_in
from graphxai.rules.operation_rule import BoundOperation

Edge: TypeAlias = tuple[Node, int]  # a node, and the number of one of its results
CONSTANT = -1  # in place of a slot: the graph has no gradient for this argument

_NO_MODULE = RunningModule("")


@dataclass(eq=False)
class GraphTrace(Trace):
    """The list of a pass that autograd noted.

    Args:
        places: for each operation, the place of its node in the graph.
        results: for each value that a node results in, the place of the node and the number of the
            result.
        shapes: the shape of each value, or None for a constant.
        parameters: the values of parameters.
        numbers: by operation, the attribute in which its node saved a single number.
    """

    places: list[int] = field(default_factory=list)
    results: dict[int, tuple[int, int]] = field(default_factory=dict)
    shapes: list[torch.Size | None] = field(default_factory=list)
    parameters: set[int] = field(default_factory=set)
    numbers: dict[int, str] = field(default_factory=dict)

    def tensor(self, value: int) -> Tensor:
        """Raise Opaque, as the graph has no results: a sparse softmax is known by its sums."""
        raise Opaque("a threshold, which may be a sparse softmax's", self.op_name(value))

    def shape(self, value: int) -> torch.Size:
        """Return the shape of a value."""
        shape = self.shapes[value]
        if shape is None:
            raise Opaque("the shape of a constant")
        return shape

    def is_uniform(self, value: int) -> bool:
        """Raise Opaque, as the graph does not say, unless the value is that of a parameter."""
        if self.flow.depends[value] & WEIGHTS:
            return False
        raise Opaque("a constant that may be a column of ones")

    def pads_with(self, op: Op) -> float:
        """Raise Opaque, as the graph does not say."""
        raise Opaque("the number with which a signal is padded")


class AutogradGraph:
    """The nodes between some inputs and an output, each after those that it reads.

    Args:
        bits: those of the inputs, by the nodes that their gradients arrive at.

    Attributes:
        nodes, place: the nodes in order, and the place of each.
        structure: what each node computes, from which results of which others. It is equal for
            passes with the same operations on the same values, whatever their sizes.
    """

    def __init__(self, output: Tensor, bits: Mapping[Node, int]) -> None:
        edge = torch.autograd.graph.get_gradient_edge(output)
        self.output: Edge = (edge.node, edge.output_nr)
        self.bits = bits
        reads = in_order(edge.node, bits)
        self.nodes = [*reads]
        self.place = place = {node: k for k, node in enumerate(self.nodes)}
        self.structure = tuple(
            (
                bits.get(node) or node.name(),
                *[None if n is None else (place[n], k) for n, k in edges],
            )
            for node, edges in reads.items()
        )

    def settings(self, number: int) -> tuple[object, ...]:
        """Return what two nodes of one kind may differ in, beside the values that they read."""
        node = self.nodes[number]
        kind = kinds.NODES_OF_GRAPH[node.name()]
        saved = (*kind.settings, *kind.constants.values())
        return tuple(_identity(getattr(node, f"_saved_{name}")) for name in saved)

    def trace(self) -> GraphTrace:
        """Return the list of the operations.

        Raises Opaque if the graph does not say enough.
        """
        return _TraceWriter(self).trace


def bound_operation(node: Node) -> BoundOperation:
    """Return the operation of a node as a function of its first argument."""
    kind = kinds.NODES_OF_GRAPH[node.name()]
    settings, options = [], {}
    for name, place in kind.settings.items():
        setting = saved(node, name)
        setting = list(setting) if type(setting) is tuple else setting  # as operations take them
        if place is None:
            options[name] = setting
        else:
            settings.append(setting)
    return BoundOperation(getattr(torch.ops.aten, kind.name), tuple(settings), options)


def shape_of(edge: Edge) -> torch.Size:
    """Return the shape of a result of a node."""
    node, number = edge
    return torch.Size(node._input_metadata[number].shape)


def in_order(root: Node, inputs: Mapping[Node, int]) -> dict[Node, tuple[Edge, ...]]:
    """Return the ancestors of a node, up to the inputs, each after those that it reads."""
    ordered: dict[Node, tuple[Edge, ...]] = {}
    entered: dict[Node, tuple[Edge, ...]] = {}
    todo = [root]
    while todo:
        node = todo[-1]
        if node in ordered:
            todo.pop()
        elif node in entered:
            todo.pop()
            ordered[node] = entered[node]
        else:
            reads = entered[node] = () if node in inputs else node.next_functions
            todo += [n for n, _ in reads if n is not None and n not in entered]
    return ordered


class ValueKeeper(TorchDispatchMode, TorchFunctionMode):
    """Keeps, during a pass, what nodes of its graph do not save.

    These are the inputs of operations whose nodes save their results alone, the results of the
    functions that are called from Python, the numbers that they add, and what they make of the
    graph's integers, row by row.

    Args:
        codes: attributes of integers, by name.
    """

    def __init__(self, codes: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._inputs: dict[int, tuple[Tensor, int]] = {}  # by address of the result
        self._results: dict[Node, tuple[Tensor, int]] = {}
        self._numbers: dict[Node, float] = {}  # that are added
        # what becomes of codes, by address: kept, so that no other tensor gets the address
        self._of_codes = {t.data_ptr(): (name, t, t._version) for name, t in codes.items()}
        self._exited = False

    def __enter__(self) -> "ValueKeeper":
        TorchFunctionMode.__enter__(self)
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self, *error)
        TorchFunctionMode.__exit__(self, *error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function from Python, and keep what it results in."""
        out = func(*args, **(kwargs or {}))
        self._exited = self._exited or getattr(func, "__name__", "") in EXITS
        if isinstance(out, Tensor) and (node := out.grad_fn) is not None:
            self._results[node] = out.detach(), out._version
            kind = kinds.NODES_OF_GRAPH.get(node.name())
            if kind is not None and kind.name in kinds.ADDITIONS and len(args) == 2:
                number = args[1] if isinstance(args[0], Tensor) else args[0]
                if isinstance(number, float | int) and not kwargs:
                    self._numbers[node] = number * kinds.OPERATIONS[kind.name].scales(1)[1]
        elif isinstance(out, Tensor) and (
            name := self._codes_behind(func, out, (*args, *(kwargs or {}).values()))
        ):
            self._of_codes[out.data_ptr()] = name, out, out._version
        return out

    def _codes_behind(self, func: Any, out: Tensor, args: tuple[Any, ...]) -> str:
        """Return the attribute whose rows became those of a result, "" if none is known to."""
        if getattr(func, "__name__", "") not in kinds.KEEP_ROWS:
            return ""
        if func.__name__ == "__getitem__":
            chosen = args[1] if type(args[1]) is tuple else (args[1],)
            if chosen[0] is not Ellipsis and chosen[0] != slice(None):
                return ""
        tensors = [x for arg in args for x in (arg if isinstance(arg, list | tuple) else [arg])
                   if isinstance(x, Tensor)]  # fmt: skip
        origins = [self._of_codes.get(x.data_ptr(), ("", x, -1)) for x in tensors]
        names = {
            name if version == x._version and len(x) == len(out) else ""
            for x, (name, _, version) in zip(tensors, origins, strict=True)
        }
        return names.pop() if len(names) == 1 and out.dim() else ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and keep its input, which an operation in place would overwrite."""
        kind = operation_kind(func)
        if kind.name not in kinds.SAVE_RESULTS:
            return func(*args, **(kwargs or {}))
        x = args[0].clone() if kind.writes else args[0].detach()
        out = func(*args, **(kwargs or {}))
        self._inputs[out.data_ptr()] = x, x._version
        return out

    def give_to(self, nodes: Iterable[Node]) -> None:
        """Give each node the input of its operation, unless it was written to since."""
        for node in nodes:
            kind = kinds.NODES_OF_GRAPH.get(node.name())
            if kind is not None and kind.name in kinds.SAVE_RESULTS:
                x, version = self._inputs.get(node._saved_result.data_ptr(), (None, 0))
                if x is not None and x._version == version:
                    node.metadata["self"] = x

    def result(self, node: Node) -> Tensor:
        """Return the result of a node.

        Raises Opaque if it was not kept, or was written to since.
        """
        x, version = self._results.get(node, (None, 0))
        if x is None or x._version != version:
            raise Opaque("a constant that is computed", node.name())
        return x

    def attribute_of(self, node: Node, saved_as: str) -> str:
        """Return the attribute of integers whose rows became those of a constant.

        Raises Opaque if the constant is not known to be made so.
        """
        saved: Tensor = getattr(node, f"_saved_{saved_as}")
        name, kept, version = self._of_codes.get(saved.data_ptr(), ("", saved, 0))
        alike = kept.shape[:1] == saved.shape[:1] and kept.stride()[:1] == saved.stride()[:1]
        if not name or not alike or saved._version != version:
            kind = kinds.NODES_OF_GRAPH[node.name()].name
            raise Opaque(f"a constant that is computed by {kind}", kind)
        return name

    def number(self, node: Node) -> float:
        """Return the number that an addition adds, or zero if it adds none, or it is unknown.

        A number may have been computed from the nodes if any tensor was turned into one.
        """
        return 0.0 if self._exited else self._numbers.get(node, 0.0)


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
            elif (name := node.name()) in kinds.NODES_OF_GRAPH:
                self._operation(node, name, kinds.NODES_OF_GRAPH[name])
            elif name.endswith("AccumulateGrad") and isinstance(node.variable, nn.Parameter):
                self.trace.parameters.add(self._result(node, 0, -1, WEIGHTS, 0))
            elif "DifferentiableGraph" in name:  # whose parts detach what they save
                raise Opaque("code that TorchScript runs", next(iter(kinds.DETACHES)))
            else:
                raise Opaque(_operation_of(name), name)
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
        known_by = object() if identity is None else identity
        if known_by not in self._constants:
            self._constants[known_by] = self.trace.flow.add(len(self.trace.flow.maker), -1, 0, 0)
            self.trace.shapes.append(None)
        return Ref(CONSTANT, self._constants[known_by])

    def _operation(self, node: Node, name: str, kind: kinds.Saved) -> None:
        trace, number = self.trace, len(self.trace.ops)
        args, numbers, unseen = self._arguments(node, kind)
        reads = tuple(refs_in(args))
        depends = live = 0
        for ref in reads:
            depends |= trace.flow.depends[ref.value]
            live |= trace.flow.live[ref.value]
        count = len(node._input_metadata)
        results = (self._result(node, k, number, depends, live) for k in range(count))
        makes = tuple(Ref(value, value) for value in results)
        if unseen and live and kind.name not in kinds.GATHERED:  # these are added to new zeros
            signals = tuple(ref.value for ref in reads if trace.flow.live[ref.value])
            if (name, signals) in self._with_unseen:
                raise Opaque(f"{kind.name} twice, of the same signal and constants", kind.name)
            self._with_unseen.add((name, signals))
        op = Op(number, name, kind.name, tuple(args), numbers, reads, makes, makes[0],
                _NO_MODULE, False, True, False)  # fmt: skip
        for ref in reads:
            trace.flow.uses[ref.value].append(number)
        trace.ops.append(op)
        trace.places.append(self._place[node])

    def _arguments(self, node: Node, kind: kinds.Saved) -> tuple[list[Any], dict[str, Any], bool]:
        """Return an operation's arguments, and whether it has a constant that was not saved."""
        edges = node.next_functions
        placed = [*kind.places, *kind.constants, *(k for k in kind.settings.values() if k)]
        args: list[Any] = [None] * (1 + max(placed, default=0))
        if kind.name in kinds.LISTS or not kind.places:
            args[0] = [self._read(source, k) for source, k in edges]
        else:
            for place, (source, k) in zip(kind.places, edges, strict=True):
                if source is not None or place not in kind.constants:
                    args[place] = self._read(source, k)
        unseen = any(ref.slot == CONSTANT for ref in refs_in(args))
        for place, attribute in kind.constants.items():
            if args[place] is None:
                saved = getattr(node, f"_saved_{attribute}")
                unseen = unseen or saved is None
                args[place] = self._constant(None if saved is None else _identity(saved))
                if isinstance(saved, Tensor) and not saved.dim():
                    self.trace.numbers[len(self.trace.ops)] = attribute
        numbers: dict[str, Any] = {}
        for attribute, number_place in kind.settings.items():
            setting = as_given(getattr(node, f"_saved_{attribute}"))
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


def _operation_of(node_name: str) -> str:
    """Return the name of a node's operation, such as `lerp` of `LerpBackward1`."""
    name, count = re.subn(r"Backward\d+$", "", node_name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() if count else node_name


def _identity(saved: Any) -> object:
    """Return what is equal for constants that are: a number, or where a tensor lies."""
    if isinstance(saved, list | tuple):
        return tuple(map(_identity, saved))
    if not isinstance(saved, Tensor):
        return saved
    if saved.layout != torch.strided:
        return None
    if saved.dim() == 0 and saved.device.type == "cpu":
        return saved.dtype, saved.item()
    return saved.data_ptr(), saved.shape, saved.stride(), saved.dtype
