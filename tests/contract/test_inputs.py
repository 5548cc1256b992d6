"""Graphs that do not fit the model are refused by name, before anything is computed."""

import re
from types import SimpleNamespace

import pytest
import torch
from rdkit import Chem

import graphxai as gx
from graphxai.contract import batching
from graphxai.contract.inputs import InputError, prepare_all, prepare_each, prepare_for
from graphxai.datasets.graph import Graph
from graphxai.datasets.molecules import molecule_graph, molecule_to_data
from graphxai.datasets.samples import digit_paths
from graphxai.datasets.superpixels import image_to_data
from other_models import GpsModel
from toy import random_graphormer


def changed(**values):
    data = molecule_to_data("CCO")
    del data.smiles
    for name, value in values.items():
        data[name] = value
    return data


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"edge_attr": torch.zeros(3, 3, dtype=torch.long)}, "3 rows for the 4 edges"),
        ({"edge_attr": torch.zeros(0, 3, dtype=torch.long)}, "0 rows for the 4 edges"),
        ({"edge_attr": torch.full((4, 3), torch.nan)}, "edge_attr must hold integers"),
        ({"batch": torch.tensor([0, 0, 1])}, "`batch` names 2 graphs: pass them as a list"),
        ({"edge_index": torch.tensor([0, 1, 1, 2])}, r"in the shape \(2, E\).*shape \(4,\)"),
        ({"edge_index": torch.zeros(3, 4, dtype=torch.long)}, r"in the shape \(2, E\)"),
        ({"edge_index": torch.zeros(2, 4)}, "edge_index must hold whole numbers"),
        ({"x": torch.full((3, 9), torch.nan)}, "x must hold whole numbers.*NaN"),
        ({"x": torch.full((3, 9), 0.5)}, "x must hold whole numbers.*fractions"),
    ],
)
def test_a_graph_that_does_not_fit_is_refused_by_name(model, values, message):
    with pytest.raises(InputError, match=message):
        gx.predict(model, changed(**values))


def test_a_wrapped_model_gets_no_graph_that_does_not_fit():
    model = gx.wrap(GpsModel(), kind="regression")
    data = changed()
    data.x = torch.zeros(3, 8)
    data.edge_attr = data.edge_attr[:2]
    with pytest.raises(InputError, match="2 rows for the 4 edges"):
        gx.predict(model, data)


@pytest.mark.parametrize("name", ["x", "pos"])
def test_a_picture_with_nan_is_refused_by_name(name):
    from graphxai.datasets.mnist import read_digit

    data = image_to_data(read_digit(digit_paths()[3]))
    data[name][0, 0] = torch.nan
    with pytest.raises(InputError, match=f"{name} contains values that are not finite"):
        gx.predict("mnist-superpixels", data)


def test_a_result_that_is_not_finite_is_left_out_with_a_warning():
    model = random_graphormer(num_layers=1)
    model.node_embedding.table.data[5] = 1e38  # the row of carbon
    for call in (gx.predict, gx.explain, gx.pairs):
        with pytest.warns(UserWarning, match="input 1 was left out: .* not a finite number"):
            results = call(model, ["O", "CC"])
        assert results[0] is not None
        assert results[1] is None
        with pytest.raises(ValueError, match="not a finite number"):
            call(model, "CC")


def test_molecules_prepared_together_equal_those_prepared_one_by_one(model):
    graph = molecule_to_data("CC(=O)Nc1ccccc1")
    values = ["CCO", "C1CC", Chem.MolFromSmiles("F[C@H](Cl)Br"), graph, "", 3.5, "O=C=O"] * 12
    together = list(prepare_each(model, values))
    assert len(together) == len(values)
    assert "structure" not in graph  # the caller's graph stays as it is
    for value, encoded in zip(values, together, strict=True):
        if isinstance(encoded, Exception):
            with pytest.raises(type(encoded), match=re.escape(str(encoded))):
                prepare_for(model, value)
            continue
        alone = prepare_for(model, value)
        assert (encoded.smiles, encoded.molecule is None) == (alone.smiles, alone.molecule is None)
        for name, expected in alone.data.to_dict().items():
            if isinstance(expected, torch.Tensor):
                assert torch.equal(encoded.data[name], expected)


def test_molecules_are_prepared_without_pyg_and_a_given_graph_is_left_as_it_is(model):
    given = molecule_graph("CCO"), molecule_to_data("CCO")
    names = [set(vars(given[0])), set(given[1].keys())]
    prepared = prepare_all(model, ["CCO", Chem.MolFromSmiles("CN"), *given])
    assert [type(item.graph) for item in prepared] == [Graph, Graph, Graph, type(given[1])]
    assert [set(vars(given[0])), set(given[1].keys())] == names
    assert prepared[0].data is prepared[0].data  # converted once
    assert torch.equal(prepared[0].data["bag_codes"], prepared[3].data["bag_codes"])


def test_only_errors_of_the_named_kinds_are_given_in_place_of_an_input(model):
    def broken(value):
        raise TypeError(value)

    wrapped = gx.wrap(GpsModel(), kind="regression")
    wrapped.prepare = broken
    with pytest.raises(TypeError):
        list(prepare_each(wrapped, [1]))
    (error,) = prepare_each(wrapped, [1], Exception)
    assert isinstance(error, TypeError)
    with pytest.raises(ValueError, match="ring 1 is opened"):
        prepare_all(model, ["CCO", "C1CC"])


def test_batches_hold_as_many_pairs_as_fit_into_memory_and_no_more():
    """All graphs of a batch are padded to its largest, with a pair for any two of its tokens."""
    sizes = [9, 99, 149, 149, 149, 149, 149, 399]
    inputs = [
        (k, SimpleNamespace(num_nodes=n, explains_several=False)) for k, n in enumerate(sizes)
    ]
    batches = list(batching.in_batches(inputs))
    assert sorted(key for batch in batches for key, _ in batch) == list(range(8))
    pairs = [len(b) * (b[-1][1].num_nodes + 1) ** 2 for b in batches if len(b) > 1]
    assert max(pairs) <= batching.MAX_PAIRS
    assert [len(batch) for batch in batches] == [4, 3, 1]
