"""Networks that bear removal: what training removes, and what the card says of it."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import graphxai as gx
from graphxai.contract.inputs import Input
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.learning.cleaning import clean_table
from graphxai.learning.predicting import encode_all
from graphxai.learning.removal import (
    removal_facts,
    removal_text,
    shapley_errors,
    without_some_nodes,
)
from graphxai.learning.settings import TableSettings, repeating
from graphxai.learning.table import split_table
from graphxai.models.graphormer import (
    NODE_LABELS,
    Graphormer,
    GraphormerConfig,
    collate,
    graphormer,
)
from graphxai.wrapping.removal import outputs_of_parts

SMILES = ("CCO", "c1ccccc1C(=O)O", "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "C", "CCN(CC)CC", "OCC1CCCCC1N")
QUICK = {
    "layers": 1, "width": 16, "epochs": 3, "dropout": 0.0, "accelerator": "cpu", "progress": False,
}  # fmt: skip
SPLIT = (range(16), range(16, 22), range(22, 30))


def encoded(model: Graphormer) -> list[Data]:
    return encode_all([molecule_to_data(smiles) for smiles in SMILES], model.config)


def rings() -> list[Data]:
    """Return rings of six to twelve nodes, half of them with a node that is marked."""
    graphs = []
    for k in range(30):
        n = 6 + k % 7
        ends = torch.stack([torch.arange(n), torch.arange(1, n + 1) % n])
        x = torch.zeros(n, 1, dtype=torch.long)
        x[k % n] = k % 2
        edges = torch.cat([ends, ends.flip(0)], dim=1)
        graphs.append(Data(x=x, edge_index=edges, y=torch.tensor([k % 2])))
    return graphs


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return gx.load(folder).state_dict()


def same(first: Path, second: Path) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_nodes_are_removed_in_training_as_occlusion_removes_them() -> None:
    model = gx.load("bace")
    graphs = encoded(model)
    batch = collate(graphs)
    for step in range(5):
        part = without_some_nodes(batch, 0, step)
        with torch.no_grad():
            outputs = model.labelled_outputs(part)
        for graph, kept, output in zip(graphs, part.mask, outputs, strict=True):
            keep = kept[None, : graph.num_nodes]
            expected = outputs_of_parts(model, graph, keep, "mask")[0]
            torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


def test_half_of_the_graphs_lose_up_to_three_quarters_of_their_nodes() -> None:
    graphs = [molecule_to_data("C" * n) for n in (1, 5, 12, 40, 40, 40, 40, 40)]
    batch = collate(encode_all(graphs, gx.load("bace").config))
    lost = []
    for step in range(400):
        part = without_some_nodes(batch, 3, step)
        assert not (part.mask & ~batch.mask).any()
        left = part.mask.sum(1)
        assert (left >= 1).all()
        lost.append((1 - left / batch.num_nodes).numpy())
        assert (lost[-1] > 0).sum() <= 4
    of_large = np.concatenate([each[3:] for each in lost])
    assert of_large.max() <= 0.75
    assert of_large.max() > 0.7
    assert of_large.mean() == pytest.approx(0.5 * 0.75 / 2, abs=0.02)


def test_the_draw_is_a_function_of_seed_and_step() -> None:
    batch = collate(encoded(gx.load("bace")))
    drawn = {(s, k): without_some_nodes(batch, s, k).mask for s in (0, 1) for k in (0, 7)}
    torch.manual_seed(5)
    np.random.default_rng(3).random()
    for (seed, step), mask in drawn.items():
        assert torch.equal(without_some_nodes(batch, seed, step).mask, mask)
    assert not torch.equal(drawn[0, 7], drawn[1, 7])


def test_labels_of_removed_nodes_go_with_them() -> None:
    config = GraphormerConfig(
        (Task("warm", "binary", ("no", "yes")),),
        level="node", num_layers=1, hidden_dim=16, ffn_dim=16, num_heads=2,
        node_cardinalities=(2,),
    )  # fmt: skip
    torch.manual_seed(0)
    model = graphormer(config).eval()
    graphs = encode_all(rings()[:8], config)
    for k, graph in enumerate(graphs):
        graph[NODE_LABELS] = torch.arange(graph.num_nodes)[:, None] + 100.0 * k
    batch = collate(graphs)
    assert batch.y is not None
    part = without_some_nodes(batch, 0, 1)
    assert part.y is not None
    assert len(part.y) == int(part.mask.sum()) == len(model.labelled_outputs(part)) < len(batch.y)
    expected = [100.0 * b + node for b, node in part.mask.nonzero().tolist()]
    assert part.y[:, 0].tolist() == expected


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("lightning")
    out = tmp_path_factory.mktemp("removal") / "rings"
    return gx.train(rings(), out, split=SPLIT, baselines=False, bears_removal=True, **QUICK)


def test_an_interrupted_training_ends_with_the_same_bits(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphxai.learning.lightning import GraphormerModule

    original = GraphormerModule.training_step
    options = {"split": SPLIT, "baselines": False, "bears_removal": True, **QUICK}

    def killed(self: GraphormerModule, batch: object, index: int) -> torch.Tensor:
        if self.current_epoch == 2:
            raise RuntimeError("killed")
        return original(self, batch, index)  # type: ignore[arg-type]

    monkeypatch.setattr(GraphormerModule, "training_step", killed)
    with pytest.raises(RuntimeError, match="killed"):
        gx.train(rings(), tmp_path, **options)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="different settings"):
        gx.train(rings(), tmp_path, resume=True, **(options | {"bears_removal": False}))
    assert same(trained, gx.train(rings(), tmp_path, resume=True, **options))


def test_the_call_on_the_card_trains_the_same_weights(trained: Path, tmp_path: Path) -> None:
    card = (trained / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    train\((.*)\)$", card, re.MULTILINE)
    assert "bears_removal=True" in line
    places = {"graphs": rings(), "split": SPLIT}
    call = line.replace("'runs/graphs'", repr(str(tmp_path / "again")))
    again = eval(f"train({call})", {"train": gx.train, "range": range}, places)
    assert same(trained, again)
    plain = gx.train(rings(), tmp_path / "plain", split=SPLIT, baselines=False, **QUICK)
    assert not same(trained, plain)


def test_the_card_has_the_accuracy_without_nodes_and_the_error_of_shapley_values(
    trained: Path,
) -> None:
    card = (trained / "README.md").read_text(encoding="utf-8")
    stored = json.loads((trained / "scores.json").read_text(encoding="utf-8"))
    (facts,) = stored["removal"].values()
    with (trained.parent / "test.csv").open(newline="") as file:
        rows = [list(map(float, row)) for row in list(csv.reader(file))[1:]]
    right = [(probability > 0.5) == label for _, label, probability in rows]
    assert facts["values"][0] == pytest.approx(np.mean(right))
    assert facts["explained"] == facts["graphs"] == 8
    assert "half of the graphs of each batch lost up to 75 % of their nodes" in card
    assert f"the accuracy is {facts['values'][0]:.3f}, {facts['values'][1]:.3f}" in card
    assert f"Shapley values is {facts['error_median']:.2f} of the variance" in card


def test_shapley_values_of_a_sum_over_nodes_have_no_error() -> None:
    """A linear network without attention is additive, which Shapley values state exactly."""

    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return (x.float() @ torch.tensor([[1.0], [-2.0]])).sum(0, keepdim=True)

    torch.manual_seed(0)
    graphs = [Data(x=torch.rand(n, 2), edge_index=torch.zeros(2, 0).long()) for n in (3, 6)]
    model = gx.wrap(Sums(), kind="regression")
    items = [(k, model.prepare(graph)) for k, graph in enumerate(graphs)]
    assert isinstance(items[0][1], Input)
    assert shapley_errors(model, items, Target()) == pytest.approx([0.0, 0.0], abs=1e-8)


def test_a_model_that_is_no_network_is_not_measured() -> None:
    assert removal_facts(object(), [], np.zeros((0, 1))) == {}  # type: ignore[arg-type]
    assert removal_text({}, trained=False) == ""


def test_commands_say_it_and_a_process_refuses_it() -> None:
    settings = TableSettings(split="random", bears_removal=True)
    assert settings.chosen_model == "network"
    line = repeating("bace", "train_bace", settings)
    assert line == "graphxai train bace --out runs/bace --bears-removal --split random"
    with pytest.raises(ValueError, match="leave out --bears-removal"):
        TableSettings(model="process", bears_removal=True)


def test_networks_that_teach_see_whole_molecules(tmp_path: Path) -> None:
    path = tmp_path / "assay.csv"
    rows = [f"{'C' * k}O,{k}" for k in range(1, 31)]
    path.write_text("\n".join(["smiles,y", *rows]) + "\n")
    settings = TableSettings(split="random", bears_removal=True)
    table = clean_table(path, "smiles", ["y"])
    assert not split_table(table, settings).training().bears_removal
    alone = split_table(table, TableSettings(split="random", bears_removal=True, teacher=False))
    assert alone.training().bears_removal
