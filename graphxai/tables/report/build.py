"""Explain a table of molecules and write one HTML file that shows them."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from graphxai.api import load
from graphxai.chemistry.counterfactuals import Goal
from graphxai.chemistry.fragment_table import FragmentTable
from graphxai.chemistry.fragments import Fragments, fragments
from graphxai.chemistry.measurements import Measurements
from graphxai.contract.inputs import Input, as_list, prepare_all, prepare_each
from graphxai.contract.intervals import LEVEL, require_level
from graphxai.datasets.csv_files import CONVERSIONS, iter_records
from graphxai.datasets.training_set import TrainingSet, training_set_of
from graphxai.evaluation.trust.signs import Sign, score_sign
from graphxai.evaluation.trust.trust import RULE, Trust, explained_by_each, trust_prepared
from graphxai.explainers import Explainer, get_explainer
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.explaining import explanations_or_errors
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.glossary import about_output, about_terms
from graphxai.explanation.grid import SATURATED
from graphxai.explanation.provenance import versions
from graphxai.models.graphormer import require_purpose
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.threads import one_thread, workers_for
from graphxai.runtime.workers import LostItem, PieceResult, map_in_processes
from graphxai.runtime.writing import place_of, write_whole
from graphxai.visualization.color import PALETTES, Scale

from .changes import changes_card
from .choice import in_full, said
from .drawing import UNIT, drawing
from .measured import (
    MeasuredTable,
    agreement,
    beside,
    measured_columns,
    measured_table,
    shown,
)
from .page import render
from .projection import similarity_map
from .records import colour_limit, full_card, record, rounded
from .summary import fragment_ranking

CHUNK = 64  # molecules read and explained at a time
IN_FULL = 16  # of those with a full card
COMPARED = ("lrp", "gradient_input", "gae", "occlusion")
DETAILED = 50
LARGEST = 5000  # molecules by default: a page of 10,000 does not scroll smoothly
TABLES = (".csv", ".tsv", ".txt")
Item = TypeVar("Item")
Rejected: TypeAlias = tuple[int, str, str]  # row, SMILES, reason


@dataclass(frozen=True)
class Row:
    """One molecule to report: its row number, name, the model's input, measured values by task."""

    number: int
    name: str
    value: Any
    measured: Mapping[str, float] = field(default_factory=dict)


# a molecule with a full card: its place, why, and what is known of it
Chosen: TypeAlias = tuple[int, str, Row, Explanation]


@dataclass(frozen=True)
class Plan:
    """How to explain: model, its training set, method, methods to compare, target, level.

    counterfactuals, towards: how many to find for a full card, and of what kind; values: what the
    table says was measured of such changes.
    """

    model: Model
    training: TrainingSet | None
    explainer: Explainer
    others: tuple[str, ...]
    target: Any
    level: float
    counterfactuals: int = 0
    towards: str | None = None
    values: Measurements | None = None


@dataclass
class Contents:
    """The content of a page, collected chunk by chunk.

    explained: row and explanation of each molecule; full: which molecules have a full card, in
    words; neighbours: drawings of the nearest training compounds, by SMILES; refused: methods that
    do not work for the model, with the reason; targets: labels of the explained outputs; outputs:
    what these are, in words; terms: words of the ledger with their meaning; task: the explained
    one; score: how well the model does on test data; notes: about what was measured.
    """

    molecules: list[dict[str, Any]] = field(default_factory=list)
    explained: list[tuple[Row, Explanation]] = field(default_factory=list)
    full: str = ""
    rejected: list[tuple[int, str, str]] = field(default_factory=list)
    neighbours: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    targets: set[str] = field(default_factory=set)
    outputs: set[str] = field(default_factory=set)
    terms: dict[str, str] = field(default_factory=dict)
    fragments: FragmentTable = field(default_factory=FragmentTable)
    task: str = ""
    score: Sign | None = None
    notes: list[str] = field(default_factory=list)


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
    measured: Mapping[str, str] | None = None,
    target: Any = None,
    limit: int | None = None,
    detailed: int = DETAILED,
    counterfactuals: int = 0,
    towards: str | None = None,
    level: float = LEVEL,
    title: str = "",
    progress: bool | None = None,
    workers: int | None = 1,
) -> Path:
    """Explain molecules and write one self-contained HTML file, which opens offline.

    inputs: a CSV file, or SMILES or RDKit molecules. compared: methods shown side by side.
    These, and the sign of trust that explains each molecule again, are for the `detailed` molecules
    with the strongest atoms, the least trust, activity cliffs and outliers; see `choice.in_full`.
    counterfactuals: how many to find for each of these molecules, which takes about 5 s a molecule;
    towards: what the model should predict for them, as in `graphxai.counterfactuals`, by default
    the most probable other class, or one unit more than predicted.
    names: one per molecule, for a list; for a file, `name_column`. measured: the file's column of
    measured values by task; by default columns named after a task. target: see `Target`. limit:
    read at most this many rows; without a limit, up to 5,000 are allowed. level: how often the
    predictions' intervals and sets of classes should hold. progress: show a bar; by
    default only on a terminal. workers: processes, as for `graphxai.explain`; the page is the same
    for any number.

    Rows that cannot be used are listed in the report. A warning, also on the page, counts measured
    values that are not understood, and names tasks that were measured but not explained.

    Raises ValueError if no row can be used, if there are too many rows, if `out` is not .html, if
    the model does not offer what `towards` says, or if it does not read molecules.
    """
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{out}: a report is a web page; name it .html.")
    model = require_purpose(load(model)) if isinstance(model, str | Path) else model
    if towards is not None:
        Goal.of(towards, model)
    explainer = get_explainer(method)
    out.parent.mkdir(parents=True, exist_ok=True)
    place_of(out)
    values = MeasuredTable()
    if _is_file(inputs):
        tasks = model.config.tasks
        columns = measured_columns(Path(inputs), smiles_column, tasks, measured or {})
        most = LARGEST if limit is None else limit
        values = measured_table(Path(inputs), smiles_column, tasks, columns, most)
    elif measured:
        raise ValueError("measured values are columns of a file.")
    rows, total, source = _rows(inputs, names, smiles_column, name_column, values)
    if limit is not None:
        rows, total = islice(rows, limit), min(limit, total)
    elif total > LARGEST:
        raise ValueError(
            f"{source}: about {total:,} rows, and a report of more than {LARGEST:,} is slow in a"
            f" browser. Set a limit, such as {LARGEST}; `graphxai explain` and `graphxai fragments`"
            " take tables of any length."
        )
    contents = Contents(notes=list(values.notes))
    others = tuple(name for name in dict.fromkeys(compared) if name != explainer.name)
    changes = max(0, counterfactuals), towards
    training = training_set_of(model)
    plan = Plan(model, training, explainer, others, target, require_level(level), *changes)
    workers = workers_for(model, workers)
    done = map_in_processes(partial(_explained, plan), _chunks(rows, CHUNK), workers, total)
    with progress_bar("explaining", total, show=progress) as advance, closing(done):
        for part in chain.from_iterable(done):
            _add(contents, plan, part)
            advance(len(part.items))
    if not contents.molecules:
        why = f": {contents.rejected[0][2]}" if contents.rejected else ""
        if total == 1 and not _is_file(inputs):
            raise ValueError(f"the molecule cannot be explained{why}")
        raise ValueError(f"no molecule in {source} can be explained{why}")
    chosen = in_full(contents.molecules, max(0, detailed))
    contents.full = said(contents.molecules, chosen)
    if plan.counterfactuals:
        plan = replace(plan, values=_values(plan, contents))
    wanted = [(place, chosen[place], *contents.explained[place]) for place in sorted(chosen)]
    done = map_in_processes(
        partial(_completed, plan), _chunks(iter(wanted), IN_FULL), workers, len(wanted)
    )
    with progress_bar("comparing methods", len(chosen), show=progress) as advance, closing(done):
        for part in chain.from_iterable(done):
            _complete(contents, part)
            advance(len(part.items))
    contents.notes += filter(None, (_doubt(model, contents), beside(values, contents.task)))
    for note in contents.notes:
        warnings.warn(note, stacklevel=2)
    name = title or f"{model.origin.name}: {source}"
    data = _data(contents, model, explainer, name, source)
    (task,) = (t for t in model.config.tasks if t.name == contents.task)
    target_word = next(iter(contents.targets)) if len(contents.targets) == 1 else None
    column = values.columns.get(task.name, "")
    data["measured"] = agreement(task, column, target_word, contents.molecules)
    page = render(data, name, _card(model))
    return write_whole(out, page)


def _values(plan: Plan, contents: Contents) -> Measurements | None:
    """The table's values for the task of the goal, or else for another one; None without any."""
    wished = contents.task if plan.towards is None else Goal.of(plan.towards, plan.model).task
    tasks = (task.name for task in plan.model.config.tasks if task.kind == "regression")
    found = (_measurements(contents, task) for task in sorted(tasks, key=lambda n: n != wished))
    return next(filter(None, found), None)


def _measurements(contents: Contents, task: str) -> Measurements | None:
    """The explained molecules' measured values of a task; None without any."""
    cells = ((e.smiles, row.measured.get(task)) for row, e in contents.explained)
    pairs = [(smiles, value) for smiles, value in cells if smiles and value is not None]
    return Measurements.of(pairs, task) if pairs else None


def _doubt(model: Model, contents: Contents) -> str:
    """Say so if what was measured hardly looks like the explained task; else empty."""
    (task,) = (t for t in model.config.tasks if t.name == contents.task)
    found = _measurements(contents, task.name) if task.kind == "regression" else None
    return "" if found is None else found.doubt(task)


def _is_file(inputs: Any) -> bool:
    """Whether to read a file; a text is a SMILES unless it has the suffix of a file."""
    if isinstance(inputs, str):
        return Path(inputs).suffix.lower() in (*TABLES, *CONVERSIONS)
    return isinstance(inputs, Path)


def _rows(
    inputs: Any,
    names: Sequence[str] | None,
    smiles_column: str,
    name_column: str | None,
    measured: MeasuredTable,
) -> tuple[Iterator[Row], int, str]:
    """The molecules, roughly how many there are, and a name for their source."""
    if _is_file(inputs):
        from graphxai.tables.run import count_rows

        if names is not None:
            raise ValueError("names go with a list; for a file, give name_column.")
        path = Path(inputs)
        named = () if name_column is None else (name_column,)
        records = iter_records(path, (smiles_column, *named))
        found = (
            Row(
                number,
                cells[name_column] if name_column else "",
                cells[smiles_column],
                measured.of(number),
            )
            for number, cells in records
        )
        return found, count_rows(path) if path.is_file() else 0, path.name
    values, _ = as_list(inputs)
    if names is not None and len(names) != len(values):
        raise ValueError(f"there are {len(names)} names for {len(values)} molecules.")
    titles = [str(name) for name in names] if names is not None else [""] * len(values)
    listed = zip(titles, values, strict=True)
    found = (Row(number, name, value) for number, (name, value) in enumerate(listed, start=1))
    return found, len(values), f"{len(values)} molecule{'s' if len(values) != 1 else ''}"


def _chunks(rows: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while chunk := list(islice(rows, size)):
        yield chunk


@dataclass(frozen=True)
class Explained:
    """One molecule of the page: row, explanation, fragments, and what its card shows."""

    row: Row
    explanation: Explanation
    fragments: Fragments
    card: dict[str, Any]


def _explained(plan: Plan, chunk: Sequence[Row]) -> tuple[list[Explained], list[Rejected]]:
    """Explain one chunk, here or in another process; the rows left out are apart."""
    model, target = plan.model, plan.target
    rows = {row.number: row for row in chunk}
    found: list[Explained] = []
    with one_thread():
        prepared, rejected = _prepared(model, chunk)
        explained: dict[int, Explanation] = {}
        computed = explanations_or_errors(
            model, prepared, plan.explainer, target=target, training=plan.training
        )
        for number, explanation in computed:
            if isinstance(explanation, Exception):
                rejected.append(_rejected(rows[number], explanation))
            else:
                explained[number] = explanation.at(plan.level)
        prepared = [item for item in prepared if item[0] in explained]
        trusted = trust_prepared(model, prepared, explained, None, target=target)
        for number, _ in prepared:
            try:
                found.append(_card_of(plan, rows[number], explained[number], trusted[number]))
            except Exception as error:  # RDKit raises errors of any type
                rejected.append(_rejected(rows[number], error))
    return found, rejected


def _card_of(plan: Plan, row: Row, explanation: Explanation, trust: Trust) -> Explained:
    parts = fragments(explanation, "brics")
    card = record(row.name, row.number, explanation, parts, trust)
    (task,) = (t for t in plan.model.config.tasks if t.name == explanation.prediction.task)
    value = row.measured.get(task.name)
    card["measured"] = None if value is None else [rounded([value])[0], shown(task, value)]
    card["part"] = "" if plan.training is None else plan.training.part(explanation.atoms())
    return Explained(row, explanation, parts, card)


def _add(contents: Contents, plan: Plan, part: PieceResult) -> None:
    """Add the results of a chunk to the contents."""
    if isinstance(part.result, LostItem):
        contents.rejected.append(_rejected(part.items[0], RuntimeError(part.result.reason)))
        return
    found, rejected = part.result
    contents.rejected += rejected
    for one in found:
        explanation = one.explanation
        contents.task = explanation.prediction.task
        contents.score = contents.score or score_sign(
            plan.model.origin.metadata, explanation.prediction
        )
        contents.targets.add(explanation.target)
        contents.outputs.add(about_output(explanation))
        contents.terms |= about_terms(explanation)
        if len(contents.targets) == 1:  # relevance for different classes cannot be averaged
            contents.fragments.add(one.fragments)
        contents.molecules.append(one.card)
        contents.explained.append((one.row, explanation))


def _completed(
    plan: Plan, chosen: Sequence[Chosen]
) -> tuple[dict[int, dict[str, Any]], dict[str, Any], dict[str, str]]:
    """Compare methods and measure every sign of trust for molecules, here or in another process.

    Returns full cards by place, drawings of the nearest training compounds by SMILES, and reasons
    by method that does not work for the model.
    """
    from rdkit import Chem

    model, target = plan.model, plan.target
    explained = {place: explanation for place, _, _, explanation in chosen}
    cards: dict[int, dict[str, Any]] = {}
    neighbours: dict[str, Any] = {}
    with one_thread():
        values = prepare_all(model, [row.value for _, _, row, _ in chosen])
        prepared = list(zip(explained, values, strict=True))
        compared, refused = explained_by_each(model, prepared, plan.others, target)
        trusted = trust_prepared(model, prepared, explained, plan.explainer, target=target)
    for place, why, _, _ in chosen:
        beside = {name: found[place] for name, found in compared.items() if place in found}
        cards[place] = full_card(beside, trusted[place], why)
        if plan.counterfactuals:
            wanted = plan.towards, plan.counterfactuals, plan.level, plan.values
            card = changes_card(model, plan.explainer, explained[place], *wanted)
            cards[place]["changes"] = card
        nearest = trusted[place].nearest
        if nearest is not None and nearest not in neighbours:
            neighbours[nearest] = drawing(Chem.MolFromSmiles(nearest))
    return cards, neighbours, refused


def _complete(contents: Contents, part: PieceResult) -> None:
    """Add the results for molecules with a full card to the contents."""
    if isinstance(part.result, LostItem):
        row = part.items[0][2].number
        warnings.warn(f"row {row} has no full card: {part.result.reason}", stacklevel=3)
        return
    cards, neighbours, refused = part.result
    for place, card in cards.items():
        contents.molecules[place] |= card
    contents.neighbours |= neighbours
    contents.refused |= refused


def _prepared(model: Model, chunk: Sequence[Row]) -> tuple[list[tuple[int, Input]], list[Rejected]]:
    """The usable rows, encoded, and the rejected rows with their reasons."""
    prepared, rejected = [], []
    found = prepare_each(model, [row.value for row in chunk], Exception)  # RDKit's of any type
    for row, item in zip(chunk, found, strict=True):
        if isinstance(item, Exception):
            rejected.append(_rejected(row, item))
        elif item.smiles is None and item.molecule is None:
            rejected.append(_rejected(row, ValueError("this is not a molecule.")))
        else:
            prepared.append((row.number, item))
    return prepared, rejected


def _rejected(row: Row, error: Exception) -> Rejected:
    """What the page says about a row that was left out."""
    return row.number, str(row.value)[:200], str(error) or type(error).__name__


def _data(
    contents: Contents,
    model: Model,
    explainer: Explainer,
    title: str,
    source: str,
) -> dict[str, Any]:
    """All data for the page's script."""
    limit = colour_limit(contents.molecules, SATURATED)
    features = tuple(getattr(model, "feature_names", ()))
    value_names = {molecule.pop("value_name") for molecule in contents.molecules}
    compared = dict.fromkeys(name for molecule in contents.molecules for name in molecule["others"])
    shown = [explainer, *map(get_explainer, compared)]
    return {
        "title": title,
        "source": source,
        "model": {
            "name": model.origin.name,
            "sha256": model.origin.sha256,
            "summary": _score(model, contents),
            "score": _sentence(contents.score),
            "tasks": [[task.name, list(task.classes), task.unit] for task in model.config.tasks],
        },
        "versions": versions(),
        "method": explainer.name,
        "additive": explainer.additive,
        "unsigned": {e.name: e.unsigned for e in shown if e.unsigned},
        "titles": {e.name: e.title for e in shown},
        "words": {
            "intro": _intro(contents, explainer),
            "full": contents.full,
            "notes": contents.notes,
            "terms": contents.terms,
        },
        "features": list(features),
        "rule": RULE,
        "value": value_names.pop() if len(value_names) == 1 else "Probability",
        "unit": UNIT,
        "limit": rounded([limit])[0],
        "quantile": SATURATED,
        "ticks": list(Scale(limit, one_sided=bool(explainer.unsigned)).ticks()),
        "palettes": {name: Scale(1.0, name).arms() for name in PALETTES},
        "unsigned_colours": Scale(1.0, one_sided=True).arms(),
        "molecules": contents.molecules,
        "neighbours": contents.neighbours,
        "map": similarity_map([explanation.atoms() for _, explanation in contents.explained]),
        "fragments": fragment_ranking(contents.fragments, contents.molecules)
        if len(contents.targets) == 1
        else None,
        "rejected": contents.rejected,
        "refused": contents.refused,
    }


def _score(model: Model, contents: Contents) -> str:
    """The test score of the explained task, or the model's if it has one task or none is known."""
    if len(model.config.tasks) > 1 and contents.score and contents.score.level != "unknown":
        return f"{contents.task}: {contents.score.figures}"
    return str(model.origin.metadata.get("summary", ""))


def _sentence(score: Sign | None) -> str:
    """What is wrong with the model as a whole, said once on the page; empty if nothing is."""
    if score is None or score.level == "good":
        return ""
    return f"{score.sentence[0].upper()}{score.sentence[1:]}."


def _intro(contents: Contents, explainer: Explainer) -> str:
    """What the colours mean, in two sentences: relevance, then output and target."""
    relevance = "how much each atom raises or lowers the model's output"
    if not explainer.additive:
        relevance = "the score that the method gives each atom"
    if explainer.unsigned:
        relevance += f", which has no sign ({explainer.unsigned})"
    if len(contents.outputs) == 1:
        output = next(iter(contents.outputs))
    else:
        output = (
            "The output for the target, the class predicted for each molecule, is a logit: +0.7"
            " doubles the odds."
        )
    return f"Colours show relevance: {relevance}. {output}"


def _card(model: Model) -> str:
    """The model card beside the checkpoint; empty if there is none."""
    folder = getattr(model.origin, "folder", None)
    with suppress(OSError, UnicodeDecodeError):
        if folder is not None and (Path(folder) / "README.md").is_file():
            return (Path(folder) / "README.md").read_text(encoding="utf-8")
    return ""
