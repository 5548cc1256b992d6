"""The recipe of the bundled model `bace`: inhibitors of beta-secretase 1."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch
from rdkit import Chem
from torch_geometric.data import Data

from graphxai.contract.checkpoint_files import list_digests
from graphxai.contract.tasks import Task
from graphxai.datasets.as_given import Standardisation
from graphxai.datasets.fingerprints import ecfp4
from graphxai.datasets.molecules import BACE_MD5, BACE_URL, load_bace
from graphxai.datasets.splits import Split, random_split, scaffold_split
from graphxai.datasets.training_set import FILE, HELD_OUT, held_out_csv
from graphxai.learning.calibration import calibrate
from graphxai.learning.card import (
    MOLECULES,
    counted,
    coverage_text,
    score_tables,
    summary,
)
from graphxai.learning.fit import FINETUNING, molecule_config, require_hardware
from graphxai.learning.predicting import encode_all
from graphxai.learning.recipes.distillation import DISTILLING, Link, distil
from graphxai.learning.removal import removal_facts, removal_text
from graphxai.learning.scores import score_test_part
from graphxai.learning.settings import RunSettings, TableSettings, repeating
from graphxai.learning.splitting import Source
from graphxai.learning.teachers.forests import Forest
from graphxai.learning.training import LearnedModel
from graphxai.models.graphormer import save_checkpoint, set_standardisation
from graphxai.runtime.options import with_options
from graphxai.runtime.randomness import callers_state_kept
from graphxai.runtime.writing import markdown_table, write_whole

STANDARDISED: Standardisation = "parent"
ACTIVITY, POTENCY = "BACE-1 inhibition", "pIC50"
LINK = Link(ACTIVITY, POTENCY, threshold=7.0)
RECOMBINED = 40_000  # molecules that the teacher labels
DISTILLED = f"""first learned the measured labels. Then it also learned from molecules
recombined from the training molecules, labelled by an ensemble of random forests and a Gaussian
process on fingerprints. In this second stage, the label of a training molecule is half its
measurement and half the ensemble's prediction, made without having seen the molecule. The ensemble
derives half of a class from the pIC50, as
sigmoid({LINK.slope} (pIC50 - {LINK.threshold:g})). Where class and pIC50 contradict each other,
as for those 17 ligands, the mean pIC50 of the class replaces the measured one."""
FINE_TUNED = "learned the measured labels."
# On unseen scaffolds, the class overfits sooner than pIC50.
FIRST_ROUND = replace(FINETUNING, epochs=12, task_weights=(0.2, 1.0))


def bace_tasks(graphs: list[Data], split: Split) -> tuple[Task, Task]:
    """Return the tasks: the class, and the pIC50 standardised on the training molecules."""
    potency = torch.cat([graphs[k].y for k in split.train])[:, 1]
    return (
        Task(ACTIVITY, "binary", ("inactive", "active")),
        Task(
            POTENCY,
            "regression",
            offset=round(float(potency.mean()), 4),
            scale=round(float(potency.std()), 4),
        ),
    )


@callers_state_kept()
def train_bace(
    out: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    split: str = "random",
    molecules: int = RECOMBINED,
    settings: RunSettings | None = None,
    log: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Path:
    """Train the BACE model and score it on its test molecules, next to a random forest.

    Args:
        out: folder of the run; the checkpoint is its sub-folder `model`.
        root: data folder, see `load_bace`.
        split: "scaffold" or "random".
        molecules: number of recombined molecules that a teacher labels, see `distil`; 0 means
            plain fine-tuning.
        settings: settings of the run, by default `RunSettings()`. Their epochs are those of each
            of the two fine-tunings.
        log: called with a line of text at each stage.
        options: fields of `RunSettings` to change, such as `seed=1` or `resume=True`.

    Returns:
        The checkpoint folder.

    Raises:
        ImportError: the extra `train` is not installed.
        DownloadError: the data are missing and cannot be downloaded.
        TypeError: there is no such option.
        ValueError: `out` already contains a run and `resume` is False.
    """
    settings = with_options(settings or RunSettings(), options, "train_bace")
    require_hardware(settings)
    out, seed = Path(out), settings.seed
    graphs = load_bace(root, canonical=True, standardise=STANDARDISED)
    if split not in ("random", "scaffold"):
        raise ValueError(f"split must be 'random' or 'scaffold', not {split!r}.")
    if split == "random":
        parts = random_split(len(graphs), seed)
    else:
        parts = scaffold_split([graph.smiles for graph in graphs])
    config = molecule_config(bace_tasks(graphs, parts), dropout=0.0, attention_dropout=0.0)
    graphs = encode_all(graphs, config)
    y = torch.cat([graph.y for graph in graphs])
    source = Source(graphs, y.double().numpy(), parts, config)
    model = distil(
        source,
        out,
        molecules=molecules,
        links=[LINK],
        first_settings=FIRST_ROUND.for_run(settings),
        settings=DISTILLING.for_run(settings),
        resume=settings.resume,
        log=log,
    )
    calibration = calibrate(LearnedModel(model), source)
    forest = Forest.fit(config.tasks[0], ecfp4(source.train.smiles), source.train.y[:, 0])
    predictions = {
        "graphormer": dict(enumerate(calibration.test_readings)),
        "forest": {0: forest.predict(ecfp4(source.test.smiles))},
    }
    scores = score_test_part(source, predictions)
    metadata = {
        "data": BACE_URL,
        "md5": BACE_MD5,
        "seed": seed,
        "temperature": calibration.temperatures[ACTIVITY],
        "scores": scores,
        "coverage": calibration.coverage,
        "summary": summary({ACTIVITY: scores[ACTIVITY]}),
        "split": json.loads(parts.to_json()),
    }
    metadata["removal"] = removal_facts(model, source.test.graphs, source.test.y)
    of_run: dict[str, Any] = {
        each.name: getattr(settings, each.name) for each in fields(RunSettings)
    }
    written = TableSettings(**of_run | {"split": parts.kind})
    card = _card(metadata, parts, molecules, written)
    set_standardisation(model, STANDARDISED)
    train, valid, test = (
        [Chem.MolToSmiles(Chem.MolFromSmiles(s)) for s in part.smiles]
        for part in (source.train, source.valid, source.test)
    )
    # Results read them to say how near a molecule is.
    lists = {HELD_OUT: held_out_csv({"validation": valid, "test": test})}
    lists[FILE] = "\n".join(["smiles", *train]) + "\n"
    metadata["lists"] = list_digests(lists)
    folder = save_checkpoint(model, out / "model", card=card, metadata=metadata)
    for name, content in lists.items():
        write_whole(folder / name, content)
    return folder


def uncertainty(coverage: dict[str, Any]) -> str:
    """Return the paragraph of the card on intervals and sets of classes."""
    return f"""**Uncertainty.** Conformal intervals and sets of classes, wider far from the training
set, made from the validation part, on which epochs and settings were chosen too. On the test
compounds:

{coverage_text(coverage, {})}
"""


def _card(metadata: dict[str, Any], split: Split, molecules: int, settings: TableSettings) -> str:
    """Return the model card, given the number of recombined molecules and the settings."""
    epochs, temperature = settings.epochs, metadata["temperature"]
    kind = (
        "by Murcko scaffold, with the largest groups in the training part, so that test molecules "
        "have scaffolds that were never trained on"
        if split.kind == "scaffold"
        else f"at random with seed {split.seed}"
    )
    further = {} if molecules == RECOMBINED else {"molecules": str(molecules)}
    command = repeating("bace", "train_bace", settings, **further)
    apart = "" if epochs is None else f", apart from {counted(epochs, 'epoch')} for each stage,"
    chosen = f"{'Epochs and settings' if epochs is None else 'Settings'}{apart}"
    drawn = "\n".join(wrap(MOLECULES[STANDARDISED], 100))
    tables = "\n\n".join(markdown_table(rows) for rows in score_tables(metadata["scores"]))
    divided = ""
    if temperature is not None:
        divided = (
            f" The class logit is\ndivided by a temperature of {temperature:.2f}, fitted on"
            " validation data."
        )
    return f"""# BACE-1 inhibition

A Graphormer (4 layers, width 128, 8 heads, 560,000 parameters) that predicts from a SMILES whether
a compound inhibits human beta-secretase 1 (`inactive`, `active`), and its pIC50.

**Data.** MoleculeNet's BACE (Subramanian 2016, Wu 2018), 1,513 compounds, md5
`{BACE_MD5}`. Active means a pIC50 of 7 or above; 17 ligands of crystal
structures are labelled active in the file despite a lower value, and were left as they are. The
file draws 838 compounds with a charge.

{drawn}

**Split.** {len(split.train)} / {len(split.valid)} / {len(split.test)} compounds, {kind}. Their row
positions are in `config.json`.

**Training.** Training started from the weights `molecules`, which were pre-trained without any BACE
compound. The model {DISTILLED if molecules else FINE_TUNED} Only the training
part was used for all this. {chosen} were chosen on validation data.{divided}

    {command}

**Test scores.** They were not used for any choice. In brackets: 95 % bootstrap intervals over
compounds. The forest has 500 trees. Dummy: predicts the class frequencies, or the training mean.
Other splits: `benchmarks/results/bace_quality.md`.

{tables}

{uncertainty(metadata["coverage"])}
{removal_text(metadata["removal"], trained=settings.bears_removal)}

**Limits.** Compounds unlike those of BACE-1 programmes (hydroxyethylamines, acylguanidines,
amidines, macrocycles and their like) are out of scope, whatever the probability says.
"""
