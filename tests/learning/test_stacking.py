"""A teacher is the mean of its sources that predicts unseen scaffolds best."""

import itertools

import numpy as np
import pytest
from rdkit import Chem

from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import similarity
from graphxai.learning.conformal import nearest_similarities
from graphxai.learning.teachers import choosing, forests
from graphxai.learning.teachers.choosing import choose_teacher, simplex_weights
from graphxai.learning.teachers.gaussian_process import Process
from graphxai.learning.teachers.stacking import (
    MoleculeFeatures,
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


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(forests, "TREES", 20)


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


def test_a_teacher_scores_each_source_on_unseen_scaffolds_and_keeps_what_helps():
    y = labels()
    teacher = choose_teacher(TASKS, SMILES, y)
    assert teacher.stacks[3] is None  # ten labels
    for weights, scores, _ in teacher.stacks[:3]:
        assert set(scores) == {"forest", "descriptor_forest", "process", "stack"}
        assert sum(weights.values()) == pytest.approx(1)
        assert min(weights.values()) >= 0.1
    assert "size" in teacher.describe()[0]
    assert "R2 on folds left out " in teacher.describe()[0]  # of scaffolds or at random
    assert teacher.describe()[3] == "teacher of rare: none (too few labels)"
    new = MoleculeFeatures(("NCc1ccc(O)cc1", "CCCCC1CCCC1"))
    predicted = teacher.predict(new)
    assert predicted[3] is None
    assert predicted[2].shape == (2, 3)
    np.testing.assert_allclose(predicted[2].sum(1), 1)
    left_out = teacher.left_out(0)
    np.testing.assert_array_equal(np.isnan(left_out), np.isnan(y[:, 0]))
    assert np.isnan(teacher.left_out(2)).all()  # several classes


def test_a_teacher_takes_a_process_and_the_forests_that_it_was_compared_with(monkeypatch):
    """They are those that it would have fitted, and it only fits forests of the folds itself."""
    y, folds = labels()[:, :2], choosing.scaffold_folds(SMILES, choosing.FOLDS)
    alone = choose_teacher(TASKS[:2], SMILES, y, folds=folds)
    no_bounds = np.full((*y.shape, 2), [-np.inf, np.inf])
    process, forests = choosing.choose_process(TASKS[:2], SMILES, y, folds, bounds=no_bounds)
    fitted = forests | {"process": process}
    for name in ("fit_forests", "fit_process"):
        monkeypatch.setattr(choosing._SourceFitter, name, lambda *_: pytest.fail("again"))
    teacher = choose_teacher(TASKS[:2], SMILES, y, folds=folds, fitted=fitted)
    assert [s and s.weights for s in teacher.stacks] == [s and s.weights for s in alone.stacks]
    assert all(teacher.sources[name] is each for name, each in fitted.items())
    new = MoleculeFeatures(("NCc1ccc(O)cc1", "CCCCC1CCCC1"))
    for task in range(2):
        np.testing.assert_array_equal(teacher.left_out(task), alone.left_out(task))
        np.testing.assert_array_equal(teacher.predict(new)[task], alone.predict(new)[task])
    for name, each in fitted.items():
        again = alone.sources[name]
        for task, values in each.predict(new).items():
            np.testing.assert_array_equal(again.predict(new)[task], values)
            np.testing.assert_array_equal(again.left_out[task], each.left_out[task])


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
    assert teacher.stacks[0].scores["process"] == pytest.approx(r2, abs=1e-4)


def test_molecules_predicted_out_of_fold_are_kept_with_how_near_the_other_folds_are():
    y = labels()
    teacher = choose_teacher(TASKS, SMILES, y)
    assert [stack is None for stack in teacher.stacks] == [False, False, False, True]
    size = teacher.stacks[0].unseen
    measured = ~np.isnan(size.y)
    error = np.mean((size.readings[measured] - size.y[measured]) ** 2)
    r2 = teacher.stacks[0].scores["stack"]
    assert 1 - error / np.var(size.y[measured]) == pytest.approx(r2, abs=1e-6)
    for fold in choosing.scaffold_folds(SMILES, choosing.FOLDS):
        others = [SMILES[k] for k in np.setdiff1d(np.arange(len(SMILES)), fold)]
        nearest = nearest_similarities([SMILES[k] for k in fold], others)
        np.testing.assert_array_equal(size.similarity[fold], nearest)
    before, y[:] = size.y.copy(), 7  # as distillation mixes labels with predictions
    np.testing.assert_array_equal(size.y, before)


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
