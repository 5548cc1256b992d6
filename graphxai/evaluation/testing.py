"""Check on your model that explanations have the properties that every explanation must have.

    from graphxai.evaluation.testing import check_all
    check_all(model, ["CCO", "c1ccccc1O", "CC(=O)[O-].[Na+]"])

Each check raises AssertionError with the worst difference. `inputs` are as for `graphxai.explain`.
Differences are relative to the largest number involved, which is a score, another term of the
ledger, or the output if scores are in its units. As in any floating-point sum, small scores among
large terms carry the rounding errors of the large ones.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.inputs import as_list, prepare_all
from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.contract.model import NoAttentionError, explaining
from graphxai.engine.request import PassMemory
from graphxai.explainers import Attribution, Explainer, get_explainer
from graphxai.explainers.gradient import GradientInput
from graphxai.explainers.registry import methods_for
from graphxai.explanation.compute.models import Model
from graphxai.rules.conservative import Rules, conservative, current_rules, current_tape, record
from graphxai.runtime.derived_values import cached_passes
from graphxai.runtime.options import listed

from .model_check import MethodCheck, ModelCheck, in_gradients, notes_on

TOLERANCE = 1e-4  # the largest relative difference, in float32


def check(
    model: Model,
    inputs: Sequence[Any],
    methods: Sequence[str] | None = None,
    *,
    costs: bool = True,
    tolerance: float = TOLERANCE,
) -> ModelCheck:
    """Find out which methods explain a model, at what cost, and what else to know about it.

    Printed, the result says in about ten lines which methods work and which fail, by what road the
    rules of LRP act and why not by a quicker one, what each method costs, whether graphs share
    passes, and what the model does with a graph without nodes, with ties and with look-ups. Where
    something is in the way, it says what to change.

    A method works if it gives a graph the same scores alone, in a batch and beside padding, if a
    method without negative scores gives none, and if renumbering the nodes renumbers the scores.

    Args:
        model: a bundled, trained or wrapped model.
        inputs: two graphs or more, as for `graphxai.explain`. Small ones do.
        methods: the names of the methods, by default all that are made for the model.
        costs: whether to measure what each method costs, and by what road the rules act.
        tolerance: the largest relative difference that counts as rounding.

    Raises:
        InputError: an input cannot be read.
        ValueError: there is no such method.
    """
    batches = _PreparedBatches(model, _graphs(model, inputs))
    names = methods_for(model) if methods is None else listed(methods, "methods")
    explainers = {name: get_explainer(name) for name in names}
    # each batch goes through the model and through its copy in double precision
    most = 2 * (3 + len(batches.graphs)) + 1
    problems: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            # with a single graph, because a model may mix the graphs of a batch
            with _leaving_no_trace(model, batches.alone(0)), cached_passes(most):
                checked = {
                    name: _check_method(batches, explainer, tolerance)
                    for name, explainer in explainers.items()
                }
        except AssertionError as error:
            problems.append(str(error))
        if costs:
            for name, explainer in explainers.items():
                checked[name] = _timed(batches, explainer, checked[name])
        notes = notes_on(model, batches.together, (str(each.message) for each in warned))
    return ModelCheck(f"{model!r}, {len(inputs)} graphs", checked, notes, tuple(problems))


def check_all(model: Model, inputs: Sequence[Any], *, tolerance: float = TOLERANCE) -> None:
    """Run every check with every registered method that applies to the model.

    Methods that read attention do not apply to a model without attention between nodes.
    """
    failures = check(model, inputs, costs=False, tolerance=tolerance).failures
    assert not failures, "\n".join(failures)
    check_ledger(model, inputs, tolerance=tolerance)


def _check_method(
    batches: "_PreparedBatches", explainer: Explainer, tolerance: float
) -> MethodCheck:
    """Say whether a method explains a model, and whether its scores have all properties."""
    name, cost = explainer.name, explainer.traits.cost
    ties = getattr(batches.model.config, "ties", "average")
    try:
        together = explainer.attribute(batches.model, batches.together)
        _check_batching(batches, explainer, together, tolerance)
        _check_sign(explainer, together)
        if not explainer.traits.draws_random_numbers and ties == "average":
            _check_renumbering(batches, explainer, together, tolerance)
    except NoAttentionError:
        return MethodCheck(name, cost, applies=False)
    except Exception as error:  # a user's model may raise any
        return MethodCheck(name, cost, f"{type(error).__name__}: {error}")
    return MethodCheck(name, cost)


def _timed(batches: "_PreparedBatches", explainer: Explainer, each: MethodCheck) -> MethodCheck:
    """Add to what is known of a method that works how long it takes, and by what road."""
    if not each.works:
        return each
    model, batch = batches.model, batches.alone(0)
    memory = getattr(model, "memory", PassMemory())
    by_rules = isinstance(explainer, GradientInput)  # other methods read what only recordings hold
    gradients = in_gradients(model, batch, lambda: explainer.attribute(model, batch))
    tier = memory.tier if by_rules else None
    why = memory.why_recorded if tier == "recording" else None
    return replace(each, gradients=gradients, tier=tier or "", why_recorded=why or "")


class _PreparedBatches:
    """Prepared inputs in batches of several kinds, each made when it is first needed."""

    def __init__(self, model: Model, graphs: list[Data], seed: int = 0) -> None:
        self.model, self.graphs = model, graphs
        generator = torch.Generator().manual_seed(seed)
        self.orders = [
            torch.randperm(int(graph.num_nodes), generator=generator) for graph in graphs
        ]
        self._alone: dict[int, Any] = {}

    @cached_property
    def together(self) -> Any:
        """All graphs in one batch."""
        return self.model.collate(self.graphs)

    @cached_property
    def padded(self) -> Any:
        """All graphs in one batch, with more padding than they need."""
        largest = max(int(graph.num_nodes) for graph in self.graphs)
        return self.model.collate(self.graphs, pad_to=largest + 7)

    @cached_property
    def renumbered(self) -> Any:
        """All graphs in one batch, where node k of a graph is its original node `order[k]`."""
        model: Any = self.model
        if hasattr(model, "renumbered"):  # graphs of a wrapped model may have any attributes
            return model.collate(model.renumbered(self.graphs, self.orders))
        moved = [renumbered(*pair) for pair in zip(self.graphs, self.orders, strict=True)]
        return model.collate([model.prepare(graph).data for graph in moved])

    def alone(self, index: int) -> Any:
        """Return one graph as a batch."""
        if len(self.graphs) == 1:
            return self.together
        if index not in self._alone:
            self._alone[index] = self.model.collate([self.graphs[index]])
        return self._alone[index]


def _attributed(
    model: Model, inputs: Sequence[Any], method: str | Explainer, seed: int = 0
) -> tuple[_PreparedBatches, Explainer, Attribution]:
    """Return the batches of some inputs, a method, and what it says of all inputs together."""
    batches = _PreparedBatches(model, _graphs(model, inputs), seed)
    explainer = get_explainer(method)
    return batches, explainer, explainer.attribute(model, batches.together)


def check_batching(
    model: Model,
    inputs: Sequence[Any],
    method: str | Explainer = DEFAULT_METHOD,
    *,
    tolerance: float = TOLERANCE,
) -> None:
    """Check that a graph gets the same relevance alone, in a batch, and with extra padding."""
    _check_batching(*_attributed(model, inputs, method), tolerance)


def _check_batching(
    batches: _PreparedBatches, explainer: Explainer, together: Attribution, tolerance: float
) -> None:
    padded = explainer.attribute(batches.model, batches.padded)
    for index, (in_a_batch, with_padding) in enumerate(
        zip(_by_graph(together), _by_graph(padded), strict=True)
    ):
        lone = batches.alone(index)
        attribution = (
            together if lone is batches.together else explainer.attribute(batches.model, lone)
        )
        (alone,), (size,) = _by_graph(attribution), _sizes(attribution, explainer)
        what = f"{explainer.name}, input {index}"
        _assert_close(in_a_batch, alone, tolerance, f"{what}: in a batch and alone", size)
        _assert_close(with_padding, alone, tolerance, f"{what}: padded and alone", size)


def check_sign(
    model: Model, inputs: Sequence[Any], method: str | Explainer = DEFAULT_METHOD
) -> None:
    """Check that a method without negative scores gives none."""
    _check_sign(*_attributed(model, inputs, method)[1:])


def _check_sign(explainer: Explainer, attribution: Attribution) -> None:
    lowest = attribution.relevance.min().item()
    assert lowest >= 0 or not explainer.traits.large_score_means, (
        f"{explainer.name} gave a score of {lowest:.1e}."
    )


def check_renumbering(
    model: Model,
    inputs: Sequence[Any],
    method: str | Explainer = DEFAULT_METHOD,
    *,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> None:
    """Check that renumbering the nodes renumbers the relevance and changes nothing else.

    The graphs are explained in one batch as they are, and in one batch after renumbering. The
    property holds for `ties="average"`. Graphormers converted from published checkpoints choose one
    of several equally short paths, so they depend on the numbering.
    """
    _check_renumbering(*_attributed(model, inputs, method, seed), tolerance)


def _check_renumbering(
    batches: _PreparedBatches, explainer: Explainer, together: Attribution, tolerance: float
) -> None:
    renumbered = _by_graph(explainer.attribute(batches.model, batches.renumbered))
    original = zip(_by_graph(together), _sizes(together, explainer), strict=True)
    for index, (after, order, (before, size)) in enumerate(
        zip(renumbered, batches.orders, original, strict=True)
    ):
        expected = torch.cat([before[:1], before[1:][order]])
        what = f"{explainer.name}, input {index}: renumbered and as given"
        _assert_close(after, expected, tolerance, what, size)


def check_ledger(
    model: Model,
    inputs: Sequence[Any],
    method: str | Explainer = DEFAULT_METHOD,
    *,
    tolerance: float = TOLERANCE,
) -> None:
    """Check that nodes, graph token and biases sum to the output, and features to their node.

    The gap is relative to the sum of the absolute terms, because rounding errors scale with it.
    """
    _, explainer, attribution = _attributed(model, inputs, method)
    size = (
        attribution.relevance.abs().sum(-1)
        + attribution.graph_token.abs()
        + attribution.biases.abs()
    )
    gap = (attribution.unexplained.abs() / size.clamp(min=1e-12)).max().item()
    assert gap <= tolerance, f"{explainer.name}: the ledger misses {gap:.1e} of the output."
    if attribution.features is not None:
        split = attribution.features.sum(-1)
        _assert_close(
            split, attribution.relevance, tolerance, f"{explainer.name}: features and nodes"
        )


def check_no_trace(model: Model, inputs: Sequence[Any]) -> None:
    """Check that rules and recordings leave outputs and gradients unchanged, bit for bit.

    This must also hold after an exception inside a block.
    """
    batches = _PreparedBatches(model, _graphs(model, inputs))
    with _leaving_no_trace(model, batches.alone(0)):  # others of a batch may be mixed
        for name in methods_for(model):
            with suppress(NoAttentionError):
                get_explainer(name).attribute(model, batches.together)


@contextmanager
def _leaving_no_trace(model: Model, batch: Any) -> Iterator[None]:
    """Raise AssertionError if explaining within the block leaves a trace."""
    before = _outputs_and_gradients(model, batch)
    with suppress(RuntimeError), conservative(activation="ratio"), record(biases=True):
        _outputs_and_gradients(model, batch)
    try:
        with conservative(activation="ratio"), record(biases=True):
            raise KeyError("left early")
    except KeyError:
        pass
    yield
    assert current_tape() is None, "a recording outlived its block."
    assert current_rules() == Rules(), "a rule outlived its block."
    after = _outputs_and_gradients(model, batch)
    for name, value in before.items():
        assert torch.equal(value, after[name]), f"{name} changed after explaining."


def renumbered(graph: Data, order: Tensor) -> Data:
    """Return a copy of a graph, encoded or not, in which node i is node `order[i]` of the original.

    The copy has no structure encoding, so it has to be encoded again.
    """
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    moved = Data(x=graph.x[order], edge_index=place[graph.edge_index])
    if graph.edge_attr is not None:
        moved.edge_attr = graph.edge_attr
    if graph.get("pos") is not None:
        moved.pos = graph.pos[order]
    return moved


def _graphs(model: Model, inputs: Sequence[Any]) -> list[Data]:
    """Return the inputs as the graphs that the model reads."""
    graphs = [item.data for item in prepare_all(model, as_list(inputs)[0])]
    if not graphs:
        raise ValueError("there is no graph to check: give two or more.")
    return graphs


def _outputs_and_gradients(model: Any, batch: Any) -> dict[str, Tensor]:
    """Return what a model computes in eval mode, and leave its mode and gradients as they are."""
    module: torch.nn.Module = getattr(model, "module", model)  # `wrap` stores it
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    with explaining(model):
        outputs = model(batch)
        leaves = list(weights.values()) if outputs.requires_grad else []
        of_weights = torch.autograd.grad(outputs.sum(), leaves, allow_unused=True) if leaves else ()
    named = zip(weights, of_weights, strict=False)
    gradients = {f"the gradient of {name}": g for name, g in named if g is not None}
    return {"the output": outputs.detach().clone()} | gradients


def _by_graph(attribution: Attribution) -> list[Tensor]:
    """Return each graph's relevance of graph token and nodes (n + 1,), without padding."""
    sizes = attribution.mask.sum(-1).tolist()
    return [
        torch.cat([attribution.graph_token[b, None], attribution.relevance[b, :n]])
        for b, n in enumerate(sizes)
    ]


def _sizes(attribution: Attribution, explainer: Explainer) -> list[float]:
    """Return the largest term of each graph's ledger except the nodes."""
    terms = [attribution.graph_token, attribution.biases]
    if explainer.traits.adds_up or explainer.traits.in_output_units:
        terms.append(attribution.output)
    return torch.stack(terms).abs().amax(0).tolist()


def _assert_close(
    actual: Tensor, expected: Tensor, tolerance: float, what: str, size: float = 0.0
) -> None:
    scale = max(expected.abs().max().item(), size, 1e-12)
    worst = (actual - expected).abs().max().item() / scale
    assert worst <= tolerance, f"{what} differ by {worst:.1e} (relative), over {tolerance:.0e}."
