"""Passes that are recorded and replayed under the rules: of wrapped models, and within a block.

For a wrapped model the shares of constants come with them.
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
from graphxai.rules.conservative import Arriving, Rules, Tape, current_rules, current_tape
from graphxai.runtime.scope import Blocks

from ..eval_replica import uncompiled
from ..layout import NodeLayout
from .attention import (
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

# errors of code that was written for inference
_RUNS_WITHOUT_GRADIENTS = re.compile("automatic differentiation|leaf Variable|requires grad")


def pass_by_conservative_rules(given: PassRequest, rules: Rules, tape: Tape | None) -> Tensor:
    """Outputs (B, C) of node rows under the rules, with what the tape asks for."""
    if tape is not None and not tape.with_biases:
        return _pass_with_attention(given, rules)
    inputs = {"": given.rows, **given.others}.items()
    kinds = tuple((key, t.dtype, t.dim(), t.device) for key, t in inputs)
    asked = (rules, tape is not None, kinds)
    found = None if given.leaves else follow_program(given, asked)
    if found is None:
        program = _recorded_program(given, rules, asked, tape is not None or bool(given.leaves))
        # from here on as every later pass, so that the first one has the same last digits
        found = None if given.leaves or tape is None else follow_program(given, asked)
    if found is None and not given.leaves and tape is not None:
        found = _replayed_with_shares(given, program)
    if found is None:
        outputs = replay(program.made, {program.slot: given.rows}).output()
    else:
        program, outputs = found.program, found.outputs
    if program.curved:
        warn_of_nonlinearities(given.name, program.wide)
    outputs = _connected_to_nodes(outputs, given)
    if given.leaves:
        of_leaves = _outputs_of_leaves(program, given)
        outputs = outputs + of_leaves - of_leaves.detach()
    if tape is None:
        return outputs
    if found is None or found.shares is None:
        tape.arriving = _shares_by_derivative(outputs, program, given)
    else:
        tape.arriving = _shares_from_gradient(found, found.shares, given, rules, asked)
    return outputs


def _pass_with_attention(given: PassRequest, rules: Rules) -> Tensor:
    """Outputs of a pass whose attention is put on the tape."""
    seen = annotated_trace(given)
    warn_of_random_numbers(given.name, seen.trace)
    again = replay_reading_attention(
        seen, rules, seen.trace.slot_of(NODES), given.rows, given.layout, given.name
    )
    return _connected_to_nodes(again.output(), given)


def _recorded_program(given: PassRequest, rules: Rules, asked: Hashable, biases: bool) -> Program:
    """The program of a pass, which is recorded, and kept for later ones."""
    trace = record_pass(given)
    program = make_program(trace, rules, given.names, biases)
    warn_of_random_numbers(given.name, trace)
    store_program(given, asked, program, lambda: graph_ids(program, given))
    return program


def pass_by_positive_rules(given: PassRequest, state: RelevancePass) -> Tensor:
    """Outputs (B, C) of node rows, from which relevance passes back by positive rules."""
    name, size = given.name, len(given.layout.mask)
    trace, nodes, marks = annotated_trace(given)
    slot = trace.slot_of(NODES)
    made = make_positive_plan(trace, marks, state.rules, NODES)
    seen = attention_between_nodes(made, nodes, size, name) if state.reads_attention else []
    warn_of_random_numbers(name, trace)
    return _connected_to_nodes(
        run_by_positive_rules(made, nodes, {slot: given.rows}, size, seen, state, name), given
    )


class AnnotatedTrace(NamedTuple):
    """A list in which linear attention has its matrix, the numbers of its nodes, and its marks."""

    trace: Trace
    nodes: NodeIds
    marks: Roles


def annotated_trace(given: PassRequest) -> AnnotatedTrace:
    """What methods that look into attention see of a pass."""
    key = (given.module, weight_versions(given.module), given.rows.detach(), *given.beside)

    def look() -> AnnotatedTrace:
        trace = record_pass(given)
        return annotate(trace, trace.slot_of(NODES), given.rows, given.layout)

    # what is drawn at random is drawn anew in every pass
    return cached(key, look, lambda seen: bool(given.beside) and not _is_random(seen.trace))


def annotate(trace: Trace, slot: int, rows: Tensor, layout: NodeLayout) -> AnnotatedTrace:
    """The same of a recorded pass, the input in `slot` having the nodes' rows."""
    nodes = node_ids_with_matrices(trace, slot, rows, layout)
    return AnnotatedTrace(trace, nodes, find_roles(trace))


def _is_random(trace: Trace) -> bool:
    return bool(trace.random_calls or trace.random_results)


def record_pass(given: PassRequest) -> Trace:
    """The list of one pass; the nodes have the bit `NODES`, each other input one of its own."""

    def run(leaf: Tensor, graded: bool) -> Trace:
        inputs = [leaf, *given.others.values()]
        with uncompiled(given.module), recording(given.module, inputs, graded) as done:
            return done(given.call(leaf))

    try:
        return run(given.rows.detach().requires_grad_(), graded=True)
    except RuntimeError as error:
        if not _RUNS_WITHOUT_GRADIENTS.search(str(error)):
            raise
    return run(given.rows.detach(), graded=False)


def _connected_to_nodes(outputs: Tensor, given: PassRequest) -> Tensor:
    """The outputs, with a gradient of zero at the nodes if none reaches them."""
    return outputs if outputs.requires_grad else outputs + 0 * given.rows.sum()


# -- shares of constants, and relevance of other inputs --------------------------------------------


def _replayed_with_shares(given: PassRequest, program: Program) -> FollowedPass | None:
    """A recorded pass under the rules, with shares that come in on the way back, if they can."""
    if (known := program.additions) is None:
        return None
    single = len(given.layout.mask) == 1
    rows = graph_axes(known, None if single else graph_ids(program, given), given.layout)
    if rows is None:
        return None
    trace, leaves = program.trace, dict[int, Tensor]()
    for slot, bit in trace.inputs.items():
        if bit != NODES and program.wide.signal[trace.flow.slot_of_value.index(slot)]:
            came = trace.memory.initial.get(slot, trace.memory.tensors[slot])
            leaves[slot] = came.detach().requires_grad_()
    shares = ConstantShares(known, rows, given.layout)
    again = replay_with_shares(shares, {program.slot: given.rows, **leaves})
    if again is None:
        return None
    inputs = {program.names[trace.inputs[slot]]: leaf for slot, leaf in leaves.items()}
    return FollowedPass(program, again.output(), shares, inputs)


def _shares_from_gradient(
    found: FollowedPass, shares: ConstantShares, given: PassRequest, rules: Rules, asked: Hashable
) -> Arriving:
    """The shares of a pass that followed a program; those derived if they do not add up."""
    program, inputs = found.program, found.inputs

    def of_lines(
        gradients: list[Tensor], outputs: Tensor, weights: Tensor, relevance: Tensor
    ) -> dict[str, Tensor]:
        own = {
            line: (leaf.detach() * gradient, given.graphs_of(line))
            for (line, leaf), gradient in zip(inputs.items(), gradients, strict=True)
        }
        of_line = shares.of_lines(own)
        if shares.known.affine and not adds_up(outputs, weights, relevance, of_line):
            give_up_programs(given.module, asked)
            again = replace(given, rows=given.rows.detach())
            with rules_of.conservative(**vars(rules)):
                derived = make_program(record_pass(again), rules, program.names, True)
                of_line = _weight_outputs(_shares_in_outputs(derived, again), weights)
        if CUT_OFF in of_line and bool(of_line[CUT_OFF].any()):
            warn_of_cuts(given.name, program.places[CUT_OFF])
        return {k: share for k, share in of_line.items() if k == BIASES or bool(share.any())}

    return Arriving(list(inputs.values()), of_lines)


def _shares_by_derivative(outputs: Tensor, program: Program, given: PassRequest) -> Arriving:
    """The shares of a recorded pass, which are known before the gradient has passed."""
    whole = program.whole
    shares = _shares_in_outputs(program, given) if whole is None else {whole: outputs.detach()}
    shares = {line: share for line, share in shares.items() if line == BIASES or bool(share.any())}
    if CUT_OFF in shares:
        warn_of_cuts(given.name, program.places[CUT_OFF] if whole is None else {""})
    return Arriving([], lambda _gradients, _outputs, weights, _: _weight_outputs(shares, weights))


def _weight_outputs(shares: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """The share (B,) of each line in the explained value, of its shares in the outputs (B, C)."""
    return {line: (share * weights).sum(-1) for line, share in shares.items()}


def _shares_in_outputs(program: Program, given: PassRequest) -> dict[str, Tensor]:
    """The share of each line in the outputs (B, C) of a recorded pass.

    The share of every constant c that enters by addition is `sum c * df/dc`: the directional
    derivative of f along the constants themselves, for all graphs and outputs at once.
    """
    found = {}
    for line in sorted(program.places):
        try:
            found[line] = share_by_derivative(
                program.wide, {program.slot: given.rows}, line, program.lines
            )
        except (NotImplementedError, RuntimeError) as error:  # no forward differentiation
            warnings.warn(
                f"the share of {line} in {given.name} is unknown; the ledger lists it as"
                f" unexplained: {str(error).splitlines()[0]}",
                stacklevel=2,
            )
    return found


def _outputs_of_leaves(program: Program, given: PassRequest) -> Tensor:
    """Outputs whose gradient leads to the leaves instead of the nodes.

    The leaf of an input of integers has one entry per row, a one that scales whatever the model
    makes of the row and adds to the nodes.
    """
    wide, trace, lines, leaves = program.wide, program.trace, program.lines, given.leaves
    slots = {program.names.get(bit): slot for slot, bit in trace.inputs.items()}
    real = {
        name: leaf for name, leaf in leaves.items() if is_real(trace.memory.tensors[slots[name]])
    }
    codes = {name: leaf for name, leaf in leaves.items() if name not in real}
    scaled: dict[int, ValueReplacement] = {}
    for op in wide.passing if codes else ():
        added = [op.args[place : place + 1] for place in ADDITIVE.get(op.name, ())]
        for ref in refs_in(added):
            name = lines.of(ref.value)
            if (
                name in codes
                and not wide.signal[ref.value]
                and is_real(trace.memory.tensors[ref.slot])
            ):
                if op.number in scaled:
                    raise _not_by_row(name)
                scaled[op.number] = ValueReplacement(ref.value, _by_row(name, codes[name]))
    found: Tensor = replay(
        wide,
        {slots[name]: leaf for name, leaf in real.items()} | {program.slot: given.rows.detach()},
        replacements=scaled,
    ).output()
    return found


def _not_by_row(name: str) -> ValueError:
    return ValueError(
        f"the model does not keep the rows of {name} apart, so that they have no relevance of their"
        " own: the ledger has their share as a whole."
    )


def _by_row(name: str, leaf: Tensor) -> Callable[[Tensor], Tensor]:
    """Multiply the rows of a constant by the leaf of the input that it was made of."""

    def read(constant: Tensor) -> Tensor:
        if constant.shape[:1] != leaf.shape:
            raise _not_by_row(name)
        return constant * leaf.to(constant).view(-1, *[1] * (constant.dim() - 1))

    return read


# -- whose rows they are ---------------------------------------------------------------------------


def node_ids_with_matrices(trace: Trace, slot: int, rows: Tensor, layout: NodeLayout) -> NodeIds:
    """The numbers of a list in which linear attention has its matrix from here on."""
    numbers = ids_of_rows(layout, rows)
    nodes = track_nodes(trace, slot, numbers, layout.tokens)
    return (
        track_nodes(trace, slot, numbers, layout.tokens)
        if insert_attention_matrices(trace, nodes)
        else nodes
    )


def graph_ids(program: Program, given: PassRequest) -> NodeIds:
    """The numbers of a list in which all rows, those of other inputs too, are of whole graphs."""
    trace, others, layout = program.trace, {}, given.layout
    for slot, bit in trace.inputs.items():
        graphs = given.graphs_of(program.names[bit]) if bit != NODES else None
        if graphs is not None:
            others[slot] = -2 - graphs.view(-1, *[1] * (trace.memory.tensors[slot].dim() - 1))
    numbers = ids_of_rows(layout, given.rows)
    numbers = torch.where(numbers == NONE, NONE, -2 - numbers // layout.tokens)
    return track_nodes(trace, program.slot, numbers, layout.tokens, others=others)


def ids_of_rows(layout: NodeLayout, rows: Tensor) -> Tensor:
    """The number of each row (n, D) or (B, S, D) of the model's input, (n, 1) or (B, S, 1)."""
    own = layout.graph * layout.tokens + layout.slot + 1
    if rows.dim() == 2:
        return own[:, None]
    first = int(not layout.graph_token)
    size = len(layout.mask)
    numbers = torch.full((size, layout.tokens), NONE, device=rows.device)
    numbers[layout.graph, layout.slot + 1] = own
    numbers[:, 0] = torch.arange(size, device=rows.device) * layout.tokens
    return numbers[:, first : first + rows.shape[1], None]


def replay_reading_attention(
    seen: AnnotatedTrace,
    rules: Rules,
    slot: int,
    rows: Tensor,
    layout: NodeLayout,
    name: str,
    known: set[str] | None = None,
    together: bool = False,
) -> Replay:
    """The pass again, with attention between nodes put on the tape in force.

    known: what was warned of before. together: the graphs cannot have a pass each.
    """
    trace, nodes, marks = seen
    made = make_plan(trace, marks, rules, NODES)
    warn_of_nonlinearities(name, made, known)
    attention = attention_between_nodes(made, nodes, len(layout.mask), name, together)
    read = attention_replacements(attention, lambda place: exposing(place, layout, made.rules))
    again = replay(made, {slot: rows}, replacements=read)
    if (tape := current_tape()) is not None:
        first = len(tape.attention) - len(attention)  # after what the model recorded by itself
        tape.chunks += range(len(tape.chunks), first)
        tape.chunks += [first + one.chunk_of for one in attention]
    if (entered := current_layer_inputs()) is not None:
        entered += [layer_input_of(trace, nodes, one.met, again, layout) for one in attention]
    return again


# -- passes of a block's module --------------------------------------------------------------------


@contextmanager
def intercepted(model: nn.Module, *, layout: NodeLayout | None = None) -> Iterator[None]:
    """Rules and recordings of this thread act on `model`, or parts of it, within the block.

    A call of the model is recorded as a list of PyTorch's basic operations, and the list runs again
    under the rules in force. layout: the positions of nodes, for recordings of attention; by
    default the first input has the nodes of one graph (n, D), behind an empty graph token, or the
    tokens of several (B, S, D). Raises TypeError for anything but a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"rules act on a torch.nn.Module, not on {type(model).__name__}.")
    watch = _Interceptor(model, layout)
    handles = (
        register_module_forward_pre_hook(watch.before),
        register_module_forward_hook(watch.after, always_call=True),
    )
    try:
        with uncompiled(model), _interceptors.block(watch):
            yield
    finally:
        for handle in handles:
            handle.remove()
        watch.end()


@contextmanager
def conservative(
    attention: bool = True,
    layernorm: bool = True,
    activation: Literal["ratio"] | None = None,
    products: bool = False,
    *,
    model: nn.Module | None = None,
) -> Iterator[Rules]:
    """Hold attention, LayerNorm's scale and the activation ratio constant within the block.

    The rules act on a bundled Graphormer, and on `model`: any PyTorch module, which needs no
    change (see `intercepted`). For the rules themselves see
    `graphxai.rules.conservative.conservative`.
    """
    with (
        rules_of.conservative(attention, layernorm, activation, products) as in_force,
        nullcontext() if model is None else intercepted(model),
    ):
        yield in_force


_interceptors: "Blocks[_Interceptor | None]" = Blocks("graphxai_watching", None)


def _innermost_interceptor(module: nn.Module) -> "_Interceptor | None":
    """The innermost block of this thread that acts on a module."""
    watch = _interceptors.get()
    while watch is not None and not watch.covers(module):
        watch = watch.outer
    return watch


class _Interceptor:
    """Records each call of the model, or of a part of it, and replays it."""

    def __init__(self, model: nn.Module, layout: NodeLayout | None) -> None:
        self.outer = _interceptors.get()
        self._model, self._layout = model, layout
        self._parts = {id(module) for module in model.modules()}
        self._thread = threading.get_ident()
        self._outer: nn.Module | None = None
        self._recording: Recording | None = None
        self._lent: list[Tensor] = []  # inputs that require a gradient during the call
        self._warned: set[str] = set()

    def covers(self, module: nn.Module) -> bool:
        """Whether the block is of this module, or of a model that it is a part of."""
        return id(module) in self._parts

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Start to record, if this is the outermost call."""
        mine = threading.get_ident() == self._thread
        if not mine or id(module) not in self._parts:
            return
        if self._recording is not None:
            self._recording.enter(module)
            return
        if is_recording() or self is not _innermost_interceptor(module):
            return
        floats = [t for t in tree_flatten(args)[0] if isinstance(t, Tensor)]
        floats = [t for t in floats if t.is_floating_point() and not isinstance(t, nn.Parameter)]
        if not any(t.requires_grad for t in floats):
            self._lent = [t.requires_grad_() for t in floats]
        self._outer, self._recording = module, Recording(self._model)
        self._recording.enter(module)
        self._recording.begin()

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Replay the call, if it was the outermost."""
        mine = threading.get_ident() == self._thread
        if not mine or self._recording is None:
            return None
        self._recording.leave(module)
        if module is not self._outer or self._recording.depth:
            return None
        recording, self._recording = self._recording, None
        lent, self._lent = self._lent, []
        try:
            if output is None:  # the call failed
                recording.abandon()
                return None
            trace = recording.end(output)
        finally:
            for tensor in lent:
                tensor.requires_grad_(False)
        name, tape = type(self._model).__name__, current_tape()
        warn_of_random_numbers(name, trace)
        if tape is not None and not tape.with_biases and trace.inputs:
            slot = next(iter(trace.inputs))
            rows = trace.memory.tensors[slot]
            layout = self._layout or _layout_of_input(rows)
            seen = annotate(trace, slot, rows, layout)
            again = replay_reading_attention(
                seen, current_rules(), slot, rows, layout, name, self._warned, True
            )
            return again.output()
        made = make_plan(trace, find_roles(trace), current_rules())
        warn_of_nonlinearities(name, made, self._warned)
        return replay(made, {slot: trace.memory.tensors[slot] for slot in trace.inputs}).output()

    def end(self) -> None:
        """Stop, in case a call is still running."""
        if self._recording is not None:
            self._recording.abandon()
            self._recording = None


def _layout_of_input(rows: Tensor) -> NodeLayout:
    """Rows (n, D) of one graph, or (B, S, D), of which the first has the graph token's place."""
    if rows.dim() != 3:
        return NodeLayout.of(rows.new_ones(1, rows[..., 0].numel(), dtype=torch.bool))
    return NodeLayout.of(rows.new_ones(len(rows), rows.shape[1] - 1, dtype=torch.bool), True)


# -- warnings --------------------------------------------------------------------------------------


def warn_of_nonlinearities(name: str, made: ReplayPlan, known: set[str] | None = None) -> None:
    """Warn once of what no rule covers, but for what is `known`, which is added to."""
    known = set() if known is None else known
    lines = {f"{curve.place or name}: {curve.what}" for curve in nonlinearities(made)} - known
    known |= lines
    if lines:
        warnings.warn(
            f"{name} has parts that no rule covers; they use the ordinary gradient, so"
            f" relevance may not sum to the output: {'; '.join(sorted(lines))}.",
            stacklevel=8,
        )


def warn_of_random_numbers(name: str, trace: Trace) -> None:
    """Warn of random numbers that affect the output."""
    if trace.random_calls:
        drawn = sorted(f"{place or name}: {what}" for place, what in trace.random_calls)
        warnings.warn(
            f"{name} draws random numbers: {'; '.join(drawn)}. The explanation is of one random"
            " draw, and every call explains a different one. Call model.eval(), and pass"
            " training=self.training to F.dropout and the like.",
            stacklevel=8,
        )


def modules_with_cuts(made: ReplayPlan) -> set[str]:
    """Modules in which a signal without its gradient is added, or becomes the output."""
    lines = LedgerLines(made.trace, {})
    found = modules_by_line(made, lines).get(CUT_OFF, set())
    (output,) = refs_in(made.trace.output)
    whole = not made.signal[output.value] and lines.of(output.value) == CUT_OFF
    return found | {""} if whole else found


def warn_of_cuts(name: str, places: set[str], in_ledger: bool = True) -> None:
    """Warn that a signal reached the output past the gradient."""
    where = ", ".join(sorted(place or name for place in places))
    warnings.warn(
        f"{name} uses values of the nodes without their gradient (detach, no_grad, NumPy, rounding,"
        f" another thread or the like) in {where}. No method follows them back to the nodes"
        + ("; the ledger lists their share as 'cut off'." if in_ledger else "."),
        stacklevel=8,
    )
