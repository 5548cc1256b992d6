"""The shares of constants in a recorded pass, and the relevance of inputs beside the nodes."""

import warnings
from collections.abc import Callable

from torch import Tensor

from graphxai.rules.conservative import DeferredShares

from ..module_rules import paths_under_rules
from .constant_derivatives import share_by_derivative
from .ledger_lines import BIASES, CUT_OFF
from .pass_plans import PassPlans
from .pass_request import PassRequest
from .pass_warnings import warn_of_cuts
from .replay import replay
from .replay_plan import ValueReplacement
from .trace import is_real, refs_in
from .vocabulary import ADDITIVE


def shares_by_derivative(outputs: Tensor, plans: PassPlans, request: PassRequest) -> DeferredShares:
    """Return the shares of a recorded pass, computed before the gradient passes."""
    line_of_output = plans.line_of_output
    if line_of_output is None:
        shares = _shares_in_outputs(plans, request)
    else:
        shares = {line_of_output: outputs.detach()}
    shares = {line: share for line, share in shares.items() if line == BIASES or bool(share.any())}
    if CUT_OFF in shares:
        cuts = {""} if line_of_output is not None else _modules_that_cut(plans, request)
        warn_of_cuts(request.name, cuts)
    return DeferredShares(
        [], lambda _gradients, _outputs, weights, _: _weight_outputs(shares, weights)
    )


def _modules_that_cut(plans: PassPlans, request: PassRequest) -> set[str]:
    """Return the modules that add signals without their gradient, and do so by themselves."""
    rules = plans.of_all.rules.of_modules  # what these detach is meant to be constant
    return plans.modules[CUT_OFF] - paths_under_rules(request.module, rules)


def _weight_outputs(shares: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """Turn the share of each line in the outputs (B, C) into that in the explained value (B,)."""
    return {line: (share * weights).sum(-1) for line, share in shares.items()}


def _shares_in_outputs(plans: PassPlans, request: PassRequest) -> dict[str, Tensor]:
    """Compute the share of each line in the outputs (B, C) of a recorded pass.

    The share of every constant c that is added is `sum c * df/dc`. The sum over the constants of a
    line is the directional derivative of f along them, for all graphs and outputs at once.
    """
    shares = {}
    for line in sorted(plans.modules):
        try:
            shares[line] = share_by_derivative(
                plans.of_all, {plans.slot: request.rows}, line, plans.lines
            )
        except (NotImplementedError, RuntimeError) as error:  # no forward differentiation
            warnings.warn(
                f"the share of {line} in {request.name} is unknown; the ledger lists it as"
                f" unexplained: {str(error).splitlines()[0]}",
                stacklevel=2,
            )
    return shares


def outputs_of_leaves(plans: PassPlans, request: PassRequest) -> Tensor:
    """Return outputs whose gradient leads to the leaves instead of the nodes.

    The leaf of an input of integers is a one for each row. It multiplies what the model makes of
    the row and adds to the nodes.
    """
    plan, trace, lines, leaves = plans.of_all, plans.trace, plans.lines, request.leaves
    slots = {plans.names.get(bit): slot for slot, bit in trace.inputs.items()}
    real = {
        name: leaf for name, leaf in leaves.items() if is_real(trace.memory.tensors[slots[name]])
    }
    codes = {name: leaf for name, leaf in leaves.items() if name not in real}
    replacements: dict[int, ValueReplacement] = {}
    for op in plan.passing if codes else ():
        added = [op.args[place : place + 1] for place in ADDITIVE.get(op.name, ())]
        for ref in refs_in(added):
            name = lines.of(ref.value)
            if (
                name in codes
                and not plan.signal[ref.value]
                and is_real(trace.memory.tensors[ref.slot])
            ):
                if op.number in replacements:
                    raise _not_by_row(name)
                replacements[op.number] = ValueReplacement(
                    ref.value, _scaled_by_row(name, codes[name])
                )
    outputs: Tensor = replay(
        plan,
        {slots[name]: leaf for name, leaf in real.items()} | {plans.slot: request.rows.detach()},
        replacements=replacements,
    ).output()
    return outputs


def _not_by_row(name: str) -> ValueError:
    return ValueError(
        f"the model does not keep the rows of {name} apart, so that they have no relevance of their"
        " own: the ledger has their share as a whole."
    )


def _scaled_by_row(name: str, leaf: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies the rows of a constant by the leaf of their input."""

    def scaled(constant: Tensor) -> Tensor:
        if constant.shape[:1] != leaf.shape:
            raise _not_by_row(name)
        return constant * leaf.to(constant).view(-1, *[1] * (constant.dim() - 1))

    return scaled
