"""Explanations do not depend on the device on which PyTorch makes new tensors.

`meta` stands for another device here: tensors that land on it by mistake have no values.
"""

import pytest
import torch
from kinds_of_models import KINDS, QUESTIONS
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

import graphxai as gx
from graphxai.runtime.device import users_default_device
from other_models import quick_explainer

pytestmark = pytest.mark.usefixtures("only_relevance")


def explained(kind, method):
    return gx.explain(kind.model(), kind.value(), quick_explainer(method), **kind.choice).relevance


@pytest.mark.parametrize("kind", ["dense", "hybrid", "node", "link", "sequence"])
@pytest.mark.parametrize(
    "method", ["lrp", "gae", "lrp_zplus", "shapley_sampling", "path_marginals"]
)
def test_relevance_is_the_same_whatever_the_default_device(kind, method):
    kind = KINDS[kind]
    expected, model = explained(kind, method), kind.model()
    value, explainer = kind.value(), quick_explainer(method)
    with torch.device("meta"):
        relevance = gx.explain(model, value, explainer, **kind.choice).relevance
    assert relevance == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("question", QUESTIONS)
def test_everything_else_can_be_asked_too(question):
    kind = KINDS["sparse"]
    model, value = kind.model(), kind.value()

    class Made(type(kind)):
        def model(self):
            return model

    made = Made(kind.module, lambda: value)
    with torch.device("meta"):
        assert QUESTIONS[question](made) is not None


def test_a_bundled_model_is_loaded_and_explained():
    expected = gx.explain(gx.load("bace"), "CCO").relevance
    with torch.device("meta"):
        relevance = gx.explain(gx.load("bace"), "CCO").relevance
    assert relevance == pytest.approx(expected, abs=1e-6)


def test_the_users_module_keeps_the_users_default():
    devices = []

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 1)

        def forward(self, x, batch):
            devices.append(torch.empty(0).device.type)
            return self.head(global_add_pool(x, batch))

    model = gx.wrap(Asks(), kind="regression")
    graph = Data(x=torch.ones(3, 4), edge_index=torch.zeros(2, 0, dtype=torch.long))
    with torch.device("meta"):
        gx.explain(model, graph, "occlusion")
    assert set(devices) == {"meta"}
    with users_default_device():  # nothing stays in force
        assert torch.empty(0).device.type == "cpu"
