"""Recipes for molecules pre-train, recombine molecules, and follow a teacher's labels."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import atom_pair_counts, ecfp6_counts, tanimoto
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.recombine import recombine, substitute
from graphxai.datasets.rule_molecules import rule_table
from graphxai.datasets.shapes import shape_dataset
from graphxai.datasets.splits import random_split
from graphxai.learning.fit import finetune, molecule_config
from graphxai.learning.predicting import encode_all, encoded_molecules, predict
from graphxai.learning.recipes import distillation
from graphxai.learning.recipes.distillation import (
    PROCESS_SHARE,
    Link,
    LinkedTeacher,
    distil,
    label_molecules,
)
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.splitting import Source
from graphxai.learning.teachers.gaussian_process import NOISE
from graphxai.learning.training import recombined_smiles
from graphxai.models.graphormer import load_checkpoint
from graphxai.runtime.progress import in_chunks
from ground_truth_tasks import train_rules, train_shapes
from pretraining import (
    DESCRIPTORS,
    collect,
    descriptors,
    environments,
    learned_descriptors,
    pretrain,
)

FEW = 60  # trees, where the recipe grows hundreds
DRUGS = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "CC(=O)Nc1ccc(O)cc1",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "CCOC(=O)c1ccc(N)cc1",
    "CCN(CC)CC(=O)Nc1c(C)cccc1C",
    "COc1ccc2cc(ccc2c1)C(C)C(=O)O",
    "CC(C)NCC(O)COc1cccc2ccccc12",
    "CNC(C)Cc1ccccc1",
    "Cc1ccc(cc1)S(=O)(=O)NC(=O)NN1CC2CCCC2C1",
    "OC(=O)COc1ccc(Cl)cc1Cl",
    "CCCCNC(=O)NS(=O)(=O)c1ccc(C)cc1",
    "Nc1ccc(cc1)S(=O)(=O)Nc1ncccn1",
]
QUICK = TrainingSettings(
    epochs=1, batch_size=8, ema_decay=0.9, accelerator="cpu", progress=False, keep_best=False
)


def test_recombined_molecules_are_new_valid_and_repeat() -> None:
    products = recombine(DRUGS, 40, seed=1, exclude=["CC(=O)Nc1ccc(OC(C)=O)cc1"])
    assert len(products) == len(set(products)) == 40
    given = {Chem.CanonSmiles(text) for text in DRUGS}
    assert not given & set(products)
    assert all(Chem.CanonSmiles(text) == text for text in products)
    assert products == recombine(DRUGS, 40, seed=1, exclude=["CC(=O)Nc1ccc(OC(C)=O)cc1"])
    assert not set(recombine(DRUGS, 40, exclude=products)) & set(products)


def test_molecules_without_a_cut_give_no_products() -> None:
    assert recombine(["CC", "c1ccccc1"], 10) == []
    assert substitute(["C1CC1", "c1ccccc1"], 10) == []


def test_a_substituted_molecule_differs_from_a_given_one_in_a_single_substituent() -> None:
    """Only the ends that make the same kind of bond are exchanged, and nothing twice."""
    given = ["Cc1ccc(F)cc1", "CCOc1ccncc1"]
    products = substitute(given, 50)
    aromatic = {"CCOc1ccc(F)cc1", "Cc1ccc(OCC)cc1", "Cc1ccncc1", "Fc1ccncc1"}
    assert {Chem.CanonSmiles(text) for text in aromatic} <= set(products)
    assert len(products) == len(set(products))
    assert not {Chem.CanonSmiles(text) for text in given} & set(products)
    benzene, pyridine = Chem.MolFromSmarts("c1ccccc1"), Chem.MolFromSmarts("n1ccccc1")
    for text in products:  # each has the core of a given molecule
        mol = Chem.MolFromSmiles(text)
        assert mol.HasSubstructMatch(benzene) or mol.HasSubstructMatch(pyridine)
    left_out = substitute(given, 50, exclude=["Fc1ccncc1"])
    assert set(left_out) == set(products) - {"Fc1ccncc1"}
    assert substitute(given, 50, max_substituent=1) != products


def test_every_new_molecule_is_ticked() -> None:
    ticks: list[int] = []
    products = recombine(DRUGS, 20, progress=ticks.append)
    assert sum(ticks) == len(products) > 0
    seen = list(in_chunks(products, "reading", size=7, show=False))
    assert [text for part in seen for text in part] == products
    assert {len(part) for part in seen[:-1]} <= {7}


def test_bars_show_what_goes_on_before_the_student_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("graphxai.runtime.progress.PATIENCE", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    settings = replace(QUICK, progress=True)
    y = np.arange(len(DRUGS), dtype=np.float64)[:, None]
    LinkedTeacher.fit([Task("value", "regression")], DRUGS, y, show=None)
    config = molecule_config([Task("value", "regression")])
    encoded_molecules(recombined_smiles(DRUGS, 5, [], settings), config, settings)
    text = capsys.readouterr().err
    assert all(word in text for word in ("fitting", "recombining", "encoding"))
    encoded_molecules(recombined_smiles(DRUGS, 5, [], QUICK), config, QUICK)
    assert not capsys.readouterr().err


def test_descriptors_of_pre_training_are_learned_in_their_units() -> None:
    values, tasks = learned_descriptors(descriptors(DRUGS), limit=1)
    weights = [Chem.Descriptors.MolWt(Chem.MolFromSmiles(s)) for s in DRUGS]
    assert tasks[0].offset == pytest.approx(np.mean(weights))
    standard = (values[:, 0] - tasks[0].offset) / tasks[0].scale
    assert abs(standard).max() == pytest.approx(1)
    (predictions,) = gx.predict(gx.load("molecules"), ["CC(=O)Oc1ccccc1C(=O)O"])
    assert predictions["molecular weight"].value == pytest.approx(180.2, rel=0.1)


def test_an_amide_is_recombined_at_its_brics_bond() -> None:
    given = ["CCCCC(=O)Nc1ccccc1", "CC(C)CC(=O)NC1CCCCC1"]
    products = recombine(given, 50, min_fragment=5)
    swapped = {"CCCCC(=O)NC1CCCCC1", "CC(C)CC(=O)Nc1ccccc1"}
    assert swapped <= set(products)
    # both have 13 atoms, of which the two at the cut are not counted twice
    assert swapped <= set(recombine(given, 50, min_fragment=5, max_atoms=13))
    assert not swapped & set(recombine(given, 50, min_fragment=5, max_atoms=12))


def test_targets_say_what_a_molecule_contains() -> None:
    present = environments(["CCO", "CCN", "c1ccccc1"], 5)
    assert present.shape == (3, 5)
    assert present[0].any()
    values = descriptors(DRUGS)
    assert values.shape == (len(DRUGS), len(DESCRIPTORS))
    weight = [Chem.Descriptors.MolWt(Chem.MolFromSmiles(s)) for s in DRUGS]
    np.testing.assert_allclose(values[:, 0], weight)


def test_tables_are_merged_and_hidden_molecules_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smiles,a\nCCO,1\nOCC,0\nxx,1\nN[C@@H](C)C(=O)O,1\nCCN,\n")
    (tmp_path / "b.csv").write_text("SMILES,b\nCCN,2.5\n" + "C" * 80 + ",1\nCCCl,no number\n")
    tables = [tmp_path / "a.csv", tmp_path / "b.csv"]
    assert collect(tables, exclude=["N[C@H](C)C(=O)O"]) == ["CCO", "CCN", "CCCl"]
    few = collect(tables, per_table=1)
    assert len(few) <= 2
    assert few == collect(tables, per_table=1)
    (tmp_path / "c.csv").write_text("amount\n12\n")
    with pytest.raises(ValueError, match="no column of structures"):
        collect([tmp_path / "c.csv"])


def labelled_source(*tasks: Task) -> Source:
    """Return molecules with a class and a number, split at random."""
    graphs = []
    for text in DRUGS * 2:
        data = molecule_to_data(text)
        size = float(data.num_nodes or 0)
        data.y = torch.tensor([[float(size > 13), size]])
        graphs.append(data)
    config = molecule_config(tasks, dropout=0.0, attention_dropout=0.0)
    y = torch.cat([graph.y for graph in graphs]).double().numpy()
    return Source(encode_all(graphs, config), y, random_split(len(graphs), 0), config)


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    for name in ("RandomForestClassifier", "RandomForestRegressor"):
        forest = getattr(ensemble, name)
        monkeypatch.setattr(ensemble, name, lambda _, grow=forest, **named: grow(FEW, **named))


def test_a_student_learns_from_an_ensemble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_trees: None
) -> None:
    pytest.importorskip("lightning")
    pytest.importorskip("sklearn")
    extra: list[int] = []
    original = finetune

    def watched(*args: object, **named: object) -> object:
        extra.append(len(named.get("extra", ())))  # type: ignore[arg-type]
        return original(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(distillation, "finetune", watched)
    tasks = (
        Task("large", "binary", ("no", "yes")),
        Task("size", "regression", offset=14, scale=3),
    )
    source = labelled_source(*tasks)
    model = distil(
        source,
        tmp_path,
        molecules=10,
        links=[Link("large", "size", 13.5)],
        init_weights=None,
        first_settings=QUICK,
        settings=QUICK,
    )
    assert extra == [0, 10]
    assert len(list((tmp_path / "labels").glob("labels-*.npy"))) == 1
    assert predict(model, source.graphs[:3]).shape == (3, 2)


class CountingTeacher:
    """A teacher that labels a SMILES with its length, and stops after some parts if told to."""

    def __init__(self, parts: int = 1000) -> None:
        self.parts = parts

    def predict(self, smiles: Sequence[str]) -> np.ndarray:
        self.parts -= 1
        if self.parts < 0:
            raise KeyboardInterrupt
        return np.array([[float(len(text))] for text in smiles])

    def left_out(self) -> np.ndarray:
        return np.array([[0.5]])


def test_labelling_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    smiles, made = ["C" * (k % 9 + 1) for k in range(1200)], []

    def make() -> list[str]:
        made.append(1)
        return smiles

    arguments = (tmp_path, {"seed": 0}, make)
    with pytest.raises(KeyboardInterrupt):
        label_molecules(*arguments, lambda: CountingTeacher(2), resume=True, show=False)
    teacher = CountingTeacher()
    new, labels, left_out = label_molecules(*arguments, lambda: teacher, resume=True, show=False)
    assert teacher.parts == 1000 - 1  # one of three parts was left
    assert new == smiles
    assert labels[:, 0].tolist() == [len(text) for text in smiles]
    assert left_out.tolist() == [[0.5]]

    def never() -> CountingTeacher:
        raise AssertionError("nothing is left to label")

    _, again, _ = label_molecules(*arguments, never, resume=True, show=False)
    np.testing.assert_array_equal(again, labels)
    assert made == [1]
    teacher = CountingTeacher()
    label_molecules(tmp_path, {"seed": 1}, make, lambda: teacher, resume=True, show=False)
    assert teacher.parts == 1000 - 3


def test_similarity_of_counts_is_rdkits() -> None:
    counts = ecfp6_counts(DRUGS)
    generator = rdFingerprintGenerator.GetMorganGenerator(
        radius=3, fpSize=counts.shape[1], includeChirality=True
    )
    given = [generator.GetCountFingerprint(Chem.MolFromSmiles(s)) for s in DRUGS]
    expected = [DataStructs.BulkTanimotoSimilarity(bits, given[:5]) for bits in given]
    np.testing.assert_allclose(tanimoto(counts, counts[:5]), expected, rtol=1e-6)


@pytest.mark.parametrize("size", [254, 255, 256, 65_535, 65_536, 90_000])
def test_similarity_of_many_counts_is_the_ratio_of_sums(size: int) -> None:
    """Sums are added up in as few bits as hold them, which these sizes need all of."""
    counts = np.zeros((3, 400), np.uint16)
    counts[0, :300] = size // 300
    counts[0, 300] = size % 300
    counts[1], counts[2, :2] = counts[0], (size // 300, 1)
    wide = counts.astype(np.int64)
    least, most = (f(wide[:, None], wide[None]).sum(-1) for f in (np.minimum, np.maximum))
    np.testing.assert_array_equal(tanimoto(counts, counts), (least / most).astype(np.float32))


def test_a_gaussian_process_equals_scikit_learns(few_trees: None) -> None:
    pytest.importorskip("sklearn")
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import PairwiseKernel

    y = np.array([[float(len(s)), float("N" in s)] for s in DRUGS])
    y[3, 0] = np.nan
    train, test = DRUGS[:9], DRUGS[9:]
    tasks = [Task("length", "regression"), Task("nitrogen", "regression")]
    teacher = LinkedTeacher.fit(tasks, train, y[:9])
    labelled_rows = ~np.isnan(y[:9, 0])
    kinds, means = (
        (partial(ecfp6_counts, stereo=False), atom_pair_counts),
        np.nanmean(y[:9], axis=0),
    )
    counts = np.concatenate([kind(train) for kind in kinds], 1)

    def alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (tanimoto(a[:, :4096], b[:, :4096]) + tanimoto(a[:, 4096:], b[:, 4096:])) / 2

    def fitted(rows: np.ndarray, column: int, mean: float) -> GaussianProcessRegressor:
        similar = PairwiseKernel(metric=lambda a, b, **_: float(alike(a[None], b[None])[0, 0]))
        machine = GaussianProcessRegressor(similar, alpha=NOISE, optimizer=None)
        return machine.fit(counts[rows], y[:9][rows, column] - mean)

    for column, rows in ((0, labelled_rows), (1, np.ones(9, dtype=bool))):
        machine = fitted(rows, column, means[column])
        expected = machine.predict(np.concatenate([k(test) for k in kinds], 1)) + means[column]
        np.testing.assert_allclose(teacher.by_process(test)[:, column], expected, rtol=1e-6)
        for left_out in np.flatnonzero(rows):
            others = rows & (np.arange(9) != left_out)
            machine = fitted(others, column, means[column])
            expected = machine.predict(counts[left_out][None]) + means[column]
            assert teacher.process.left_out[left_out, column] == pytest.approx(
                expected[0], rel=1e-5
            )
    assert np.isnan(teacher.process.left_out[3, 0])


def test_an_ensemble_reads_a_class_from_its_value_and_has_not_seen_what_it_left_out(
    few_trees: None,
) -> None:
    pytest.importorskip("sklearn")
    tasks = (Task("large", "binary", ("no", "yes")), Task("size", "regression"))
    sizes = np.array([Chem.MolFromSmiles(s).GetNumAtoms() for s in DRUGS], dtype=float)
    y = np.stack([sizes > 13, sizes], axis=1)
    link = Link("large", "size", 13.5, slope=2.0)
    plain, linked = LinkedTeacher.fit(tasks, DRUGS, y), LinkedTeacher.fit(tasks, DRUGS, y, [link])
    each = [plain.by_forests(DRUGS), plain.by_process(DRUGS)]
    each = [np.stack([values[:, 0].clip(0, 1), values[:, 1]], 1) for values in each]
    shares = [1 - PROCESS_SHARE, PROCESS_SHARE]
    np.testing.assert_allclose(plain.predict(DRUGS), np.average(each, 0, shares))
    read = [1 / (1 + np.exp(-2.0 * (values[:, 1] - 13.5))) for values in each]
    halves = [(values[:, 0] + other) / 2 for values, other in zip(each, read, strict=True)]
    expected = np.average(halves, 0, shares)
    np.testing.assert_allclose(linked.predict(DRUGS)[:, 0], expected)
    assert ((linked.left_out()[:, 0] >= 0) & (linked.left_out()[:, 0] <= 1)).all()
    seen, unseen = plain.predict(DRUGS)[:, 1], plain.left_out()[:, 1]
    assert np.abs(seen - sizes).mean() < 0.7 * np.abs(unseen - sizes).mean()


def test_a_class_is_not_derived_from_a_value_that_contradicts_it() -> None:
    link = Link("active", "pIC50", 7.0)
    classes = np.array([1.0, 1, 1, 0, 0, 1, np.nan, 1])
    values = np.array([8.0, 7, 4, 5, 9, np.nan, 3, 9])
    expected = [8.0, 7, 8, 5, 5, np.nan, 3, 9]
    np.testing.assert_array_equal(link.agreeing(classes, values), expected)
    lonely = link.agreeing(np.array([1.0, 0]), np.array([4.0, 5]))
    np.testing.assert_array_equal(lonely, [np.nan, 5])


def test_an_ensemble_predicts_a_contradictory_value_and_its_class_as_measured(
    few_trees: None,
) -> None:
    pytest.importorskip("sklearn")
    tasks = (Task("large", "binary", ("no", "yes")), Task("size", "regression"))
    sizes = np.array([Chem.MolFromSmiles(s).GetNumAtoms() for s in DRUGS], dtype=float)
    y = np.stack([sizes > 13, sizes], axis=1)
    contradictory = int(np.argmax(sizes))
    y[contradictory, 1] = 1.0
    link = Link("large", "size", 13.5)
    plain, linked = LinkedTeacher.fit(tasks, DRUGS, y), LinkedTeacher.fit(tasks, DRUGS, y, [link])
    drug = [DRUGS[contradictory]]
    assert linked.predict(drug)[0, 1] == plain.predict(drug)[0, 1] < 6
    assert linked.predict(drug)[0, 0] > 0.8
    assert linked.left_out().shape == y.shape


def test_pre_trained_weights_start_another_model(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    table = tmp_path / "table.csv"
    table.write_text("smiles,active,value\n" + "".join(f"{s},1,{len(s)}\n" for s in DRUGS))
    heard: list[str] = []
    folder = pretrain(
        tmp_path / "out",
        [table],
        recombined=5,
        count=16,
        settings=replace(QUICK, precision="32-true"),
        log=heard.append,
    )
    model = load_checkpoint(folder)
    assert [task.name for task in model.config.tasks] == [*DESCRIPTORS]  # no label of the table
    assert any("of them recombined" in line for line in heard)
    new = finetune(
        labelled_source(Task("large", "binary", ("no", "yes")), Task("size", "regression")),
        tmp_path / "fine",
        init_weights=folder,
        settings=replace(QUICK, learning_rate=1e-12, weight_decay=0.0, ema_decay=None),
    ).model
    assert torch.allclose(new.graph_token, model.graph_token, atol=1e-6)


def test_without_graphs_shapes_are_planted_by_the_seed_of_the_run(tmp_path, monkeypatch) -> None:
    pytest.importorskip("lightning")

    class PlantedError(Exception):
        pass

    def planted(*, seed: int) -> None:
        raise PlantedError(seed)

    monkeypatch.setattr("ground_truth_tasks.shape_dataset", planted)
    with pytest.raises(PlantedError, match=r"^7$"):
        train_shapes(tmp_path, seed=7, accelerator="cpu")


@pytest.mark.parametrize("recipe", ["shapes", "rules"])
def test_recipes_of_known_truth_train_in_bfloat16_and_refuse_what_is_not_there(
    recipe: str, tmp_path: Path
) -> None:
    pytest.importorskip("lightning")
    if recipe == "shapes":
        train = partial(train_shapes, dataset=shape_dataset(120, seed=1))
    else:
        carbons = [f"{'C' * n}{end}" for n in range(1, 30) for end in ("O", "Cl", "N", "OC")]
        table = rule_table(carbons, ("halogen", "logp"), size=80)
        train = partial(train_rules, table=table, init_weights=None)
    with pytest.raises(ValueError, match=r"cannot train with .*devices 0"):
        train(tmp_path / "no", accelerator="cpu", devices=0)
    with pytest.raises(ValueError, match=r"cannot train with .*'7-true'"):
        train(tmp_path / "no", accelerator="cpu", precision="7-true")
    assert not (tmp_path / "no").exists()
    options = {"accelerator": "cpu", "precision": "bf16-mixed", "epochs": 1, "progress": False}
    folder = train(tmp_path / "run", **options)
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["training"]["precision"] == "bf16-mixed"
    model = load_checkpoint(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert ("no", "yes") in {task.classes for task in model.config.tasks}
    if recipe == "rules":
        assert {name: scores.slope for name, scores in model.conformal.items()} == dict.fromkeys(
            ("halogen", "logp"), 0.0
        )
