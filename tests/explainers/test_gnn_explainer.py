"""The learned mask agrees with PyTorch Geometric's GNNExplainer, one graph at a time."""

import pytest
import torch
from shapley import batch_of
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GCNConv, global_add_pool

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.evaluation.testing import check_batching
from graphxai.explainers import get_explainer
from small_graphs import graph
from toy import random_graphormer


class Nodes(torch.nn.Module):
    """A Graphormer as PyG calls a model, from node tokens (N, D) to the outputs of one task."""

    def __init__(self, model, batch, columns):
        super().__init__()
        self.model, self.batch, self.columns = model, batch, columns

    def forward(self, x, edge_index):
        tokens = torch.cat([self.model.embed(self.batch)[:, :1], x[None]], dim=1)
        outputs = self.model.encode(tokens, self.batch)[:, self.columns]
        if self.model.config.tasks[0].kind == "binary":
            return torch.cat([-outputs / 2, outputs / 2], dim=-1)
        return outputs


class Start(GNNExplainer):
    """PyG's algorithm, which begins with a given mask."""

    def __init__(self, start, **settings):
        super().__init__(**settings)
        self.start = start

    def _initialize_masks(self, x, edge_index):
        super()._initialize_masks(x, edge_index)
        self.node_mask.data = self.start[:, None].clone()


TASKS = {
    "binary": Task("activity", "binary", ("inactive", "active")),
    "multiclass": Task("digit", "multiclass", ("a", "b", "c")),
    "regression": Task("logS", "regression"),
}


@pytest.mark.parametrize("kind", list(TASKS))
def test_the_mask_is_that_of_pytorch_geometric(kind, smiles):
    model = random_graphormer(tasks=(TASKS[kind],)).double()
    task = model.config.tasks[0]
    chosen = {"binary": "active", "multiclass": "b", "regression": None}[kind]
    explainer = get_explainer("gnn_explainer", epochs=30)
    masks = explainer.attribute(model, batch_of(model, smiles), chosen).relevance
    for row, text in list(enumerate(smiles))[1:4]:
        batch = batch_of(model, [text])
        start = explainer.starting_mask(batch, model.embed(batch))[0]
        value = model(batch).detach()
        truth = value if kind == "regression" else torch.tensor([1])
        published = Explainer(
            Nodes(model, batch, slice(task.num_outputs)).eval(),
            Start(start, epochs=30),
            explanation_type="phenomenon",
            node_mask_type="object",
            model_config={
                "mode": "regression" if kind == "regression" else "multiclass_classification",
                "task_level": "graph",
                "return_type": "raw",
            },
        )
        nodes = model.embed(batch)[0, 1:].detach()
        expected = published(nodes, torch.empty(2, 0, dtype=torch.long), target=truth).node_mask
        torch.testing.assert_close(masks[row, : len(start)], expected[:, 0])


class Convolution(torch.nn.Module):
    """One convolution and a sum, as a user of PyG writes it."""

    def __init__(self, outputs):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = GCNConv(6, 8), torch.nn.Linear(8, outputs)

    def forward(self, x, edge_index, batch):
        return self.head(global_add_pool(self.first(x, edge_index).tanh(), batch))


@pytest.mark.parametrize("kind", list(TASKS))
def test_a_wrapped_model_has_pygs_mask_if_both_start_from_the_same(kind):
    task = TASKS[kind]
    module = Convolution({"binary": 1, "multiclass": 3, "regression": 1}[kind]).double().eval()
    model, explainer = gx.wrap(module, task), get_explainer("gnn_explainer", epochs=30)
    graphs = [graph(n) for n in (5, 7)]
    for data in graphs:
        data.x = data.x.double()
    chosen = {"binary": "active", "multiclass": "b", "regression": None}[kind]
    together = gx.explain(model, graphs, explainer, target=chosen)
    for data, ours in zip(graphs, together, strict=True):
        batch = model.collate([data])
        start = explainer.starting_mask(batch, data.x)[0]
        zeros = torch.zeros(len(data.x), dtype=torch.long)
        value = module(data.x, data.edge_index, zeros).detach()
        published = Explainer(
            module,
            Start(start, epochs=30),
            explanation_type="phenomenon",
            node_mask_type="object",
            model_config={
                "mode": kind if kind == "regression" else f"{kind}_classification",
                "task_level": "graph",
                "return_type": "raw",
            },
        )
        truth = value if kind == "regression" else torch.tensor([1])
        theirs = published(data.x, data.edge_index, batch=zeros, target=truth).node_mask[:, 0]
        torch.testing.assert_close(torch.from_numpy(ours.relevance), theirs.float())


def test_a_graph_gets_the_same_mask_alone_in_batches_and_padded(smiles):
    check_batching(random_graphormer(), smiles[:4], get_explainer("gnn_explainer", epochs=20))


def test_the_model_gathers_no_gradients(smiles):
    model = random_graphormer()
    get_explainer("gnn_explainer", epochs=2).attribute(model, batch_of(model, smiles))
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        get_explainer("gnn_explainer", epochs=0)
