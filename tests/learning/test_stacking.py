"""A teacher is the mean of its sources that predicts unseen scaffolds best."""

import itertools
import json

import numpy as np
import pytest
from rdkit import Chem
from safetensors import safe_open
from safetensors.numpy import load, save

from graphxai.contract.tasks import Task
from graphxai.learning.conformal import nearest_similarities
from graphxai.learning.teachers import choosing, forests, stacking
from graphxai.learning.teachers.choosing import choose_teacher, simplex_weights
from graphxai.learning.teachers.gaussian_process import Process, similarity
from graphxai.learning.teachers.saved_teacher import TEACHER, saved_teacher, teacher_file
from graphxai.learning.teachers.stacking import (
    ForestSource,
    MoleculeFeatures,
    ProcessSource,
    Teacher,
)

pytest.importorskip("sklearn")

RINGS = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccsc1", "C1CCOCC1", "c1ccoc1", "C1CCNC1"]
CHAINS = ["", "C", "CC", "CCC", "OC", "NC", "ClC", "FC"]
SMILES = [chain + ring for ring in RINGS for chain in CHAINS]  # 56
TASKS = (
    Task("size", "regression", unit="atoms"),
    Task("amine", "binary", ("no", "yes")),
    Task("kind", "multiclass", ("a", "b", "c")),
    Task("rare", "regression"),
)
RNG = np.random.default_rng(0)
DIGEST = "f" * 64  # SHA-256 of the weights of the network beside a teacher


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(forests, "TREES", 20)
    monkeypatch.setattr(choosing, "minimol_installed", lambda: False)


def labels():
    sizes = [Chem.MolFromSmiles(s).GetNumAtoms() for s in SMILES]
    y = np.array(
        [[n, "N" in s.upper(), (n - 1) % 3, 1.0] for n, s in zip(sizes, SMILES, strict=True)]
    )
    y[10:, 3] = np.nan
    y[:4, 0] = np.nan
    return y


@pytest.mark.parametrize("classes", [1, 3])
def test_the_weights_are_the_best_of_a_fine_grid(classes):
    """Brute force over a simplex confirms it, for values and for probabilities of three classes."""
    y = RNG.integers(3, size=60).astype(float)
    truth = np.eye(3)[y.astype(int)] if classes == 3 else y
    sources = [truth + scale * RNG.normal(size=truth.shape) for scale in (0.5, 0.7, 3.0)]
    y[7] = np.nan
    labelled = np.delete(np.arange(60), 7)
    grid = [
        (a / 50, b / 50, (50 - a - b) / 50)
        for a, b in itertools.product(range(51), repeat=2)
        if a + b <= 50
    ]
    errors = [
        ((sum(w * p for w, p in zip(weights, sources, strict=True)) - truth)[labelled] ** 2).sum()
        for weights in grid
    ]
    weights = simplex_weights(sources, y)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights, grid[int(np.argmin(errors))], atol=0.02)
    np.testing.assert_allclose(simplex_weights([truth + 0.0, truth + 1.0], y), [1, 0], atol=1e-6)


def test_a_teacher_scores_each_source_on_unseen_scaffolds_and_keeps_what_helps(tmp_path):
    y = labels()
    teacher = choose_teacher(TASKS, SMILES, y)
    assert teacher.weights[3] is None  # ten labels
    for weights, scores in zip(teacher.weights[:3], teacher.out_of_fold[:3], strict=True):
        assert set(scores) == {"forest", "descriptor_forest", "process", "stack"}
        assert sum(weights.values()) == pytest.approx(1)
        assert min(weights.values()) >= 0.1
    assert "size" in teacher.describe()[0]
    assert teacher.describe()[3] == "teacher of rare: none (too few labels)"
    new = MoleculeFeatures(("NCc1ccc(O)cc1", "CCCCC1CCCC1"))
    predicted = teacher.predict(new)
    assert predicted[3] is None
    assert predicted[2].shape == (2, 3)
    np.testing.assert_allclose(predicted[2].sum(1), 1)
    left_out = teacher.left_out(0)
    np.testing.assert_array_equal(np.isnan(left_out), np.isnan(y[:, 0]))
    assert np.isnan(teacher.left_out(2)).all()  # several classes

    (content,) = {teacher_file(teacher, DIGEST) for _ in range(8)}  # always the same bytes
    (tmp_path / TEACHER).write_bytes(content)
    saved = saved_teacher(tmp_path, DIGEST)
    for readings, other in zip(predicted[:3], saved.predict(new)[:3], strict=True):
        np.testing.assert_allclose(other, readings, rtol=1e-9)
    assert list(saved.columns(new.smiles)) == [
        "size: teacher (atoms)", "amine: teacher: no", "amine: teacher: yes",
        "kind: teacher: a", "kind: teacher: b", "kind: teacher: c",
    ]  # fmt: skip
    (tmp_path / "teacher.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is damaged"):
        saved_teacher(tmp_path, DIGEST)


@pytest.fixture(scope="module")
def small_teacher():
    """Fit a forest and a process by hand, for a value and for two classes."""
    y = labels()[:, :2]
    tasks = dict(enumerate(TASKS[:2]))
    features = MoleculeFeatures(tuple(SMILES))
    labelled = ~np.isnan(y[:, 0])
    fitted = {
        0: forests.Forest.fit(TASKS[0], features.forest[labelled], y[labelled, 0], trees=3),
        1: forests.Forest.fit(TASKS[1], features.forest, y[:, 1], trees=3),
    }
    counts = features.process
    process = Process.fit(similarity(counts, counts), np.arange(len(SMILES)), y)
    sources = {
        "forest": ForestSource("forest", fitted, {}),
        "process": ProcessSource("process", tasks, process, counts),
    }
    shares = {"forest": 0.25, "process": 0.75}
    return Teacher(TASKS[:2], sources, (shares, shares), ({}, {}), ("R2", "ROC-AUC"))


def altered(teacher, folder, change):
    """Write a teacher whose arrays, and JSON, were changed by hand."""
    path = folder / TEACHER
    path.write_bytes(teacher_file(teacher, DIGEST))
    arrays = load(path.read_bytes())
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    about = json.loads(metadata["teacher"])
    change(arrays, about)
    metadata["teacher"] = json.dumps(about)
    path.write_bytes(save(arrays, metadata=metadata))


def set_array(name, position, value):
    def change(arrays, about):
        arrays[name][position] = value

    return change


def set_weights(*values):
    def change(arrays, about):
        about["weights"][0] = dict(zip(("forest", "process"), values, strict=True))

    return change


def set_about(key, value):
    def change(arrays, about):
        about[key] = value

    return change


def cut(arrays, about):
    arrays["forest/0/left"] = arrays["forest/0/left"][:-1]


def root_is_its_own_grandchild(arrays, about):
    arrays["forest/0/left"][arrays["forest/0/left"][0]] = 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (root_is_its_own_grandchild, "child is no later node|has one child"),
        (set_array("forest/0/right", 0, 0), "has one child"),
        (set_array("forest/0/right", 0, 10**9), "child is no later node"),
        (set_array("forest/0/left", 0, -5), "child is no later node"),
        (cut, "differ in length"),
        (set_array("forest/1/roots", 0, -1), "root is no node"),
        (set_array("forest/1/roots", 0, 10**9), "root is no node"),
        (set_array("forest/0/feature", 0, 2048), "a feature beyond the 2048"),
        (set_array("forest/0/feature", 0, -3), "a feature beyond"),
        (set_array("forest/0/threshold", 0, np.nan), "threshold is not a number"),
        (set_array("forest/0/value", 0, np.inf), "value is not a finite number"),
        (set_array("forest/1/value", (0, 0), -1.0), "do not add up to 1"),
        (set_array("forest/1/classes_", 1, 7.0), "not those of its task"),
        (set_array("process/weights", (0, 0), np.nan), "not finite numbers"),
        (set_array("process/means", 0, np.inf), "not finite numbers"),
        (set_array("process/width", 0, 0.0), "not finite numbers"),
        (set_weights(np.nan, 1.0), "not shares that add up to 1"),
        (set_weights(-1.0, 2.0), "not shares that add up to 1"),
        (set_weights(0.9, 0.9), "not shares that add up to 1"),
        (set_weights("a", 1.0), "not shares that add up to 1"),
        (set_about("weights", []), "for each task"),
        (set_about("sources", {"forest": [0, 5], "process": [0, 1]}), "task that is not there"),
        (set_about("sources", {"forest": [0], "process": [0, 1]}), "does not predict task 1"),
        (set_about("sources", {"oracle": [0, 1]}), "'oracle' is no source"),
        (set_about("tasks", 5), "not iterable"),
    ],
)
def test_a_teacher_that_could_not_have_been_saved_is_refused(
    small_teacher, tmp_path, change, reason
):
    altered(small_teacher, tmp_path, lambda arrays, about: None)
    assert saved_teacher(tmp_path, DIGEST) is not None
    altered(small_teacher, tmp_path, change)
    with pytest.raises(ValueError, match=rf"is damaged \(.*(?:{reason}).*delete it, or train"):
        saved_teacher(tmp_path, DIGEST)


def test_a_teacher_of_other_weights_is_refused(small_teacher, tmp_path):
    (tmp_path / TEACHER).write_bytes(teacher_file(small_teacher, "0" * 64))
    with pytest.raises(ValueError, match="belongs to other weights: delete it, or repeat"):
        saved_teacher(tmp_path, DIGEST)


def test_labels_of_other_folds_alone_make_a_prediction_out_of_fold():
    """A process's out-of-fold score is that of processes fitted by hand without each fold."""
    y = labels()[:, :1]
    teacher = choose_teacher(TASKS[:1], SMILES, y)
    counts = MoleculeFeatures(tuple(SMILES)).process
    kernel = similarity(counts, counts)
    best = np.inf
    for noise in choosing.NOISES:
        predicted = np.full(len(y), np.nan)
        for fold in choosing.scaffold_folds(SMILES, choosing.FOLDS):
            rest = np.setdiff1d(np.flatnonzero(~np.isnan(y[:, 0])), fold)
            mean = y[rest, 0].mean()
            covariance = kernel[np.ix_(rest, rest)] + noise * np.eye(len(rest))
            weights = np.linalg.solve(covariance, y[rest, 0] - mean)
            predicted[fold] = kernel[np.ix_(fold, rest)] @ weights + mean
        best = min(best, float(np.nanmean((predicted - y[:, 0]) ** 2)))
    r2 = 1 - best / np.nanvar(y[:, 0])
    assert teacher.out_of_fold[0]["process"] == pytest.approx(r2, abs=1e-4)


def test_molecules_predicted_out_of_fold_are_kept_with_how_near_the_other_folds_are():
    y = labels()
    teacher = choose_teacher(TASKS, SMILES, y)
    assert list(teacher.unseen) == [task.name for task in TASKS[:3]]  # one has too few labels
    size = teacher.unseen["size"]
    measured = ~np.isnan(size.y)
    error = np.mean((size.readings[measured] - size.y[measured]) ** 2)
    r2 = teacher.out_of_fold[0]["stack"]
    assert 1 - error / np.var(size.y[measured]) == pytest.approx(r2, abs=1e-6)
    for fold in choosing.scaffold_folds(SMILES, choosing.FOLDS):
        others = [SMILES[k] for k in np.setdiff1d(np.arange(len(SMILES)), fold)]
        nearest = nearest_similarities([SMILES[k] for k in fold], others)
        np.testing.assert_array_equal(size.similarity[fold], nearest)
    before, y[:] = size.y.copy(), 7  # as distillation mixes labels with predictions
    np.testing.assert_array_equal(size.y, before)


def test_minimol_is_a_source_where_it_is_installed(monkeypatch):
    """Fingerprints that hold the answer take nearly all of the weight."""
    sizes = {s: Chem.MolFromSmiles(s).GetNumAtoms() for s in SMILES}
    monkeypatch.setattr(choosing, "minimol_installed", lambda: True)
    monkeypatch.setattr(
        stacking,
        "minimol_fingerprints",
        lambda smiles: np.array([[sizes[s]] * 4 for s in smiles], dtype=np.float32),
    )
    teacher = choose_teacher(TASKS[:1], SMILES, labels()[:, :1])
    assert teacher.weights[0]["minimol"] > 0.5
    predicted = teacher.predict(MoleculeFeatures(tuple(SMILES)))[0]
    np.testing.assert_allclose(predicted, list(sizes.values()), atol=1.0)


def test_few_carriers_approximate_a_process_and_leave_out_like_a_refit():
    points = np.random.default_rng(0).uniform(-1, 1, size=(40, 2))
    squares = ((points[:, None] - points) ** 2).sum(-1)
    kernel = np.exp(-squares / 2).astype(np.float32)
    y = np.stack([np.sin(points[:, 0]), points[:, 1]], axis=1)
    y[3, 1] = np.nan
    whole = Process.fit(kernel, np.arange(40), y)
    carriers = np.arange(0, 40, 2)
    few = Process.fit(kernel[:, carriers], carriers, y)
    np.testing.assert_allclose(few.predict(kernel[:, carriers]), whole.predict(kernel), atol=0.15)
    assert np.isnan(few.left_out[3, 1])
    for k in (0, 7):  # without its label, with the mean of all
        others = np.delete(np.arange(40), k)
        centred = y[others, 0] - y[:, 0].mean()
        phi = kernel[:, carriers].astype(float)
        among_carriers = kernel[np.ix_(carriers, carriers)].astype(float)
        seen = np.einsum("ij,ji->i", phi, np.linalg.pinv(among_carriers, 1e-6) @ phi.T)
        noise = 0.05 + (1 - seen[others, None]).clip(0)
        gram = (phi[others] / noise).T @ phi[others] + among_carriers
        weights = np.linalg.solve(gram + 1e-8 * np.eye(20), (phi[others] / noise).T @ centred)
        expected = phi[k] @ weights + y[:, 0].mean()
        assert few.left_out[k, 0] == pytest.approx(expected, abs=5e-3)
