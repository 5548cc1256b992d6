"""Record passes and replay them under the rules: of wrapped models, and within a block.

Passes of wrapped models also tell the shares of constants.
"""

import re
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._pytree import tree_flatten

from graphxai.rules import conservative as rules_of
from graphxai.rules.conservative import DeferredShares, Rules, Tape, current_rules, current_tape
from graphxai.rules.operation_rule import OperationRule
from graphxai.runtime.scope import Blocks

from ..eval_replica import uncompiled
from ..layout import NodeLayout
from .attention import (
    NodeAttention,
    attention_between_nodes,
    attention_replacements,
    current_layer_inputs,
    exposing,
    layer_input_of,
)
from .constants import (
    BIASES,
    CUT_OFF,
    ConstantShares,
    LedgerLines,
    adds_up,
    graph_axes,
    modules_by_line,
    replay_with_shares,
    share_by_derivative,
)
from .hooked_pass import may_be_hooked, note_failure, pass_by_hooks
from .linear_attention import insert_attention_matrices
from .node_ids import NONE, NodeIds, track_nodes
from .pass_cache import cached, weight_versions
from .positive_pass import RelevancePass, make_positive_plan, run_by_positive_rules
from .program import (
    NODES,
    FollowedPass,
    PassRequest,
    Program,
    follow_program,
    give_up_programs,
    make_program,
    store_program,
)
from .replay import Replay, ReplayPlan, ValueReplacement, make_plan, nonlinearities, replay
from .roles import Roles, find_roles
from .trace import Recording, Trace, is_real, is_recording, recording, refs_in
from .vocabulary import ADDITIVE

# errors of models that were written for inference
_RUNS_WITHOUT_GRADIENTS = re.compile("automatic differentiation|leaf Variable|requires grad")


def pass_by_conservative_rules(request: PassRequest, rules: Rules, tape: Tape | None) -> Tensor:
    """Return the outputs (B, C) of node rows under the rules, and record what the tape asks for."""
    if tape is not None and not tape.with_biases:
        return _pass_with_attention(request, rules)
    if tape is not None and may_be_hooked(request, rules):
        try:
            outputs, tape.deferred_shares = pass_by_hooks(request, rules)
            return _connected_to_nodes(outputs, request)
        except Exception as why:  # the recorded pass raises it again if it is the model's
            note_failure(request.module, str(why) or type(why).__name__)
    inputs = {"": request.rows, **request.others}.items()
    kinds = tuple((name, t.dtype, t.dim(), t.device) for name, t in inputs)
    key = (rules, tape is not None, kinds)
    followed = None if request.leaves else follow_program(request, key)
    if followed is None:
        program = _recorded_program(request, rules, key, tape is not None or bool(request.leaves))
        # run the first pass like every later one, so that it has the same last digits
        followed = None if request.leaves or tape is None else follow_program(request, key)
    if followed is None and not request.leaves and tape is not None:
        followed = _replayed_with_shares(request, program)
    if followed is None:
        outputs = replay(program.node_plan, {program.slot: request.rows}).output()
    else:
        program, outputs = followed.program, followed.outputs
    if program.has_nonlinearities:
        warn_of_nonlinearities(request.name, program.full_plan)
    outputs = _connected_to_nodes(outputs, request)
    if request.leaves:
        of_leaves = _outputs_of_leaves(program, request)
        outputs = outputs + of_leaves - of_leaves.detach()
    if tape is None:
        return outputs
    if followed is None or followed.shares is None:
        tape.deferred_shares = _shares_by_derivative(outputs, program, request)
    else:
        tape.deferred_shares = _shares_from_gradient(followed, followed.shares, request, rules, key)
    return outputs


def _pass_with_attention(request: PassRequest, rules: Rules) -> Tensor:
    """Return the outputs of a pass, and put its attention on the tape."""
    annotated = annotated_trace(request)
    warn_of_random_numbers(request.name, annotated.trace)
    slot = annotated.trace.slot_of(NODES)
    replayed = replay_reading_attention(
        annotated, rules, slot, request.rows, request.layout, request.name
    )
    return _connected_to_nodes(replayed.output(), request)


def _recorded_program(request: PassRequest, rules: Rules, key: Hashable, biases: bool) -> Program:
    """Record a pass, and make and store its program."""
    trace = record_pass(request)
    program = make_program(trace, rules, request.names, biases)
    warn_of_random_numbers(request.name, trace)
    store_program(request, key, program, lambda: graph_ids(program, request))
    return program


def pass_by_positive_rules(request: PassRequest, state: RelevancePass) -> Tensor:
    """Return the outputs (B, C) of node rows, from which relevance passes by positive rules."""
    name, size = request.name, len(request.layout.mask)
    trace, nodes, roles = annotated_trace(request)
    inputs = {trace.slot_of(NODES): request.rows}
    plan = make_positive_plan(trace, roles, state.rules, NODES)
    attention: list[NodeAttention] = []
    if state.reads_attention:
        attention = attention_between_nodes(plan, nodes, size, name)
    warn_of_random_numbers(name, trace)
    outputs = run_by_positive_rules(plan, nodes, inputs, size, attention, state, name)
    return _connected_to_nodes(outputs, request)


class AnnotatedTrace(NamedTuple):
    """A trace in which linear attention has its matrix, with its node ids and roles."""

    trace: Trace
    nodes: NodeIds
    roles: Roles

    def __repr__(self) -> str:
        return self.trace.listing(self.roles.notes())


def annotated_trace(request: PassRequest) -> AnnotatedTrace:
    """Record and annotate a pass, for methods that read attention."""
    key = (
        request.module, weight_versions(request.module), request.rows.detach(), *request.key
    )  # fmt: skip

    def record() -> AnnotatedTrace:
        trace = record_pass(request)
        return annotate(trace, trace.slot_of(NODES), request.rows, request.layout)

    # every pass draws its own random numbers
    return cached(
        key, record, lambda new: bool(request.key) and not _draws_random_numbers(new.trace)
    )


def annotate(trace: Trace, slot: int, rows: Tensor, layout: NodeLayout) -> AnnotatedTrace:
    """Annotate a recorded pass.

    Args:
        slot: the input that holds the nodes' rows.
    """
    nodes = node_ids_with_matrices(trace, slot, rows, layout)
    return AnnotatedTrace(trace, nodes, find_roles(trace))


def _draws_random_numbers(trace: Trace) -> bool:
    return bool(trace.random_calls or trace.random_results)


def record_pass(request: PassRequest) -> Trace:
    """Record one pass. The nodes have the bit `NODES`, and each other input has its own bit."""

    def run(leaf: Tensor, graded: bool) -> Trace:
        inputs = [leaf, *request.others.values()]
        with uncompiled(request.module), recording(request.module, inputs, graded) as end:
            return end(request.call(leaf))

    try:
        return run(request.rows.detach().requires_grad_(), graded=True)
    except RuntimeError as error:
        if not _RUNS_WITHOUT_GRADIENTS.search(str(error)):
            raise
    return run(request.rows.detach(), graded=False)


def _connected_to_nodes(outputs: Tensor, request: PassRequest) -> Tensor:
    """Give the nodes a gradient of zero if no gradient of the outputs reaches them."""
    return outputs if outputs.requires_grad else outputs + 0 * request.rows.sum()


# -- shares of constants, and relevance of other inputs --------------------------------------------


def _replayed_with_shares(request: PassRequest, program: Program) -> FollowedPass | None:
    """Replay a recorded pass under the rules, and collect shares from its gradient.

    Returns None if they cannot be collected.
    """
    if (additions := program.additions) is None:
        return None
    single = len(request.layout.mask) == 1
    axes = graph_axes(additions, None if single else graph_ids(program, request), request.layout)
    if axes is None:
        return None
    trace, leaves = program.trace, dict[int, Tensor]()
    for slot, bit in trace.inputs.items():
        if bit != NODES and program.full_plan.signal[trace.flow.slot_of_value.index(slot)]:
            initial = trace.memory.initial.get(slot, trace.memory.tensors[slot])
            leaves[slot] = initial.detach().requires_grad_()
    shares = ConstantShares(additions, axes, request.layout)
    replayed = replay_with_shares(shares, {program.slot: request.rows, **leaves})
    if replayed is None:
        return None
    inputs = {program.names[trace.inputs[slot]]: leaf for slot, leaf in leaves.items()}
    return FollowedPass(program, replayed.output(), shares, inputs)


def _shares_from_gradient(
    followed: FollowedPass,
    shares: ConstantShares,
    request: PassRequest,
    rules: Rules,
    key: Hashable,
) -> DeferredShares:
    """Return the shares that the gradient brings, or derivatives if these do not add up."""
    program, inputs = followed.program, followed.inputs

    def of_lines(
        gradients: list[Tensor], outputs: Tensor, weights: Tensor, relevance: Tensor
    ) -> dict[str, Tensor]:
        of_inputs = {
            line: (leaf.detach() * gradient, request.graphs_of(line))
            for (line, leaf), gradient in zip(inputs.items(), gradients, strict=True)
        }
        of_line = shares.of_lines(of_inputs)
        if shares.additions.affine and not adds_up(outputs, weights, relevance, of_line):
            give_up_programs(request.module, key)
            detached = replace(request, rows=request.rows.detach())
            with rules_of.conservative(**vars(rules)):
                new_program = make_program(record_pass(detached), rules, program.names, True)
                of_line = _weight_outputs(_shares_in_outputs(new_program, detached), weights)
        if CUT_OFF in of_line and bool(of_line[CUT_OFF].any()):
            warn_of_cuts(request.name, program.modules[CUT_OFF])
        return {k: share for k, share in of_line.items() if k == BIASES or bool(share.any())}

    return DeferredShares(list(inputs.values()), of_lines)


def _shares_by_derivative(
    outputs: Tensor, program: Program, request: PassRequest
) -> DeferredShares:
    """Return the shares of a recorded pass, computed before the gradient passes."""
    line_of_output = program.line_of_output
    if line_of_output is None:
        shares = _shares_in_outputs(program, request)
    else:
        shares = {line_of_output: outputs.detach()}
    shares = {line: share for line, share in shares.items() if line == BIASES or bool(share.any())}
    if CUT_OFF in shares:
        modules = program.modules[CUT_OFF] if line_of_output is None else {""}
        warn_of_cuts(request.name, modules)
    return DeferredShares(
        [], lambda _gradients, _outputs, weights, _: _weight_outputs(shares, weights)
    )


def _weight_outputs(shares: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """Turn the share of each line in the outputs (B, C) into that in the explained value (B,)."""
    return {line: (share * weights).sum(-1) for line, share in shares.items()}


def _shares_in_outputs(program: Program, request: PassRequest) -> dict[str, Tensor]:
    """Compute the share of each line in the outputs (B, C) of a recorded pass.

    The share of every constant c that is added is `sum c * df/dc`. The sum over the constants of a
    line is the directional derivative of f along them, for all graphs and outputs at once.
    """
    shares = {}
    for line in sorted(program.modules):
        try:
            shares[line] = share_by_derivative(
                program.full_plan, {program.slot: request.rows}, line, program.lines
            )
        except (NotImplementedError, RuntimeError) as error:  # no forward differentiation
            warnings.warn(
                f"the share of {line} in {request.name} is unknown; the ledger lists it as"
                f" unexplained: {str(error).splitlines()[0]}",
                stacklevel=2,
            )
    return shares


def _outputs_of_leaves(program: Program, request: PassRequest) -> Tensor:
    """Return outputs whose gradient leads to the leaves instead of the nodes.

    The leaf of an input of integers is a one for each row. It multiplies what the model makes of
    the row and adds to the nodes.
    """
    plan, trace, lines, leaves = program.full_plan, program.trace, program.lines, request.leaves
    slots = {program.names.get(bit): slot for slot, bit in trace.inputs.items()}
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
        {slots[name]: leaf for name, leaf in real.items()} | {program.slot: request.rows.detach()},
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


# -- which nodes rows are of------------------------------------------------------------------------


def node_ids_with_matrices(trace: Trace, slot: int, rows: Tensor, layout: NodeLayout) -> NodeIds:
    """Write the matrices of linear attention into a trace, and return its node ids."""
    ids = ids_of_rows(layout, rows)
    nodes = track_nodes(trace, slot, ids, layout.tokens)
    if not insert_attention_matrices(trace, nodes):
        return nodes
    return track_nodes(trace, slot, ids, layout.tokens)


def graph_ids(program: Program, request: PassRequest) -> NodeIds:
    """Return ids by which every row, also those of other inputs, belongs to a whole graph."""
    trace, others, layout = program.trace, {}, request.layout
    for slot, bit in trace.inputs.items():
        graphs = request.graphs_of(program.names[bit]) if bit != NODES else None
        if graphs is not None:
            others[slot] = -2 - graphs.view(-1, *[1] * (trace.memory.tensors[slot].dim() - 1))
    ids = ids_of_rows(layout, request.rows)
    ids = torch.where(ids == NONE, NONE, -2 - ids // layout.tokens)
    return track_nodes(trace, program.slot, ids, layout.tokens, others=others)


def ids_of_rows(layout: NodeLayout, rows: Tensor) -> Tensor:
    """Return the ids (n, 1) or (B, S, 1) of the rows (n, D) or (B, S, D) of the model's input."""
    of_nodes = layout.graph * layout.tokens + layout.slot + 1
    if rows.dim() == 2:
        return of_nodes[:, None]
    first = int(not layout.graph_token)
    size = len(layout.mask)
    ids = torch.full((size, layout.tokens), NONE, device=rows.device)
    ids[layout.graph, layout.slot + 1] = of_nodes
    ids[:, 0] = torch.arange(size, device=rows.device) * layout.tokens
    return ids[:, first : first + rows.shape[1], None]


def replay_reading_attention(
    annotated: AnnotatedTrace,
    rules: Rules,
    slot: int,
    rows: Tensor,
    layout: NodeLayout,
    name: str,
    warned: set[str] | None = None,
    together: bool = False,
) -> Replay:
    """Replay a pass, and put its attention between nodes on the tape in force.

    Args:
        slot, rows: the input that holds the nodes' rows.
        warned: what has been warned of.
        together: whether the graphs cannot have a pass each.
    """
    trace, nodes, roles = annotated
    plan = make_plan(trace, roles, rules, NODES)
    warn_of_nonlinearities(name, plan, warned)
    attention = attention_between_nodes(plan, nodes, len(layout.mask), name, together)
    replacements = attention_replacements(
        attention, lambda entries: exposing(entries, layout, plan.rules)
    )
    replayed = replay(plan, {slot: rows}, replacements=replacements)
    if (tape := current_tape()) is not None:
        first = len(tape.attention) - len(attention)  # what the model recorded itself comes first
        tape.chunks += range(len(tape.chunks), first)
        tape.chunks += [first + layer.chunk_of for layer in attention]
    if (layer_inputs := current_layer_inputs()) is not None:
        layer_inputs += [
            layer_input_of(trace, nodes, layer.product, replayed, layout) for layer in attention
        ]
    return replayed


# -- passes of a block's module --------------------------------------------------------------------


@contextmanager
def intercepted(model: nn.Module, *, layout: NodeLayout | None = None) -> Iterator[None]:
    """Let rules and recordings of this thread act on `model`, or parts of it, within the block.

    Each call of the model is recorded as a list of PyTorch's basic operations, which run again
    under the rules in force. Raises TypeError for anything but a module.

    Args:
        layout: the positions of nodes, for recordings of attention. By default the first input
            has the nodes of one graph (n, D), after an empty graph token, or the tokens of
            several graphs (B, S, D).
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"rules act on a torch.nn.Module, not on {type(model).__name__}.")
    interceptor = _Interceptor(model, layout)
    handles = (
        register_module_forward_pre_hook(interceptor.before),
        register_module_forward_hook(interceptor.after, always_call=True),
    )
    try:
        with uncompiled(model), _interceptors.block(interceptor):
            yield
    finally:
        for handle in handles:
            handle.remove()
        interceptor.end()


@contextmanager
def conservative(
    attention: bool = True,
    layernorm: bool = True,
    activation: Literal["ratio"] | None = None,
    products: bool = False,
    custom: tuple[OperationRule, ...] = (),
    *,
    model: nn.Module | None = None,
) -> Iterator[Rules]:
    """Hold attention, LayerNorm's scale and the activation ratio constant within the block.

    The rules act on a bundled Graphormer, and on `model`, which may be any PyTorch module and
    needs no change (see `intercepted`). `graphxai.rules.conservative.conservative` describes the
    rules themselves.
    """
    with (
        rules_of.conservative(attention, layernorm, activation, products, custom) as in_force,
        nullcontext() if model is None else intercepted(model),
    ):
        yield in_force


_interceptors: "Blocks[_Interceptor | None]" = Blocks("graphxai_interceptors", None)


def _innermost_interceptor(module: nn.Module) -> "_Interceptor | None":
    """Return the interceptor of the innermost block of this thread that acts on a module."""
    interceptor = _interceptors.get()
    while interceptor is not None and not interceptor.covers(module):
        interceptor = interceptor.outer
    return interceptor


class _Interceptor:
    """Records each call of a model, or of a part of it, and replays it under the rules."""

    def __init__(self, model: nn.Module, layout: NodeLayout | None) -> None:
        self.outer = _interceptors.get()
        self._model, self._layout = model, layout
        self._parts = {id(module) for module in model.modules()}
        self._thread = threading.get_ident()
        self._outermost: nn.Module | None = None
        self._recording: Recording | None = None
        self._leaves: list[Tensor] = []  # inputs that require a gradient during the call
        self._warned: set[str] = set()

    def covers(self, module: nn.Module) -> bool:
        """Whether the block acts on this module, or on a model that it is a part of."""
        return id(module) in self._parts

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Start to record, if this is the outermost call."""
        in_this_thread = threading.get_ident() == self._thread
        if not in_this_thread or id(module) not in self._parts:
            return
        if self._recording is not None:
            self._recording.enter(module)
            return
        if is_recording() or self is not _innermost_interceptor(module):
            return
        floats = [t for t in tree_flatten(args)[0] if isinstance(t, Tensor)]
        floats = [t for t in floats if t.is_floating_point() and not isinstance(t, nn.Parameter)]
        if not any(t.requires_grad for t in floats):
            self._leaves = [t.requires_grad_() for t in floats]
        self._outermost, self._recording = module, Recording(self._model)
        self._recording.enter(module)
        self._recording.begin()

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Replay the call, if it was the outermost."""
        in_this_thread = threading.get_ident() == self._thread
        if not in_this_thread or self._recording is None:
            return None
        self._recording.leave(module)
        if module is not self._outermost or self._recording.depth:
            return None
        recording, self._recording = self._recording, None
        leaves, self._leaves = self._leaves, []
        try:
            if output is None:  # the call failed
                recording.abandon()
                return None
            trace = recording.end(output)
        finally:
            for tensor in leaves:
                tensor.requires_grad_(False)
        name, tape = type(self._model).__name__, current_tape()
        warn_of_random_numbers(name, trace)
        if tape is not None and not tape.with_biases and trace.inputs:
            slot = next(iter(trace.inputs))
            rows = trace.memory.tensors[slot]
            layout = self._layout or _layout_of_input(rows)
            annotated = annotate(trace, slot, rows, layout)
            replayed = replay_reading_attention(
                annotated, current_rules(), slot, rows, layout, name, self._warned, True
            )
            return replayed.output()
        plan = make_plan(trace, find_roles(trace), current_rules())
        warn_of_nonlinearities(name, plan, self._warned)
        return replay(plan, {slot: trace.memory.tensors[slot] for slot in trace.inputs}).output()

    def end(self) -> None:
        """Stop recording, in case a call is still running."""
        if self._recording is not None:
            self._recording.abandon()
            self._recording = None


def _layout_of_input(rows: Tensor) -> NodeLayout:
    """Lay out the rows (n, D) of one graph, or rows (B, S, D) that begin with a graph token."""
    if rows.dim() != 3:
        return NodeLayout.of(rows.new_ones(1, rows[..., 0].numel(), dtype=torch.bool))
    return NodeLayout.of(rows.new_ones(len(rows), rows.shape[1] - 1, dtype=torch.bool), True)


# -- warnings --------------------------------------------------------------------------------------


def warn_of_nonlinearities(name: str, plan: ReplayPlan, warned: set[str] | None = None) -> None:
    """Warn of steps that no rule covers, unless they are among those warned of, and add them."""
    warned = set() if warned is None else warned
    lines = {f"{step.path or name}: {step.what}" for step in nonlinearities(plan)} - warned
    warned |= lines
    if lines:
        warnings.warn(
            f"{name} has parts that no rule covers; they use the ordinary gradient, so"
            f" relevance may not sum to the output: {'; '.join(sorted(lines))}.",
            stacklevel=8,
        )


def warn_of_random_numbers(name: str, trace: Trace) -> None:
    """Warn of random numbers that affect the output."""
    if trace.random_calls:
        drawn = sorted(f"{path or name}: {what}" for path, what in trace.random_calls)
        warnings.warn(
            f"{name} draws random numbers: {'; '.join(drawn)}. The explanation is of one random"
            " draw, and every call explains a different one. Call model.eval(), and pass"
            " training=self.training to F.dropout and the like.",
            stacklevel=8,
        )


def modules_with_cuts(plan: ReplayPlan) -> set[str]:
    """Return the modules in which a signal without its gradient is added, or becomes the output."""
    lines = LedgerLines(plan.trace, {})
    modules = modules_by_line(plan, lines).get(CUT_OFF, set())
    (output,) = refs_in(plan.trace.output)
    output_is_cut = not plan.signal[output.value] and lines.of(output.value) == CUT_OFF
    return modules | {""} if output_is_cut else modules


def warn_of_cuts(name: str, modules: set[str], in_ledger: bool = True) -> None:
    """Warn that a signal reached the output without its gradient."""
    where = ", ".join(sorted(path or name for path in modules))
    warnings.warn(
        f"{name} uses values of the nodes without their gradient (detach, no_grad, NumPy, rounding,"
        f" another thread or the like) in {where}. No method follows them back to the nodes"
        + ("; the ledger lists their share as 'cut off'." if in_ledger else "."),
        stacklevel=8,
    )
