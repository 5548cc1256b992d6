"""Training leaves the random numbers, the precision and the gradients of its caller alone."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import graphxai as gx
from graphxai.explainers.learned.train import fit_explainer
from graphxai.learning.cleaning import clean_table
from graphxai.learning.recipes.masked_atoms import fit_masked_atoms
from graphxai.runtime.randomness import callers_state_kept

SMILES = ["C" * k + end for k in range(1, 16) for end in ("O", "N", "c1ccccc1", "C(=O)O")]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    rows = (f"{smiles},{len(smiles) + k % 3}" for k, smiles in enumerate(SMILES))
    path.write_text("\n".join(["smiles,size", *rows]))
    return path


def network(table, out):
    gx.train_table(
        clean_table(table, "smiles", ["size"]), out, model="network", epochs=1, progress=False
    )


def process(table, out):
    gx.train_table(clean_table(table, "smiles", ["size"]), out, model="process", progress=False)


def adapted(table, out):
    gx.adapt("lipophilicity", table, out, target_column="size", task="log D at pH 7.4")


def graphs(table, out):
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    x = torch.arange(12.0, dtype=torch.float32).reshape(4, 3)
    paths = [Data(x=x * k, edge_index=edges, y=torch.tensor([k % 2])) for k in range(30)]
    gx.train(paths, out, layers=1, width=16, epochs=1, progress=False)


def learned(table, out):
    fit_explainer(gx.load("bace"), SMILES, epochs=1, progress=False)


@contextlib.contextmanager
def double_precision():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _random_states():
    return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())


@pytest.mark.parametrize("train", [network, process, adapted, graphs, learned])
def test_the_random_numbers_of_the_caller_go_on(train, table, tmp_path):
    before = _random_states()
    train(table, tmp_path / "run")
    assert _random_states() == before


@pytest.mark.parametrize("train", [network, process, adapted, graphs, learned])
@pytest.mark.parametrize("state", [double_precision, torch.no_grad, torch.inference_mode])
def test_training_has_gradients_and_floats_whatever_its_caller_has(train, state, table, tmp_path):
    with state():
        train(table, tmp_path / "run")


@pytest.mark.parametrize("train", [network, graphs])
def test_weights_do_not_depend_on_the_random_numbers_of_the_caller(train, table, tmp_path):
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        train(table, tmp_path / str(seed))
        weights.append((tmp_path / str(seed) / "model" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.parametrize("fit", [fit_explainer, fit_masked_atoms])
def test_a_warning_of_graphs_left_out_names_the_line_of_the_caller(fit):
    with pytest.warns(UserWarning, match="1 of 61 graphs were left out") as caught:
        fit(gx.load("bace"), [*SMILES, "C1CC"], epochs=1, progress=False)
    assert caught[0].filename == __file__


def test_trainings_that_overlap_leave_the_default_precision_of_the_caller():
    """The first one to begin may end before the other, as in two threads."""
    with double_precision():
        first, second = callers_state_kept(), callers_state_kept()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32  # the second still trains
        second.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float64
