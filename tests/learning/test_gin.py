"""The graph isomorphism network that a card compares with is trained and read as it should be."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.learning.fit import molecule_config
from graphxai.learning.graphs import baselines
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import Graphormer

SIZES = {"num_layers": 1, "hidden_dim": 16, "ffn_dim": 16, "num_heads": 2}
GRAPHS = [molecule_to_data(smiles) for smiles in ("CCO", "CC(=O)O", "c1ccccc1O", "CN")]


@pytest.fixture
def model():
    return Graphormer(molecule_config([Task("y", "regression")], **SIZES))


def test_a_graph_is_read_alone_as_beside_others(model):
    torch.manual_seed(0)
    gin = baselines.same_budget(model)
    together = baselines._outputs(gin, GRAPHS)
    alone = torch.cat([baselines._outputs(gin, [graph]) for graph in GRAPHS])
    torch.testing.assert_close(together, alone)


def test_the_next_wider_network_would_pass_the_budget(model):
    budget = sum(p.numel() for p in model.parameters())
    gin = baselines.same_budget(model)
    wider = baselines.GIN(model.config, gin.head[0].out_features + 8)
    sizes = [sum(p.numel() for p in network.parameters()) for network in (gin, wider)]
    assert sizes[0] <= budget < sizes[1]


@pytest.mark.parametrize(("patience", "epochs"), [(2, 4), (3, 5), (None, 6)])
def test_the_epoch_with_the_lowest_loss_is_kept_and_patience_counts_those_without_a_lower_one(
    model, monkeypatch, patience, epochs
):
    """The second of six epochs is the best; the two after it are no better, and so on."""
    losses, states = iter([3.0, 2.0, 2.5, 2.0, 2.5, 2.5]), []
    read = baselines._outputs

    class Objective(baselines.Objective):
        def __call__(self, outputs, labels):
            if outputs.requires_grad:
                return super().__call__(outputs, labels)
            return torch.tensor(next(losses))

    def remembered(gin, graphs):
        states.append(gin.head[0].weight.detach().clone())
        return read(gin, graphs)

    monkeypatch.setattr(baselines, "Objective", Objective)
    monkeypatch.setattr(baselines, "_outputs", remembered)
    for graph in GRAPHS:
        graph.y = torch.tensor([[float(graph.num_nodes)]])
    part = SimpleNamespace(graphs=GRAPHS, y=np.array([[float(g.num_nodes)] for g in GRAPHS]))
    source = SimpleNamespace(train=part, valid=part, test=part, show=False)
    settings = TrainingSettings(epochs=6, patience=patience, batch_size=4)
    (values,) = baselines.gin_readings(model, source, SimpleNamespace(**vars(settings), show=False))
    assert len(states) == epochs + 1  # the last reads the test part
    assert torch.equal(states[-1], states[1])
    assert not torch.equal(states[-1], states[2])
    assert values.shape == (4,)
