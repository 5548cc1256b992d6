"""How an operation is nonlinear in its node-dependent inputs, and which rule applies to it."""

from torch import Tensor, nn

from graphxai.rules import conservative as propagation

from . import gates
from .trace import Nonlinearity, Rule, Traces
from .vocabulary import (
    ACTIVATION_MODULE,
    EQUAL_FACTORS,
    KNOWN,
    MULTIPLICATIONS,
    PLUS_PRODUCT,
    PRODUCTS,
    QUOTIENTS,
    ROOTS,
)


def nonlinearity_of(
    traces: Traces, name: str, inputs: list[Tensor], module: nn.Module | None
) -> Nonlinearity | None:
    """The nonlinearity of an operation on these tensors in the running module; None: linear."""
    place = traces.place()
    if name in QUOTIENTS or name == "addcdiv":
        above, below = (traces.of(t) is not None for t in (inputs[0], inputs[-1]))
        if below and not above:
            return Nonlinearity(
                "activation", f"a quotient ({name}) with the input in the denominator", place
            )
    if name in PRODUCTS:
        factors = inputs[1:] if name in PLUS_PRODUCT else inputs
        several = sum(traces.of(factor) is not None for factor in factors) > 1
        if not several or factors_are_equal(name, module):
            return None
        what = f"a product ({name}) of two quantities that depend on the input"
        return Nonlinearity(gates.rule_of_product(traces, factors) or _rule_in(module), what, place)
    if name in ROOTS:
        where = "that scales nothing" if is_norm(module) else "outside of a normalisation layer"
        return Nonlinearity("layernorm", f"{name} {where}", place)
    if name == "statistics of the batch":
        return Nonlinearity("layernorm", name, place)
    if name == "static_k or static_v":
        return Nonlinearity("attention", name, place)
    return None if name in KNOWN else Nonlinearity("activation", name, place)


def factors_are_equal(name: str, module: nn.Module | None) -> bool:
    """Whether a product is of two equal signals, each of which gets half of its relevance."""
    if name not in MULTIPLICATIONS or not propagation.current_rules().attention:
        return False
    return any(kind.__name__ in EQUAL_FACTORS for kind in type(module).__mro__)


def is_norm(module: nn.Module | None) -> bool:
    """Whether the class name of a module says that it normalises."""
    return "norm" in type(module).__name__.lower()


def _rule_in(module: nn.Module | None) -> Rule:
    """The rule that would apply to a product in this module."""
    if is_norm(module):
        return "layernorm"
    return "activation" if ACTIVATION_MODULE.search(type(module).__name__) else "attention"
