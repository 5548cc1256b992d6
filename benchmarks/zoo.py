"""Train the bundled models of public tables: `graphxai train`, with a card that names the source.

    python benchmarks/zoo.py --data FOLDER --out runs/zoo [--models solubility ...] [--install]

The script writes each table with readable columns to `NAME.csv`, and trains on it as
`graphxai train NAME.csv --target-column ... --out runs/zoo/NAME` does (seed 0; the authors' split
where there is one, and scaffolds elsewhere). With --install it copies the checkpoint to the bundled
ones. `graphxai fit-explainer` makes the explainers of networks. FOLDER contains
`molecules/lipo.csv`, `tox21.csv` and `hiv.csv`, and `adme/aqsoldb.csv`, `b3db.csv` and
`biogen_*.csv`. An interrupted run continues.
"""

import argparse
import csv
import json
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rdkit import Chem
from safetensors.torch import load_file, save

import graphxai as gx
from graphxai.contract.checkpoint_files import CARD, CONFORMAL, WEIGHTS, weights_digest
from graphxai.contract.prediction_metrics import r2
from graphxai.datasets.labels import is_missing
from graphxai.explainers.learned.network import CARD as EXPLAINER_CARD
from graphxai.learning.cleaning import clean_table
from graphxai.learning.run import train_table
from graphxai.models.graphormer import CONFIG, PRETRAINED
from graphxai.models.graphormer.checkpoint import FORMAT, MEAN_NODE
from graphxai.runtime.writing import json_text, write_whole

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
HOLDS = (
    " `training.csv` and `held_out.csv` hold its structures, the first with the values."
    " `docs/about.md` has the whole list. This is no legal advice."
)
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
        folder: folder of the file.
        model: the kind of model.
        split: column with the authors' split.
        licence: the paragraph of the card on the licence, without which the card keeps its own.
        published: Pearson R on the authors' test part of the best of their methods.
        bears_removal: whether the network learns with nodes removed.
        symmetric: what cannot differ between mirror images, which get one answer; "" if they can.
    """

    file: str
    title: str
    about: str
    columns: dict[str, str]
    words: dict[str, str] = field(default_factory=dict)
    rows: int | None = None
    smiles: str = "smiles"
    folder: str = "molecules"
    model: str = "network"
    split: str | None = None
    licence: str = ""
    published: float | None = None
    bears_removal: bool = False
    symmetric: str = ""


def open_table(
    file: str, title: str, about: str, columns: dict[str, str], words: dict[str, str], licence: str
) -> PublicTable:
    """Return a table whose licence lets its structures and values be passed on."""
    return PublicTable(
        file, title, about, columns, words,
        folder="adme", licence=f"The code is under the MIT licence. Data: {licence}{HOLDS}",
    )  # fmt: skip


def biogen(file: str, published: float, column: str, title: str, about: str) -> PublicTable:
    """Return one of Biogen's tables, with the authors' split and the best of their scores."""
    table = open_table(
        f"biogen_{file}.csv",
        title,
        f"{about} Data: Biogen's public ADME set (Fang et al. 2023, doi:10.1021/acs.jcim.3c00160),"
        " under the MIT licence, in the authors' split.",
        {"y": column},
        {},
        "Biogen's public ADME set, Copyright (c) 2020 molecularinformatics, under the MIT licence.",
    )
    return replace(
        table,
        model="process",
        split="split",
        licence=table.licence.replace("values.", "values, and the weights hold counts of them."),
        published=published,
    )


MODELS = {
    "solubility": replace(
        open_table(
            "aqsoldb.csv",
            "Solubility in water",
            "Predicts the logarithm of a compound's solubility in water (mol/L), measured. Data:"
            " AqSolDB (Sorkun et al. 2019, doi:10.1038/s41597-019-0151-1), under CC0.",
            {"logS": "solubility (log mol/L)"},
            {},
            "AqSolDB, dedicated to the public (CC0).",
        ),
        symmetric="Solubility in water",
    ),
    "lipophilicity": PublicTable(
        "lipo.csv",
        "Lipophilicity",
        "Predicts a compound's log D between octanol and water at pH 7.4. Data: MoleculeNet's"
        " Lipophilicity (AstraZeneca's measurements in ChEMBL, Wu 2018). Its score is over many"
        " chemical series. Within one that it lacks, R2 is 0.45 in the median and the order 0.74"
        " (Spearman's), by `benchmarks/lead_series.py`: for a lead series, adapt it to some values"
        " of yours (`graphxai adapt`).",
        {"lipo": "log D at pH 7.4"},
        symmetric="log D",
    ),
    "blood-brain-barrier": open_table(
        "b3db.csv",
        "Blood-brain barrier",
        "Predicts whether a compound gets from the blood into the brain, and log BB, the logarithm"
        " of its concentration in the brain over that in the blood. Data: B3DB (Meng et al. 2021,"
        " doi:10.1038/s41597-021-01069-5), under CC0; log BB was measured for one compound in six."
        " Carriers take some compounds in, and P-glycoprotein and others take many out again. The"
        " model knows this only of compounds like those measured: see `mdr1-efflux` beside it.",
        {"bbb": "blood-brain barrier", "logBB": "log BB"},
        {"BBB-": "non-penetrant", "BBB+": "penetrant"},
        "B3DB, dedicated to the public (CC0).",
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
    "hlm-clearance": biogen(
        "HLM",
        0.674,
        "HLM clearance (log mL/min/kg)",
        "Clearance by human liver microsomes",
        "Predicts the logarithm of a compound's intrinsic clearance in human liver microsomes"
        " (mL/min/kg). Three values in ten are 0.676, the lowest that the assay tells apart.",
    ),
    "rlm-clearance": biogen(
        "RLM",
        0.726,
        "RLM clearance (log mL/min/kg)",
        "Clearance by rat liver microsomes",
        "Predicts the logarithm of a compound's intrinsic clearance in rat liver microsomes"
        " (mL/min/kg). One value in nine is 1.028, the lowest that the assay tells apart.",
    ),
    "mdr1-efflux": biogen(
        "MDR1_ER",
        0.786,
        "MDR1 efflux (log ratio)",
        "Efflux by MDR1",
        "Predicts the logarithm of a compound's efflux ratio in MDCK cells with human MDR1"
        " (P-glycoprotein): how many times faster it is carried out than in.",
    ),
    "solubility-ph68": biogen(
        "Sol",
        0.63,
        "solubility at pH 6.8 (log ug/mL)",
        "Solubility at pH 6.8",
        "Predicts the logarithm of a compound's solubility in buffer at pH 6.8 (ug/mL)."
        " No value is above 2.18 (150 ug/mL).",
    ),
    "human-binding": biogen(
        "hPPB",
        0.799,
        "unbound in human plasma (log %)",
        "Binding in human plasma",
        "Predicts the logarithm of the share (%) of a compound that is not bound to proteins of"
        " human plasma: 2 is all of it.",
    ),
    "rat-binding": biogen(
        "rPPB",
        0.744,
        "unbound in rat plasma (log %)",
        "Binding in rat plasma",
        "Predicts the logarithm of the share (%) of a compound that is not bound to proteins of"
        " rat plasma: 2 is all of it.",
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
        split = [model.split] if model.split else []
        writer.writerow(["smiles", *model.columns.values(), *split])
        for row in rows:
            cells = [row[name] for name in model.columns]
            words = ["" if is_missing(cell) else model.words.get(cell, cell) for cell in cells]
            writer.writerow([row[model.smiles], *words, *(row[name] for name in split)])


def train(name: str, model: PublicTable, data: Path, out: Path) -> Path:
    """Train a model, put its source in front of its card, and return the checkpoint folder."""
    path = out / f"{name}.csv"
    write_table(model, data / model.folder / model.file, path)
    columns = list(model.columns.values())
    targets = "all" if len(columns) > 1 else f'"{columns[0]}"'
    parts = f" --split-column {model.split}" if model.split else ""
    parts += " --bears-removal" * model.bears_removal
    command = (
        f"graphxai train {path.name} --target-column {targets} --model {model.model}{parts}"
        f" --out runs/{name}"
    )
    begun = time.process_time()
    folder = train_table(
        clean_table(path, "smiles", columns, split_column=model.split),
        out / name,
        command=command,
        model=model.model,
        bears_removal=model.bears_removal,
        split_column=model.split,
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
    if MODELS[name].licence:
        licence, paragraph = LICENCE, f" {MODELS[name].licence}"
    if MODELS[name].symmetric:
        unseen = one_answer_for_both(target, folder.parent, MODELS[name].symmetric)
    else:
        unseen = unseen_by(target)
    card = card.replace(AS_READ, f"{AS_READ} {unseen}")
    card += f"\n\n{licence}{paragraph}".rstrip("\n")
    if (published := MODELS[name].published) is not None:
        said = f"{beside_published(folder.parent, published)}\n\n**Measured pairs.**"
        card = card.replace("**Measured pairs.**", said)
    (target / CARD).write_text(f"{card}\n", encoding="utf-8")
    assert (target / CONFIG).exists()
    if MODELS[name].model == "network":
        store_half(target)
    if size_of(target) + EXPLAINER > LARGEST:
        leave_labels_out(target / "training.csv")
        leave_rows_out(target / "scores.json")
    print(f"installed {name}: {size_of(target) / 1e6:.2f} MB", flush=True)


def beside_published(run: Path, published: float) -> str:
    """Return the sentence on Pearson R, with a bootstrap interval over the test molecules."""
    with (run / "test.csv").open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    x = np.array([row[2:4] for row in rows], dtype=float).T  # measured and predicted, (2, n)
    draws = np.random.default_rng(0).integers(0, x.shape[1], (2000, x.shape[1]))
    low, high = np.quantile([np.corrcoef(x[:, draw])[0, 1] for draw in draws], (0.025, 0.975))
    return (
        f"Pearson R on the authors' test part is {np.corrcoef(x)[0, 1]:.3f} ({low:.3f} to"
        f" {high:.3f}); the best of their nine methods has {published:.3f}."
    )


def one_answer_for_both(folder: Path, run: Path, subject: str) -> str:
    """Give mirror images one answer in a model's configuration, and say what that changes."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    config["model"]["symmetric"] = True
    write_whole(folder / CONFIG, json_text(config))
    with (run / "test.csv").open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    smiles, numbers = [row[1] for row in rows], np.array([row[2:4] for row in rows], dtype=float)
    measured, alone = numbers.T
    both = outputs(gx.load(str(folder)), smiles)[:, 0]
    return (
        f"{ISOTOPES}. {subject} cannot differ between mirror images, so the output of a chiral"
        " molecule is the mean over both (`symmetric` in `config.json`); R2 on the test molecules"
        f" is {r2(both, measured):.3f} with it and {r2(alone, measured):.3f} without."
    )


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


def store_half(folder: Path) -> None:
    """Store weights in half precision, and bind to them what was measured with the others."""
    tensors, before = load_file(folder / WEIGHTS), weights_digest(folder)
    halves = {key: value.half() for key, value in tensors.items()}
    write_whole(folder / WEIGHTS, save(halves, metadata={"format": FORMAT}))
    after = weights_digest(folder)
    for path in (folder / CONFORMAL, folder / EXPLAINER_CARD):
        if path.exists():
            text = path.read_text(encoding="utf-8").replace(before, after)
            path.write_text(text, encoding="utf-8")
    mean = load_file(folder / MEAN_NODE)
    write_whole(folder / MEAN_NODE, save(mean, metadata={"sha256": after}))


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
