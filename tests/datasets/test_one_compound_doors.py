"""The doors through which molecules come in, and the places that decide what they are."""

import csv
import inspect
import pickle
import re
from pathlib import Path

import pandas
import pytest
import typer
from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

import graphxai as gx
from graphxai.chemistry.measurements import Measurements, compounds_of
from graphxai.cli import main as cli
from graphxai.contract.target import Target
from graphxai.datasets.canonical_form import canonical_smiles
from graphxai.datasets.molecules import molecule_graph, molecule_graphs
from graphxai.datasets.training_set import TrainingSet
from graphxai.learning.cleaning import clean_table
from graphxai.tables.app.answers import ANSWERS, Body
from graphxai.tables.app.molecules import card
from graphxai.tables.batches import ExplainBatch, PredictBatch
from graphxai.tables.rows import ExplainFrame
from graphxai.tables.run import predict_table

SOURCE = Path(gx.__file__).parents[1]
ROOMS = ("datasets", "models", "graphxai")
MODEL = "blood-brain-barrier"

# Files that may ask RDKit's objects for configuration, isotopes, groups or tautomers, and for what.
DECIDES = re.compile(
    r"AssignStereochemistry|\.GetStereo\(|GetChiralTag|InvertChirality|SetChiralTag|SetIsotope"
    r"|GetIsotope|GetStereoGroups|TautomerEnumerator|rdMolStandardize|StereoPerception"
)
PLACES = {
    "datasets/canonical_form.py": "the form, and which configurations the mean is over",
    "datasets/features.py": "the features of the form",
    "datasets/isomers.py": "which isomers there are",
    "datasets/molecule_reading.py": "what published models read as drawn",
    "datasets/standardise.py": "which charges and hydrogens of the form move",
    "datasets/tautomer_form.py": "which protons of the form move",
    "datasets/recombine.py": "labels of attachment points",
    "graphxai/chemistry/modalities.py": "which residue a free amino acid is",
    "graphxai/chemistry/search/neighbours.py": "labels of attachment points",
    "graphxai/chemistry/search/transformations.py": "what keeps its configuration",
    "graphxai/chemistry/substituents.py": "labels of attachment points",
    "graphxai/evaluation/trust/other_forms.py": "which likely tautomers to tell of",
    "graphxai/tables/drawing.py": "what is drawn",
    "graphxai/visualization/layout.py": "which atoms resonance makes equivalent",
    "graphxai/wrapping/chemprop/molecules.py": "what chemprop's own code is fed",
    "graphxai/wrapping/estimators.py": "what scikit-learn's models are fed",
    "models/graphormer/inputs.py": "the mirror image of the form",
}
# Files that may make molecules of text, and of which text.
READS = re.compile(
    r"MolFromSmiles|quietly_read\(|MolFromMolBlock|MolFromInchi|MolSupplier|MolFromPDB"
)
DOOR = "the user's, before the form is made of it"
WRITTEN = "SMILES that a reading before has written"
READERS = {
    "datasets/canonical_form.py": "the form's own SMILES",
    "datasets/features.py": "the form's own SMILES",
    "datasets/isomers.py": "SMILES to count, whose number no way of drawing changes",
    "datasets/ionisation.py": "the user's, whose class no way of drawing changes",
    "datasets/molecule_reading.py": DOOR,
    "datasets/tables/columns.py": "cells, to find the column of structures",
    "datasets/tables/structures.py": DOOR,
    "datasets/tables/table.py": DOOR,
    "datasets/fingerprints.py": WRITTEN,
    "datasets/recombine.py": WRITTEN,
    "datasets/rule_molecules.py": "tables whose labels are rules",
    "datasets/rules.py": "tables whose labels are rules",
    "datasets/splits.py": WRITTEN,
    "graphxai/chemistry/search/changed_molecules.py": WRITTEN,
    "graphxai/chemistry/search/counterfactual_results.py": WRITTEN,
    "graphxai/chemistry/search/counterfactuals.py": WRITTEN,
    "graphxai/chemistry/cliff_truth.py": WRITTEN,
    "graphxai/chemistry/free_wilson.py": "R-groups, which RDKit has written",
    "graphxai/chemistry/matching.py": "a series, to find its common core as drawn",
    "graphxai/chemistry/measurements.py": "compounds in their form",
    "graphxai/chemistry/modalities.py": "structures with names",
    "graphxai/chemistry/names.py": "structures with names",
    "graphxai/chemistry/search/neighbours.py": WRITTEN,
    "graphxai/chemistry/search/objectives.py": WRITTEN,
    "graphxai/chemistry/ring_system_names.py": "structures with names",
    "graphxai/chemistry/substituents.py": "structures with names",
    "graphxai/chemistry/table_changes.py": "compounds in their form",
    "graphxai/chemistry/search/transformations.py": WRITTEN,
    "graphxai/cli/arguments.py": "words, to tell a SMILES from a path",
    "graphxai/evaluation/ground_truth_report.py": "molecules to draw",
    "graphxai/evaluation/trust/other_forms.py": WRITTEN,
    "graphxai/explainers/heads.py": WRITTEN,
    "graphxai/explanation/explained_graph.py": WRITTEN,
    "graphxai/explanation/files.py": "nothing: it names the function in its docstring",
    "graphxai/learning/measured_pairs.py": WRITTEN,
    "graphxai/learning/processes/adapting.py": WRITTEN,
    "graphxai/learning/recipes/bace.py": "the table of a bundled model",
    "graphxai/tables/app/page.py": "the user's, to draw and to number its atoms as written",
    "graphxai/tables/app/tables.py": "the user's, to search a pattern in it as drawn",
    "graphxai/tables/drawing.py": "molecules to draw",
    "graphxai/tables/report/structure_activity.py": "compounds in their form",
    "graphxai/visualization/fragments.py": "fragments to draw",
    "graphxai/visualization/grid.py": "a common scaffold, which RDKit has written",
    "graphxai/wrapping/chemprop/model.py": "ethane, to try a network",
    "graphxai/wrapping/chemprop/molecules.py": "what chemprop's own code is fed",
    "graphxai/wrapping/estimators.py": "what scikit-learn's models are fed",
    "graphxai/wrapping/reading.py": "what wrapped models are fed",
}


def files_with(pattern: re.Pattern[str]) -> set[str]:
    files = [
        p for room in ("datasets", "models", "graphxai") for p in (SOURCE / room).rglob("*.py")
    ]
    return {
        p.resolve().relative_to(SOURCE).as_posix() for p in files if pattern.search(p.read_text())
    }


def test_configuration_isotopes_and_tautomers_are_decided_in_one_place():
    """A new file that reads them from a live molecule has to say here what for."""
    assert files_with(DECIDES) == set(PLACES)


def test_every_file_that_makes_molecules_of_text_is_known():
    """A new one has to say here of which text, and a new door for users belongs to `DOORS`."""
    assert files_with(READS) == set(READERS)


def test_every_function_and_command_that_takes_molecules_names_its_door():
    """The doors are tried below. A new one has to name its door, or what else it does."""
    taking = {
        name
        for name in dir(gx)
        if inspect.isfunction(function := getattr(gx, name))
        and not name.startswith("_")
        and MOLECULES & {*inspect.signature(function).parameters}
    }
    assert taking == {*FUNCTIONS}
    commands = {*typer.main.get_command(cli.app).commands}
    assert commands == {*COMMANDS} | WITHOUT_MOLECULES
    named = {*FUNCTIONS.values(), *COMMANDS.values()}
    fed = "graphs that a network of the user's own is fed"
    assert {each for each in named if each not in DOORS} == {fed}


def in_training(tmp_path: Path, texts: list[str]) -> list[str]:
    """Return what training learns from these rows, without the alkanes beside them."""
    others = ["C" * k for k in range(1, 31)]
    rows = [f"{text},1" for text in texts] + [f"{text},{k % 2}" for k, text in enumerate(others)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["smiles,y", *rows]))
    return [
        smiles for smiles in clean_table(path, "smiles", ["y"]).canonical if smiles not in others
    ]


def merged(tmp_path: Path, texts: list[str]) -> list[str]:
    """Return the compound that duplicate rows become, or each if training learns several."""
    learned = in_training(tmp_path, texts)
    return learned if len(learned) == 1 else texts


def nearest(_: Path, texts: list[str]) -> list[str]:
    """Return the training compound that each is, where the first was learned from."""
    known = TrainingSet((molecule_graph(texts[0], **READING).smiles,), {})
    near = [known.nearness(molecule_graph(text, **READING).read) for text in texts]
    return [each.nearest if each.word == "training compound" else each.word for each in near]


def in_table(tmp_path: Path, texts: list[str]) -> list[str]:
    """Return what two processes predicted for the rows of a file."""
    table, out = tmp_path / "t.csv", tmp_path / "out.csv"
    table.write_text("\n".join(["smiles", *texts]))
    predict_table(gx.load(MODEL), table, out, workers=2)
    return [row["parent"] or row["smiles"] for row in csv.DictReader(out.open())]


def sketched(_: Path, texts: list[str]) -> list[str]:
    """Return what the app explains of what its editor draws."""
    blocks = [ANSWERS["block"](None, Body({"smiles": text})) for text in texts]
    drawn = [ANSWERS["canonical"](None, Body(block))["smiles"] for block in blocks]
    model = gx.load(MODEL)
    return [card(model, text, "lrp", Target())["smiles"] for text in drawn]


def divided(_: Path, texts: list[str]) -> list[str]:
    """Return the compounds of a table of R-groups."""
    table = Measurements.of(dict.fromkeys(texts, 1.0).items(), "value", "parent")
    scaffold = MurckoScaffold.GetScaffoldForMol(molecule_graph(texts[0], **READING).read)
    return gx.rgroup_table(MODEL, Chem.MolToSmarts(scaffold), table).smiles.tolist()


def predicted(models: str | tuple[str, ...], texts: list[str]) -> list[str]:
    rows = PredictBatch(models)(texts, range(1, len(texts) + 1))
    return [row["parent"] or row["smiles"] for row in rows]


def on_ray(_: Path, texts: list[str]) -> list[str]:
    """Return the rows that Ray's workers make: they call this object."""
    frame = ExplainFrame(pickle.loads(pickle.dumps(ExplainBatch(gx.load(MODEL)))), "smiles")
    rows = frame(pandas.DataFrame({"smiles": texts}))
    return (rows.parent.replace("", None)).fillna(rows.smiles).tolist()


def without_cliffs(_: Path, texts: list[str]) -> list[str]:
    """Return the molecules between which values that differ by 3 are no activity cliff."""
    cliffs = gx.activity_cliffs(texts, [3.0 * k for k in range(len(texts))])
    return texts if cliffs else texts[:1]


def of_one_class(_: Path, texts: list[str]) -> list[str]:
    """Return the molecules, each once for those that are acids or bases in the same way."""
    return list({str(gx.ionisation(text)): text for text in texts}.values())


DOORS = {
    "activity cliffs": without_cliffs,
    "ionisation": of_one_class,
    "graphs": lambda _, texts: [g.smiles for g in molecule_graphs(texts, **READING)],
    "processes": lambda _, texts: [g.smiles for g in molecule_graphs(texts, workers=2, **READING)],
    "training": in_training,
    "duplicates": merged,
    "measurements": lambda _, texts: compounds_of(texts, "parent"),
    "predictions": lambda _, texts: predicted(MODEL, texts),
    "several models": lambda _, texts: predicted((MODEL, "lipophilicity"), texts),
    "explanations": lambda _, texts: [e.smiles for e in gx.explain(MODEL, texts)],
    "nearness": nearest,
    "R-groups": divided,
    "the app's sketcher": sketched,
    "a file and workers": in_table,
    "Ray": on_ray,
}
# The door by which each public function of `gx` takes molecules in. A new one has to name it, or to
# say what else it does with them.
MOLECULES = {
    *("a", "dataset", "explained", "graph", "graphs", "inputs", "measured", "molecule", "path"),
    *("smiles", "table", "value"),
}
FUNCTIONS = {
    "activity_cliffs": "activity cliffs",
    "adapt": "training",
    "audit": "explanations",
    "check": "explanations",
    "clean_table": "duplicates",
    "compare": "explanations",
    "contrast": "explanations",
    "counterfactual_set": "explanations",
    "counterfactuals": "explanations",
    "evaluate": "explanations",
    "evaluate_cliffs": "explanations",
    "explain": "explanations",
    "explain_dataset": "Ray",
    "explain_rows": "a file and workers",
    "explore": "the app's sketcher",
    "fit_explainer": "graphs",
    "fit_masked_atoms": "graphs",
    "fit_shares": "graphs",
    "fragments": "explanations",
    "free_wilson": "measurements",
    "game": "predictions",
    "ionisation": "ionisation",
    "kernel_account": "predictions",
    "learned_from": "training",
    "pairs": "explanations",
    "predict": "predictions",
    "report": "explanations",
    "rgroup_table": "R-groups",
    "table_changes": "measurements",
    "train": "training",
    "train_table": "training",
    "trust": "explanations",
    "wrap": "graphs that a network of the user's own is fed",
}
# The same of the commands, apart from those that take no molecules.
COMMANDS = {
    "adapt": "training",
    "app": "the app's sketcher",
    "audit": "explanations",
    "benchmark": "explanations",
    "changes": "measurements",
    "counterfactuals": "explanations",
    "explain": "a file and workers",
    "fit-explainer": "graphs",
    "fit-masked-atoms": "graphs",
    "fragments": "explanations",
    "predict": "several models",
    "report": "explanations",
    "train": "duplicates",
}
WITHOUT_MOLECULES = {"demo", "examples", "methods", "models"}
READING = {"canonical": True, "standardise": "parent"}
ONE_COMPOUND = {
    "labels": ["CCOc1ccccc1", "CCOc1cccc[13cH]1", "[2H]C(C)Oc1ccccc1"],
    "protons": ["Cn1c(=O)c2[nH]cnc2n(C)c1=O", "Cn1c(=O)c2nc[nH]c2n(C)c1=O"],
    "a racemate": ["C[C@H](N)c1ccccc1.Cl |&1:1|", "C[C@@H](N)c1ccccc1 |&1:1|"],
}


@pytest.mark.parametrize("texts", ONE_COMPOUND.values(), ids=ONE_COMPOUND)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_lets_in_one_compound(door, texts, tmp_path):
    assert len({canonical_smiles(text) for text in DOORS[door](tmp_path, texts)}) == 1
