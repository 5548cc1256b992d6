"""Recipes for molecules: pre-training targets, recombined molecules, a teacher's labels."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem
from torch_geometric.data import Data

from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.pretraining import DESCRIPTORS, collect, descriptors, environments
from graphxai.datasets.recombine import recombine
from graphxai.datasets.splits import random_split
from graphxai.models.graphormer import Task, load_checkpoint, recipes
from graphxai.models.graphormer.recipes import Link, blend, distil
from graphxai.models.graphormer.recipes_pretraining import pretrain
from graphxai.models.graphormer.training import TrainingSettings, predict

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


def test_an_amide_is_recombined_at_its_brics_bond() -> None:
    products = recombine(["CCCCC(=O)Nc1ccccc1", "CC(C)CC(=O)NC1CCCCC1"], 50, min_fragment=5)
    assert "CCCCC(=O)NC1CCCCC1" in products
    assert "CC(C)CC(=O)Nc1ccccc1" in products


def test_targets_say_what_a_molecule_holds() -> None:
    present = environments(["CCO", "CCN", "c1ccccc1"], 5)
    assert present.shape == (3, 5)
    assert present[0].any()
    values = descriptors(DRUGS)
    assert values.shape == (len(DRUGS), len(DESCRIPTORS))
    weight = [Chem.Descriptors.MolWt(Chem.MolFromSmiles(s)) for s in DRUGS]
    assert np.corrcoef(values[:, 0], weight)[0, 1] == pytest.approx(1.0)


def test_tables_are_merged_and_hidden_molecules_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smiles,a\nCCO,1\nOCC,0\nxx,1\nN[C@@H](C)C(=O)O,1\nCCN,\n")
    (tmp_path / "b.csv").write_text("smiles,b\nCCN,2.5\n" + "C" * 80 + ",1\n")
    found = collect([tmp_path / "a.csv", tmp_path / "b.csv"], exclude=["N[C@H](C)C(=O)O"])
    assert found.smiles == ["CCO", "CCN"]
    assert found.names == ("a", "b")
    np.testing.assert_array_equal(found.labels, [[0.0, math.nan], [math.nan, 2.5]])


def labelled() -> list[Data]:
    graphs = []
    for text in DRUGS * 2:
        data = molecule_to_data(text)
        size = float(data.num_nodes or 0)
        data.y = torch.tensor([[float(size > 13), size]])
        graphs.append(data)
    return graphs


def test_a_student_learns_from_an_ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    pytest.importorskip("sklearn")
    extra: list[int] = []
    original = recipes.finetune

    def watched(*args: object, **named: object) -> object:
        extra.append(len(named.get("extra", ())))  # type: ignore[arg-type]
        return original(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(recipes, "finetune", watched)
    tasks = (
        Task("large", "binary", ("no", "yes")),
        Task("size", "regression", offset=14, scale=3),
    )
    graphs = labelled()
    model = distil(
        graphs,
        tasks,
        random_split(len(graphs), 0),
        tmp_path,
        molecules=10,
        rounds=2,
        links=[Link("large", "size", 13.5)],
        start=None,
        teacher_settings=QUICK,
        settings=QUICK,
    )
    assert extra == [0, 10, 10]
    before = predict(model, graphs[:3])
    blend(model, Link("large", "size", 13.5, slope=2.0), share=0.25)
    after = predict(model, graphs[:3])
    value = 14 + 3 * before[:, 1]
    expected = 0.75 * before[:, 0] + 0.25 * 2.0 * (value - 13.5)
    assert torch.allclose(after[:, 0], expected, atol=1e-5)
    assert torch.equal(after[:, 1], before[:, 1])


def test_pre_trained_weights_start_another_model(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    table = tmp_path / "table.csv"
    table.write_text("smiles,active,value\n" + "".join(f"{s},1,{len(s)}\n" for s in DRUGS))
    folder = pretrain(
        tmp_path / "out", [table], count=16, settings=replace(QUICK, precision="32-true")
    )
    model = load_checkpoint(folder)
    names = [task.name for task in model.config.tasks]
    assert names == [*DESCRIPTORS, "active", "value"]
    new = recipes.finetune(
        labelled(),
        (Task("large", "binary", ("no", "yes")), Task("size", "regression")),
        random_split(24, 0),
        tmp_path / "fine",
        start=folder,
        settings=replace(QUICK, learning_rate=1e-12, weight_decay=0.0, ema_decay=None),
    )
    assert torch.allclose(new.graph_token, model.graph_token, atol=1e-6)
