"""Find the gated sums of a pass that divide others: in means, and in softmaxes written out.

The marginal of a node through a quotient is exact if its share of the divisor is known (see
`presence_functions.quotient_factors`).
"""

from collections.abc import Iterator

import torch

from .node_tracker import GATHERED
from .presence_gates import KEEPS_ZERO, Gate
from .trace import Trace
from .vocabulary import SAME

TO_DIVISOR = SAME | {"add", "clamp", "clamp_min", "maximum", "reciprocal"}


def link_quotients(trace: Trace, gates: dict[int, Gate]) -> None:
    """Find the gated sums that are divided by others over the same entries.

    These are means, whose divisor counts, and softmaxes that are written out, whose divisor sums
    exponentials.
    """
    sums = {gate.op.out: gate for gate in gates.values() if gate.op.name in GATHERED}
    for op in trace.ops:
        if op.name not in ("div", "mul") or len(op.reads) != 2:
            continue
        above, below = (ref.value for ref in op.reads)
        inverts = op.name == "mul"
        pairs = [(above, below, 1), (below, above, 0)][: 1 + inverts]
        for dividend, divisor, place in pairs:
            lower = _gated_sum(trace, sums, divisor, needs="reciprocal" if inverts else "")
            if lower is None:
                continue
            upper = _gated_sum(trace, sums, dividend)
            for gate in [upper] if upper else _sums_of_terms(trace, sums, op.out):
                if gate is not lower and _same_groups(trace, gate, lower):
                    gate.divisor = lower.op.number
                    lower.quotient = lower.quotient or (op.number, place, inverts)


def _gated_sum(trace: Trace, sums: dict[int, Gate], value: int, needs: str = "") -> Gate | None:
    """Return the gated sum that a value is made of, up to its shape and to constants."""
    passed = set()
    while value not in sums:
        while value in trace.flow.merged:
            value = trace.flow.merged[value][1]
        if value in sums:
            break
        op = trace.op_of(value)
        if op is None or op.name not in TO_DIVISOR or not op.reads:
            return None
        passed.add(op.name)
        value = op.reads[0].value
    return sums[value] if not needs or needs in passed else None


def _sums_of_terms(trace: Trace, sums: dict[int, Gate], value: int) -> Iterator[Gate]:
    """Yield the gated sums of terms that a value multiplies."""
    visited, todo = {value}, [value]
    while todo:
        for number in trace.flow.uses[todo.pop()]:
            op = trace.ops[number]
            if op.out in sums and op.name in GATHERED and op.args[3].value in visited:
                yield sums[op.out]
            elif op.name in KEEPS_ZERO:
                new = {ref.value for ref in op.makes} - visited
                visited |= new
                todo += new


def _same_groups(trace: Trace, first: Gate, second: Gate) -> bool:
    """Whether two sums over the first axis send their entries to the same groups."""
    indices = []
    for gate in (first, second):
        index = trace.memory.tensors[gate.op.args[2].slot]
        if gate.op.args[1] not in (0, -index.dim()) or "amax" in gate.op.args:
            return False
        indices.append(index.flatten(1)[:, 0] if index.dim() > 1 else index)
    return torch.equal(*indices)
