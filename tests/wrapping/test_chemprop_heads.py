"""What chemprop says of its own certainty, of several molecules and of features from a user."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem
from scipy import stats

import graphxai as gx
from graphxai.contract.checkpoint_files import CheckpointError
from graphxai.contract.inputs import InputError

pytest.importorskip("chemprop", reason="chemprop is an extra")

from chemprop import data, models, nn
from chemprop.featurizers import SimpleMoleculeMolGraphFeaturizer
from chemprop.models import save_model

from chemprop_models import MOLECULES, SIZE, mpnn, of_chemprop

# Files that `chemprop train` of these versions wrote, for solubilities of 100 molecules.
FILES = Path(__file__).parents[1] / "data" / "chemprop" / "heads"


def first_predictions(model, smiles):
    return [next(iter(row.values())) for row in gx.predict(model, smiles)]


# -- the network's own certainty -----------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "value", "uncertainty"),
    [  # the columns of `chemprop predict` of that version for the first molecules
        ("mve_2.2.4.pt", [-2.7504666, -2.761578, -2.7586396], [2.453052, 2.457072, 2.456147]),
        ("quantile_2.2.4.pt", [-2.7904825, -2.7941465, -2.7920978], [0.022967, 0.015359, 0.018914]),
        (
            "evidential_2.3.1.pt",
            [-3.3069775, -3.3191543, -3.3156157],
            [9.599279, 9.584147, 9.582129],
        ),
        (
            "bin_dirichlet_2.3.1.pt",
            [0.49667597, 0.49729, 0.49725905],
            [0.587766, 0.588068, 0.588093],
        ),
    ],
)
def test_values_and_uncertainty_are_those_of_chemprops_own_command(file, value, uncertainty):
    predictions = first_predictions(
        gx.load(FILES / file), ["CC(C)CC(C)(C)O", "C1SC(=S)NC1(=O)", "CCBr"]
    )
    if "dirichlet" in file:
        values = [p.probabilities["active"] for p in predictions]
        given = [2 / p.conformal.evidence for p in predictions]
    else:
        values = [p.value for p in predictions]
        half = [(p.interval[1] - p.interval[0]) / 2 for p in predictions]  # at 90 %
        variance = [p.conformal.variance for p in predictions]
        given = half if "quantile" in file else variance
    np.testing.assert_allclose(values, value, rtol=1e-5)
    np.testing.assert_allclose(given, uncertainty, rtol=1e-4)


@pytest.mark.parametrize("head", ["MveFFN", "EvidentialFFN"])
@pytest.mark.parametrize("saved", [True, False])
def test_an_interval_is_that_of_a_normal_distribution_with_the_variance(tmp_path, head, saved):
    model = mpnn(head=head, scaled=True, n_tasks=2)
    if saved:
        save_model(tmp_path / "model.pt", model, ["logS", "logD"])
    read = gx.load(tmp_path / "model.pt") if saved else gx.wrap(model)
    expected = of_chemprop(model, MOLECULES)  # (B, T, parts)
    for row, of_molecule in zip(gx.predict(read, MOLECULES), expected, strict=True):
        for prediction, parts in zip(row.values(), of_molecule.tolist(), strict=True):
            mean, variance = parts[:2]
            if head == "EvidentialFFN":
                mean, v, alpha, beta = parts
                variance = (1 + 1 / v) * beta / (alpha - 1)
            for level in (0.5, 0.9):
                normal = stats.norm.interval(level, mean, variance**0.5)
                np.testing.assert_allclose(prediction.at(level).interval, normal, rtol=1e-4)


def test_an_interval_of_quantiles_ends_at_them_at_the_level_they_were_trained_for(tmp_path):
    criterion = nn.metrics.QuantileLoss(alpha=0.2)
    model = mpnn(head="QuantileFFN", scaled=True, criterion=criterion)
    save_model(tmp_path / "model.pt", model, ["logS"])
    expected = of_chemprop(model, MOLECULES)[:, 0]  # (B, 2): the middle, and the distance
    for read in (gx.wrap(model), gx.load(tmp_path / "model.pt")):
        for prediction, (middle, distance) in zip(
            first_predictions(read, MOLECULES), expected.tolist(), strict=True
        ):
            half = abs(distance) / 2
            ends = prediction.at(0.8).interval
            np.testing.assert_allclose(ends, (middle - half, middle + half), rtol=1e-4)
            assert prediction.at(0.9).interval[0] < ends[0]


@pytest.mark.parametrize(
    ("head", "options"), [("BinaryDirichletFFN", {}), ("MulticlassDirichletFFN", {"n_classes": 3})]
)
def test_the_probability_of_a_class_has_the_interval_of_its_beta_distribution(head, options):
    model = mpnn(head=head, **options)
    raw = []
    model.predictor.ffn.register_forward_hook(lambda m, inputs, output: raw.append(output))
    of_chemprop(model, MOLECULES)
    predictions = first_predictions(gx.wrap(model), MOLECULES)
    for prediction, row in zip(predictions, raw[0], strict=True):
        concentrations = (torch.nn.functional.softplus(row) + 1).tolist()
        first, total = max(concentrations), sum(concentrations)
        low, high = stats.beta.interval(0.9, first, total - first)
        assert prediction.interval == pytest.approx((low, high), rel=1e-4)
        assert prediction.range == f"90 %: {low:.0%} to {high:.0%}"
        assert len(prediction.classes) == len(concentrations)  # so little evidence excludes none
        assert not prediction.sure


def test_an_ensemble_has_the_mean_of_its_members_variances():
    members = [mpnn(head="MveFFN", seed=seed) for seed in (0, 1)]
    expected = np.mean([of_chemprop(m, MOLECULES)[:, 0, 1].numpy() for m in members], axis=0)
    predictions = first_predictions(gx.wrap(members), MOLECULES)
    np.testing.assert_allclose([p.conformal.variance for p in predictions], expected, rtol=1e-4)


def test_an_explanation_and_a_table_have_the_interval_of_the_prediction(tmp_path):
    model, smiles = gx.wrap(mpnn(head="MveFFN", scaled=True)), MOLECULES[:2]
    expected = [p.interval for p in first_predictions(model, smiles)]
    for explanation, interval in zip(gx.explain(model, smiles), expected, strict=True):
        assert explanation.prediction.interval == pytest.approx(interval, rel=1e-5)
    frame = gx.predict(model, smiles).to_frame()
    np.testing.assert_allclose(frame[["output_low", "output_high"]], expected, rtol=1e-5)


# -- several molecules ---------------------------------------------------------------------


def mixture(*, shared=False, agg="Mean", scaled=False, seed=0):
    """Return an MPNN of two molecules."""
    torch.manual_seed(seed)
    blocks = [nn.BondMessagePassing(d_h=SIZE) for _ in range(1 if shared else 2)]
    transform = nn.UnscaleTransform([3.0], [2.0]) if scaled else None
    width = {"output_size": SIZE} if agg == "Attentive" else {}
    return models.MulticomponentMPNN(
        nn.MulticomponentMessagePassing(blocks, 2, shared),
        getattr(nn, f"{agg}Aggregation")(**width),
        nn.RegressionFFN(input_dim=2 * SIZE, hidden_dim=8, output_transform=transform),
    ).eval()


def of_mixtures(model, pairs):
    """Return what chemprop predicts for pairs of molecules."""
    read = SimpleMoleculeMolGraphFeaturizer()
    graphs = [
        data.BatchMolGraph([read(Chem.MolFromSmiles(text)) for text in each])
        for each in zip(*pairs, strict=True)
    ]
    with torch.no_grad():
        return model(graphs, [None, None])


PAIRS = [("CC(=O)Oc1ccccc1", "O"), ("CCO", "c1ccccc1"), ("Cc1ccccc1N", "CCO")]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("agg", ["Mean", "Norm", "Attentive"])
def test_a_model_of_two_molecules_predicts_and_explains_both(tmp_path, shared, agg):
    model = mixture(shared=shared, agg=agg, scaled=True)
    save_model(tmp_path / "model.pt", model, ["logS"])
    expected, together = of_mixtures(model, PAIRS), [".".join(pair) for pair in PAIRS]
    for read in (gx.wrap(model), gx.load(tmp_path / "model.pt")):
        values = [p.value for p in first_predictions(read, together)]
        np.testing.assert_allclose(values, expected[:, 0], rtol=1e-5)
        for explanation, text in zip(gx.explain(read, together), together, strict=True):
            assert abs(explanation.ledger.unexplained) < 1e-5
            first = Chem.MolFromSmiles(text.split(".")[0]).GetNumAtoms()
            lines = explanation.ledger.to_dict()
            for name, atoms in (("1", slice(first)), ("2", slice(first, None))):
                own = explanation.relevance[atoms].sum()
                assert lines[f"nodes: molecule {name}"] == pytest.approx(own, abs=1e-6)
            parts = {f.atoms: f.relevance for f in gx.fragments(explanation, "components")}
            both = lines["nodes"] + lines["edge_attr"]
            assert len(parts) == 2
            assert sum(parts.values()) == pytest.approx(both, abs=1e-5)


def test_hiding_atoms_of_one_molecule_leaves_the_other():
    model = mixture()
    explanation = gx.explain(gx.wrap(model), "CCO.O", "occlusion")
    graphs = [SimpleMoleculeMolGraphFeaturizer()(Chem.MolFromSmiles(text)) for text in ("CCO", "O")]
    with torch.no_grad():
        of_first = model.message_passing.blocks[0](data.BatchMolGraph(graphs[:1])).mean(0)
        alone = model.predictor(torch.cat([of_first, torch.zeros(SIZE)])[None])
    expected = of_mixtures(model, [("CCO", "O")]) - alone
    assert explanation.relevance[3] == pytest.approx(expected.item(), abs=1e-6)


def test_an_input_of_another_number_of_molecules_is_refused():
    model = gx.wrap(mixture())
    for text, count in (("CCO", 1), ("CCO.[Na+].[Cl-]", 3)):
        with pytest.raises(InputError, match=f"reads 2 molecules, and this input has {count}"):
            gx.explain(model, text)


@pytest.mark.parametrize("count", [10**6, "2", 1])
def test_a_file_of_an_odd_number_of_molecules_is_refused(tmp_path, count):
    save_model(tmp_path / "model.pt", mixture(), ["logS"])
    content = torch.load(tmp_path / "model.pt", weights_only=False)
    content["hyper_parameters"]["message_passing"]["n_components"] = count
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="n_components"):
        gx.load(tmp_path / "model.pt")


def test_a_file_of_chemprops_command_for_two_molecules_predicts_what_that_predicts():
    model = gx.load(FILES / "two_2.2.4.pt")
    predicted = first_predictions(
        model, ["CC(C)CC(C)(C)O.O", "C1SC(=S)NC1(=O).CC(=O)C", "CCBr.CCO"]
    )
    np.testing.assert_allclose(
        [p.value for p in predicted], [-2.6082025, -2.609381, -2.6100144], rtol=1e-5
    )


# -- further features of atoms and bonds ---------------------------------------------------


def of_atoms(mol):
    return [[atom.IsInRing(), atom.GetMass() / 100] for atom in mol.GetAtoms()]


def of_bonds(mol):
    return np.array([[b.GetBondTypeAsDouble()] for b in mol.GetBonds()]).reshape(-1, 1)


def with_features(*, descriptors):
    """Return an MPNN that reads further, scaled features, and what computes them."""
    torch.manual_seed(0)
    further = {"d_vd": 2} if descriptors else {"d_v": 74, "d_e": 15}
    passing = nn.BondMessagePassing(d_h=SIZE, **further)
    if descriptors:
        passing.V_d_transform = nn.ScaleTransform([0.3, 0.1], [0.5, 0.2])
        functions = {"atom_descriptors": of_atoms}
    else:
        passing.graph_transform = nn.GraphTransform(
            nn.ScaleTransform([0.3, 0.1], [0.5, 0.2], pad=72), nn.ScaleTransform([1.2], [0.4], 14)
        )
        functions = {"atom_features": of_atoms, "bond_features": of_bonds}
    ffn = nn.RegressionFFN(input_dim=passing.output_dim, hidden_dim=8)
    return models.MPNN(passing, nn.MeanAggregation(), ffn).eval(), functions


@pytest.mark.parametrize("descriptors", [True, False])
def test_further_features_are_read_and_have_a_line(tmp_path, descriptors):
    model, functions = with_features(descriptors=descriptors)
    read = SimpleMoleculeMolGraphFeaturizer(
        extra_atom_fdim=0 if descriptors else 2, extra_bond_fdim=0 if descriptors else 1
    )
    mols = [Chem.MolFromSmiles(text) for text in MOLECULES]
    rows = [np.array(of_atoms(mol), np.float32) for mol in mols]
    extra = [{} if descriptors else {"atom_features_extra": r} for r in rows]
    if not descriptors:
        extra = [e | {"bond_features_extra": of_bonds(m)} for e, m in zip(extra, mols, strict=True)]
    graphs = [read(mol, **more) for mol, more in zip(mols, extra, strict=True)]
    V_d = torch.from_numpy(np.concatenate(rows)) if descriptors else None
    with torch.no_grad():
        expected = model(data.BatchMolGraph(graphs), V_d)[:, 0]
    save_model(tmp_path / "model.pt", model, ["logS"])
    name = "atom descriptors" if descriptors else "atom features"
    for explained in (
        gx.wrap(model, extra_features=functions),
        gx.load(tmp_path / "model.pt", extra_features=functions),
    ):
        values = [p.value for p in first_predictions(explained, MOLECULES)]
        np.testing.assert_allclose(values, expected, rtol=1e-4)
        explanation = gx.explain(explained, MOLECULES[1])
        assert abs(explanation.ledger.unexplained) < 1e-5
        column = explanation.features[:, explanation.feature_names.index(name)]
        line = explanation.ledger.to_dict()[f"nodes: {name}"]
        assert line == pytest.approx(column.sum(), abs=1e-6)
        assert abs(line) > 1e-6


def test_a_model_of_further_features_says_which_functions_it_needs():
    descriptors, _ = with_features(descriptors=True)
    with pytest.raises(ValueError, match="reads 2 descriptors of every atom"):
        gx.wrap(descriptors)
    features, functions = with_features(descriptors=False)
    with pytest.raises(ValueError, match=r"74 features of an atom .*extra_features="):
        gx.wrap(features)
    with pytest.raises(ValueError, match="a function of an RDKit molecule"):
        gx.wrap(features, extra_features={"atoms": of_atoms})
    wrong = functions | {"atom_features": lambda mol: of_atoms(mol)[:1]}
    with pytest.raises(InputError, match=r"of shape \(2, k\)"):
        gx.wrap(features, extra_features=wrong)
