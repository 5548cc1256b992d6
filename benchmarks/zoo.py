"""Train the bundled models of public tables: `graphxai train`, with a card that names the source.

    python benchmarks/zoo.py --data FOLDER --out runs/zoo [--models solubility ...] [--install]

The script writes each table with readable columns to `NAME.csv`, and trains on it as
`graphxai train NAME.csv --target-column ... --out runs/zoo/NAME` does (scaffold split, seed 0).
With --install it copies the checkpoint to the bundled ones. `graphxai fit-explainer` makes their
explainers. FOLDER contains `molecules/esol.csv`, `lipo.csv`, `bbbp.csv`, `tox21.csv` and `hiv.csv`.
An interrupted run continues.
"""

import argparse
import csv
import json
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rdkit import Chem

import graphxai as gx
from graphxai.contract.checkpoint_files import CARD
from graphxai.datasets.labels import is_missing
from graphxai.learning.cleaning import clean_table
from graphxai.learning.run import train_table
from graphxai.models.graphormer import CONFIG, PRETRAINED
from graphxai.runtime.writing import json_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from one_compound import outputs, test_part

NUCLEAR = ("AR", "AR-LBD", "AhR", "Aromatase", "ER", "ER-LBD", "PPAR-gamma")
STRESS = ("ARE", "ATAD5", "HSE", "MMP", "p53")
ASSAYS = (*(f"NR-{name}" for name in NUCLEAR), *(f"SR-{name}" for name in STRESS))
ACTIVITY = {"0": "inactive", "1": "active"}
LARGEST = 8_000_000  # bytes of a bundled model, its explainer included
LICENCE = "**Licence.**"
AS_READ = "other tautomers are read as they are drawn."
TRIED = 200  # test molecules whose mirror images are predicted
EXPLAINER = 126_000  # bytes that the explainer of a model with classes will take


@dataclass(frozen=True)
class PublicTable:
    """A public table that a model is trained on, and the words of the model's card.

    Attributes:
        file: name of the file.
        title: title of the card.
        about: first sentences of the card.
        columns: columns of the file, and their names in the model.
        words: names of the classes.
        rows: largest number of rows taken: all positive ones of the first column, then others at
            random.
        smiles: column with SMILES.
    """

    file: str
    title: str
    about: str
    columns: dict[str, str]
    words: dict[str, str] = field(default_factory=dict)
    rows: int | None = None
    smiles: str = "smiles"


MODELS = {
    "solubility": PublicTable(
        "esol.csv",
        "Solubility in water",
        "Predicts the logarithm of a compound's solubility in water (mol/L), measured. Data:"
        " MoleculeNet's ESOL (Delaney 2004, Wu 2018).",
        {"logSolubility": "solubility (log mol/L)"},
    ),
    "lipophilicity": PublicTable(
        "lipo.csv",
        "Lipophilicity",
        "Predicts a compound's log D between octanol and water at pH 7.4. Data: MoleculeNet's"
        " Lipophilicity (AstraZeneca's measurements in ChEMBL, Wu 2018).",
        {"lipo": "log D at pH 7.4"},
    ),
    "blood-brain-barrier": PublicTable(
        "bbbp.csv",
        "Blood-brain barrier",
        "Predicts whether a compound gets from the blood into the brain. Data: MoleculeNet's BBBP"
        " (Martins 2012, Wu 2018); most compounds are drugs.",
        {"p_np": "blood-brain barrier"},
        {"0": "non-penetrant", "1": "penetrant"},
    ),
    "tox21": PublicTable(
        "tox21.csv",
        "Tox21",
        "Predicts activity in the twelve assays of the Tox21 challenge: seven of nuclear receptors"
        " (NR) and five of stress response (SR). Data: MoleculeNet's Tox21 (Huang 2016, Wu 2018).",
        {name: name for name in ASSAYS},
        ACTIVITY,
    ),
    "hiv": PublicTable(
        "hiv.csv",
        "Inhibition of HIV replication",
        "Predicts whether a compound protects cells against HIV. Data: MoleculeNet's HIV (the"
        " antiviral screen of the NCI's Developmental Therapeutics Program, Wu 2018): all active"
        " compounds and a sample of the inactive ones. So one compound in seven is active here,"
        " against one in 28 in the screen, and probabilities are too high for a library like that.",
        {"HIV_active": "HIV inhibition"},
        ACTIVITY,
        rows=10_000,
    ),
}


def write_table(model: PublicTable, source: Path, path: Path) -> None:
    """Write the training table, with a column of SMILES and with labels in words."""
    with source.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if model.rows is not None and len(rows) > model.rows:
        first = next(iter(model.columns))
        chosen = [k for k, row in enumerate(rows) if row[first] == "1"]
        others = [k for k, row in enumerate(rows) if row[first] != "1"]
        chosen += random.Random(0).sample(others, model.rows - len(chosen))
        rows = [rows[k] for k in sorted(chosen)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", *model.columns.values()])
        for row in rows:
            cells = [row[name] for name in model.columns]
            words = ["" if is_missing(cell) else model.words.get(cell, cell) for cell in cells]
            writer.writerow([row[model.smiles], *words])


def train(name: str, model: PublicTable, data: Path, out: Path) -> Path:
    """Train a model, put its source in front of its card, and return the checkpoint folder."""
    path = out / f"{name}.csv"
    write_table(model, data / "molecules" / model.file, path)
    columns = list(model.columns.values())
    targets = "all" if len(columns) > 1 else f'"{columns[0]}"'
    command = f"graphxai train {path.name} --target-column {targets} --out runs/{name}"
    begun = time.process_time()
    folder = train_table(
        clean_table(path, "smiles", columns),
        out / name,
        command=command,
        resume=True,
        log=lambda line: print(f"{name}, {time.process_time() - begun:.0f} s: {line}", flush=True),
    )
    card = folder / "README.md"
    _, _, rest = card.read_text(encoding="utf-8").partition("\n\n")
    made = (
        f"The table was made from `{model.file}` by `benchmarks/zoo.py`, which names the columns."
    )
    card.write_text(f"# {model.title}\n\n{model.about} {made}\n\n{rest}", encoding="utf-8")
    seconds = {"seconds": round(time.process_time() - begun)}
    (out / f"{name}.json").write_text(json.dumps(seconds), encoding="utf-8")
    return folder


def install(folder: Path, name: str) -> None:
    """Copy a checkpoint to the bundled ones, without some rows and labels if it is too large.

    The card says what the model does not see, and keeps the paragraph on its licence.
    """
    target = PRETRAINED / name
    before = (target / CARD).read_text(encoding="utf-8") if (target / CARD).exists() else ""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    card = (target / CARD).read_text(encoding="utf-8").rstrip("\n")
    _, licence, paragraph = before.partition(LICENCE)
    card = card.replace(
        AS_READ, f"{AS_READ} {unseen_by(target)}"
    ) + f"\n\n{licence}{paragraph}".rstrip("\n")
    (target / CARD).write_text(f"{card}\n", encoding="utf-8")
    assert (target / CONFIG).exists()
    if size_of(target) + EXPLAINER > LARGEST:
        leave_labels_out(target / "training.csv")
        leave_rows_out(target / "scores.json")
    print(f"installed {name}: {size_of(target) / 1e6:.2f} MB", flush=True)


ISOTOPES = "It does not see isotopes"


def unseen_by(folder: Path) -> str:
    """Say what a model makes of isotopes and configuration, over some of its test molecules.

    Of several targets, the one stands for all whose output changes most for its spread.
    """
    rows = list(rows_unseen(str(folder)))
    assert all(float(isotopes) == 0 for *_, isotopes in rows)
    chiral = [row for row in rows if row[3] != "0"]
    if not chiral:
        return f"{ISOTOPES}. None of the test molecules tried is chiral."
    _, task, spread, count, median, most, _ = max(
        chiral, key=lambda row: float(row[5]) / float(row[2])
    )
    mirrored = f"mirror images of {count} chiral test molecules change the output by {median}"
    subject = f"The {mirrored}" if len(rows) == 1 else f"Most of all in {task}: the {mirrored}"
    return (
        f"{ISOTOPES}, and configuration changes its outputs little. {subject} in the"
        f" median, and 95 % of them by less than {most}. The outputs spread by {spread}."
    )


def rows_unseen(name: str) -> Iterator[list[str]]:
    """Say how much outputs change with configuration and isotopes, over the test compounds."""
    model = gx.load(name)
    smiles = test_part(name)
    smiles = smiles[:: max(1, len(smiles) // TRIED)]
    mirrored = [(text, mirror) for text in smiles if (mirror := flipped(text))]
    base, heavy = outputs(model, smiles), outputs(model, list(map(labelled, smiles)))
    drawn, mirrored_outputs = (outputs(model, [pair[k] for pair in mirrored]) for k in (0, 1))
    for k, task in enumerate(model.config.tasks):
        spread = np.nanstd(base[:, k])
        change = np.abs(drawn[:, k] - mirrored_outputs[:, k])
        of_mirror = ["–", "–"]
        if len(change):
            of_mirror = [f"{np.nanmedian(change):.3f}", f"{np.nanquantile(change, 0.95):.3f}"]
        yield [
            name,
            task.name,
            f"{spread:.3f}",
            f"{len(mirrored)}",
            *of_mirror,
            f"{np.nanmax(np.abs(heavy[:, k] - base[:, k])):.6f}",
        ]


def flipped(smiles: str) -> str | None:
    """Return the mirror image of a molecule, or None if it has none."""
    mol = Chem.MolFromSmiles(smiles)
    for atom in mol.GetAtoms():
        atom.InvertChirality()
    mirror = Chem.MolToSmiles(mol)
    return None if mirror == Chem.CanonSmiles(smiles) else mirror


def labelled(smiles: str) -> str:
    """Return a molecule with carbon-13 in all places."""
    mol = Chem.MolFromSmiles(smiles)
    for atom in mol.GetAtoms():
        if atom.GetAtomicNum() == 6:
            atom.SetIsotope(13)
    return str(Chem.MolToSmiles(mol))


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.iterdir())


def leave_labels_out(path: Path) -> None:
    """Keep only the rows and SMILES of training molecules, which tell how near a molecule is."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row[:2] for row in csv.reader(file)]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def leave_rows_out(path: Path) -> None:
    """Leave out the lists of rows in each part, which the checkpoint's configuration has too."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["split"] = {k: v for k, v in content["split"].items() if not k.endswith("_rows")}
    path.write_text(json_text(content), encoding="utf-8")


def main() -> None:
    """Train the requested models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--install", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.models:
        folder = args.out / name / "model"
        if not (folder / "scores.json").exists():
            folder = train(name, MODELS[name], args.data, args.out)
        if args.install:
            install(folder, name)


if __name__ == "__main__":
    main()
