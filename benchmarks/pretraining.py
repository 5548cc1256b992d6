"""Pre-train on the structures of molecules, without a single measurement: the weights `molecules`.

The call on the card of the weights repeats them. The network learns what can be computed from a
structure: which atom environments a molecule contains, and its descriptors. The checkpoint keeps
the read-outs of the descriptors alone.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import QED, Descriptors, GraphDescriptors, rdFingerprintGenerator, rdMolDescriptors

from graphxai.contract.tasks import Task
from graphxai.datasets.recombine import recombine
from graphxai.datasets.tables.table import open_table
from graphxai.learning.fit import FitResult, fit, initialise, molecule_config, require_lightning
from graphxai.learning.predicting import encoded_molecules
from graphxai.learning.recipes.distillation import stored_array
from graphxai.learning.settings import NOT_ON_CARDS, RunSettings, TrainingSettings, repeating
from graphxai.models.graphormer import TO_START, Graphormer, save_checkpoint
from graphxai.runtime.options import call_of, changes, literal, written
from graphxai.runtime.progress import in_chunks

FloatArray = NDArray[np.float32]
PRETRAINING = TrainingSettings(
    epochs=8, batch_size=128, learning_rate=1e-3, ema_decay=None, keep_best=False, monitor="loss"
)
HELD_OUT = 1000  # molecules of the validation curve
# Weights of the groups in the loss: 2,048 environments are rare events whose losses are small.
ENVIRONMENT_WEIGHT, DESCRIPTOR_WEIGHT = 30.0, 1.0


def pretrain(
    out: str | Path,
    tables: Sequence[str | Path],
    *,
    exclude: Iterable[str] = (),
    per_table: int | None = 45_000,
    recombined: int = 13_000,
    count: int = 2048,
    settings: TrainingSettings = PRETRAINING,
    resume: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Pre-train on the structures in tables, whose labels are never read.

    The targets are the `count` most frequent atom environments (total weight 30) and descriptors
    (total weight 1). The checkpoint in `out` keeps the outputs for descriptors, but not the others.

    Args:
        out: folder of the checkpoint; the run is in its sub-folder `run`.
        tables: files with a column of structures.
        exclude: SMILES of molecules that must not be seen, such as a test set.
        per_table: largest number of molecules taken from a table, drawn at random.
        recombined: number of molecules recombined from those of the tables.
        settings: settings of the training; its seed also chooses the molecules.
        log: called with a line of text at each stage.

    Raises:
        ImportError: the extra `train` is not installed.
        ValueError: a table has no SMILES.
    """
    require_lightning()
    out = Path(out)
    exclude = list(exclude)
    log("collecting molecules")
    smiles = collect(tables, exclude=exclude, per_table=per_table, seed=settings.seed)
    read = len(smiles)
    log(f"recombining {recombined:,} of {read:,} molecules")
    sources = random.Random(settings.seed).sample(smiles, min(read, recombined))
    new = recombine(sources, recombined, seed=settings.seed, max_atoms=60)
    smiles = list(dict.fromkeys([*smiles, *without(new, exclude)]))
    log(f"{len(smiles):,} molecules, {len(smiles) - read:,} of them recombined")
    described = describe(smiles, out / "targets", count, settings)
    result = _fit(smiles, *described, settings, out / "run", resume)
    metadata = {
        "molecules": len(smiles),
        "recombined": len(smiles) - read,
        "epochs": settings.epochs,
        "seed": settings.seed,
        "validation_loss": result.loss,
        "summary": TO_START,
    }
    names = [os.fspath(table) for table in tables]
    given = {"exclude": "exclude"} if exclude else {}
    if changed := written(changes(settings, PRETRAINING, NOT_ON_CARDS)):
        given["settings"] = call_of("replace", ["PRETRAINING"], changed)
    numbers = {"per_table": per_table, "recombined": recombined, "count": count}
    first = [literal("runs/molecules"), literal(names)]
    command = repeating("molecules", "pretrain", RunSettings(), first, **written(numbers) | given)
    return save_checkpoint(
        _with_tasks(result.model, len(DESCRIPTORS)),
        out,
        card=_card(metadata, count, names, len(exclude), settings, command),
        metadata=metadata,
    )


def describe(
    smiles: Sequence[str], cache: Path, count: int, settings: TrainingSettings
) -> tuple[list[Task], FloatArray, list[float]]:
    """Return the tasks of n molecules, their values (n, tasks), and the weights of the tasks.

    Descriptors take minutes, so the folder `cache` keeps them for a resumed run.
    """

    def descriptors_of() -> NDArray[np.float64]:
        chunks = in_chunks(list(smiles), "descriptors", show=settings.show)
        return np.concatenate([descriptors(part) for part in chunks])

    learned, tasks = learned_descriptors(stored_array(cache / "descriptors.npy", descriptors_of))
    values = [learned.astype(np.float32), environments(smiles, count).astype(np.float32)]
    weights = [DESCRIPTOR_WEIGHT / len(tasks)] * len(tasks) + [ENVIRONMENT_WEIGHT / count] * count
    tasks += [Task(f"environment {k}", "binary", ("absent", "present")) for k in range(count)]
    return tasks, np.concatenate(values, axis=1), weights


def learned_descriptors(
    values: NDArray[np.float64], limit: float = 4
) -> tuple[NDArray[np.float64], list[Task]]:
    """Clip values (n, 21) at `limit` deviations from their means, and make their tasks."""
    mean, deviation = values.mean(0), values.std(0) + 1e-6
    tasks = [
        Task(name, "regression", offset=float(middle), scale=float(scale))
        for name, middle, scale in zip(DESCRIPTORS, mean, deviation, strict=True)
    ]
    return np.clip(values, mean - limit * deviation, mean + limit * deviation), tasks


def _fit(
    smiles: Sequence[str], tasks: Sequence[Task], values: FloatArray, weights: Sequence[float],
    settings: TrainingSettings, out: Path, resume: bool,
) -> FitResult:  # fmt: skip
    """Fit a network to values (n, tasks), with at most a thousand molecules for validation."""
    config = molecule_config(tasks, dropout=0.0, attention_dropout=0.0)
    graphs = encoded_molecules(smiles, config, settings)
    for graph, y in zip(graphs, torch.from_numpy(values), strict=True):
        graph.y = y[None]
    order = np.random.default_rng(settings.seed).permutation(len(graphs))
    held_out = min(HELD_OUT, len(graphs) // 10)
    torch.manual_seed(settings.seed)
    return fit(
        Graphormer(config),
        [graphs[k] for k in order[held_out:]],
        [graphs[k] for k in order[:held_out]],
        replace(settings, task_weights=tuple(weights)),
        out,
        resume=resume,
    )


def _with_tasks(model: Graphormer, count: int) -> Graphormer:
    """Return a copy of the network that has only the read-outs of its first `count` tasks."""
    small = Graphormer(molecule_config(model.config.tasks[:count]))
    initialise(small, model)
    with torch.no_grad():
        for part, whole in zip(small.head.parameters(), model.head.parameters(), strict=True):
            part.copy_(whole[:count])
    return small


def _card(
    metadata: dict[str, Any],
    count: int,
    tables: Sequence[str],
    excluded: int,
    settings: TrainingSettings,
    command: str,
) -> str:
    """Return the card of the checkpoint, with the call that repeats the run."""
    structures = ", ".join(f"`{Path(name).name}`" for name in tables)
    left_out = (
        f"""
Every molecule that shares its connectivity (first block of the InChIKey) with one of {excluded:,}
given molecules was left out."""
        if excluded
        else ""
    )
    return f"""# Pre-trained Graphormer for molecules

A starting point for training on your own table (`graphxai train`), not a model to predict or
explain with. It has 4 layers, width 128, 8 heads and 560,000 parameters.

**No label was read.** {metadata["molecules"]:,} molecules of at most {LARGEST} atoms: structures of
{structures}, and {metadata["recombined"]:,} recombined from those.
So structures of any test parts of these tables were seen, without their labels.{left_out}

Targets, all computed from the structure:

* The {count:,} most frequent chiral Morgan environments up to radius 3 (outputs not kept).
* {len(DESCRIPTORS)} RDKit descriptors.

{settings.epochs} epochs with {settings.batch_size} molecules per step, AdamW, learning rate
{settings.learning_rate:g}, cosine, no dropout, seed {settings.seed}.

    {command}

The function is in `benchmarks/pretraining.py`.
"""


DESCRIPTORS: dict[str, Callable[[Chem.Mol], float]] = {
    "molecular weight": Descriptors.MolWt,  # type: ignore[attr-defined]
    "logP (Crippen)": lambda mol: rdMolDescriptors.CalcCrippenDescriptors(mol)[0],
    "polar surface area": rdMolDescriptors.CalcTPSA,
    "hydrogen-bond donors": rdMolDescriptors.CalcNumHBD,
    "hydrogen-bond acceptors": rdMolDescriptors.CalcNumHBA,
    "rotatable bonds": rdMolDescriptors.CalcNumRotatableBonds,
    "rings": rdMolDescriptors.CalcNumRings,
    "aromatic rings": rdMolDescriptors.CalcNumAromaticRings,
    "sp3 fraction of carbons": rdMolDescriptors.CalcFractionCSP3,
    "molar refractivity": lambda mol: rdMolDescriptors.CalcCrippenDescriptors(mol)[1],
    "Labute surface area": rdMolDescriptors.CalcLabuteASA,
    "heteroatoms": rdMolDescriptors.CalcNumHeteroatoms,
    "amide bonds": rdMolDescriptors.CalcNumAmideBonds,
    "spiro atoms": rdMolDescriptors.CalcNumSpiroAtoms,
    "QED": QED.qed,
    "Bertz complexity": GraphDescriptors.BertzCT,
    "Hall-Kier alpha": rdMolDescriptors.CalcHallKierAlpha,
    "kappa 2": rdMolDescriptors.CalcKappa2,
    "kappa 3": rdMolDescriptors.CalcKappa3,
    "formal charge": Chem.GetFormalCharge,
    "stereocentres": rdMolDescriptors.CalcNumAtomStereoCenters,
}

LARGEST = 60  # heavy atoms of a molecule that is kept


def collect(
    tables: Sequence[str | os.PathLike[str]],
    *,
    exclude: Iterable[str] = (),
    per_table: int | None = None,
    seed: int = 0,
) -> list[str]:
    """Collect the structures of tables, each once, as canonical SMILES. No label is read.

    Molecules are left out if they cannot be read, have more than 60 atoms, or share their
    connectivity (first block of the InChIKey) with a molecule in `exclude`. So no test molecule is
    seen in pre-training.

    Args:
        tables: files with a column of structures, see `datasets.tables`.
        per_table: largest number of rows taken from a table, drawn at random; None takes all.

    Raises:
        ValueError: a table has no such column.
    """
    structures: dict[str, None] = {}
    with rdBase.BlockLogs():
        for table in tables:
            opened = open_table(table)
            name = opened.structures.name
            rows = [record.cells[name] for record in opened.records((name,))]
            if per_table is not None and len(rows) > per_table:
                rows = random.Random(seed).sample(rows, per_table)
            for text in rows:
                mol = Chem.MolFromSmiles(text)
                if mol is not None and 0 < mol.GetNumAtoms() <= LARGEST:
                    structures[Chem.MolToSmiles(mol)] = None
    return without(list(structures), exclude)


def without(smiles: Sequence[str], exclude: Iterable[str]) -> list[str]:
    """Leave out molecules that share the first block of their InChIKey with one in `exclude`."""
    with rdBase.BlockLogs():
        hidden = {_connectivity(text) for text in exclude} - {""}
        return [text for text in smiles if not hidden or _connectivity(text) not in hidden]


def descriptors(smiles: Sequence[str]) -> NDArray[np.float64]:
    """Compute the `DESCRIPTORS` of molecules, (n, 21). Undefined values are 0."""
    with rdBase.BlockLogs():
        values = [
            [function(mol) for function in DESCRIPTORS.values()]
            for mol in map(Chem.MolFromSmiles, smiles)
        ]
    return np.nan_to_num(np.array(values, dtype=np.float64))


def environments(smiles: Sequence[str], count: int) -> NDArray[np.bool_]:
    """Return which of the `count` most frequent atom environments each molecule has, (n, count)."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=3, includeChirality=True)
    with rdBase.BlockLogs():
        codes_of = [
            list(generator.GetSparseCountFingerprint(Chem.MolFromSmiles(s)).GetNonzeroElements())
            for s in smiles
        ]
    frequency = Counter(code for codes in codes_of for code in codes)
    column = {code: k for k, (code, _) in enumerate(frequency.most_common(count))}
    present = np.zeros((len(smiles), count), dtype=np.bool_)
    for row, codes in enumerate(codes_of):
        present[row, [column[code] for code in codes if code in column]] = True
    return present


def _connectivity(smiles: str) -> str:
    """Return the first block of a molecule's InChIKey, or "" if it cannot be read."""
    mol = Chem.MolFromSmiles(smiles)
    return "" if mol is None else Chem.MolToInchiKey(mol)[:14]
