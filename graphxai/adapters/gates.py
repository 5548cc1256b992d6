"""Gates: factors between zero and one that let a value through.

In `sigmoid(g) * v` the value is the signal. Under the rule AH it takes all relevance and the gate
is held constant, like attention probabilities (signal-take-all, Arras et al. 2017, 2019, for
LSTMs). Anything computed only from gates and constants is a gate too, such as `1 - sigmoid(g)` or
the sum of the gates of a node's edges.

If a gate is computed from the value it multiplies, it is an activation instead: in
`x * sigmoid(a x)` the sigmoid is f(x) / x, and the activation rule holds it constant.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from graphxai.rules import conservative as propagation

from .trace import Rule, Trace, Traces, tensors_in
from .vocabulary import GATES, MULTIPLE, PLUS_PRODUCT, STILL_A_GATE

SEEN_BY_GATES = GATES | MULTIPLE | STILL_A_GATE


def described(traces: Traces, name: str, inputs: list[Tensor], trace: Trace) -> Trace:
    """The trace of an operation's result, with its relation to gates."""
    if name not in SEEN_BY_GATES:
        return trace
    made_of = [(tensor, found) for tensor in inputs if (found := traces.of(tensor)) is not None]
    first, one = made_of[0], len(made_of) == 1
    if name in GATES:
        return replace(trace, role="gate", gate_of=first[0])
    if name in STILL_A_GATE and all(found.role == "gate" for _, found in made_of):
        return replace(trace, role="gate", gate_of=first[1].gate_of if one else None)
    if name in MULTIPLE and one:
        return replace(trace, multiple_of=_root(*first))
    return trace


def held(traces: Traces, name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """The arguments of a product, with gates of other values held constant if a rule says so."""
    values = tuple(values)
    term, factors = (values[:1], values[1:]) if name in PLUS_PRODUCT else ((), values)
    rules = propagation.current_rules()
    constant = [
        gate for gate, rule in _with_rules(traces, tensors_in(factors)) if getattr(rules, rule)
    ]
    if not constant:
        return values

    def hold(tensor: Tensor) -> Tensor:
        return tensor.detach() if any(tensor is gate for gate in constant) else tensor

    return (*term, *(_in_all(value, hold) for value in factors))


def rule_of_product(traces: Traces, inputs: list[Tensor]) -> Rule | None:
    """The rule for a product of these, if one of them is a gate of another."""
    rules = [rule for _, rule in _with_rules(traces, inputs)]
    return rules[0] if rules else None


def _with_rules(traces: Traces, tensors: Iterable[Tensor]) -> list[tuple[Tensor, Rule]]:
    """The gates among factors that let another factor through, each with its rule."""
    of_nodes = [(tensor, trace) for tensor in tensors if (trace := traces.of(tensor)) is not None]
    gates = [(tensor, trace) for tensor, trace in of_nodes if trace.role == "gate"]
    values = [_root(tensor, trace) for tensor, trace in of_nodes if trace.role != "gate"]
    if not gates or not values:
        return []
    return [(tensor, _rule(traces, trace, values)) for tensor, trace in gates]


def _rule(traces: Traces, gate: Trace, values: list[Tensor]) -> Rule:
    """Which rule holds a gate of these values constant."""
    if gate.gate_of is None:
        return "attention"
    argument = _root(gate.gate_of, traces.of(gate.gate_of))
    return "activation" if any(argument is value for value in values) else "attention"


def _root(tensor: Tensor, trace: Trace | None) -> Tensor:
    """What the tensor is a constant multiple of: itself, or an earlier tensor."""
    return tensor if trace is None or trace.multiple_of is None else trace.multiple_of


def _in_all(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_in_all(v, change) for v in value)
    return change(value) if isinstance(value, Tensor) else value


def _glu(input: Tensor, dim: int = -1) -> Tensor:
    """A value and its gate, beside each other along `dim`."""
    value, gate = input.chunk(2, dim)
    return value * gate.sigmoid()


def _lerp(input: Tensor, end: Tensor, weight: Any, **_: Any) -> Tensor:
    """From one value to another; the weight may be a gate."""
    return input * (1 - weight) + end * weight


WRITTEN_OUT: dict[str, Callable[..., Tensor]] = {"glu": _glu, "lerp": _lerp}
