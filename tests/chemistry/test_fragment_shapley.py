"""Shapley values of fragments fulfil their definition and axioms, sampled or not."""

import itertools
import math
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

import graphxai as gx
from graphxai.chemistry import fragment_shapley
from graphxai.cli import main as cli
from graphxai.contract.inputs import prepare_for
from graphxai.models.graphormer import save_checkpoint
from graphxai.wrapping.removal import outputs_of_parts
from other_models import GpsModel, molecules
from toy import random_graphormer

AMIDE = "CC(=O)Nc1ccc(OCC)cc1"  # 4 BRICS fragments
CHAIN = "c1ccccc1CCc1ccccc1"  # two equal rings


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=2)


def by_definition(value, players):
    """Average over all orders what each player adds to those before it."""
    values = dict.fromkeys(players, 0.0)
    for order in itertools.permutations(players):
        for place, player in enumerate(order):
            gain = value(order[: place + 1]) - value(order[:place])
            values[player] += gain / math.factorial(len(players))
    return values


def value_of(model, smiles, operator):
    """Return the logit of a molecule with only the atoms of some fragments."""
    data = prepare_for(model, smiles).data

    @cache
    def of_atoms(atoms):
        keep = torch.zeros(1, int(data.num_nodes), dtype=torch.bool)
        keep[0, sorted(atoms)] = True
        return float(outputs_of_parts(model, data, keep, operator)[0, 0])

    return lambda fragments: of_atoms(frozenset(itertools.chain(*fragments)))


@pytest.mark.parametrize("operator", ["mask", "zero", "delete"])
def test_values_of_fragments_are_means_over_all_orders(model, operator):
    e = gx.explain(model, AMIDE, "gae")  # scores without a sign, which the values have
    parts = gx.fragments(e, method="shapley", model=model, operator=operator)
    expected = by_definition(value_of(model, AMIDE, operator), [part.atoms for part in parts])
    assert len(parts) >= 3
    for part in parts:
        assert part.relevance == pytest.approx(expected[part.atoms], abs=2e-5)
        assert part.error is None
        assert not part.unsigned
    assert parts.shapley.errors is None
    assert parts.shapley.evaluated == 2 ** len(parts)
    assert "exact" in parts.svg()


def test_values_sum_to_what_all_fragments_change(model):
    value = value_of(model, AMIDE, "mask")
    atoms = tuple(range(prepare_for(model, AMIDE).num_nodes))
    for target in ("active", "inactive"):
        sign = 1 if target == "active" else -1
        e = gx.explain(model, AMIDE, target=target)
        parts = gx.fragments(e, method="shapley", model=model)
        assert parts.total == pytest.approx(sign * (value([atoms]) - value([])), abs=2e-5)
        assert parts.explanation.ledger.unexplained == pytest.approx(0, abs=1e-6)


def test_fragments_that_symmetry_exchanges_have_equal_values(model):
    parts = gx.fragments(gx.explain(model, CHAIN), method="shapley", model=model)
    rings = [part.relevance for part in parts if len(part.atoms) == 6]
    assert len(rings) == 2
    assert rings[0] == pytest.approx(rings[1], abs=1e-5)


def test_more_than_ten_fragments_are_sampled_and_say_so(model, monkeypatch):
    e = gx.explain(model, AMIDE)
    exact = gx.fragments(e, method="shapley", model=model)
    monkeypatch.setattr(fragment_shapley, "EXACT", 2)
    parts = gx.fragments(e, method="shapley", model=model, seed=3)
    again = gx.fragments(e, method="shapley", model=model, seed=3)
    assert (parts.shapley.orders, parts.shapley.seed) == (64, 3)
    assert "64 orders with seed 3" in str(parts.shapley)
    assert parts.total == pytest.approx(exact.total, abs=1e-5)
    assert parts.to_frame().equals(again.to_frame())
    exact_values = {part.atoms: part.relevance for part in exact}
    for part in parts:
        assert abs(part.relevance - exact_values[part.atoms]) < 4 * part.error + 1e-5
    assert parts.to_frame().error.gt(0).any()
    assert "error" not in exact.to_frame()


def test_a_wrapped_model_needs_its_graph(model):
    graph = molecules()[0]
    torch.manual_seed(0)
    wrapped = gx.wrap(GpsModel().eval(), kind="regression")
    e = gx.explain(wrapped, graph, "gradient_input")
    with pytest.raises(ValueError, match="is not a bundled model: pass it"):
        gx.fragments(e, method="shapley")
    parts = gx.fragments(e, method="shapley", model=wrapped, graph=graph)
    with torch.no_grad():
        data = prepare_for(wrapped, graph).data
        none = torch.zeros(1, graph.num_nodes, dtype=torch.bool)
        ends = outputs_of_parts(wrapped, data, torch.cat([~none, none]))[:, 0]
    assert parts.total == pytest.approx(float(ends[0] - ends[1]), abs=1e-4)
    with pytest.raises(ValueError, match="pass the model= and the graph= that were explained"):
        gx.fragments(e, method="shapley", model=wrapped, graph=molecules()[1])


def test_a_bundled_model_is_found_by_its_name():
    e = gx.explain("bace", "CC(=O)Nc1ccccc1")
    parts = gx.fragments(e, method="shapley")
    assert parts.total == pytest.approx(e.ledger.change, abs=1e-4)


def test_an_unknown_way_is_refused(model):
    with pytest.raises(ValueError, match='must be "sum", "shapley" or "shares"'):
        gx.fragments(gx.explain(model, "CCO"), method="banzhaf")


def test_the_command_ranks_fragments_by_their_shapley_values(model, tmp_path, monkeypatch):
    texts = [AMIDE, "CC(=O)Nc1ccncc1"]
    source, out = tmp_path / "molecules.csv", tmp_path / "fragments.csv"
    source.write_text("\n".join(["smiles", *texts]) + "\n")
    folder = save_checkpoint(model, tmp_path / "toy")
    arguments = [source, "--model", folder, "--out", out, "--minimum", 1, "--method", "shapley"]
    monkeypatch.setattr("sys.argv", ["graphxai", "fragments", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    parts = [gx.fragments(e, method="shapley", model=model) for e in gx.explain(model, texts)]
    expected = gx.fragment_table(parts).set_index("smiles")["mean"].sort_index()
    means = pd.read_csv(out).set_index("smiles")["mean"].sort_index()
    np.testing.assert_allclose(means, expected, atol=1e-5)
