"""Find sparsemax and entmax, which models write out: `max(z - t, 0)`, or a power of it.

The threshold t is computed from z itself, by sorting or by bisection, so that the results sum to
one (Martins and Astudillo, ICML 2016; Peters, Niculae and Martins, ACL 2019). They weigh values
as a softmax does.
"""

from .flow_queries import FlowQueries, is_smaller
from .trace import Op, Ref, Trace
from .vocabulary import SAME

POWERS = {"pow", "square", "mul"}
CLAMPS = {"clamp", "clamp_min", "relu", "threshold", "maximum"}
TOLERANCE = 1e-3  # of the sums


def is_sparse_softmax(queries: FlowQueries, op: Op) -> bool:
    """Whether an operation makes weights that sum to one by a threshold of their own logits."""
    if op.name not in POWERS | CLAMPS or type(op.args[0]) is not Ref:
        return False
    base = op if op.name in CLAMPS else _maker(queries.trace, op.args[0], CLAMPS)
    if base is None or len({ref.value for ref in op.reads if queries.live[ref.value]}) != 1:
        return False
    above = _maker(queries.trace, base.args[0], {"sub"}) if type(base.args[0]) is Ref else None
    return above is not None and _has_own_threshold(queries, above) and _sums_to_one(queries, op)


def _maker(trace: Trace, ref: Ref, names: set[str]) -> Op | None:
    """Return the operation that made a value which was only moved since, if it has such a name."""
    op = trace.op_of(trace.origin(ref.value, SAME))
    return op if op is not None and op.name in names else None


def _has_own_threshold(queries: FlowQueries, op: Op) -> bool:
    """Whether a difference is of logits and a smaller value that is computed from them."""
    if len(op.reads) != 2 or not queries.live[op.reads[0].value]:
        return False
    logits, threshold = (ref.value for ref in op.reads)
    smaller = queries.compare_sizes(is_smaller, threshold, logits)
    depends = queries.trace.flow.depends
    return smaller and bool(depends[threshold] & depends[logits])


def _sums_to_one(queries: FlowQueries, op: Op) -> bool:
    """Whether the recorded results sum to one along an axis, where they are not all zero."""
    if not queries.trace.memory.tensors:  # autograd's graph holds none of these thresholds
        return False
    weights = queries.trace.tensor(op.out).detach()
    if not weights.numel() or bool((weights < 0).any()):
        return False
    for axis in range(weights.dim()):
        sums = weights.double().sum(axis)
        if weights.shape[axis] > 1 and bool((((sums - 1).abs() < TOLERANCE) | (sums == 0)).all()):
            return bool(sums.any())
    return False
