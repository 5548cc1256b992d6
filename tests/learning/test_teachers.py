"""Sources teach a network, and labels that the starting weights have seen are recognised."""

import numpy as np
import pytest
import torch
from rdkit import Chem
from rdkit.Chem import Descriptors

from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.splits import Split, random_split
from graphxai.learning import training
from graphxai.learning.cleaned_table import TargetColumn
from graphxai.learning.cleaning import clean_table
from graphxai.learning.fit import initialise, molecule_config
from graphxai.learning.predicting import encode_all, predict, task_readings
from graphxai.learning.recipes.distillation import LinkedTeacher
from graphxai.learning.reliability import labels_met
from graphxai.learning.run import train_table
from graphxai.learning.settings import TableSettings, TrainingSettings
from graphxai.learning.splitting import Source
from graphxai.learning.table import split_table
from graphxai.learning.teachers import choosing, forests
from graphxai.learning.teachers.stacking import (
    MoleculeFeatures,
    mixed_labels,
    soft_labels,
    stacking_share,
)
from graphxai.models.graphormer import Graphormer, load_checkpoint, locate

pytest.importorskip("lightning")
pytest.importorskip("sklearn")

RINGS = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccsc1", "C1CCOCC1", "c1cc(F)ccc1", "C1CCNC1"]
RINGS += ["c1ccoc1", "c1cc(Cl)ccc1"]
ARMS = ["CCC(=O)N", "CCCO", "NC(=O)", "CC(=O)O", "CS(=O)(=O)N", "COCC"]
MOLECULES = [  # 36 of the 54 pairs: the others are new molecules
    Chem.CanonSmiles(arm + ring)
    for r, ring in enumerate(RINGS)
    for a, arm in enumerate(ARMS)
    if (r + a) % 3
]
BINARY = Task("y", "binary", ("no", "yes"))
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr(forests, "TREES", 20)
    monkeypatch.setattr(training, "RECOMBINED", 20)


def encoded(smiles, config):
    return encode_all([molecule_to_data(text) for text in smiles], config)


def test_a_forest_reads_bits_and_descriptors_whatever_the_order_of_atoms():
    inputs = MoleculeFeatures(MOLECULES).descriptor_forest
    assert set(np.unique(inputs[:, :2048])) == {0, 1}
    weights = [Descriptors.ExactMolWt(Chem.MolFromSmiles(s)) for s in MOLECULES]
    assert any(np.allclose(column, weights, rtol=1e-6) for column in inputs[:, 2048:].T)
    shuffled = [
        Chem.MolToSmiles(Chem.MolFromSmiles(s), canonical=False, doRandom=True) for s in MOLECULES
    ]
    # RDKit rounds autocorrelations to three decimals.
    np.testing.assert_allclose(
        MoleculeFeatures(shuffled).descriptor_forest, inputs, rtol=1e-4, atol=1.1e-3
    )
    assert np.isfinite(MoleculeFeatures(("[Na+].[Cl-]", "[He]")).descriptor_forest).all()


@pytest.mark.parametrize("linked", [True, False])
def test_a_teacher_parses_each_molecule_once(linked, monkeypatch):
    """Forests and the process read the same parsed molecules, in training and in labelling."""
    parses, parse = [], Chem.MolFromSmiles
    monkeypatch.setattr(Chem, "MolFromSmiles", lambda text: parses.append(text) or parse(text))
    y = np.array([[float(len(text))] for text in MOLECULES])
    new = ["NCc1ccc(O)cc1", "CCCCC1CCCC1"]
    if linked:
        teacher = LinkedTeacher.fit([Task("length", "regression")], MOLECULES, y)
        assert sorted(parses) == sorted(MOLECULES)
        parses.clear()
        teacher.predict(new)
    else:
        features = MoleculeFeatures(tuple(new))
        assert [len(each) for each in (features.forest, features.descriptor_forest)] == [2, 2]
        assert [len(kind) for kind in features.process] == [2] * 5
    assert parses == new


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_a_forest_predicts_what_scikit_learn_does_to_the_last_bit(kind):
    inputs, new = RNG.random((60, 30)), RNG.random((40, 30)).astype(np.float32)
    y = inputs[:, 0] * 3 if kind == "regression" else np.floor(inputs[:, 0] * 2)
    classes = {"binary": ("no", "yes"), "multiclass": ("a", "b", "c")}.get(kind, ())
    forest = forests.Forest.fit(Task("y", kind, classes), inputs, y, trees=50)
    if kind == "regression":
        np.testing.assert_array_equal(forest.predict(new), forest.trees.predict(new))
    else:
        probabilities = forest.trees.predict_proba(new)
        expected = np.hstack([probabilities, np.zeros((40, 1))])  # no molecule is of class c
        predicted = forest.predict(new)
        np.testing.assert_array_equal(predicted, expected[:, 1] if kind == "binary" else expected)


@pytest.mark.parametrize("classes", [1, 3])
def test_the_share_of_the_forest_is_the_best_of_a_fine_grid(classes):
    """Brute force over 1,001 shares confirms it, for probabilities of two classes and of three."""
    y = RNG.integers(max(2, classes), size=80).astype(float)
    forest, network = (RNG.dirichlet([1.0] * 3, size=80) for _ in range(2))
    truth = np.eye(3)[y.astype(int)]
    forest, network = forest + 0.3 * truth, network + 0.3 * truth
    if classes == 1:
        forest, network, truth = forest[:, 1], network[:, 1], y
    errors = [
        ((s * forest + (1 - s) * network - truth) ** 2).sum() for s in np.linspace(0, 1, 1001)
    ]
    share = stacking_share(forest, network, y)
    assert share == pytest.approx(np.argmin(errors) / 1000, abs=6e-4)
    assert 0 < share < 1


def test_a_perfect_predictor_is_the_whole_teacher_and_few_labels_give_one_half():
    y = RNG.normal(size=50)
    noise = RNG.normal(size=50)
    assert stacking_share(y, y + noise, y) == 1
    assert stacking_share(y + noise, y, y) == 0
    y[:40] = np.nan
    assert stacking_share(noise, noise + 1, y) == 0.5


def test_a_measured_label_moves_towards_the_teacher_by_three_tenths_of_its_share():
    y, text = np.array([1.0, 0.0, 1.0, np.nan]), np.array([0.6, 0.2, np.nan, np.nan])
    np.testing.assert_allclose(mixed_labels(y, text, 0.5), [0.94, 0.03, 1.0, np.nan])
    np.testing.assert_array_equal(mixed_labels(y, text, 0.0), y)


def test_drawn_classes_have_the_probabilities_they_teach():
    p = np.array([0.5, 0.2, 0.3])
    drawn = soft_labels(np.tile(p, (20_000, 1)))
    shares = np.bincount(drawn.astype(int), minlength=3) / 20_000
    np.testing.assert_allclose(shares, p, atol=4 * np.sqrt(0.25 / 20_000))
    assert set(soft_labels(np.eye(3))) == {0, 1, 2}
    np.testing.assert_array_equal(soft_labels(np.array([0.2, 0.7])), [0.2, 0.7])


def test_the_student_follows_a_teacher_that_knows_better(tmp_path):
    """An untrained head knows nothing, so nearly all that is taught comes from the teacher."""
    heavy = np.array([Chem.MolFromSmiles(s).GetNumHeavyAtoms() for s in MOLECULES], dtype=float)
    tasks = [Task("size", "regression", offset=float(heavy.mean()), scale=float(heavy.std()))]
    torch.manual_seed(0)
    model = Graphormer(molecule_config(tasks, dropout=0.0, attention_dropout=0.0)).eval()
    initialise(model, load_checkpoint(locate("molecules")))
    graphs = encoded(MOLECULES * 2, model.config)
    y = np.tile(heavy, 2)[:, None]
    y[:10] = np.nan  # gaps that the teacher fills
    split = Split(tuple(range(36)), tuple(range(36, 72)), ())
    before = predict(model, graphs)
    table = Source(graphs, y, split, model.config)
    teacher = choosing.choose_teacher(tasks, table.train.smiles, table.train.y)
    settings = TrainingSettings(epochs=10, batch_size=16, progress=False)
    on_valid = teacher.predict(MoleculeFeatures(table.valid.smiles))
    by_network = task_readings(model, table.valid.graphs)
    shares = list(map(stacking_share, on_valid, by_network, table.valid.y.T))
    taught = training.teach_network(
        [model], teacher, shares, table, tmp_path, settings, molecules=30
    )
    assert taught.shares["size"] > 0.9
    assert 0 < taught.recombined < 30
    # Recombined molecules that were kept back: what the network says, and what it would be taught
    assert taught.kept_back["size"].shape == (2, 1)
    values = tasks[0].offset + tasks[0].scale * predict(taught.model, graphs)[:36, 0].double()
    assert np.corrcoef(values[:10], heavy[:10])[0, 1] > 0.7
    assert torch.equal(predict(model, graphs), before)  # the given network is left as it is
    assert np.isnan(y[:10]).all()


def test_what_a_network_says_of_its_fold_does_not_depend_on_the_labels_there(tmp_path):
    """The labels of a fold are dealt anew among its molecules, so their mean and spread stay."""
    labels = np.array([float(len(s) + k % 3) for k, s in enumerate(MOLECULES)])
    settings = TableSettings(split="random", epochs=1, init_weights=None, progress=False)
    said = []
    for number in range(2):
        path = tmp_path / f"{number}.csv"
        rows = [f"{s},{value}" for s, value in zip(MOLECULES, labels, strict=True)]
        path.write_text("smiles,y\n" + "\n".join(rows) + "\n")
        split = split_table(clean_table(path, "smiles", ["y"]), settings)
        assert not split.valid.smiles  # nothing is set aside
        assert sorted(np.concatenate(split.folds)) == list(range(len(split.train.y)))
        fits = training.fit_networks(split, tmp_path / f"run-{number}", str)
        said.append(training.unseen_readings([fit.model for fit in fits], split)[0])
        places = np.array(split.parts.train)[split.folds[0]]
        labels[places] = np.roll(labels[places], 1)
    of_fold = [readings[split.folds[0]] for readings in said]
    np.testing.assert_allclose(*of_fold, rtol=1e-5)
    assert not np.allclose(said[0][split.folds[1]], said[1][split.folds[1]], rtol=1e-3)


def test_nothing_learns_from_test_labels(tmp_path, small_networks):
    """Different labels for the test molecules give exactly the same model."""
    models = []
    for number, test_label in enumerate((3.5, -70.0)):
        path = tmp_path / f"{number}.csv"
        labels = [float(len(s)) for s in MOLECULES]
        for k in random_split(len(MOLECULES), 0).test:
            labels[k] = test_label + k
        rows = [f"{s},{value}" for s, value in zip(MOLECULES, labels, strict=True)]
        path.write_text("smiles,y\n" + "\n".join(rows) + "\n")
        table = clean_table(path, "smiles", ["y"])
        out = tmp_path / f"run-{number}"
        folder = train_table(
            table, out, split="random", epochs=1, init_weights=None, progress=False
        )
        models.append((folder / "model.safetensors").read_bytes())
        assert (out / "distilled" / "state").exists()
    assert models[0] == models[1]


def test_labels_that_weights_predict_too_well_were_seen_under_another_name():
    """The read-out itself as a column is recognised, unlike noise, a near miss and a rank order."""
    torch.manual_seed(0)
    tasks = [Task("seen", "regression"), BINARY]
    model = Graphormer(molecule_config(tasks)).eval()
    graphs = encoded(MOLECULES * 2, model.config)
    outputs = predict(model, graphs).double().numpy()
    values, logits = outputs.T
    noise = RNG.normal(size=len(values))
    columns = {
        "renamed": 3 - 2 * values,
        "a class": (logits > np.median(logits)).astype(float),
        "noise": noise,
        "related": values / values.std() + 0.8 * noise,  # r2 about 0.6
    }
    targets = [
        TargetColumn(name, "classification" if name == "a class" else "regression",
               ("0", "1") if name == "a class" else (), "", len(values))
        for name in columns
    ]  # fmt: skip
    y = np.stack(list(columns.values()), axis=1)
    reasons = labels_met(targets, y, tasks, outputs)
    assert len(reasons) == 2
    assert reasons[0].startswith("'renamed' (its read-out 'seen' predicts it with r2 1.000")
    assert reasons[1].startswith("'a class' (its read-out 'y' predicts it with ROC-AUC 1.000")
    # Seen labels are told from a good model: a squared correlation of .89 is one, .91 is not.
    for correlation, number in ((0.89**0.5, 0), (0.91**0.5, 1), (-(0.91**0.5), 1)):
        seen = (values - values.mean()) / values.std()
        rest = noise - noise.mean() - seen * np.mean(noise * seen)
        mixed = correlation * seen + (1 - correlation**2) ** 0.5 * rest / rest.std()
        column = [TargetColumn("mixed", "regression", (), "", len(mixed))]
        assert len(labels_met(column, mixed[:, None], tasks, outputs)) == number
        # forty-nine labels are too few to tell
        few = np.where(np.arange(len(mixed)) < 49, mixed, np.nan)
        assert labels_met(column, few[:, None], tasks, outputs) == []
    named = [TargetColumn("seen", "regression", (), "", len(values))]
    reasons = labels_met(named, noise[:, None], tasks, outputs)
    assert reasons == ["'seen' (a label of that name)"]
