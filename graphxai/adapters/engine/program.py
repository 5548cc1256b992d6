"""Explain a pass while it runs, by a program made from an earlier pass with the same operations.

Roles and plans follow from the list of operations alone. So those of an earlier pass, its
*program*, serve for every batch. The model runs with its own backward pass wherever the rules ask
for the ordinary gradient, and only other operations run by their rule. Meanwhile everything is
checked that the program depends on: the operations, their tensors and settings, and the sizes that
were compared. Once something differs, the model runs on without rules, the pass is thrown away, and
another one is recorded.
"""

import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from .constant_additions import GraphAxis, graph_axes
from .flow_queries import numbers_among
from .node_ids import NodeIds
from .pass_plans import Program
from .pass_request import PassRequest
from .replay_plan import ReplayPlan
from .rules_in_force import rule_for
from .trace import WEIGHTS, Op, Ref, Trace, refs_in

MOST_PER_REQUEST = 4  # programs under the same rules, for as many branches of a model's code
MOST_PER_MODEL = 32  # programs under all rules


class ProgramStep(NamedTuple):
    """One operation of a program, and what is checked and done when the model calls it.

    Args:
        tensors: the place and slot of each tensor among the arguments.
        others: the place and value of each other argument.
        passes: whether relevance passes through it.
        by_rule: whether its ordinary gradient alone does not do.
        reads: the slots that it reads.
        plain: whether no tensor is passed by name.
        adds_constants: whether it adds constants.
        compares_numbers: whether the numbers among its arguments are compared.
        last_used: the slots that no later operation needs.
    """

    func: Any
    op: Op
    tensors: tuple[tuple[int, int], ...]
    others: tuple[tuple[int, Any], ...]
    passes: bool
    by_rule: bool
    reads: tuple[int, ...]
    plain: bool
    adds_constants: bool
    compares_numbers: bool
    last_used: tuple[int, ...]


_END = ProgramStep(None, None, (), (), False, False, (), False, False, False, ())  # type: ignore[arg-type]


@dataclass(eq=False)
class StoredProgram:
    """A program without the tensors of its pass, and what is checked when it is followed.

    Args:
        key: the rules and recordings that it was made for.
        size: the number of rows in the last pass.
        single: whether it serves only batches of one graph.
        required_grad: for each slot whether the tensor required a gradient.
        numbers: the numbers among the arguments of operations, where they are compared.
        axes: for each operation that adds constants, where the graph of its rows can be read.
    """

    key: Hashable
    size: int
    single: bool
    program: Program
    required_grad: list[bool]
    numbers: dict[int, str]
    steps: tuple[ProgramStep, ...]
    axes: dict[int, GraphAxis | None]

    @property
    def calls(self) -> list[Any]:
        """The functions that the model called."""
        return [op.called for op in self.program.trace.ops]


_programs: "weakref.WeakKeyDictionary[nn.Module, list[StoredProgram]]" = weakref.WeakKeyDictionary()
_given_up: "weakref.WeakKeyDictionary[nn.Module, set[Hashable]]" = weakref.WeakKeyDictionary()


def store_program(
    request: PassRequest, key: Hashable, program: Program, node_ids: Callable[[], NodeIds]
) -> None:
    """Store a program for later passes, if it can be checked in them.

    Args:
        key: the rules and recordings that the program was made for.
        node_ids: returns the ids of the nodes in its pass.
    """
    trace, module, additions = program.trace, request.module, program.additions
    if not program.plans_agree or (program.modules and additions is None):
        return
    if not _can_be_checked(program):
        return
    # if parts need not add up, nothing would show that rows belong to other graphs than before
    single = additions is not None and not additions.affine
    if (single and len(request.layout.mask) > 1) or key in _given_up.get(module, ()):
        return
    axes: dict[int, GraphAxis | None] | None = {}
    if program.modules and additions is not None:
        axes = graph_axes(additions, None if single else node_ids(), request.layout)
    if axes is None:
        return
    required_grad = [tensor.requires_grad for tensor in trace.memory.tensors]
    alike = (trace.ops[number] for group in program.node_plan.roles.alike for number in group)
    numbers = {op.number: numbers_among(op, op.args, op.kwargs) for op in alike}
    indices = {axis.by for axis in axes.values() if axis is not None and isinstance(axis.by, int)}
    last_uses = _last_uses(trace, indices)
    passing = {op.number for op in program.full_plan.passing}
    steps = [_step(program, op, axes, numbers, last_uses, passing) for op in trace.ops]
    size = trace.memory.tensors[program.slot].shape[:-1].numel()
    stored = StoredProgram(
        key, size, single, _without_tensors(program), required_grad, numbers, (*steps, _END), axes
    )
    programs = _programs.get(module, [])
    same_rules = [p for p in programs if p.key == key and p.calls != stored.calls]
    others = [p for p in programs if p.key != key]
    _programs[module] = [stored, *same_rules[: MOST_PER_REQUEST - 1], *others][:MOST_PER_MODEL]


def give_up_programs(module: nn.Module, key: Hashable) -> None:
    """Store no more programs for these rules, because shares cannot be collected from gradients."""
    _programs[module] = [stored for stored in _programs.get(module, ()) if stored.key != key]
    _given_up.setdefault(module, set()).add(key)


def _step(
    program: Program,
    op: Op,
    axes: Mapping[int, GraphAxis | None],
    numbers: Mapping[int, str],
    last_uses: Mapping[int, list[int]],
    passing: set[int],
) -> ProgramStep:
    tensors = tuple((k, arg.slot) for k, arg in enumerate(op.args) if type(arg) is Ref)
    others = tuple((k, arg) for k, arg in enumerate(op.args) if type(arg) is not Ref)
    passes = op.number in passing
    return ProgramStep(
        op.called, op, tensors, others, passes, passes and _needs_rule(program.full_plan, op),
        tuple(ref.slot for ref in op.reads), not refs_in(op.kwargs) and op.called is op.func,
        op.number in axes, op.number in numbers,
        tuple(last_uses.get(op.number, ())),
    )  # fmt: skip


def _needs_rule(plan: ReplayPlan, op: Op) -> bool:
    """Whether relevance passes through an operation in another way than its gradient."""
    trace, taken = plan.trace, plan.taken[op.number]
    if not op.grad_enabled or op.decomposed or op.number in plan.shares or rule_for(plan, op):
        return True
    if not any(trace.memory.tensors[ref.slot].requires_grad for ref in op.makes):
        return True  # it is made of other inputs alone, which require no gradient
    return any(
        ref.value not in taken and trace.flow.depends[ref.value] & ~WEIGHTS
        and trace.memory.tensors[ref.slot].requires_grad
        for ref in op.reads
    )  # fmt: skip


def _can_be_checked(program: Program) -> bool:
    """Whether all that a program depends on can be checked while a pass runs."""
    trace = program.trace
    if any(
        weight is None and slot not in trace.inputs and trace.memory.tensors[slot].requires_grad
        for slot, weight in trace.memory.external.items()
    ):
        return False  # gradients are to lead to a tensor of the user's, such as one of a hook
    if (
        trace.random_results
        or trace.random_calls
        or trace.first_exit is not None
        or type(trace.output) is not Ref
    ):
        return False
    if trace.uses_autograd or not any(op.grad_enabled for op in trace.ops):
        return False
    if any(torch.Tag.inplace_view in op.called.tags for op in trace.ops):
        return False
    if any(op.called is not op.func for op in (*program.node_plan.ops, *program.full_plan.passing)):
        return False
    first = dict(reversed(list(zip(trace.flow.slot_of_value, trace.flow.depends, strict=True))))
    return all(
        trace.memory.storage[slot] == slot and (slot in trace.inputs or first[slot] in (0, WEIGHTS))
        for slot in trace.memory.external
    )


def _without_tensors(program: Program) -> Program:
    """Replace tensors by their outlines, so that a program keeps nothing of its pass alive."""
    trace = program.trace
    for running in {running for op in trace.ops for running in op.running.outward()}:
        running.rows = None
    outlines = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in trace.memory.tensors]
    bare = replace(trace, memory=replace(trace.memory, tensors=outlines, slots={}, initial={}))
    node_plan = full_plan = replace(program.node_plan, trace=bare)
    if program.full_plan is not program.node_plan:
        full_plan = replace(program.full_plan, trace=bare)
    return Program(node_plan, full_plan, program.names, program.modules)


def _last_uses(trace: Trace, needed: set[int]) -> dict[int, list[int]]:
    """Return the slots that each operation is the last to use, without those needed at the end.

    The memory of a tensor that comes in from outside is compared with that of all other tensors.
    So no slot counts as used for the last time as long as such tensors come in.
    """
    literal = {ref.slot for op in trace.ops if op.name == "lift_fresh" for ref in op.reads}
    not_compared = trace.inputs.keys() | literal
    foreign = {slot for slot, weight in trace.memory.external.items() if weight is None}
    compared = foreign - not_compared
    coming = (op.number for op in trace.ops for ref in op.reads if ref.slot in compared)
    begin = max(coming, default=-1)
    stays = (
        {slot for _, slot in trace.exits}
        | trace.memory.unstable
        | {trace.output.slot, *trace.inputs, *needed}
    )
    latest = {ref.slot: op for op in trace.ops for ref in (*op.reads, *op.makes)}
    last_uses: dict[int, list[int]] = {}
    for slot, op in latest.items():
        # whether a result requires a gradient is only known after its operation has returned
        is_result = any(ref.slot == slot for ref in op.makes)
        if op.number > begin and slot not in stays and not is_result:
            last_uses.setdefault(op.number, []).append(slot)
    return last_uses


def stored_programs(request: PassRequest, key: Hashable) -> list[StoredProgram]:
    """Return the programs of a module for these rules, the newest first."""
    several = len(request.layout.mask) > 1
    programs = _programs.get(request.module, ())
    return [p for p in programs if p.key == key and not (p.single and several)]
