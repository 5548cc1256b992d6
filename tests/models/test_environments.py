"""A model that reads environments knows what lies around an atom, however the atoms are ordered."""

import numpy as np
import pytest
import torch
from rdkit import Chem

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.learning.fit import molecule_config
from graphxai.models.graphormer import Graphormer, StructureEncoding, collate, save_checkpoint

DRUGS = ["CC(=O)Oc1ccccc1C(=O)O", "C[C@H](N)C(=O)N1CCC[C@@H]1C(=O)O", "c1cc2ccc1CC2"]
RADIUS = 3


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = molecule_config(
        [Task("y", "regression")], num_layers=2, hidden_dim=16, ffn_dim=16, environments=997
    )
    model = Graphormer(config).eval()
    torch.nn.init.normal_(model.node_embedding.environments, std=0.5)
    return model


def encoded(mol, model):
    return StructureEncoding.from_config(model.config)(molecule_to_data(mol))


def environment(data, atom, radius):
    """Return all that lies within some bonds of an atom, as nested tuples."""
    around = () if radius else None
    if radius:
        bonds = zip(*data.edge_index.tolist(), data.edge_attr.tolist(), strict=True)
        around = sorted(
            (tuple(bond), environment(data, source, radius - 1))
            for source, target, bond in bonds
            if target == atom
        )
    return tuple(data.x[atom].tolist()), tuple(around or ())


def test_atoms_share_a_row_exactly_if_their_environments_are_equal(model):
    rows, seen = {}, {}
    for smiles in DRUGS:
        data = encoded(smiles, model)
        assert data.environments.shape == (data.num_nodes, RADIUS)
        for atom in range(data.num_nodes):
            for radius in range(1, RADIUS + 1):
                around = radius, environment(data, atom, radius)
                row = int(data.environments[atom, radius - 1])
                assert rows.setdefault(around, row) == row
                seen.setdefault(row, set()).add(around)
    assert np.mean([len(arounds) for arounds in seen.values()]) < 1.1  # few share one by chance


def test_molecules_encoded_together_have_the_environments_that_each_has_alone(model):
    smiles = [DRUGS[0], "C1CC", "C", *DRUGS[1:], "[Na+].[Cl-]"]
    together = list(model.prepare_group(smiles))
    assert isinstance(together[1], ValueError)
    for text, item in zip(smiles, together, strict=True):
        if text != "C1CC":
            alone = encoded(text, model)
            assert item.graph.environments.equal(alone.environments)
            assert item.graph.environment_settings == alone.environment_settings


def test_a_token_is_the_sum_of_its_features_and_a_prediction_does_not_depend_on_the_order(model):
    mol = Chem.MolFromSmiles(DRUGS[0])
    order = np.random.default_rng(0).permutation(mol.GetNumAtoms()).tolist()
    given, other = mol, Chem.RenumberAtoms(mol, order)
    values = [gx.predict(model, each)["y"].value for each in (given, other)]
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    batch = collate([encoded(DRUGS[0], model)])
    table = model.node_embedding.environments
    by_hand = table[batch.environments[0]].sum(1)  # (N, D)
    tokens = model.embed(batch)[0, 1:]
    with torch.no_grad():
        kept, table.data = table.data, torch.zeros_like(table)
        without = model.embed(batch)[0, 1:]
        table.data = kept
    torch.testing.assert_close(tokens - without, by_hand)
    direction = torch.randn(1, *tokens.shape)
    parts = model.split_by_feature(batch, direction)[0]  # (N, features)
    assert model.feature_names[-2:] == ("environment", "centrality")
    torch.testing.assert_close(parts.sum(1), (tokens * direction[0]).sum(1))
    torch.testing.assert_close(parts[:, -2], (by_hand * direction[0]).sum(1))
    torch.testing.assert_close(model.sum_by_feature(batch).sum(0), tokens.sum(0))


def test_relevance_still_adds_up_to_the_output_and_the_checkpoint_keeps_the_table(model, tmp_path):
    loaded = gx.load(save_checkpoint(model, tmp_path / "model"))
    for smiles in DRUGS:
        explanation = gx.explain(loaded, smiles)
        ledger = explanation.ledger
        shares = [ledger.nodes, ledger.graph_token, ledger.biases]
        shares += [*ledger.structure.values(), *ledger.remainders.values()]
        assert sum(shares) == pytest.approx(ledger.output, abs=1e-4)
        assert ledger.nodes == pytest.approx(float(np.sum(explanation.relevance)), abs=1e-4)
        value = gx.predict(model, smiles)["y"].value
        assert explanation.prediction.value == pytest.approx(value, rel=1e-5)


def test_what_does_not_fit_is_refused(model):
    plain = StructureEncoding(model.config.edge_cardinalities)(molecule_to_data("CCO"))
    with pytest.raises(ValueError, match="encoded without"):
        model(collate([plain]))
    with pytest.raises(ValueError, match="up to 1,048,576 rows"):
        molecule_config([Task("y", "regression")], environments=1 << 21)
    with pytest.raises(ValueError, match="a radius of up to 16, not 8 and 17"):
        molecule_config([Task("y", "regression")], environments=8, environment_radius=17)
    assert molecule_config([Task("y", "regression")], environments=1, environment_radius=16)
    with pytest.raises(ValueError, match="categorical"):
        type(model.config)((Task("y", "regression"),), num_node_features=3, environments=8)
