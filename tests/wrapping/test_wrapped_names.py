"""No result depends on the name of a class or a submodule."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GPSConv, MessagePassing, ResGatedGraphConv, global_mean_pool
from torch_geometric.nn.models import Polynormer, SGFormer

import graphxai as gx
from graphxai.wrapping import WrappedModel
from other_models import Bert, GpsModel, SparseModel, molecules, quick_explainer

pytestmark = pytest.mark.usefixtures("only_relevance")

GRAPHS = [g for g in molecules() if g.num_nodes < 20][:2]
FEW = ("lrp", "attn_lrp", "gae", "transformer_attribution", "lrp_zplus")
OTHER_WAYS = ("masked_lrp", "path_marginals", "lrp_path", "saliency", "cam", "occlusion")
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)  # which find their parts by name


def renamed(model: nn.Module) -> nn.Module:
    """Return a copy in which the name of every class and submodule says nothing.

    PyG writes code for each class of its convolutions, so these keep their names.
    """
    model = copy.deepcopy(model)
    for k, module in enumerate(list(model.modules())):
        if isinstance(module, MessagePassing):
            continue
        names: dict[str, str] = {}
        if not isinstance(module, CONTAINERS):
            names = {name: f"part_{k}_{i}" for i, name in enumerate(module._modules)}
            parts = {names[name]: part for name, part in module._modules.items()}
            module._modules.clear()
            module._modules.update(parts)

        def get_attribute(self, name, names=names, kind=type(module)):
            return kind.__getattr__(self, names.get(name, name))

        module.__class__ = type(f"Kind{k}", (type(module),), {"__getattr__": get_attribute})
    return model


class Pooled(nn.Module):
    """A model of nodes, and the mean over them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.head = model, nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        return self.head(global_mean_pool(self.model(x, edge_index, batch), batch))


class NormGatedConv(nn.Module):
    """A gated convolution that is called a norm, and whose root is no scale of a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(9, 8), GPSConv(8, ResGatedGraphConv(8, 8), heads=2)

    def forward(self, x, edge_index, batch):
        h = self.norm(self.embed(x), edge_index, batch)
        return h * (h.square() + 1).sqrt()


def switched_on() -> nn.Module:
    model = Polynormer(9, 8, 8, local_layers=1, global_layers=1)
    model._global = True
    return model


ZOO = {
    "gps": GpsModel,
    "transformer": SparseModel,
    "gat": lambda: SparseModel("gat"),
    "performer": lambda: GpsModel("layer_norm", "silu", "performer"),
    "sgformer": lambda: Pooled(SGFormer(9, 8, 8, trans_num_heads=2)),
    "polynormer": lambda: Pooled(switched_on()),
    "a norm by name": lambda: Pooled(NormGatedConv()),
}


def relevances(model: WrappedModel, method) -> list[np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they name the classes
        return [explanation.relevance for explanation in gx.explain(model, GRAPHS, method)]


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.usefixtures("recorded_once")
def test_renaming_classes_and_submodules_changes_no_relevance(name):
    torch.manual_seed(0)
    model = ZOO[name]().eval()
    methods = (*FEW, *map(quick_explainer, OTHER_WAYS)) if name == "gps" else FEW
    named, other = (gx.wrap(module, kind="regression") for module in (model, renamed(model)))
    as_named = [relevances(named, method) for method in methods]
    for method, expected in zip(methods, as_named, strict=True):
        for first, second in zip(expected, relevances(other, method), strict=True):
            np.testing.assert_array_equal(first, second, err_msg=str(method))


@pytest.mark.usefixtures("recorded_once")
def test_renaming_changes_no_relevance_of_tokens():
    model, ids = Bert().eval(), torch.tensor([0, 5, 3, 7])
    other = renamed(model)
    options = {"kind": "multiclass", "classes": 3, "inputs": "tokens", "graph_token": True}
    at = next(path for path, module in other.named_modules() if isinstance(module, nn.Identity))
    assert at != "embeddings"
    first = gx.wrap(model, **options, embedding="embeddings")
    second = gx.wrap(other, **options, embedding=at)
    for method in FEW:
        relevances_of_both = [gx.explain(each, ids, method).relevance for each in (first, second)]
        np.testing.assert_array_equal(*relevances_of_both, err_msg=method)


class Answering(nn.Module):
    def __init__(self, names):
        super().__init__()
        torch.manual_seed(0)
        self.last, self.names = nn.Linear(4, 1), names

    def forward(self, x, edge_index):
        return dict.fromkeys(self.names) | {self.names[0]: self.last(x.mean(0, keepdim=True))}


def test_a_mapping_with_logits_is_read_and_another_is_named():
    graph = Data(x=torch.randn(5, 4), edge_index=torch.tensor([[0, 1], [1, 0]]))
    module = Answering(["logits", "loss"]).eval()
    explanation = gx.explain(gx.wrap(module, kind="regression"), graph)
    with torch.no_grad():
        expected = module(graph.x, None)["logits"].item()
    assert explanation.output == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="the model returns dict, not a tensor"):
        gx.explain(gx.wrap(Answering(["score", "loss"]).eval(), kind="regression"), graph)


def test_a_wrapped_model_says_what_it_is():
    tasks = [gx.Task("solubility", "regression"), gx.Task("toxic", "binary", ("no", "yes"))]
    model = gx.wrap(Answering(["logits"]), tasks)
    assert (
        repr(model) == "WrappedModel(Answering of graphs: solubility (regression), toxic (binary))"
    )
    at = gx.wrap(Answering(["logits"]), kind="regression", embedding="last", inputs="tokens")
    assert repr(at).endswith("of rows of tokens: output (regression), explained at last)")
