"""Checks of properties that every explanation must have, to run on your own model.

    from .testing import check_all
    check_all(model, ["CCO", "c1ccccc1O", "CC(=O)[O-].[Na+]"])

Each check raises AssertionError with the worst difference. `inputs` are what `graphxai.explain`
takes. Differences are relative to the largest number involved: a score, another term of the ledger,
or the output if scores are in its units. As in any floating-point sum, small scores among large
terms carry the rounding errors of the large ones.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.inputs import prepare_all, prepare_for
from graphxai.explainers import REGISTRY, Attribution, Explainer, get_explainer
from graphxai.models.graphormer import Graphormer, StructureEncoding
from graphxai.rules.conservative import Rules, conservative, current_rules, current_tape, record

TOLERANCE = 1e-4  # relative, in float32


def check_all(model: Graphormer, inputs: Sequence[Any], *, tolerance: float = TOLERANCE) -> None:
    """Run every check with every registered method."""
    for name in REGISTRY:
        check_batching(model, inputs, name, tolerance=tolerance)
        check_sign(model, inputs, name)
        if not REGISTRY[name].sampled and getattr(model.config, "ties", "average") == "average":
            check_renumbering(model, inputs, name, tolerance=tolerance)
    check_ledger(model, inputs, tolerance=tolerance)
    check_no_trace(model, inputs)


def check_batching(
    model: Graphormer,
    inputs: Sequence[Any],
    method: str | Explainer = "lrp",
    *,
    tolerance: float = TOLERANCE,
) -> None:
    """A graph gets the same relevance alone, in a batch, and with extra padding."""
    graphs = [item.data for item in prepare_all(model, inputs)]
    explainer = get_explainer(method)
    together = _by_graph(explainer.attribute(model, model.collate(graphs)))
    largest = max(int(graph.num_nodes) for graph in graphs)
    padded = _by_graph(explainer.attribute(model, model.collate(graphs, pad_to=largest + 7)))
    for index, graph in enumerate(graphs):
        found = explainer.attribute(model, model.collate([graph]))
        alone, size = _by_graph(found)[0], _size(found, explainer)
        what = f"{explainer.name}, input {index}"
        _assert_close(together[index], alone, tolerance, f"{what}: in a batch and alone", size)
        _assert_close(padded[index], alone, tolerance, f"{what}: padded and alone", size)


def check_sign(model: Graphormer, inputs: Sequence[Any], method: str | Explainer = "lrp") -> None:
    """A method that says what its scores measure instead of a sign gives no negative score."""
    explainer = get_explainer(method)
    if not explainer.unsigned:
        return
    graphs = [item.data for item in prepare_all(model, inputs)]
    lowest = explainer.attribute(model, model.collate(graphs)).relevance.min().item()
    assert lowest >= 0, f"{explainer.name} gave a score of {lowest:.1e}."


def check_renumbering(
    model: Graphormer,
    inputs: Sequence[Any],
    method: str | Explainer = "lrp",
    *,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> None:
    """Renumbering the nodes renumbers the relevance and changes nothing else.

    Holds for `ties="average"`. Graphormers converted from published checkpoints pick one of several
    equally short paths, and so depend on the numbering.
    """
    explainer = get_explainer(method)
    generator = torch.Generator().manual_seed(seed)
    for index, value in enumerate(inputs):
        graph = prepare_for(model, value).data
        order = torch.randperm(int(graph.num_nodes), generator=generator)
        moved = _encoded(model, renumbered(graph, order))
        found = explainer.attribute(model, model.collate([graph]))
        before, size = _by_graph(found)[0], _size(found, explainer)
        after = _by_graph(explainer.attribute(model, model.collate([moved])))[0]
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
    graphs = [item.data for item in prepare_all(model, inputs)]
    explainer = get_explainer(method)
    found = explainer.attribute(model, model.collate(graphs))
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
    batch = model.collate([item.data for item in prepare_all(model, inputs)])
    before = _outputs_and_gradients(model, batch)
    with conservative(activation="ratio"), record(biases=True):
        model(batch).sum().backward()
    try:
        with conservative(activation="ratio"), record(biases=True):
            raise KeyError("left early")
    except KeyError:
        pass
    for explainer in REGISTRY:
        get_explainer(explainer).attribute(model, batch)
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


def _encoded(model: Any, graph: Data) -> Data:
    """The graph with the structure encodings that the model reads."""
    if hasattr(model, "prepare"):
        prepared: Data = model.prepare(graph).data
        return prepared
    return StructureEncoding.from_config(model.config)(graph)


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


def _size(attribution: Attribution, explainer: Explainer) -> float:
    """The largest term of one graph's ledger other than the nodes."""
    terms = [attribution.graph_token, attribution.biases]
    terms += [attribution.output] if explainer.additive or explainer.of_output else []
    return max(term.abs().max().item() for term in terms)


def _assert_close(
    found: Tensor, expected: Tensor, tolerance: float, what: str, size: float = 0.0
) -> None:
    scale = max(expected.abs().max().item(), size, 1e-12)
    worst = (found - expected).abs().max().item() / scale
    assert worst <= tolerance, f"{what} differ by {worst:.1e} (relative), over {tolerance:.0e}."
