"""One compound gets one answer, in whatever form it is drawn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rdkit import Chem

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.contract.target import Target
from graphxai.datasets import features
from graphxai.datasets.canonical_form import mirror_image
from graphxai.datasets.training_set import training_set_of
from graphxai.evaluation import Refit, node_series
from graphxai.explainers.edge_shapley import edge_shapley
from graphxai.models.graphormer import Graphormer, set_standardisation
from graphxai.visualization import molecule_svg
from one_compound import chosen_compounds, forms, outputs, tautomers

BESYLATE = (
    "C[C@]1(CS(=O)(=O)N(C(=N1)N)C)c1cc(NC(=O)c2ccc(F)cn2)ccc1F.OS(=O)(=O)c1ccccc1"  # verubecestat
)
BASE = BESYLATE.split(".")[0]
PRALIDOXIME = "C[n+]1ccccc1C=NO"


@pytest.mark.parametrize("name", ["bace", "blood-brain-barrier"])
def test_salts_hydrates_and_ions_get_the_outputs_of_the_compound(name):
    model = gx.load(name)
    for compound in chosen_compounds(2):
        base, *others = outputs(model, [compound, *forms(compound).values()])
        assert np.abs(np.array(others) - base).max() < 1e-5


def test_tautomers_get_one_output_if_that_is_wanted():
    model = gx.load("bace")
    set_standardisation(model, "tautomers")
    pairs = [(compound, other) for compound in chosen_compounds(3) for other in tautomers(compound)]
    first, second = (outputs(model, [pair[k] for pair in pairs]) for k in (0, 1))
    assert len(pairs) > 2
    assert np.abs(first - second).max() < 1e-5


def test_an_explanation_shows_the_parent_and_leads_back_to_the_salt():
    model = gx.load("bace")
    salt, base = gx.explain(model, [BESYLATE, BASE])
    assert salt.prediction.probabilities == pytest.approx(base.prediction.probabilities, abs=1e-6)
    assert salt.note == "salt removed: besylate"
    assert "salt removed: besylate" in repr(salt)
    assert "salt removed: besylate" in salt.svg()
    assert salt.molecule.GetNumAtoms() == 28
    of_given = salt.by_atom_given(salt.relevance)
    assert len(of_given) == Chem.MolFromSmiles(BESYLATE).GetNumAtoms() == 38
    assert not of_given[28:].any()
    # the base is written first, so its atoms have the same numbers in both
    assert of_given[:28] == pytest.approx(base.relevance, abs=1e-5)
    assert gx.predict(model, BESYLATE)["pIC50"].note == salt.note
    assert not base.note


def test_a_picture_numbers_the_atoms_of_the_molecule_given():
    salt = gx.explain("bace", "[Cl-].C[NH2+]CC")
    numbered = salt.svg(atom_numbers=True)
    note = "atoms are numbered as in the molecule given"
    assert note in numbered
    given = Chem.MolFromSmiles("[Cl-].C[NH2+]CC")
    numbers = salt.to_frame().given_atom.tolist()
    symbols = [given.GetAtomWithIdx(number).GetSymbol() for number in numbers]
    assert symbols == salt.to_frame().symbol.tolist()
    mol = Chem.Mol(salt.molecule)
    options = {"scale": salt.scale(), "title": "t", "subtitle": "s", "note": "n"}
    options["legend"] = salt.legend
    by_hand = molecule_svg(mol, salt.relevance, atom_numbers=numbers, **options)
    assert by_hand == salt.svg(atom_numbers=True, **options)
    assert by_hand != molecule_svg(mol, salt.relevance, atom_numbers=True, **options)


def test_a_salt_of_a_training_compound_is_recognised():
    model = gx.load("bace")
    compound = next(s for s in training_set_of(model).smiles if "N" in s)
    assert gx.predict(model, f"{compound}.Cl")["pIC50"].nearness.word == "training compound"


def test_as_drawn_reads_salts_whole():
    model = gx.load("bace", as_drawn=True)
    e = gx.explain(model, BESYLATE)
    assert len(e) == 38
    assert not e.note
    parent = gx.predict(gx.load("bace"), BESYLATE)["BACE-1 inhibition"]
    assert abs(e.prediction.probabilities["active"] - parent.probabilities["active"]) > 0.05


def test_a_mixture_is_refused_unless_it_is_read_as_drawn():
    mixture = "CN1CCC(c2ccccc2)CC1.CCCc1ccccc1C(C)(C)C"
    with pytest.raises(ValueError, match="is a mixture of"):
        gx.predict(gx.load("bace"), mixture)
    assert gx.predict(gx.load("bace", as_drawn=True), mixture)


def test_a_permanent_charge_stays():
    e = gx.explain(gx.load("bace"), f"{PRALIDOXIME}.[Cl-]")
    kept = "the cation is kept, as no proton can remove its charge"
    assert e.note == f"salt removed: chloride; {kept}"
    assert Chem.GetFormalCharge(e.molecule) == 1


def test_a_table_of_the_parents_atoms_ends_with_their_numbers_in_the_molecule_given():
    """The parts by feature follow the relevance, and sum to it, as for any other molecule."""
    frame = gx.explain("bace", "[Cl-].C[NH2+]CCc1ccccc1").to_frame()
    assert frame.columns[-1] == "given_atom"
    assert frame.given_atom.tolist() == list(range(1, 11))
    parts = frame.iloc[:, 2:-1].sum(axis=1)
    assert parts.to_numpy() == pytest.approx(frame.relevance.to_numpy(), abs=1e-5)


IMAGES = ("C[C@H](O)c1ccccc1", "C[C@@H](O)c1ccccc1")


@pytest.mark.parametrize("name", ["lipophilicity", "solubility"])
@pytest.mark.parametrize("method", ["lrp", "gradient_input", "occlusion"])
def test_mirror_images_of_a_symmetric_property_have_one_explanation(name, method):
    """It is the mean over both, as the network itself explains each."""
    model = gx.load(name)
    left, right = (gx.explain(model, smiles, method) for smiles in IMAGES)
    assert left.prediction.value == pytest.approx(right.prediction.value, abs=1e-6)
    np.testing.assert_allclose(left.relevance, right.relevance, atol=1e-6)
    network = Graphormer(replace(model.config, symmetric=False)).eval()
    network.load_state_dict(model.state_dict())
    each = [gx.explain(network, smiles, method) for smiles in IMAGES]
    assert abs(each[0].prediction.value - each[1].prediction.value) > 1e-3
    shares = ("nodes", "graph_token", "biases", "output", "unexplained")
    for what in shares if left.additive else ():  # other scores have no ledger
        expected = np.mean([getattr(e.ledger, what) for e in each])
        assert getattr(left.ledger, what) == pytest.approx(expected, abs=1e-5)
    assert left.output == pytest.approx(np.mean([e.output for e in each]), abs=1e-5)
    np.testing.assert_allclose(left.relevance, np.mean([e.relevance for e in each], 0), atol=1e-5)
    shown = gx.predict(model, list(IMAGES), progress=False)
    values = [next(iter(each.values())).value for each in shown]
    assert values == pytest.approx([left.prediction.value] * 2, abs=1e-6)


CENTRES = ("C[C@H](O)c1ccccc1", "CC[C@@](C)(O)C1CC1", "C/C=C/[C@@H](N)C", "O=C1CC[C@@]2(CCOC2)N1")
SEVERAL = ("C[C@H](O)[C@@H](N)CC", "C[C@H]1C[C@@H](O)CN1C", "CC12CC(=O)[C@H]3[C@@H](C1)CC[C@H]23")


@pytest.mark.parametrize("smiles", [*CENTRES, *SEVERAL])
def test_mirror_images_have_the_same_numbers_to_the_bit(smiles, monkeypatch):
    """The codes of a mirror image are those that itself has; one centre is ranked once for both."""
    model, read = gx.load("lipophilicity"), []
    codes = features.canonical_chirality
    monkeypatch.setattr(features, "canonical_chirality", lambda m: read.append(m) or codes(m))
    image = Chem.MolToSmiles(mirror_image(Chem.MolFromSmiles(smiles)))
    item = prepare_for(model, Chem.MolToSmiles(Chem.MolFromSmiles(smiles)))
    assert len(read) == 1 + (smiles in SEVERAL)
    other = prepare_for(model, image)
    assert sorted(item.mirrored.graph.x[:, 1]) == sorted(other.graph.x[:, 1])
    left, right = gx.explain(model, [item.smiles, image])
    assert left.output == right.output
    assert sorted(left.relevance.tolist()) == sorted(right.relevance.tolist())


def test_mirror_images_have_one_account_by_fragments_bonds_and_removed_atoms():
    """Whatever runs the model with atoms or bonds away sees the mean over both images, too."""
    model = gx.load("lipophilicity")
    network = Graphormer(replace(model.config, symmetric=False)).eval()
    network.load_state_dict(model.state_dict())
    relevance = torch.arange(9.0)

    def accounts(explained, smiles):
        item = prepare_for(explained, smiles)
        player = {"hydroxyl": [2], "methyl": [0], "phenyl": [3, 4, 5, 6, 7, 8]}
        coalitions = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1]])
        yield gx.game(explained, smiles, player)(coalitions)
        yield node_series(explained, item, relevance, Target()).logits_with_top.numpy()
        yield edge_shapley(explained, [smiles], permutations=2)[0].values

    together, mirrored = (list(accounts(model, smiles)) for smiles in IMAGES)
    alone = [list(accounts(network, smiles)) for smiles in IMAGES]
    for k, values in enumerate(together):
        np.testing.assert_allclose(values, mirrored[k], atol=1e-5)
        assert np.abs(alone[0][k] - alone[1][k]).max() > 1e-3
    for k in range(2):  # the orders of bonds are drawn
        mean = np.mean([each[k] for each in alone], 0)
        np.testing.assert_allclose(together[k], mean, atol=1e-5)


def test_shapley_values_of_fragments_close_the_ledger_of_the_mean():
    model, of_images = gx.load("lipophilicity"), []
    for smiles in ("C[C@H](N)CNC(=O)c1ccccc1", "C[C@@H](N)CNC(=O)c1ccccc1"):
        parts = gx.fragments(gx.explain(model, smiles), method="shapley")
        ledger = parts.explanation.ledger
        assert ledger.nodes + ledger.biases == pytest.approx(ledger.output, abs=1e-5)
        of_images.append([part.relevance for part in parts])
    np.testing.assert_allclose(*of_images, atol=1e-5)


def test_diastereomers_of_a_symmetric_property_differ():
    cis, trans = gx.predict(
        gx.load("lipophilicity"), ["C[C@H]1CC[C@@H](O)CC1", "C[C@H]1CC[C@H](O)CC1"]
    )
    (cis,), (trans,) = cis.values(), trans.values()
    assert abs(cis.value - trans.value) > 1e-4


def test_classes_cannot_be_symmetric():
    with pytest.raises(ValueError, match="symmetric is for values"):
        replace(gx.load("bace").config, symmetric=True)


@pytest.mark.parametrize("refit", [None, "f-fidelity"])
def test_mirror_images_have_one_report(refit, tmp_path, small_figures):
    """Random removals, and training graphs without nodes, depend on no drawing of a compound."""
    reports = []
    for k, image in enumerate(IMAGES):
        trained = Refit(refit, [image, "CCO"], [2.0, -0.3], epochs=2) if refit else None
        options = {"refit": trained, "out": tmp_path / str(k), "progress": False}
        smiles = [image, "CC[C@H](C)N", "c1ccccc1O"]
        reports.append(gx.evaluate("lipophilicity", smiles, ["lrp"], **options))
    np.testing.assert_allclose(*(r.robustness["mask"].values for r in reports), atol=1e-5)
    for name in reports[0].metrics():
        np.testing.assert_allclose(*(r.values(name)["lrp"] for r in reports), atol=1e-5)
