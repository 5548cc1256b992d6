"""The command `graphxai train`: train on your own table, or retrain a bundled model."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphxai.runtime.progress import progress_bar

from .terminal import echo, printable

if TYPE_CHECKING:
    from graphxai.learning.cleaning import CleanTable

NAMED = ("bace", "mnist-superpixels")
SHOWN_ROWS = 4


class SplitKind(StrEnum):
    """How test molecules are chosen."""

    scaffold = "scaffold"
    random = "random"
    clusters = "clusters"


def train(
    source: Annotated[
        str, typer.Argument(help="'bace', 'mnist-superpixels', or a CSV table of molecules.")
    ],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    target_column: Annotated[
        list[str] | None,
        typer.Option(
            help="Table: column to learn; repeat to learn several together. 'all', or a pattern"
            " such as 'NR-*', takes every column with labels that it matches."
        ),
    ] = None,
    smiles_column: Annotated[str, typer.Option(help="Table: column with SMILES.")] = "smiles",
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Table: COLUMN=classification or COLUMN=regression [default: from the values]."
        ),
    ] = None,
    units: Annotated[
        list[str] | None,
        typer.Option(
            help="Table: unit of the values, or COLUMN=UNIT [default: from a header such as"
            " 'freesolv (kcal/mol)']."
        ),
    ] = None,
    split: Annotated[
        SplitKind | None,
        typer.Option(help="How test molecules are chosen [default: scaffold; bace: random]."),
    ] = None,
    split_column: Annotated[
        str | None,
        typer.Option(help="Table: column that says train, valid or test for each molecule."),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(help="Table: column with dates or years; the newest molecules are tested."),
    ] = None,
    replicates: Annotated[
        int,
        typer.Option(
            min=1,
            help="Table: models to train, from consecutive seeds; mean and spread.",
        ),
    ] = 1,
    ensemble: Annotated[
        int,
        typer.Option(
            min=1,
            help="Table: number of networks to average; relevance then has a spread over them.",
        ),
    ] = 1,
    standardise: Annotated[
        bool,
        typer.Option(
            "--standardise",
            help="Table: standardise salts, charges and tautomers, here and in predictions.",
        ),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            help="Table: weights to start from: a model's name, a folder or 'none' [default:"
            " molecules]."
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Table: do not learn from a teacher (half the time, usually worse).",
        ),
    ] = False,
    keep_teacher: Annotated[
        bool,
        typer.Option(
            "--keep-teacher",
            help="Table: store the teacher too; predictions then show the teacher's as well.",
        ),
    ] = False,
    learning_curve: Annotated[
        bool,
        typer.Option(
            "--learning-curve", help="Table: also train on 1/8, 1/4 and 1/2 (three times as long)."
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the named data sets [default: $GRAPHXAI_DATA, or a cache]."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for weights, batches and random split.")] = 0,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Epochs [default: the recipe's; for a table 20, from scratch 40]."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after an interruption.")
    ] = False,
    accelerator: Annotated[
        str, typer.Option(help="Lightning's accelerator: auto, cpu, gpu and others.")
    ] = "auto",
    devices: Annotated[str, typer.Option(help="Lightning's devices: a number or 'auto'.")] = "auto",
    precision: Annotated[
        str | None,
        typer.Option(
            help="Lightning's precision, such as 32-true or bf16-mixed [default: the recipe's]."
        ),
    ] = None,
) -> None:
    """Train on your own table, or retrain a bundled model (`pip install "graphxai[train]"`).

    A table is checked first for unreadable SMILES, duplicates and contradictions. The model
    learns from the labels and from a teacher, chosen for each column from forests and Gaussian
    processes. It is then tested on molecules that neither has seen, beside its teacher and two
    forests.

    **Examples**

    `graphxai train my.csv --target-column activity --out runs/mine`

    `graphxai train my.csv --smiles-column SMILES --target-column pIC50 --target-column toxic
    --kind pIC50=regression --split random --learning-curve --out runs/mine`

    `graphxai train tox21.csv --target-column "NR-*" --standardise --out runs/tox21`

    `graphxai train my.csv --target-column pIC50 --time-column date --replicates 3 --keep-teacher
    --out runs/mine`

    `graphxai train my.csv --target-column pIC50 --ensemble 5 --out runs/five`

    `graphxai train freesolv.csv --target-column expt --units kcal/mol --out runs/freesolv`

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --model runs/mine --out aspirin.svg`

    `graphxai train bace --out runs/bace`

    `graphxai train mnist-superpixels --out runs/mnist --epochs 8`

    `graphxai train my.csv --target-column activity --out runs/mine --accelerator gpu --devices 4
    --precision bf16-mixed`
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":  # the first of several processes speaks for all
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    common: dict[str, Any] = {
        "seed": seed,
        "resume": resume,
        "accelerator": accelerator,
        "devices": int(devices) if devices.isdigit() else devices,
        "precision": precision,
    }
    if epochs is not None:
        common["epochs"] = epochs
    if source in NAMED:
        for_tables = (target_column, kind, units, start, split_column, time_column)
        switches = (fast, learning_curve, keep_teacher, standardise, replicates > 1, ensemble > 1)
        if any(switches) or any(value is not None for value in for_tables):
            raise typer.BadParameter(
                "--target-column, --kind, --units, --start, --fast, --keep-teacher,"
                " --learning-curve, --split-column, --time-column, --standardise, --replicates"
                " and --ensemble are for a table."
            )
        with _interruptible(), _alone(out):
            _train_named(source, out, split, common | {"root": data})
        return
    if not Path(source).is_file():
        raise FileNotFoundError(
            f"{source}: no such file; give a CSV table or one of {', '.join(NAMED)}."
        )
    if data is not None:
        raise typer.BadParameter(f"--data is for {' and '.join(NAMED)}.")
    if not target_column:
        raise typer.BadParameter("name the column to learn: --target-column NAME.")
    from graphxai.learning.cleaning import matching_columns

    others = [name for name in (split_column, time_column) if name is not None]
    target_columns = matching_columns(source, smiles_column, target_column, others)
    reading = {
        "kinds": _kinds(kind or [], target_columns),
        "units": _units(units or [], target_columns),
        "standardise": standardise,
    }
    _train_table(
        Path(source),
        out,
        smiles_column,
        target_columns,
        reading,
        replicates,
        common
        | _split_of(split, split_column, time_column)
        | {
            "keep_teacher": keep_teacher,
            "ensemble": ensemble,
            "start": None if start == "none" else start or "molecules",
            "distil": not fast,
            "learning_curve": learning_curve,
        },
    )


def _split_of(
    split: SplitKind | None, split_column: str | None, time_column: str | None
) -> dict[str, Any]:
    """The options of `train_table` for one of three ways to split."""
    given = {"--split": split, "--split-column": split_column, "--time-column": time_column}
    both = [name for name, value in given.items() if value is not None]
    if len(both) > 1:
        raise typer.BadParameter(f"{' and '.join(both)} cannot be combined: give one of them.")
    if split_column is not None:
        return {"split": "column", "split_column": split_column}
    if time_column is not None:
        return {"split": "time", "split_column": time_column}
    return {"split": (split or SplitKind.scaffold).value}


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn Lightning's bare exit on Ctrl-C into KeyboardInterrupt, so that a hint is printed."""
    try:
        yield
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def _alone(out: Path) -> AbstractContextManager[None]:
    """Keep other runs out of the folder; Lightning's processes for further devices may share it."""
    from graphxai.runtime.writing import exclusive_lock, folder_at

    return nullcontext() if "LOCAL_RANK" in os.environ else exclusive_lock(folder_at(out))


def _train_named(name: str, out: Path, split: SplitKind | None, settings: dict[str, Any]) -> None:
    if name == "bace":
        from graphxai.learning.recipes.bace import train_bace

        if split is SplitKind.clusters:
            raise typer.BadParameter("bace is split by scaffold or at random.")
        if split is not None:
            settings = settings | {"split": split.value}
        folder = train_bace(out, **settings, say=echo)
    else:
        if split is not None:
            raise typer.BadParameter("--split is for molecules; MNIST has its official test set.")
        from graphxai.learning.recipes.mnist import train_mnist

        folder = train_mnist(out, **settings)
    echo(f"written: {folder}")


def _kinds(given: list[str], target_columns: list[str]) -> dict[str, Any]:
    """Kinds by column, from COLUMN=KIND; a column name may contain "="."""
    kinds = {}
    for text in given:
        name, sign, kind = text.rpartition("=")
        if not sign or kind not in ("classification", "regression"):
            raise typer.BadParameter(
                f"--kind {text}: write COLUMN=classification or COLUMN=regression."
            )
        if name not in target_columns:
            raise typer.BadParameter(f"--kind {text}: {name!r} is not a --target-column.")
        kinds[name] = kind
    return kinds


def _units(given: list[str], target_columns: list[str]) -> dict[str, str]:
    """Units by column, from COLUMN=UNIT, or from UNIT if there is one column."""
    units = {}
    for text in given:
        name, _, unit = text.rpartition("=")
        if name in target_columns:
            units[name] = unit.strip()
        elif name or len(target_columns) > 1:
            raise typer.BadParameter(f"--units {text}: write COLUMN=UNIT with a --target-column.")
        else:
            units[target_columns[0]] = unit.strip()
    return units


def _train_table(
    path: Path,
    out: Path,
    smiles_column: str,
    target_columns: list[str],
    reading: dict[str, Any],
    replicates: int,
    settings: dict[str, Any],
) -> None:
    from graphxai.learning.fit import require_hardware

    require_hardware(settings["accelerator"], settings["devices"], settings["precision"])
    from graphxai.learning.cleaning import clean_table
    from graphxai.learning.replicates import train_replicates
    from graphxai.tables.run import count_rows

    with progress_bar("reading", count_rows(path)) as advance:
        table = clean_table(path, smiles_column, target_columns, **reading, progress=advance)
    _print_hygiene(table)
    said: set[str] = set()

    def say(line: str) -> None:
        said.add(line)
        echo(line)

    with _interruptible(), _alone(out):
        folder = train_replicates(
            table,
            out,
            replicates,
            **settings,
            command=shlex.join(["graphxai", *sys.argv[1:]]),
            say=say,
        )
    _print_scores(folder, said)
    echo(f"written: {folder}; rows left out or merged: {out / 'hygiene.csv'}")


def _print_hygiene(table: "CleanTable") -> None:
    """Print what the checks of the table found, one line per check."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    echo(f"{table.path.name}: {table.read:,} rows, {len(table.graphs):,} molecules to learn")
    for target in table.targets:
        echo(f"  {target}")
    if not table.findings:
        echo("  no problems found in the rows")
        return
    printed = Table("check", Column("rows", justify="right"), "done", "first rows")
    for finding in table.findings:
        name = f"{finding.check} ({finding.target})" if finding.target else finding.check
        first = ", ".join(str(row.row) for row in finding.rows[:SHOWN_ROWS])
        more = " ..." if len(finding.rows) > SHOWN_ROWS else ""
        cells = (name, f"{finding.count:,}", finding.done, first + more)
        printed.add_row(*(escape(printable(cell)) for cell in cells))
    Console().print(printed)


def _print_scores(folder: Path, said: set[str]) -> None:
    """Print the test scores of the model card, those of replicates, and notes not yet said."""
    import json

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from graphxai.learning.replicates import replicate_rows
    from graphxai.learning.table_files import score_tables

    found = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    for (title, *header), *rows in (*score_tables(found["scores"]), *replicate_rows(folder.parent)):
        printed = Table(
            Column("test", no_wrap=True),
            *header,
            title=escape(printable(title)),
            title_justify="left",
        )
        for row in rows:
            printed.add_row(*(escape(printable(cell)) for cell in row))
        Console().print(printed)
    echo("in brackets 95 % bootstrap intervals; minus: this model minus that forest")
    for note in found["notes"]:
        if note not in said:
            echo(f"note: {note}")
