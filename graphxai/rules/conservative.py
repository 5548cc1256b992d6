"""Decide what a backward pass holds constant, and record what a forward pass computes.

Gradient x Input becomes conservative layer-wise relevance propagation once the factors that make a
transformer nonlinear are treated as constants (Ali et al., ICML 2022, section 4):

* attention (AH): `y_i = sum_j A_ij v_j`, with A detached after the softmax.
* LayerNorm (LN): `y = (x - mean) / sqrt(var + eps) * w + b`, with the square root detached. The
  mean is not.
* activation: `y = x * [f(x) / x]`, with the ratio in brackets detached.
* products: in `A v` and in `q k^T`, each of the two factors gets half of the relevance (Achtibat et
  al., ICML 2024). Gradient x Input alone would give the whole relevance to each of them.

Others are declared from outside (`operation_rule`, `module_rule`) and named in `Rules.custom`.

A model takes part by calling the functions below instead of PyTorch's. Outside of `conservative`
and `record` they compute exactly what PyTorch computes. Rules end with their block, even after an
exception, and apply to one thread only.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from graphxai.runtime.scope import Blocks

from .module_rule import CustomRule, ModuleRule
from .operation_rule import BoundOperation, OperationRule, constant_ratio, gelu_ratio
from .tape import LossyOperation, Tape

ROWS = 16  # a product with fewer rows, and a softmax with fewer columns, has another kernel
FEW_ROWS = 64  # a product with so few, such as one a graph, has another kernel for its last rows


@dataclass(frozen=True)
class Rules:
    """Which factors are held constant. The default is the unmodified network.

    Args:
        attention: whether attention is constant.
        layernorm: whether the scale of LayerNorm is constant.
        activation: "ratio" if `f(x) / x` is constant, or None.
        products: whether each factor of a product gets half of the relevance.
        custom: rules for operations and classes of modules. Where a rule for an operation acts,
            `layernorm` and `activation` do not. A rule for the softmax has no effect if attention
            is constant.

    Raises:
        ValueError: there are two custom rules for one operation or class.
    """

    attention: bool = False
    layernorm: bool = False
    activation: Literal["ratio"] | None = None
    products: bool = False
    custom: tuple[CustomRule, ...] = ()

    def __post_init__(self) -> None:
        operations = [rule.acts_on for rule in self.custom]
        twice = sorted({name for name in operations if operations.count(name) > 1})
        if twice:
            raise ValueError(f"there are several rules for {', '.join(twice)}: give one each.")

    def custom_rule(self, operation: str) -> OperationRule | None:
        """Return the custom rule for an operation, given its public name in PyTorch."""
        for rule in self.custom:
            if isinstance(rule, OperationRule) and rule.operation == operation:
                return rule
        return None

    @property
    def of_modules(self) -> tuple[ModuleRule, ...]:
        """The custom rules for classes of modules."""
        return tuple(rule for rule in self.custom if isinstance(rule, ModuleRule))


_rules: Blocks[Rules] = Blocks("graphxai_rules", Rules())
_tape: Blocks[Tape | None] = Blocks("graphxai_tape", None)


def current_rules() -> Rules:
    """Return the rules that are in force in this thread."""
    return _rules.get()


def are_neutral() -> bool:
    """Return whether this thread computes what PyTorch computes, and records nothing."""
    return _tape.get() is None and _rules.get() == Rules()


def current_tape() -> Tape | None:
    """Return the tape of the innermost `record` block in this thread, or None."""
    return _tape.get()


@contextmanager
def conservative(
    attention: bool = True,
    layernorm: bool = True,
    activation: Literal["ratio"] | None = None,
    products: bool = False,
    custom: tuple[CustomRule, ...] = (),
) -> Iterator[Rules]:
    """Hold attention, LayerNorm's scale and the activation ratio constant within the block.

    The forward pass must run inside the block. The backward pass may run outside. If attention,
    LayerNorm's scale and the activation ratio are all constant, the network is affine in its input.
    Gradient x Input and the shares of the biases then sum to the output.

    Args:
        attention: hold attention constant (Ali 2022, section 4).
        layernorm: hold LayerNorm's scale constant (Ali 2022, section 4).
        activation: "ratio" to hold `f(x) / x` constant (Achtibat 2024), or None.
        products: halve the gradient to both factors of `A v` and `q k^T` (Achtibat 2024). It is
            meant for attention that is not held constant.
        custom: rules for single operations and, in models, for classes of modules.

    Raises:
        ValueError: `activation` is anything else, or an operation or class has two custom rules.
    """
    if activation not in (None, "ratio"):
        raise ValueError(f"activation must be None or 'ratio', not {activation!r}.")
    rules = Rules(bool(attention), bool(layernorm), activation, bool(products), tuple(custom))
    with _rules.block(rules):
        yield rules


def rules_suspended() -> AbstractContextManager[Rules]:
    """Suspend the rules of all enclosing blocks."""
    return _rules.block(Rules())


@contextmanager
def record(
    *,
    all_queries: bool = False,
    biases: bool = False,
    attention_gradients: bool = False,
    operations: bool = False,
) -> Iterator[Tape]:
    """Record attention and hidden states of the passes within the block.

    Args:
        all_queries: make the model compute every row of its last layer instead of only the graph
            token's.
        biases: record bias terms as well.
        attention_gradients: make gradients of attention available even where a rule holds it
            constant.
        operations: record the operations that lose or create relevance.
    """
    with _tape.block(Tape(all_queries, biases, attention_gradients, operations)) as tape:
        assert tape is not None
        yield tape


@contextmanager
def unrecorded() -> Iterator[None]:
    """Record nothing within the block. The rules stay in force."""
    with _tape.block(None):
        yield


def softmax_attention(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """Compute attention `softmax(q k^T + bias)`, which is constant under the rule AH.

    Args:
        query: queries (B, H, Q, d), already scaled.
        key: keys (B, H, T, d).
        bias: added to the logits, (B, H, Q, T). It is minus infinity for excluded keys.

    Returns:
        Probabilities (B, H, Q, T).
    """
    query, key = _factors(query, key)
    rules = _rules.get()
    with torch.set_grad_enabled(torch.is_grad_enabled() and not rules.attention):  # cheaper
        # other strides, such as those of a graph alone, have another kernel for a single query
        products = query.contiguous() @ key.transpose(-2, -1).contiguous()
        logits = products + bias if torch.is_grad_enabled() else products.add_(bias)
        if rules.attention or (rule := rules.custom_rule("softmax")) is None:
            weights = _softmax(logits)
        else:
            softmax = BoundOperation(torch.softmax, (-1,))
            weights = _recorded("softmax", logits, lambda logits: rule.compute(logits, softmax))
    tape = _tape.get()
    if tape is not None:
        if tape.attention_gradients and not weights.requires_grad:
            weights.requires_grad_()
        tape.attention.append(weights)
    return weights


def _softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last axis.

    PyTorch computes a row that is shorter than a vector of the processor number by number, in 3.6
    (10 columns) to 6.3 times (13 or 15) the time with padding, the backward pass included.
    """
    short = ROWS - logits.shape[-1]
    if short <= 0 or not torch.is_grad_enabled():
        return torch.softmax(logits, dim=-1)
    return torch.softmax(F.pad(logits, (0, short), value=-torch.inf), dim=-1)[..., :-short]


def mix_values(weights: Tensor, values: Tensor) -> Tensor:
    """Compute the product `A v` of weights (B, H, Q, T) and values (B, H, T, d)."""
    weights, values = _factors(weights, values)
    return weights @ values


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise x (B, T, D) over its last axis. The scale is constant under the rule LN."""
    rules = _rules.get()
    if (rule := rules.custom_rule("layer_norm")) is not None:
        norm = BoundOperation(F.layer_norm, (x.shape[-1:], weight, None, eps))
        return add_bias(_by_custom_rule(rule, "LayerNorm", x, norm), bias)
    if not rules.layernorm:
        tape = _tape.get()
        if tape is None or not (tape.with_biases or tape.with_operations):
            return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
        y = _recorded("LayerNorm", x, lambda x: F.layer_norm(x, x.shape[-1:], weight, None, eps))
        return add_bias(y, bias)
    centred = x - x.mean(dim=-1, keepdim=True)
    scale = (centred.detach().square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return add_bias(centred * scale * weight, bias)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, axes: tuple[int, ...] = (-1,)) -> Tensor:
    """Compute `x / sqrt(mean(x^2) + eps) * weight`. The root is constant under the rule LN."""
    rules = _rules.get()
    if (rule := rules.custom_rule("rms_norm")) is not None:
        shape = [x.shape[axis] for axis in axes]
        norm = BoundOperation(
            lambda x, shape, weight, eps: _rms_norm(x, x, weight, eps, axes), (shape, weight, eps)
        )
        return _by_custom_rule(rule, "RMSNorm", x, norm)
    return _rms_norm(x, x.detach() if rules.layernorm else x, weight, eps, axes)


def gelu(x: Tensor) -> Tensor:
    """Compute GELU (erf). Under the activation rule, it is x times a constant factor."""
    rules = _rules.get()
    if (rule := rules.custom_rule("gelu")) is not None:
        return _by_custom_rule(rule, "activation", x, BoundOperation(F.gelu))
    if rules.activation is None:
        return _recorded("activation", x, F.gelu)
    return x * gelu_ratio(x.detach())


def by_ratio(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute f(x) entry by entry, for a function with f(0) = 0.

    Under the activation rule, it is x times the constant f(x) / x (see `constant_ratio`).
    """
    if _rules.get().activation is None:
        return _recorded("activation", x, f)
    return x * constant_ratio(x.detach(), f).detach()


def quotient(x: Tensor, scale: Tensor) -> Tensor:
    """Compute x / scale. The scale, which may depend on x, is constant under the rule LN."""
    return x / (scale.detach() if _rules.get().layernorm else scale)


def relu(x: Tensor) -> Tensor:
    """Compute ReLU.

    The activation rule changes nothing, because `f(x) / x` is its derivative.
    """
    if (rule := _rules.get().custom_rule("relu")) is not None:
        return _by_custom_rule(rule, "activation", x, BoundOperation(F.relu))
    return F.relu(x)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, alike: bool = False) -> Tensor:
    """Apply a linear map to x (B, T, D), and add its bias separately if biases are recorded.

    For `alike` see `alone_as_together`.
    """
    tape = _tape.get()
    if bias is None or tape is None or not tape.with_biases:
        return alone_as_together(x, weight, bias, alike=alike)
    return add_bias(alone_as_together(x, weight, alike=alike), bias)


def pad_graphs(x: Tensor, added: int) -> Tensor:
    """Add graphs of zeros to x (B, ...)."""
    return torch.cat([x, x.new_zeros(added, *x.shape[1:])]) if added else x


def alone_as_together(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, alike: bool = False
) -> Tensor:
    """Apply a linear map to x (..., D) so that a row's last bits do not depend on the others.

    Libraries for matrix products have other kernels for few rows and, where the outputs are few,
    for the last rows. Rows of zeros are added so that these are not used.

    Args:
        x: the rows (..., D).
        weight: the weight (O, D).
        bias: the bias (O,).
        alike: whether this holds for gradients, too. A recording follows the map alone.
    """
    rows = x.numel() // x.shape[-1]
    has_last_rows = len(weight) < ROWS or (alike and rows <= FEW_ROWS)
    whole = -(-max(rows, ROWS) // ROWS) * ROWS if has_last_rows else max(rows, ROWS)
    if torch.is_grad_enabled():
        whole = whole if alike and not _is_recorded() else rows
    if rows in (0, whole):
        return F.linear(x, weight, bias)
    padded = pad_graphs(x.reshape(rows, -1), whole - rows)
    return F.linear(padded, weight, bias)[:rows].unflatten(0, x.shape[:-1])


def _is_recorded() -> bool:
    """Return whether biases, operations that lose relevance, or all operations are recorded."""
    tape = _tape.get()
    if tape is not None and (tape.with_biases or tape.with_operations):
        return True
    return _get_current_dispatch_mode() is not None


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Add bias (D,) to x (B, ..., D), with one copy per graph while biases are recorded."""
    tape = _tape.get()
    if tape is None or not tape.with_biases:
        return x + bias
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + tuple(bias.shape)
    copies = bias.detach().expand(shape).requires_grad_()
    tape.biases.append(copies)
    return x + copies


def _factors(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return both factors of a product, each with half of its gradient under `products`."""
    if not _rules.get().products:
        return left, right
    return scale_gradient(left, 1 / 2), scale_gradient(right, 1 / 2)


def scale_gradient(x: Tensor, share: float) -> Tensor:
    """Return x unchanged, but pass only this share of its gradient back."""
    return x * share + x.detach() * (1 - share)


def _by_custom_rule(rule: OperationRule, name: str, x: Tensor, operation: BoundOperation) -> Tensor:
    """Compute an operation by its rule, and record it unless the rule conserves relevance."""
    if rule.conserves:
        return rule.compute(x, operation)
    return _recorded(name, x, lambda x: rule.compute(x, operation))


def _recorded(name: str, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute f(x), and record its input and output if operations are recorded."""
    tape = _tape.get()
    if tape is None or not tape.with_operations:
        return f(x)
    x = x.view_as(x)  # a residual connection may use x too, and its gradient must not count here
    y = f(x)
    tape.operations.append(LossyOperation(name, x, y))
    return y


def _rms_norm(
    x: Tensor, scaled_by: Tensor, weight: Tensor | None, eps: float, axes: tuple[int, ...]
) -> Tensor:
    """Compute RMSNorm of x with the scale of `scaled_by`, which is x or a constant copy of it."""
    y = x * (scaled_by.square().mean(dim=axes, keepdim=True) + eps).rsqrt()
    return y if weight is None else y * weight
