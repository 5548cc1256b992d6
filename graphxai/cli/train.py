"""The command `graphxai train`: train on your own table, or retrain a bundled model."""

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from graphxai.datasets.as_given import AS_DRAWN, Standardisation
from graphxai.learning.settings import MOLECULES, TABLE, DigitSettings, GraphSettings, TableSettings
from graphxai.runtime.extras import is_ogb_name
from graphxai.runtime.options import option
from graphxai.runtime.progress import progress_bar

from .answers import answer
from .arguments import naming_data_option, require_sense, show_table
from .options import APPLIES_ALWAYS, applies_to, refuse_inapplicable, settings_as_options
from .terminal import print_table, tell, typed_command

if TYPE_CHECKING:
    from graphxai.learning.cleaned_table import CleanTable

NAMED = ("bace", "mnist-superpixels")
SHOWN_ROWS = 4
PER_COLUMN: dict[str, Any] = {"applies_to": TABLE, "parse": tuple, "repeat": True}


@dataclass(frozen=True)
class TableReading:
    """Which columns of a table are learned, and how its cells and molecules are read."""

    target_column: tuple[str, ...] | None = option(
        None,
        "Column to learn; repeat to learn several together. 'all', or a pattern such as 'NR-*',"
        " takes every column with labels that it matches.",
        **PER_COLUMN,
    )
    smiles_column: str | None = option(
        None, "Column with structures [default: by its name or content].", applies_to=TABLE
    )
    kind: tuple[str, ...] | None = option(
        None,
        "COLUMN=classification or COLUMN=regression [default: from the values].",
        **PER_COLUMN,
    )
    units: tuple[str, ...] | None = option(
        None,
        "Unit of the values, or COLUMN=UNIT [default: from a header such as 'freesolv"
        " (kcal/mol)'].",
        **PER_COLUMN,
    )
    transform: tuple[str, ...] | None = option(
        None,
        "'log10' learns logarithms (of concentrations -log10 of mol/L), 'none' the values as they"
        " are; or COLUMN=log10 [default: log10 for IC50, Ki, EC50 and the like with a unit].",
        **PER_COLUMN,
    )
    standardise: Literal["parent", "tautomers"] = option(
        "parent",
        "Form that is learned from and predicted: each molecule's parent, which is neutral and"
        " without counter-ions, or the canonical tautomer of the parent.",
        applies_to=MOLECULES,
    )
    as_drawn: bool = option(
        False, "Learn from molecules as they are drawn, and predict them so.", MOLECULES
    )

    @property
    def way(self) -> Standardisation:
        """How molecules are brought to one form."""
        return AS_DRAWN if self.as_drawn else self.standardise

    @property
    def named_columns(self) -> list[str]:
        """The columns to learn, without patterns."""
        return [n for n in self.target_column or () if n != "all" and not set(n) & set("*?[")]

    def read(self, path: Path, settings: TableSettings) -> "CleanTable":
        """Read and check the columns that are named, with kinds and units as typed."""
        from graphxai.learning.cleaning import clean_table, matching_columns

        others = [name for name in (settings.split_column, settings.time_column) if name]
        table = show_table(path, self.smiles_column)
        columns = matching_columns(path, self.smiles_column, self.target_column or (), others)
        kinds = _by_column("--kind", self.kind or (), columns, ("classification", "regression"))
        ways = _by_column("--transform", self.transform or (), columns, ("log10", "none"))
        units = _by_column("--units", self.units or (), columns)
        with progress_bar("reading", table.count()) as advance:
            return clean_table(
                path, self.smiles_column, columns,
                kinds=kinds, units=units, standardise=self.way, transform=ways,
                values_alone=settings.values_alone, progress=advance,
            )  # fmt: skip


@settings_as_options
def train(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="'bace', 'mnist-superpixels', a data set of OGB such as 'ogbg-molbace', a table of"
            " molecules (CSV, .smi, .sdf, .xlsx, Parquet), or a folder of graphs."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output folder."), APPLIES_ALWAYS],
    *,
    reading: TableReading,
    replicates: Annotated[
        int,
        typer.Option(min=1, help="Models to train, from consecutive seeds; mean and spread."),
        applies_to("table", "ogb", "graphs"),
    ] = 1,
    settings: TableSettings,
    task: Annotated[
        str | None,
        typer.Option(
            help="Graphs: binary, multiclass, classification or regression [default: from the"
            " labels]."
        ),
        applies_to("graphs"),
    ] = None,
    graph_settings: GraphSettings,
    digit_settings: DigitSettings,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the named data sets [default: $GRAPHXAI_DATA, or a cache]."),
        applies_to(*NAMED, "ogb"),
    ] = None,
) -> None:
    """Train on a table or on graphs, or retrain a bundled model. This needs the extra `train`.

    A table is checked first for unreadable SMILES, duplicates and contradictions. The model
    learns from the labels and from a teacher, chosen for each column from forests and Gaussian
    processes. It is then tested on molecules that neither of them has seen, beside its teacher and
    two forests.

    A folder of graphs (`graphxai.datasets.graph_folders.save_graphs` writes one; OGB's layout also
    works) trains a model that is tested beside a GIN of the same size and a forest.

    A data set of OGB, the Open Graph Benchmark, is learned in its official split, and the model is
    also scored by OGB's evaluator.

    **Examples**

    `graphxai train examples/assay.csv --target-column efflux --split random --out runs/mine`

    `graphxai train my.csv --smiles-column SMILES --target-column pIC50 --target-column toxic
    --kind pIC50=regression --split random --learning-curve --out runs/mine`

    `graphxai train tox21.csv --target-column "NR-*" --standardise tautomers --out runs/tox21`

    `graphxai train my.csv --target-column pIC50 --time-column date --replicates 3
    --out runs/mine`

    `graphxai train my.csv --target-column pIC50 --ensemble 5 --out runs/five`

    `graphxai train freesolv.csv --target-column expt --units kcal/mol --out runs/freesolv`

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --model runs/mine --out aspirin.svg`

    `graphxai train bace --out runs/bace`

    `graphxai train ogbg-molhiv --out runs/molhiv`

    `graphxai train mnist-superpixels --out runs/mnist --epochs 8`

    `graphxai train mnist-superpixels --out runs/small --num-train 1000 --versions 2`

    `graphxai train my-graphs --task classification --out runs/graphs`

    `graphxai train my.csv --target-column activity --out runs/mine --accelerator gpu --devices 4
    --precision bf16-mixed`
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":  # the first of several processes speaks for all
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if source in NAMED:
        refuse_inapplicable(context, source)
        with _exclusive(out), naming_data_option():
            folder = _train_named(source, out, data, settings, digit_settings)
        import json

        made = json.loads((folder / "config.json").read_text(encoding="utf-8"))["metadata"]
        score = f"on the test part: {made['summary']}"
        answer(scores=made.get("scores", {}), notes=[score], files=[folder])
        tell(f"{score}\nwritten: {folder}")
        return
    path = Path(source)
    if path.is_dir():
        refuse_inapplicable(context, "graphs")
        _train(path, out, replicates, graph_settings, task)
        return
    is_official = is_ogb_name(source) and not path.exists()
    if not path.exists() and not is_official:
        raise FileNotFoundError(
            f"{source}: no such file; give a table, a folder of graphs, a data set of OGB or one of"
            f" {', '.join(NAMED)}."
        )
    refuse_inapplicable(context, "ogb" if is_official else "table")
    if not reading.target_column and not is_official:
        from graphxai.datasets.tables.table import open_table

        columns = ", ".join(map(repr, open_table(path, reading.smiles_column).columns))
        raise typer.BadParameter(
            f"name the column to learn: --target-column NAME; the columns are {columns}."
        )
    if not is_official:
        wanted = [reading.smiles_column, *reading.named_columns, settings.split_column]
        require_sense(path, "table", columns=[*wanted, settings.time_column])
    from graphxai.learning.fit import require_hardware

    require_hardware(settings)
    if is_official:
        from graphxai.learning.official import official_table

        with naming_data_option():
            table = official_table(source, out, root=data, standardise=reading.way)
    else:
        table = reading.read(path, settings)
    _print_hygiene(table)
    _train(table, out, replicates, settings)


def _exclusive(out: Path) -> AbstractContextManager[None]:
    """Keep other runs out of the folder, but not Lightning's processes for further devices."""
    from graphxai.runtime.writing import exclusive_lock, folder_at

    return nullcontext() if "LOCAL_RANK" in os.environ else exclusive_lock(folder_at(out))


def _train_named(
    name: str, out: Path, data: Path | None, settings: TableSettings, digits: DigitSettings
) -> Path:
    """Retrain the bundled model of this name, and return its folder."""
    if name == "bace":
        from graphxai.learning.recipes.bace import train_bace

        if settings.split == "clusters":
            raise typer.BadParameter("bace is split by scaffold or at random.")
        split = settings.split or "random"
        return train_bace(out, root=data, split=split, settings=settings, log=tell)
    from graphxai.learning.recipes.mnist import train_mnist

    return train_mnist(out, root=data, settings=digits)


def _by_column(
    option: str, texts: Sequence[str], columns: list[str], choices: Sequence[str] = ()
) -> dict[str, Any]:
    """Read what is said of columns, as COLUMN=VALUE, where the name may contain "=" too.

    Args:
        texts: what was typed. A value without a column is for all of them, a unit only for one.
        choices: the values that there are, or none for any.
    """
    said: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.rpartition("=")
        how = " or ".join(f"COLUMN={choice}" for choice in choices or ("UNIT",))
        if choices and (value not in choices or (not sign and option == "--kind")):
            raise typer.BadParameter(f"{option} {text}: write {how}.")
        if name in columns:
            said[name] = value.strip()
        elif name and choices:
            raise typer.BadParameter(f"{option} {text}: {name!r} is not a --target-column.")
        elif name or (not choices and len(columns) > 1):
            raise typer.BadParameter(f"{option} {text}: write {how} with a --target-column.")
        else:
            said |= dict.fromkeys(columns, value.strip())
    return said


def _train(
    data: "CleanTable | Path",
    out: Path,
    replicates: int,
    settings: TableSettings | GraphSettings,
    task: str | None = None,
) -> None:
    """Train, and print the test scores and the notes that were not logged yet."""
    from graphxai.learning.run import train_replicates

    logged: set[str] = set()

    def log(line: str) -> None:
        logged.add(line)
        tell(line)

    with _exclusive(out):
        folder = train_replicates(
            data, out, replicates, settings, task=task, command=typed_command(), log=log
        )
    _print_scores(folder, logged)
    hygiene = "" if isinstance(data, Path) else f"; rows left out or merged: {out / 'hygiene.csv'}"
    tell(f"written: {folder}{hygiene}")


def _print_hygiene(table: "CleanTable") -> None:
    tell(f"{table.path.name}: {table.read:,} rows, {len(table.molecules):,} molecules to learn")
    for target in table.targets:
        tell(f"  {target}")
    if not table.findings:
        tell("  no problems found in the rows")
        return
    rows = []
    for finding in table.findings:
        name = f"{finding.check} ({finding.target})" if finding.target else finding.check
        first = ", ".join(str(row.row) for row in finding.rows[:SHOWN_ROWS])
        more = " ..." if len(finding.rows) > SHOWN_ROWS else ""
        rows.append((name, f"{finding.count:,}", finding.done, first + more))
    looks = {"check": {}, "rows": {"justify": "right"}, "done": {}, "first rows": {}}
    print_table(looks, rows, as_words=True)


def _print_scores(folder: Path, logged: set[str]) -> None:
    """Print the test scores of the model card and of replicates, and notes not printed yet."""
    import json

    from graphxai.learning.card import score_tables
    from graphxai.learning.run import replicate_rows

    from .printing import print_scores

    stored = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    tables = [*score_tables(stored["scores"]), *replicate_rows(folder.parent)]
    whole = [print_scores(title, ["test", *header], rows) for (title, *header), *rows in tables]
    legend = "in brackets 95 % bootstrap intervals"
    if not any(" (" in cell for _, *rows in tables for row in rows for cell in row[1:]):
        legend = "the test part is too small for bootstrap intervals"
    elif not all(whole):
        legend = f"95 % bootstrap intervals are in {folder / 'README.md'}"
    if any(row[0].startswith("minus ") for _, *rows in tables for row in rows):
        legend += "; minus: this model minus that one"
    tell(legend)
    answer(scores=stored["scores"], notes=stored["notes"], files=[folder])
    for note in stored["notes"]:
        if note not in logged:
            tell(f"note: {note}")
