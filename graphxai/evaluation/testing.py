"""Checks of properties that every explanation must have, to run on your own model.

    from .testing import check_all
    check_all(model, ["CCO", "c1ccccc1O", "CC(=O)[O-].[Na+]"])

Each check raises AssertionError with the worst difference. `inputs` are what `graphxai.explain`
takes. Differences are relative to the largest number involved: a score, another term of the ledger,
or the output if scores are in its units. As in any floating-point sum, small scores among large
terms carry the rounding errors of the large ones.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.adapters.engine.remembering import remembering
from graphxai.contract.inputs import prepare_all
from graphxai.contract.model import NoAttentionError
from graphxai.explainers import Attribution, Explainer, get_explainer
from graphxai.explainers.registry import methods_for
from graphxai.models.graphormer import Graphormer, StructureEncoding
from graphxai.rules.conservative import Rules, conservative, current_rules, current_tape, record

TOLERANCE = 1e-4  # relative, in float32


def check_all(model: Graphormer, inputs: Sequence[Any], *, tolerance: float = TOLERANCE) -> None:
    """Run every check with every registered method that applies to the model.

    Without attention between nodes, those that read it do not.
    """
    given = _Given(model, _graphs(model, inputs))
    # each batch goes through the model and through its copy in double precision
    most = 2 * (3 + len(given.graphs)) + 1
    # tried on one graph, as a model may mix those of a batch
    with _leaving_no_trace(model, given.alone(0)), remembering(most):
        for name in methods_for(model):
            explainer = get_explainer(name)
            try:
                together = explainer.attribute(model, given.together)
            except NoAttentionError:
                continue
            _check_batching(given, explainer, together, tolerance)
            _check_sign(explainer, together)
            if not explainer.sampled and getattr(model.config, "ties", "average") == "average":
                _check_renumbering(given, explainer, together, tolerance)
    check_ledger(model, inputs, tolerance=tolerance)


class _Given:
    """Prepared inputs in batches of all kinds, each made when it is first needed."""

    def __init__(self, model: Graphormer, graphs: list[Data], seed: int = 0) -> None:
        self.model, self.graphs = model, graphs
        generator = torch.Generator().manual_seed(seed)
        self.orders = [
            torch.randperm(int(graph.num_nodes), generator=generator) for graph in graphs
        ]
        self._alone: dict[int, Any] = {}

    @cached_property
    def together(self) -> Any:
        """All in one batch."""
        return self.model.collate(self.graphs)

    @cached_property
    def padded(self) -> Any:
        """All in one batch, with more padding than they need."""
        largest = max(int(graph.num_nodes) for graph in self.graphs)
        return self.model.collate(self.graphs, pad_to=largest + 7)

    @cached_property
    def renumbered(self) -> Any:
        """All in one batch, in which node k of a graph is its node `order[k]`."""
        return self.model.collate(_renumbered(self.model, self.graphs, self.orders))

    def alone(self, index: int) -> Any:
        """A batch of one."""
        if len(self.graphs) == 1:
            return self.together
        if index not in self._alone:
            self._alone[index] = self.model.collate([self.graphs[index]])
        return self._alone[index]


def check_batching(
    model: Graphormer,
    inputs: Sequence[Any],
    method: str | Explainer = "lrp",
    *,
    tolerance: float = TOLERANCE,
) -> None:
    """A graph gets the same relevance alone, in a batch, and with extra padding."""
    given, explainer = _Given(model, _graphs(model, inputs)), get_explainer(method)
    _check_batching(given, explainer, explainer.attribute(model, given.together), tolerance)


def _check_batching(
    given: _Given, explainer: Explainer, together: Attribution, tolerance: float
) -> None:
    padded = explainer.attribute(given.model, given.padded)
    for index, (in_a_batch, with_padding) in enumerate(
        zip(_by_graph(together), _by_graph(padded), strict=True)
    ):
        lone = given.alone(index)
        found = together if lone is given.together else explainer.attribute(given.model, lone)
        (alone,), (size,) = _by_graph(found), _sizes(found, explainer)
        what = f"{explainer.name}, input {index}"
        _assert_close(in_a_batch, alone, tolerance, f"{what}: in a batch and alone", size)
        _assert_close(with_padding, alone, tolerance, f"{what}: padded and alone", size)


def check_sign(model: Graphormer, inputs: Sequence[Any], method: str | Explainer = "lrp") -> None:
    """A method whose scores have no sign, but measure something, gives no negative score."""
    explainer = get_explainer(method)
    if explainer.unsigned:
        batch = model.collate(_graphs(model, inputs))
        _check_sign(explainer, explainer.attribute(model, batch))


def _check_sign(explainer: Explainer, found: Attribution) -> None:
    lowest = found.relevance.min().item()
    assert lowest >= 0 or not explainer.unsigned, f"{explainer.name} gave a score of {lowest:.1e}."


def check_renumbering(
    model: Graphormer,
    inputs: Sequence[Any],
    method: str | Explainer = "lrp",
    *,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> None:
    """Renumbering the nodes renumbers the relevance and changes nothing else.

    The graphs are explained in one batch as given, and in one batch renumbered. Holds for
    `ties="average"`. Graphormers converted from published checkpoints pick one of several equally
    short paths, and so depend on the numbering.
    """
    given, explainer = _Given(model, _graphs(model, inputs), seed), get_explainer(method)
    _check_renumbering(given, explainer, explainer.attribute(model, given.together), tolerance)


def _check_renumbering(
    given: _Given, explainer: Explainer, together: Attribution, tolerance: float
) -> None:
    found = _by_graph(explainer.attribute(given.model, given.renumbered))
    known = zip(_by_graph(together), _sizes(together, explainer), strict=True)
    for index, (after, order, (before, size)) in enumerate(
        zip(found, given.orders, known, strict=True)
    ):
        expected = torch.cat([before[:1], before[1:][order]])
        what = f"{explainer.name}, input {index}: renumbered and as given"
        _assert_close(after, expected, tolerance, what, size)


def check_ledger(
    model: Graphormer,
    inputs: Sequence[Any],
    method: str | Explainer = "lrp",
    *,
    tolerance: float = TOLERANCE,
) -> None:
    """Nodes, graph token and biases sum to the output; features sum to each node's relevance.

    The gap is relative to the sum of the absolute terms, the scale of rounding errors.
    """
    explainer = get_explainer(method)
    found = explainer.attribute(model, model.collate(_graphs(model, inputs)))
    size = found.relevance.abs().sum(-1) + found.graph_token.abs() + found.biases.abs()
    gap = (found.unexplained.abs() / size.clamp(min=1e-12)).max().item()
    assert gap <= tolerance, f"{explainer.name}: the ledger misses {gap:.1e} of the output."
    if found.features is not None:
        split = found.features.sum(-1)
        _assert_close(split, found.relevance, tolerance, f"{explainer.name}: features and nodes")


def check_no_trace(model: Graphormer, inputs: Sequence[Any]) -> None:
    """Rules and recordings leave outputs and gradients unchanged, bit for bit.

    Also after an exception inside the block.
    """
    given = _Given(model, _graphs(model, inputs))
    with _leaving_no_trace(model, given.alone(0)):  # a model may mix those of a batch
        for name in methods_for(model):
            with suppress(NoAttentionError):
                get_explainer(name).attribute(model, given.together)


@contextmanager
def _leaving_no_trace(model: Graphormer, batch: Any) -> Iterator[None]:
    """Raise AssertionError if what is explained in the block leaves a trace."""
    before = _outputs_and_gradients(model, batch)
    with conservative(activation="ratio"), record(biases=True):
        model(batch).sum().backward()
    try:
        with conservative(activation="ratio"), record(biases=True):
            raise KeyError("left early")
    except KeyError:
        pass
    yield
    _module(model).zero_grad()
    assert current_tape() is None, "a recording outlived its block."
    assert current_rules() == Rules(), "a rule outlived its block."
    after = _outputs_and_gradients(model, batch)
    for name, value in before.items():
        assert torch.equal(value, after[name]), f"{name} changed after explaining."


def renumbered(graph: Data, order: Tensor) -> Data:
    """A copy of a graph, encoded or not, whose node i is node `order[i]` of the original.

    Structure encodings are dropped; encode the copy again.
    """
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    moved = Data(x=graph.x[order], edge_index=place[graph.edge_index])
    if graph.edge_attr is not None:
        moved.edge_attr = graph.edge_attr
    if graph.get("pos") is not None:
        moved.pos = graph.pos[order]
    return moved


def _graphs(model: Graphormer, inputs: Sequence[Any]) -> list[Data]:
    """The inputs as the graphs that the model reads."""
    return [item.data for item in prepare_all(model, inputs)]


def _renumbered(model: Any, graphs: list[Data], orders: list[Tensor]) -> list[Data]:
    """The graphs renumbered, as the model reads them."""
    if hasattr(model, "renumbered"):  # wrapped: its graphs may have any attributes
        wrapped: list[Data] = model.renumbered(graphs, orders)
        return wrapped
    moved = [renumbered(graph, order) for graph, order in zip(graphs, orders, strict=True)]
    if hasattr(model, "prepare"):
        return [model.prepare(graph).data for graph in moved]
    encode = StructureEncoding.from_config(model.config)
    return [encode(graph) for graph in moved]


def _module(model: Any) -> torch.nn.Module:
    """The PyTorch module, which `wrap` stores as `module`."""
    module: torch.nn.Module = getattr(model, "module", model)
    return module


def _outputs_and_gradients(model: Graphormer, batch: Any) -> dict[str, Tensor]:
    was_training = model.training
    model.eval()
    _module(model).zero_grad()
    outputs = model(batch)
    outputs.sum().backward()
    model.train(was_training)
    gradients = {
        f"the gradient of {name}": parameter.grad.clone()
        for name, parameter in _module(model).named_parameters()
        if parameter.grad is not None
    }
    _module(model).zero_grad()
    return {"the output": outputs.detach().clone()} | gradients


def _by_graph(attribution: Attribution) -> list[Tensor]:
    """Relevance of graph token and nodes of each graph, without padding, (n + 1,) each."""
    sizes = attribution.mask.sum(-1).tolist()
    return [
        torch.cat([attribution.graph_token[b, None], attribution.relevance[b, :n]])
        for b, n in enumerate(sizes)
    ]


def _sizes(attribution: Attribution, explainer: Explainer) -> list[float]:
    """The largest term of each graph's ledger other than the nodes."""
    terms = [attribution.graph_token, attribution.biases]
    terms += [attribution.output] if explainer.additive or explainer.of_output else []
    return [
        max(abs(value) for value in of) for of in zip(*(t.tolist() for t in terms), strict=True)
    ]


def _assert_close(
    found: Tensor, expected: Tensor, tolerance: float, what: str, size: float = 0.0
) -> None:
    scale = max(expected.abs().max().item(), size, 1e-12)
    worst = (found - expected).abs().max().item() / scale
    assert worst <= tolerance, f"{what} differ by {worst:.1e} (relative), over {tolerance:.0e}."
