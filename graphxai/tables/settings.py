"""The settings of runs over a table, declared once for Python and the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from graphxai.contract.intervals import LEVEL
from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.runtime.options import as_in, documented, names_in, option

FORMATS = ("csv", "parquet", "sdf")
# A report shows these methods side by side.
COMPARED = (DEFAULT_METHOD, "gradient_input", "gae", "occlusion")
SHARD_ROWS = 8192  # LRP explains this many rows in half a minute on one core
PREDICTIONS = 600  # how many neighbours a search of the app, or for a full card, predicts
LARGEST_TABLE = 50_000  # how many rows a page shows, be it that of a report or of the app
SMOOTH = 5000  # in molecules, because a page of 10,000 does not scroll smoothly

TABLE = ("table", "ray")  # the sources that are read row by row


def _columns(texts: Sequence[str]) -> dict[str, str]:
    """Read the column of each task from texts of the form TASK=COLUMN."""
    columns = dict(text.partition("=")[::2] for text in texts)
    if not all(columns.values()):
        raise ValueError("write TASK=COLUMN.")
    return columns


@dataclass(frozen=True)
class Pictures:
    """How the pictures of a table look.

    Attributes:
        suffix: ".svg" or ".png".
        palette: the name of the colours.
        limit: the relevance at the ends of the colour bar, or None to fit each picture's scale.
        atom_numbers: whether each atom's number is written beside it.
    """

    suffix: str = ".svg"
    palette: Literal["red-blue", "orange-purple"] = option(
        "red-blue",
        "Colours of the pictures. The second palette is safe for colour-blind readers.",
        applies_to=("smiles", "table", "image", "graphs"),
    )
    limit: float | None = None
    atom_numbers: bool = option(
        False,
        "Write each atom's number, as in tables, beside it.",
        applies_to=("smiles", "table"),
    )


@documented
@dataclass(frozen=True)
class TableRunSettings:
    """What every run over a table uses. What one kind of run uses is in its own class."""

    smiles_column: str | None = option(
        None,
        "Column with structures [default: one called SMILES or the like, or the only one that can"
        " be read as such].",
        applies_to=TABLE,
    )
    name_column: str | None = option(None, "Column with compound names.", applies_to=TABLE)
    level: float = option(
        LEVEL,
        "How often intervals and sets of classes should hold what is measured, as a share.",
        applies_to=("smiles", "table", "image"),
    )
    excel_safe: bool = option(
        False, "Put ' before text that spreadsheets would read as formulas.", applies_to=("table",)
    )
    workers: int | None = option(
        1,
        "Number of processes for a table. It does not change the results. Without a number, all"
        " free cores work if that is faster than one.",
        applies_to=TABLE,
        minimum=1,
        command_line_default=None,
    )


@documented
@dataclass(frozen=True)
class PredictionSettings(TableRunSettings):
    """The options for predicting a table."""

    forms: bool = option(
        False,
        "Note the predictions of isomers at undefined stereocentres (at most 16), and of likely"
        " tautomers if they differ. A row takes three to eleven times as long.",
        applies_to=("table",),
    )


@documented
@dataclass(frozen=True)
class ExplanationSettings(TableRunSettings):
    """The options for explaining a table."""

    target: Any = option(
        None,
        "Class or task to explain. Without one, the predicted class, or the second of two.",
        applies_to=None,
        parse=str,
    )
    pictures: Pictures | None = field(
        default=None, metadata={"help": "How pictures look, or None for no pictures."}
    )
    formats: Sequence[str] = option(
        ("csv",),
        "Files to write: csv (always), parquet, sdf, separated by commas or each with its option.",
        applies_to=("table",),
        name="--format",
        parse=names_in,
        repeat=True,
    )
    resume: bool = option(False, "Continue an interrupted run over a table.", applies_to=TABLE)


@documented
@dataclass(frozen=True)
class RowSettings:
    """The options for explaining the rows of a table one after another."""

    smiles_column: str | None = as_in(TableRunSettings, "smiles_column")
    name_column: str | None = field(default=None, metadata={"help": "Column with compound names."})
    target: Any = as_in(ExplanationSettings, "target")
    workers: int | None = as_in(TableRunSettings, "workers")


@documented
@dataclass(frozen=True)
class ReportSettings:
    """The options for a report."""

    smiles_column: str | None = as_in(TableRunSettings, "smiles_column")
    name_column: str | None = as_in(TableRunSettings, "name_column")
    names: Sequence[str] | None = field(
        default=None, metadata={"help": "Names of the molecules of a list, one for each."}
    )
    measured: Mapping[str, str] | None = option(
        None,
        "TASK=COLUMN with measured values. Without it, columns named after a task.",
        applies_to=None,
        parse=_columns,
        repeat=True,
    )
    compared: Sequence[str] = field(
        default=COMPARED, metadata={"help": "Methods that a full card shows side by side."}
    )
    target: Any = as_in(ExplanationSettings, "target")
    limit: int | None = option(
        None,
        f"Read at most this many rows. Without a limit, up to {LARGEST_TABLE:,} are allowed.",
        applies_to=None,
        minimum=1,
    )
    detailed: int = option(
        50,
        "How many molecules get a full card, with other methods and every sign of trust. They are"
        " those with the strongest atoms, the least trust, activity cliffs and outliers.",
        applies_to=None,
    )
    counterfactuals: int = option(
        0,
        "How many changes that alter the prediction to find for each full card. This takes about"
        " 5 s per molecule.",
        applies_to=None,
        minimum=0,
    )
    towards: str | None = option(
        None,
        "What these changes should lead to: a class, '>6.5' or '<6.5'. Without it, the most"
        " probable other class, or one unit more.",
        applies_to=None,
    )
    goal: str = option(
        "",
        "Values to aim at, such as 'pIC50 > 7, log D 1 to 3'. Cards say how desirable each"
        " molecule is, and suggested changes aim there.",
        applies_to=None,
    )
    core: str = option(
        "",
        "SMARTS of a core that is drawn alike in all molecules, and of which the report shows the"
        " R-groups beside those of the most common cores.",
        applies_to=None,
    )
    level: float = as_in(TableRunSettings, "level")
    title: str = option("", "Title of the report.", applies_to=None)
    workers: int | None = as_in(TableRunSettings, "workers")


@dataclass(frozen=True)
class ClusterSettings:
    """Where Ray explains a table, and how large the pieces are."""

    address: str | None = option(
        None,
        "Address of a Ray cluster. Without one, Ray runs on this machine.",
        applies_to=("ray",),
        name="--ray-address",
    )
    shard_rows: int = option(
        SHARD_ROWS, "Largest number of rows of a shard.", applies_to=("ray",), minimum=1
    )


@documented
@dataclass(frozen=True)
class RaySettings(RowSettings, ClusterSettings):
    """The options for explaining a table with Ray."""

    resume: bool = as_in(ExplanationSettings, "resume")
    workers: int | None = as_in(TableRunSettings, "workers", None)


@documented
@dataclass(frozen=True)
class DatasetSettings:
    """The options for explaining a Ray dataset."""

    smiles_column: str | None = as_in(TableRunSettings, "smiles_column")
    row_column: str | None = field(
        default=None, metadata={"help": "Column with integers, which the result has as `row`."}
    )
    name_column: str | None = field(
        default=None, metadata={"help": "Column with names, which the result has as `name`."}
    )
    target: Any = as_in(ExplanationSettings, "target")
    workers: int | None = as_in(TableRunSettings, "workers", None)
    batch_size: int = field(default=1024, metadata={"help": "Rows that a process takes at a time."})
