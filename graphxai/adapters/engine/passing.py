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

from ..isolation import uncompiled
from ..layout import Layout
from .attention import attention_between_nodes, current_layer_inputs, entering, exposing, readings
from .marks import Marks, marked
from .matrices import write_matrices
from .nodes import NONE, Nodes, numbered
from .program import NODES, Followed, Pass, Program, followed, give_up, keep, programmed
from .relevance import RelevancePass, passed_back, plan_of
from .remembering import once, versions_of
from .replay import Plan, Reading, Replayed, curves, plan, replay
from .shares import (
    BIASES,
    CUT_OFF,
    Lines,
    Shares,
    adds_up,
    lines_in,
    replayed_with,
    rows_of_graphs,
    share_along,
)
from .trace import Recording, Trace, is_real, is_recording, recording, refs_in
from .vocabulary import ADDITIVE

# errors of code that was written for inference
_RUNS_WITHOUT_GRADIENTS = re.compile("automatic differentiation|leaf Variable|requires grad")


def explained_pass(given: Pass, rules: Rules, tape: Tape | None) -> Tensor:
    """Outputs (B, C) of node rows under the rules, with what the tape asks for."""
    if tape is not None and not tape.with_biases:
        return _read_pass(given, rules)
    inputs = {"": given.rows, **given.others}.items()
    kinds = tuple((key, t.dtype, t.dim(), t.device) for key, t in inputs)
    asked = (rules, tape is not None, kinds)
    found = None if given.leaves else followed(given, asked)
    if found is None:
        program = _learned(given, rules, asked, tape is not None or bool(given.leaves))
        # from here on as every later pass, so that the first one has the same last digits
        found = None if given.leaves or tape is None else followed(given, asked)
    if found is None and not given.leaves and tape is not None:
        found = _again(given, program)
    if found is None:
        outputs = replay(program.made, {program.slot: given.rows}).output()
    else:
        program, outputs = found.program, found.outputs
    if program.curved:
        warn_of_curves(given.name, program.wide)
    outputs = _reaching(outputs, given)
    if given.leaves:
        of_leaves = _towards(program, given)
        outputs = outputs + of_leaves - of_leaves.detach()
    if tape is None:
        return outputs
    if found is None or found.shares is None:
        tape.arriving = _derived(outputs, program, given)
    else:
        tape.arriving = _arriving(found, found.shares, given, rules, asked)
    return outputs


def _read_pass(given: Pass, rules: Rules) -> Tensor:
    """Outputs of a pass whose attention is put on the tape."""
    seen = seen_in(given)
    warn_of_chance(given.name, seen.trace)
    again = reading(seen, rules, seen.trace.slot_of(NODES), given.rows, given.layout, given.name)
    return _reaching(again.output(), given)


def _learned(given: Pass, rules: Rules, asked: Hashable, biases: bool) -> Program:
    """The program of a pass, which is recorded, and kept for later ones."""
    trace = recorded(given)
    program = programmed(trace, rules, given.names, biases)
    warn_of_chance(given.name, trace)
    keep(given, asked, program, lambda: with_graphs(program, given))
    return program


def relevant_pass(given: Pass, state: RelevancePass) -> Tensor:
    """Outputs (B, C) of node rows, from which relevance passes back by positive rules."""
    name, size = given.name, len(given.layout.mask)
    trace, nodes, marks = seen_in(given)
    slot = trace.slot_of(NODES)
    made = plan_of(trace, marks, state.rules, NODES)
    seen = attention_between_nodes(made, nodes, size, name) if state.reads_attention else []
    warn_of_chance(name, trace)
    return _reaching(passed_back(made, nodes, {slot: given.rows}, size, seen, state, name), given)


class Seen(NamedTuple):
    """A list in which linear attention has its matrix, the numbers of its nodes, and its marks."""

    trace: Trace
    nodes: Nodes
    marks: Marks


def seen_in(given: Pass) -> Seen:
    """What methods that look into attention see of a pass."""
    key = (given.module, versions_of(given.module), given.rows.detach(), *given.beside)

    def look() -> Seen:
        trace = recorded(given)
        return seen_of(trace, trace.slot_of(NODES), given.rows, given.layout)

    # what is drawn at random is drawn anew in every pass
    return once(key, look, lambda seen: bool(given.beside) and not _is_random(seen.trace))


def seen_of(trace: Trace, slot: int, rows: Tensor, layout: Layout) -> Seen:
    """The same of a recorded pass, the input in `slot` having the nodes' rows."""
    nodes = with_numbers(trace, slot, rows, layout)
    return Seen(trace, nodes, marked(trace))


def _is_random(trace: Trace) -> bool:
    return bool(trace.chance or trace.drawn)


def recorded(given: Pass) -> Trace:
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


def _reaching(outputs: Tensor, given: Pass) -> Tensor:
    """The outputs, with a gradient of zero at the nodes if none reaches them."""
    return outputs if outputs.requires_grad else outputs + 0 * given.rows.sum()


# -- shares of constants, and relevance of other inputs --------------------------------------------


def _again(given: Pass, program: Program) -> Followed | None:
    """A recorded pass under the rules, with shares that come in on the way back, if they can."""
    if (known := program.adding) is None:
        return None
    single = len(given.layout.mask) == 1
    rows = rows_of_graphs(known, None if single else with_graphs(program, given), given.layout)
    if rows is None:
        return None
    trace, leaves = program.trace, dict[int, Tensor]()
    for slot, bit in trace.inputs.items():
        if bit != NODES and program.wide.signal[trace.slot_of_value.index(slot)]:
            came = trace.before.get(slot, trace.tensors[slot])
            leaves[slot] = came.detach().requires_grad_()
    shares = Shares(known, rows, given.layout)
    again = replayed_with(shares, {program.slot: given.rows, **leaves})
    if again is None:
        return None
    inputs = {program.names[trace.inputs[slot]]: leaf for slot, leaf in leaves.items()}
    return Followed(program, again.output(), shares, inputs)


def _arriving(
    found: Followed, shares: Shares, given: Pass, rules: Rules, asked: Hashable
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
            give_up(given.module, asked)
            again = replace(given, rows=given.rows.detach())
            with rules_of.conservative(**vars(rules)):
                derived = programmed(recorded(again), rules, program.names, True)
                of_line = _weighted(_shares(derived, again), weights)
        if CUT_OFF in of_line and bool(of_line[CUT_OFF].any()):
            warn_of_cuts(given.name, program.places[CUT_OFF])
        return {k: share for k, share in of_line.items() if k == BIASES or bool(share.any())}

    return Arriving(list(inputs.values()), of_lines)


def _derived(outputs: Tensor, program: Program, given: Pass) -> Arriving:
    """The shares of a recorded pass, which are known before the gradient has passed."""
    whole = program.whole
    shares = _shares(program, given) if whole is None else {whole: outputs.detach()}
    shares = {line: share for line, share in shares.items() if line == BIASES or bool(share.any())}
    if CUT_OFF in shares:
        warn_of_cuts(given.name, program.places[CUT_OFF] if whole is None else {""})
    return Arriving([], lambda _gradients, _outputs, weights, _: _weighted(shares, weights))


def _weighted(shares: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """The share (B,) of each line in the explained value, of its shares in the outputs (B, C)."""
    return {line: (share * weights).sum(-1) for line, share in shares.items()}


def _shares(program: Program, given: Pass) -> dict[str, Tensor]:
    """The share of each line in the outputs (B, C) of a recorded pass.

    The share of every constant c that enters by addition is `sum c * df/dc`: the directional
    derivative of f along the constants themselves, for all graphs and outputs at once.
    """
    found = {}
    for line in sorted(program.places):
        try:
            found[line] = share_along(program.wide, {program.slot: given.rows}, line, program.lines)
        except (NotImplementedError, RuntimeError) as error:  # no forward differentiation
            warnings.warn(
                f"the share of {line} in {given.name} is unknown; the ledger lists it as"
                f" unexplained: {str(error).splitlines()[0]}",
                stacklevel=2,
            )
    return found


def _towards(program: Program, given: Pass) -> Tensor:
    """Outputs whose gradient leads to the leaves instead of the nodes.

    The leaf of an input of integers has one entry per row, a one that scales whatever the model
    makes of the row and adds to the nodes.
    """
    wide, trace, lines, leaves = program.wide, program.trace, program.lines, given.leaves
    slots = {program.names.get(bit): slot for slot, bit in trace.inputs.items()}
    real = {name: leaf for name, leaf in leaves.items() if is_real(trace.tensors[slots[name]])}
    codes = {name: leaf for name, leaf in leaves.items() if name not in real}
    scaled: dict[int, Reading] = {}
    for op in wide.passing if codes else ():
        added = [op.args[place : place + 1] for place in ADDITIVE.get(op.name, ())]
        for ref in refs_in(added):
            name = lines.of(ref.value)
            if name in codes and not wide.signal[ref.value] and is_real(trace.tensors[ref.slot]):
                if op.number in scaled:
                    raise _not_by_row(name)
                scaled[op.number] = Reading(ref.value, _by_row(name, codes[name]))
    found: Tensor = replay(
        wide,
        {slots[name]: leaf for name, leaf in real.items()} | {program.slot: given.rows.detach()},
        reading=scaled,
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


def with_numbers(trace: Trace, slot: int, rows: Tensor, layout: Layout) -> Nodes:
    """The numbers of a list in which linear attention has its matrix from here on."""
    numbers = numbers_of_rows(layout, rows)
    nodes = numbered(trace, slot, numbers, layout.tokens)
    return numbered(trace, slot, numbers, layout.tokens) if write_matrices(trace, nodes) else nodes


def with_graphs(program: Program, given: Pass) -> Nodes:
    """The numbers of a list in which all rows, those of other inputs too, are of whole graphs."""
    trace, others, layout = program.trace, {}, given.layout
    for slot, bit in trace.inputs.items():
        graphs = given.graphs_of(program.names[bit]) if bit != NODES else None
        if graphs is not None:
            others[slot] = -2 - graphs.view(-1, *[1] * (trace.tensors[slot].dim() - 1))
    numbers = numbers_of_rows(layout, given.rows)
    numbers = torch.where(numbers == NONE, NONE, -2 - numbers // layout.tokens)
    return numbered(trace, program.slot, numbers, layout.tokens, others=others)


def numbers_of_rows(layout: Layout, rows: Tensor) -> Tensor:
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


def reading(
    seen: Seen,
    rules: Rules,
    slot: int,
    rows: Tensor,
    layout: Layout,
    name: str,
    known: set[str] | None = None,
    together: bool = False,
) -> Replayed:
    """The pass again, with attention between nodes put on the tape in force.

    known: what was warned of before. together: the graphs cannot have a pass each.
    """
    trace, nodes, marks = seen
    made = plan(trace, marks, rules, NODES)
    warn_of_curves(name, made, known)
    attention = attention_between_nodes(made, nodes, len(layout.mask), name, together)
    read = readings(attention, lambda place: exposing(place, layout, made.rules))
    again = replay(made, {slot: rows}, reading=read)
    if (tape := current_tape()) is not None:
        first = len(tape.attention) - len(attention)  # after what the model recorded by itself
        tape.chunks += range(len(tape.chunks), first)
        tape.chunks += [first + one.chunk_of for one in attention]
    if (entered := current_layer_inputs()) is not None:
        entered += [entering(trace, nodes, one.met, again, layout) for one in attention]
    return again


# -- passes of a block's module --------------------------------------------------------------------


@contextmanager
def intercepted(model: nn.Module, *, layout: Layout | None = None) -> Iterator[None]:
    """Rules and recordings of this thread act on `model`, or parts of it, within the block.

    A call of the model is recorded as a list of PyTorch's basic operations, and the list runs again
    under the rules in force. layout: the positions of nodes, for recordings of attention; by
    default the first input has the nodes of one graph (n, D), behind an empty graph token, or the
    tokens of several (B, S, D). Raises TypeError for anything but a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"rules act on a torch.nn.Module, not on {type(model).__name__}.")
    watch = _Watch(model, layout)
    handles = (
        register_module_forward_pre_hook(watch.before),
        register_module_forward_hook(watch.after, always_call=True),
    )
    try:
        with uncompiled(model), _watching.block(watch):
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


_watching: "Blocks[_Watch | None]" = Blocks("graphxai_watching", None)


def _innermost(module: nn.Module) -> "_Watch | None":
    """The innermost block of this thread that acts on a module."""
    watch = _watching.get()
    while watch is not None and not watch.covers(module):
        watch = watch.outer
    return watch


class _Watch:
    """Records each call of the model, or of a part of it, and replays it."""

    def __init__(self, model: nn.Module, layout: Layout | None) -> None:
        self.outer = _watching.get()
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
        if is_recording() or self is not _innermost(module):
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
        warn_of_chance(name, trace)
        if tape is not None and not tape.with_biases and trace.inputs:
            slot = next(iter(trace.inputs))
            rows = trace.tensors[slot]
            layout = self._layout or _layout(rows)
            seen = seen_of(trace, slot, rows, layout)
            again = reading(seen, current_rules(), slot, rows, layout, name, self._warned, True)
            return again.output()
        made = plan(trace, marked(trace), current_rules())
        warn_of_curves(name, made, self._warned)
        return replay(made, {slot: trace.tensors[slot] for slot in trace.inputs}).output()

    def end(self) -> None:
        """Stop, in case a call is still running."""
        if self._recording is not None:
            self._recording.abandon()
            self._recording = None


def _layout(rows: Tensor) -> Layout:
    """Rows (n, D) of one graph, or (B, S, D), of which the first has the graph token's place."""
    if rows.dim() != 3:
        return Layout.of(rows.new_ones(1, rows[..., 0].numel(), dtype=torch.bool))
    return Layout.of(rows.new_ones(len(rows), rows.shape[1] - 1, dtype=torch.bool), True)


# -- warnings --------------------------------------------------------------------------------------


def warn_of_curves(name: str, made: Plan, known: set[str] | None = None) -> None:
    """Warn once of what no rule covers, but for what is `known`, which is added to."""
    known = set() if known is None else known
    lines = {f"{curve.place or name}: {curve.what}" for curve in curves(made)} - known
    known |= lines
    if lines:
        warnings.warn(
            f"{name} has parts that no rule covers; they use the ordinary gradient, so"
            f" relevance may not sum to the output: {'; '.join(sorted(lines))}.",
            stacklevel=8,
        )


def warn_of_chance(name: str, trace: Trace) -> None:
    """Warn of random numbers that affect the output."""
    if trace.chance:
        drawn = sorted(f"{place or name}: {what}" for place, what in trace.chance)
        warnings.warn(
            f"{name} draws random numbers: {'; '.join(drawn)}. The explanation is of one random"
            " draw, and every call explains a different one. Call model.eval(), and pass"
            " training=self.training to F.dropout and the like.",
            stacklevel=8,
        )


def places_of_cuts(made: Plan) -> set[str]:
    """Modules in which a signal without its gradient is added, or becomes the output."""
    lines = Lines(made.trace, {})
    found = lines_in(made, lines).get(CUT_OFF, set())
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
