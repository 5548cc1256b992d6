"""The conservative rules.

A rule says how an operation passes relevance back. `forward` takes the operation's place when a
recorded pass runs again, and detaches what the rule holds constant. Where hooks on PyTorch's
autograd graph explain a pass, they differentiate `forward` at the input that the operation's node
has saved. `backward` says the same in fewer steps, by whatever the node has saved. The tests
compare both ways on random inputs.

`operations` says which operation has which rule, and `replay` where a rule is in force.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from torch import Tensor

from graphxai.engine.trace import Ref
from graphxai.rules import conservative as rules_of
from graphxai.rules.norms import per_channel
from graphxai.rules.operation_rule import BoundOperation, constant_ratio, gelu_ratio

Node: TypeAlias = Any  # a node of PyTorch's autograd graph
Function: TypeAlias = Callable[..., Any]
Rule: TypeAlias = Literal["attention", "layernorm", "activation"]  # a field of `Rules`
ToInput: TypeAlias = Callable[[Tensor], Tensor]  # from the gradient at the result to the input's


class BuiltInRule(NamedTuple):
    """How an operation passes relevance back.

    Args:
        asked_by: the field of `Rules` that asks for the rule.
        forward: gets the operation and its arguments, and returns what the operation returns.
        backward: gets the operation's node and the operation, and returns a function from the
            gradient at the result to that at the first argument. The function must hold neither
            the node nor a tensor with a gradient: Python would never see that circle, and the
            pass would stay in memory.
            Without `backward`, hooks differentiate `forward`; if the node has not saved its input,
            the pass is recorded.
        fits: whether an operation with these arguments has the rule, as f(0) = 0.
        is_affine: whether it is affine with these arguments, so that it needs no rule.
        adds: whether it makes the result of a constant, which is a line of the ledger, and of what
            it passes on.
        otherwise: the rule of an operation with other arguments than those that it fits.
    """

    asked_by: Rule
    forward: Function
    backward: Callable[[Node, BoundOperation], ToInput] | None = None
    fits: Callable[[Sequence[Any]], bool] = lambda args: True
    is_affine: Callable[[Sequence[Any]], bool] = lambda args: False
    adds: bool = False
    otherwise: "BuiltInRule | None" = None


class Saved(NamedTuple):
    """What a kind of node in autograd's graph saves of its operation.

    Args:
        name: that of the operation.
        places: where its differentiable arguments stand among all arguments; empty if they are
            a list.
        settings: the settings that it saved, each with its place among the arguments, or None if
            no query asks for it.
        constants: by the place of an argument, the name under which it is saved as a constant.
    """

    name: str
    places: tuple[int, ...]
    settings: Mapping[str, int | None]
    constants: Mapping[int, str]

    @classmethod
    def read(cls, operation_name: str, text: str) -> "Saved":
        """Read what a node saves, such as `0,2 dim:1 alpha @index:2`.

        The numbers are the places of differentiable arguments, 0 by default. `dim:1` is a setting
        and its place, `alpha` a setting without one, and `@index:2` a constant and its place.
        """
        places: tuple[int, ...] = (0,)
        settings: dict[str, int | None] = {}
        constants: dict[int, str] = {}
        for word in text.split():
            name, _, place = word.partition(":")
            if word[0] == "@":
                constants[int(place)] = name[1:]
            elif word[0].isdigit():
                places = tuple(map(int, word.split(",")))
            else:
                settings[name] = int(place) if place else None
        return cls(operation_name, places, settings, constants)


def saved(node: Node, name: str) -> Any:
    """Return what a node saved, or `ValueKeeper` kept, a tensor without its gradient."""
    attribute = f"_saved_{name}"
    value = getattr(node, attribute) if hasattr(node, attribute) else node.metadata[name]
    return value.detach() if isinstance(value, Tensor) else as_given(value)


def as_given(setting: Any) -> Any:
    """Return a setting as it was given: nodes show negative axes as very large numbers."""
    if type(setting) is int and setting >= 1 << 63:
        return setting - (1 << 64)
    return tuple(map(as_given, setting)) if type(setting) is tuple else setting


# -- norms -----------------------------------------------------------------------------------------


def layer_norm_backward(node: Node, f: BoundOperation) -> ToInput:
    """Return the way back through `layer_norm`: `(g w) scale`, centred."""
    weight, scale = saved(node, "weight"), saved(node, "result2")
    axes = tuple(range(-len(saved(node, "normalized_shape")), 0))

    def to_input(gradient: Tensor) -> Tensor:
        gradient = (gradient if weight is None else gradient * weight) * scale
        return gradient - gradient.mean(axes, keepdim=True)

    return to_input


def group_norm_backward(node: Node, f: BoundOperation) -> ToInput:
    """Return the way back through `group_norm`: `(g w) scale`, centred within each group."""
    weight, scale, groups = (saved(node, name) for name in ("weight", "result2", "group"))

    def to_input(gradient: Tensor) -> Tensor:
        grouped = per_channel(gradient, weight, None).reshape(len(gradient), groups, -1)
        grouped = grouped * scale.view(len(gradient), groups, 1)
        return (grouped - grouped.mean(-1, keepdim=True)).view_as(gradient)

    return to_input


def rms_norm_backward(node: Node, f: BoundOperation) -> ToInput:
    """Return the way back through `rms_norm`: `(g w) scale`."""
    weight, scale = saved(node, "weight"), saved(node, "result1")
    return _times(scale if weight is None else weight * scale)


def batch_norm_backward(node: Node, f: BoundOperation) -> ToInput:
    """Return the way back through `batch_norm` with the batch's statistics, centred over it."""
    weight, scale = saved(node, "weight"), saved(node, "result2")

    def to_input(gradient: Tensor) -> Tensor:
        axes = (0, *range(2, gradient.dim()))
        gradient = per_channel(gradient, scale if weight is None else weight * scale, None)
        return gradient - gradient.mean(axes, keepdim=True)

    return to_input


# -- functions of single entries -------------------------------------------------------------------


def ratio(func: Function, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Compute an elementwise function with f(0) = 0 as x times the constant f(x) / x.

    This is the identity rule for functions of single entries (Achtibat 2024, section 3.2). Powers
    and roots follow it, too. For a power it says the same as the uniform rule for a product of
    equal factors (Achtibat 2024): together they pass on all that arrives.
    """
    return rules_of.by_ratio(x, lambda z: func(z, *args, **kwargs))


def gelu(func: Function, x: Tensor, *, approximate: str = "none") -> Tensor:
    """Compute GELU by `ratio` (Achtibat 2024), the normal distribution function if it is exact."""
    exact = approximate == "none"
    return rules_of.gelu(x) if exact else ratio(func, x, approximate=approximate)


def variance(func: Function, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Compute the variance with half of its gradient.

    It is a mean of squares, and each factor of a square gets half (uniform rule, Achtibat 2024,
    section 3.2). A standard deviation needs no rule: x times its gradient sums to it.
    """
    result = func(rules_of.scale_gradient(x, 1 / 2), *args, **kwargs)
    if not isinstance(result, tuple):
        return result
    return result[0], func(x, *args, **kwargs)[1]  # with the mean


def ratio_backward(node: Node, f: BoundOperation) -> ToInput:
    """Return the way back through `ratio`: `g [f(x) / x]`."""
    return _times(constant_ratio(saved(node, "self"), f))


def gelu_backward(node: Node, f: BoundOperation) -> ToInput:
    """Return the way back through `gelu`."""
    exact = f.options["approximate"] == "none"
    return _times(gelu_ratio(saved(node, "self"))) if exact else ratio_backward(node, f)


def is_positive_power(args: Sequence[Any]) -> bool:
    """Whether a power has a positive number as its exponent, so that it is 0 at 0."""
    return has_number(args) and args[1] > 0


def has_number(args: Sequence[Any]) -> bool:
    """Whether the second argument is a number, such as the exponent of a power."""
    return isinstance(args[1], int | float) and isinstance(args[0], Ref)


def has_zero_inside(args: Sequence[Any]) -> bool:
    """Whether the bounds of `hardtanh`, -1 and 1 by default, are around zero."""
    low = args[1] if len(args) > 1 else -1
    high = args[2] if len(args) > 2 else 1
    return bool(low <= 0 <= high)


def _times(factor: Tensor) -> ToInput:
    return lambda gradient: gradient * factor


def log_softmax(func: Function, x: Tensor, dim: int, half: bool = False) -> Tensor:
    """Compute `x - logsumexp(x)` with a constant second term, so that relevance is the logits'.

    The difference of two classes then has the relevance of their logits (Montavon 2019).
    """
    return x - x.detach().logsumexp(dim, keepdim=True)


def log_softmax_backward(node: Node, f: BoundOperation) -> ToInput:
    """Return the way back through `log_softmax`: as it came."""
    return lambda gradient: gradient
