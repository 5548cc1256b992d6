"""A graph network trained on SMILES and an estimator on fingerprints take molecules everywhere."""

from functools import partial
from itertools import permutations

import numpy as np
import pytest
import torch
from rdkit import Chem
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression
from torch import nn
from torch_geometric.nn import GINConv, global_add_pool
from torch_geometric.utils import from_smiles

import graphxai as gx
from graphxai.contract.inputs import InputError
from graphxai.wrapping.estimators import masked_molecule

SMILES = ["CCO", "CC(=O)O", "c1ccccc1O", "CCN", "CC(C)C", "c1ccncc1", "CCCl", "OCCO"]
ELEMENTS = {"C": 1.0, "O": -2.0, "N": 0.5, "Cl": 3.0}
FINGERPRINTS = GetMorganGenerator(radius=2, fpSize=256)


# -- a graph network -----------------------------------------------------------------------------


class Gin(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = GINConv(nn.Linear(9, 16)), nn.Linear(16, 1)

    def forward(self, x, edge_index, batch):
        return self.head(global_add_pool(self.conv(x, edge_index).relu(), batch))


def read(smiles, hydrogens=False):
    data = from_smiles(smiles, with_hydrogen=hydrogens)
    data.x = data.x.float()
    return data


def gin():
    return gx.wrap(Gin().eval(), kind="regression", task="logS", inputs="molecules", featurize=read)


def test_a_graph_network_reads_molecules_as_its_own_featurizer_does():
    model = gin()
    predicted = [p["logS"].value for p in gx.predict(model, SMILES)]
    with torch.no_grad():
        expected = [
            float(Gin()(g.x, g.edge_index, torch.zeros(len(g.x), dtype=torch.long)))
            for g in map(read, SMILES)
        ]
    np.testing.assert_allclose(predicted, expected, atol=1e-5)
    for explanation in gx.explain(model, SMILES):
        assert abs(explanation.ledger.unexplained) < 1e-5
        assert explanation.molecule.GetNumAtoms() == len(explanation)


def test_a_graph_network_has_reports_fragments_and_changes(tmp_path):
    model = gin()
    (tmp_path / "t.csv").write_text("smiles\n" + "\n".join(SMILES))
    page = gx.report(model, tmp_path / "t.csv", tmp_path / "r.html").read_text(encoding="utf-8")
    assert all(text in page for text in SMILES)
    assert len(gx.fragments(gx.explain(model, "CC(=O)Oc1ccccc1")))


def test_molecules_are_checked_before_and_after_the_featurizer():
    model = gin()
    with pytest.raises(ValueError, match="cannot be read"):
        gx.explain(model, "CC(")
    with pytest.raises(InputError, match="takes SMILES, RDKit molecules or Data, not int"):
        gx.explain(model, 3)
    with_hydrogens = partial(read, hydrogens=True)
    hydrogens = gx.wrap(
        Gin().eval(), kind="regression", inputs="molecules", featurize=with_hydrogens
    )
    with pytest.raises(InputError, match="9 nodes for a molecule of 3 atoms"):
        gx.explain(hydrogens, "CCO")
    with pytest.raises(ValueError, match="needs featurize="):
        gx.wrap(Gin(), kind="regression", inputs="molecules")


# -- estimators ------------------------------------------------------------------------------------


def element_counts(mol):
    symbols = [atom.GetSymbol() for atom in mol.GetAtoms()]
    return [symbols.count(element) for element in ELEMENTS]


def bits(mol):
    return FINGERPRINTS.GetFingerprintAsNumPy(mol)


def features(smiles, of):
    return np.array([of(Chem.MolFromSmiles(text)) for text in smiles])


@pytest.fixture(scope="module")
def forest():
    values = np.arange(len(SMILES), dtype=float)
    return RandomForestRegressor(10, random_state=0).fit(features(SMILES, bits), values)


@pytest.mark.parametrize("method", ["occlusion", "shapley_sampling"])
def test_where_elements_are_counted_an_atom_has_the_coefficient_of_its_element(method):
    counts = features([*SMILES, "CN(C)C", "CCCC"], element_counts)
    estimator = LinearRegression().fit(counts, counts @ list(ELEMENTS.values()) + 7.0)
    model = gx.wrap(estimator, featurize=element_counts, task="value")
    explanation = gx.explain(model, "OCC(N)Cl", method)
    np.testing.assert_allclose(explanation.relevance, [-2, 1, 1, 0.5, 3], atol=1e-5)
    assert explanation.without_nodes == pytest.approx(7.0, abs=1e-5)


def test_shapley_values_of_atoms_are_those_of_all_orders(forest):
    """Four atoms have 24 orders, and sampling with every order of a seed comes close to them."""
    mol = Chem.MolFromSmiles("CC(=O)O")
    text = mol.ToBinary().decode("latin-1")

    def value(left):
        return forest.predict([bits(masked_molecule(text, frozenset(left)))])[0]

    exact = np.zeros(4)
    for order in permutations(range(4)):
        for place, atom in enumerate(order):
            exact[atom] += (value(order[: place + 1]) - value(order[:place])) / 24
    model = gx.wrap(forest, featurize=bits)
    explanation = gx.explain(model, "CC(=O)O", "shapley_sampling", permutations=600)
    np.testing.assert_allclose(explanation.relevance, exact, atol=0.05)
    assert explanation.relevance.sum() == pytest.approx(value(range(4)) - value(()), abs=1e-4)


def test_a_hidden_atom_is_a_dummy_with_its_bonds():
    text = Chem.MolFromSmiles("C[C@H]([NH3+])c1ccccc1").ToBinary().decode("latin-1")
    masked = masked_molecule(text, frozenset(range(9)) - {2})
    assert Chem.MolToSmiles(masked) == "*[C@@H](C)c1ccccc1"
    assert Chem.MolToSmiles(masked_molecule(text, frozenset())) == "**(*)*1:*:*:*:*:*:1"


def test_classes_are_explained_by_their_logit(forest):
    labels = [0, 1, 0, 0, 1, 0, 1, 1]
    classifier = RandomForestClassifier(10, random_state=0).fit(features(SMILES, bits), labels)
    model = gx.wrap(classifier, featurize=bits, task="active", classes=("no", "yes"))
    expected = classifier.predict_proba(features(SMILES, bits))[:, 1]
    predicted = [p["active"].probabilities["yes"] for p in gx.predict(model, SMILES)]
    np.testing.assert_allclose(predicted, expected, atol=1e-5)
    three = RandomForestClassifier(5, random_state=0).fit(features(SMILES, bits), np.arange(8) % 3)
    assert list(gx.predict(gx.wrap(three, featurize=bits), "CCO")["output"].probabilities) == [
        "0", "1", "2",
    ]  # fmt: skip


class OnMolecules:
    """A pipeline that takes RDKit molecules or SMILES itself, as of scikit-mol and molpipeline."""

    def fit(self, X, y):
        return self

    def predict(self, X):
        mols = [Chem.MolFromSmiles(x) if isinstance(x, str) else x for x in X]
        return np.array([sum(a.GetAtomicNum() > 0 for a in m.GetAtoms()) for m in mols], float)


def test_a_pipeline_may_take_molecules_or_smiles_itself():
    for featurize in (None, Chem.MolToSmiles):
        model = gx.wrap(OnMolecules(), featurize=featurize)
        assert gx.predict(model, "CCO")["output"].value == 3
        assert gx.explain(model, "CCO", "occlusion").relevance.tolist() == [1, 1, 1]


def test_an_estimator_has_reports_and_says_which_methods_explain_it(forest, tmp_path):
    model = gx.wrap(forest, featurize=bits, task="logS", name="forest")
    (tmp_path / "t.csv").write_text("smiles\n" + "\n".join(SMILES))
    page = gx.report(model, tmp_path / "t.csv", tmp_path / "r.html", method="occlusion")
    assert "forest" in page.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"forest has no gradient: .* 'occlusion'"):
        gx.explain(model, "CCO", "gradient_input")
    assert gx.explain(model, "CCO").provenance["method"] == "occlusion"
    with pytest.raises(ValueError, match="takes no forward"):
        gx.wrap(forest, forward=lambda model, batch: None)
    with pytest.raises(ValueError, match="1 outputs"):
        gx.wrap(forest, [gx.Task("a", "regression"), gx.Task("b", "regression")], featurize=bits)


def test_an_rdkit_molecule_keeps_the_order_of_its_atoms(forest):
    model = gx.wrap(forest, featurize=bits)
    mol = Chem.RenumberAtoms(Chem.MolFromSmiles("CCO"), [2, 0, 1])
    turned, usual = (gx.explain(model, value, "occlusion") for value in (mol, "CCO"))
    np.testing.assert_allclose(turned.relevance, usual.relevance[[2, 0, 1]], atol=1e-6)
