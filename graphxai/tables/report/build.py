"""Explain a table of molecules and write one HTML file that shows them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from graphxai.api import Model, explain_prepared, load
from graphxai.chemistry.fragment_table import FragmentTable
from graphxai.contract.inputs import Input, as_list, prepare_for
from graphxai.datasets.molecules import iter_records
from graphxai.datasets.progress import Tick, progress_bar
from graphxai.evaluation.trust.trust import OTHERS, RULE, Trust, explained_by_each, trust_prepared
from graphxai.explainers import Explainer, get_explainer
from graphxai.explainers.registry import Method
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.grid import SATURATED
from graphxai.explanation.provenance import versions
from graphxai.visualization.color import PALETTES, Scale

from .drawing import UNIT, drawing
from .page import render
from .records import colour_limit, record, rounded
from .summary import fragment_ranking

CHUNK = 64  # molecules read and explained at a time
COMPARED = ("lrp", "gradient_input", "gae", "occlusion")
DETAILED = 1000
LARGEST = 5000  # molecules, unless more are asked for: the page of 10,000 scrolls in jerks
TABLES = (".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class Row:
    """One molecule to report: its number in the table, its name, and what the model reads."""

    number: int
    name: str
    value: Any


@dataclass(frozen=True)
class Plan:
    """How molecules are explained: model, method, methods beside it, target, how many in detail."""

    model: Model
    explainer: Explainer
    others: tuple[str, ...]
    target: Any
    detailed: int


@dataclass
class Contents:
    """What a page shows, collected chunk by chunk.

    neighbours: drawings of the nearest training compounds, by SMILES; targets: what the molecules
    are explained for; refused: methods that the model does not allow, with why.
    """

    molecules: list[dict[str, Any]] = field(default_factory=list)
    rejected: list[tuple[int, str, str]] = field(default_factory=list)
    neighbours: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    targets: set[str] = field(default_factory=set)
    fragments: FragmentTable = field(default_factory=FragmentTable)


def report(
    model: "Model | str | Path",
    inputs: Any,
    out: str | Path = "report.html",
    method: Method = "lrp",
    *,
    compared: Sequence[str] = COMPARED,
    names: Sequence[str] | None = None,
    smiles_column: str = "smiles",
    name_column: str | None = None,
    target: Any = None,
    limit: int | None = None,
    detailed: int = DETAILED,
    title: str = "",
    progress: bool | None = None,
) -> Path:
    """Explain molecules and write one self-contained HTML file, which needs no network.

    inputs: a CSV file, or SMILES or RDKit molecules. compared: methods shown side by side; they
    and the trust panel, nine tenths of the work, are made for the first `detailed` molecules.
    names: one a molecule, for a list; a file has `name_column`. target: see `Target`. limit: at
    most so many rows; without it 5,000 are the most. progress: a bar, by default on a terminal.

    Rows that cannot be used are listed in the report. Raises ValueError if there is none that
    can, for more rows than that, for another suffix than .html, or for a model that does not read
    molecules.
    """
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{out}: a report is a page; name it .html.")
    model = load(model) if isinstance(model, str | Path) else model
    explainer = get_explainer(method)
    rows, total, source = _rows(inputs, names, smiles_column, name_column)
    if limit is not None:
        rows, total = islice(rows, limit), min(limit, total)
    elif total > LARGEST:
        raise ValueError(
            f"{source}: about {total:,} rows, and a report of more than {LARGEST:,} is slow in a"
            f" browser. Name a limit, such as {LARGEST}; `graphxai explain` and `graphxai"
            " fragments` take tables of any length."
        )
    contents = Contents()
    others = tuple(name for name in dict.fromkeys(compared) if name != explainer.name)
    plan = Plan(model, explainer, others, target, detailed)
    with progress_bar("explaining", total, show=progress) as tick:
        for chunk in _chunks(rows):
            _add(contents, plan, chunk, tick)
    if not contents.molecules:
        why = f": {contents.rejected[0][2]}" if contents.rejected else ""
        raise ValueError(f"no molecule of {source} can be explained{why}")
    name = title or f"{model.origin.name}: {source}"
    page = render(_data(contents, model, explainer, name, source), name, _card(model))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    return out


def _rows(
    inputs: Any, names: Sequence[str] | None, smiles_column: str, name_column: str | None
) -> tuple[Iterator[Row], int, str]:
    """The molecules, about how many there are, and what they come from in words."""
    if isinstance(inputs, str | Path) and Path(inputs).suffix.lower() in TABLES:
        from graphxai.tables.run import count_rows

        if names is not None:
            raise ValueError("names go with a list; for a file give name_column.")
        path = Path(inputs)
        columns = (smiles_column,) if name_column is None else (smiles_column, name_column)
        records = iter_records(path, columns)
        found = (
            Row(number, cells[name_column] if name_column else "", cells[smiles_column])
            for number, cells in records
        )
        return found, count_rows(path) if path.is_file() else 0, path.name
    values, _ = as_list(inputs)
    if names is not None and len(names) != len(values):
        raise ValueError(f"there are {len(names)} names for {len(values)} molecules.")
    named = [str(name) for name in names] if names is not None else [""] * len(values)
    listed = zip(named, values, strict=True)
    found = (Row(number, name, value) for number, (name, value) in enumerate(listed, start=1))
    return found, len(values), f"{len(values)} molecule{'s' if len(values) != 1 else ''}"


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _add(contents: Contents, plan: Plan, chunk: list[Row], tick: Tick) -> None:
    """Explain one chunk and collect what the page shows of it."""
    model, explainer, target = plan.model, plan.explainer, plan.target
    rows = {row.number: row for row in chunk}
    prepared, rejected = _prepared(model, chunk)
    contents.rejected += rejected
    tick(len(rejected))
    explained = dict(explain_prepared(model, prepared, explainer, target=target))
    in_detail = prepared[: max(0, plan.detailed - len(contents.molecules))]
    methods = [n for n in dict.fromkeys([*plan.others, *OTHERS]) if n != explainer.name]
    compared, refused = explained_by_each(model, in_detail, methods, target)
    contents.refused |= refused
    trusted = trust_prepared(model, in_detail, explained, explainer, target=target, others=compared)
    for number, _ in prepared:
        beside = {
            name: compared[name][number]
            for name in plan.others
            if name in compared and number in compared[name]
        }
        _keep(contents, rows[number], explained[number], beside, trusted.get(number))
        tick(1)


def _prepared(
    model: Model, chunk: list[Row]
) -> tuple[list[tuple[int, Input]], list[tuple[int, str, str]]]:
    """The rows that can be explained, encoded; and the others, with the reason."""
    prepared, rejected = [], []
    for row in chunk:
        try:
            item = prepare_for(model, row.value)
            if item.smiles is None and item.molecule is None:
                raise ValueError("this is no molecule.")
            prepared.append((row.number, item))
        except (ValueError, OSError) as error:
            rejected.append((row.number, str(row.value)[:200], str(error)))
    return prepared, rejected


def _keep(
    contents: Contents,
    row: Row,
    explanation: Explanation,
    beside: Mapping[str, Explanation],
    trust: Trust | None,
) -> None:
    from rdkit import Chem

    found = record(row.name, row.number, explanation, beside, trust)
    if trust is not None and trust.nearest is not None:
        found["nearest"] = trust.nearest
        if trust.nearest not in contents.neighbours:
            contents.neighbours[trust.nearest] = drawing(Chem.MolFromSmiles(trust.nearest))
    contents.targets.add(explanation.target)
    if len(contents.targets) == 1:  # relevance for different classes has no common mean
        contents.fragments.add(explanation)
    contents.molecules.append(found)


def _data(
    contents: Contents,
    model: Model,
    explainer: Explainer,
    title: str,
    source: str,
) -> dict[str, Any]:
    """Everything the page's script reads."""
    first = contents.molecules[0]
    limit = colour_limit(contents.molecules, SATURATED)
    features = tuple(getattr(model, "feature_names", ()))
    value_names = {molecule.pop("value_name") for molecule in contents.molecules}
    methods = [explainer.name, *first["others"]]
    return {
        "title": title,
        "source": source,
        "model": {
            "name": model.origin.name,
            "sha256": model.origin.sha256,
            "summary": str(model.origin.metadata.get("summary", "")),
            "tasks": [[task.name, list(task.classes), task.unit] for task in model.config.tasks],
        },
        "versions": versions(),
        "method": explainer.name,
        "additive": explainer.additive,
        "titles": {name: get_explainer(name).title for name in methods[1:]}
        | {explainer.name: explainer.title},
        "features": list(features),
        "rule": RULE,
        "value": value_names.pop() if len(value_names) == 1 else "Probability",
        "unit": UNIT,
        "limit": rounded([limit])[0],
        "quantile": SATURATED,
        "ticks": list(Scale(limit).ticks()),
        "palettes": {name: _arms(name) for name in PALETTES},
        "molecules": contents.molecules,
        "neighbours": contents.neighbours,
        "fragments": fragment_ranking(contents.fragments, contents.molecules)
        if len(contents.targets) == 1
        else None,
        "rejected": contents.rejected,
        "refused": contents.refused,
    }


def _arms(palette: str) -> list[str]:
    """Colours of a palette at equal steps from full negative to full positive."""
    scale = Scale(1.0, palette)
    return scale.hex(scale.stops())


def _card(model: Model) -> str:
    """The model card beside the checkpoint; empty where there is none."""
    folder = getattr(model.origin, "folder", None)
    with suppress(OSError, UnicodeDecodeError):
        if folder is not None:
            return (Path(folder) / "README.md").read_text(encoding="utf-8")
    return ""
