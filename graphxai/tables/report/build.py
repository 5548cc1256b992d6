"""Explain a table of molecules, and write one HTML file that shows them.

Only our script can run in the page. The data are a block of JSON without a single `<`. The script
inserts text as nothing but text. A content security policy allows exactly this script and style, by
their hashes, and no network.
"""

import json
import math
import os
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markdown_it import MarkdownIt  # typer brings it with rich

from graphxai.chemistry.matching import read_pattern
from graphxai.chemistry.measurements import Measurements
from graphxai.chemistry.profile_text import read_goal, read_profile
from graphxai.contract.intervals import require_level
from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.contract.tasks import Task
from graphxai.datasets.molecule_reading import CONTROL
from graphxai.datasets.training_set import training_set_of
from graphxai.evaluation.trust.trust import level_properties
from graphxai.explainers import get_explainer
from graphxai.explainers.registry import Method
from graphxai.explanation.api import OneOrMoreModels
from graphxai.explanation.compute.models import Model, ModelPanel, is_several
from graphxai.explanation.result import security_policy
from graphxai.learning.reliability import uninformative
from graphxai.runtime.device import workers_for
from graphxai.runtime.notices import warn
from graphxai.runtime.options import accepts
from graphxai.runtime.writing import atomic_write, folder_at, place_of
from graphxai.tables.batches import require_molecules
from graphxai.tables.settings import LARGEST_TABLE, SMOOTH, ReportSettings

from .cards import in_full, make_cards
from .contents import model_card, page_data
from .full_cards import make_full_cards, measurements_of
from .molecules import ReportSource, note_on_other_tasks, report_source
from .properties import CardSettings
from .structure_activity import StructureActivity

SCRIPTS = (  # the order matters, because each file uses constants of those before it
    *("unpack.js", "draw.js", "basket.js", "properties.js", "report.js", "rows.js", "fragments.js"),
    *("structure_activity.js", "sar.js", "measured.js", "map.js", "detail.js", "start.js"),
)
BLOCK = 16  # molecules whose details the page unpacks together, in a millisecond or two
FORBIDDEN = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


class ReportFile(type(Path())):  # type: ignore[misc]  # a Path cannot be extended in Python 3.11
    """The path of a report, which a notebook shows as a link.

    Attributes:
        left_out: how many rows could not be used; the report lists them.
    """

    left_out: int = 0

    def _repr_html_(self) -> str:
        address = quote(os.path.relpath(self).replace(os.sep, "/"))
        return f'<a href="{escape(address)}" target="_blank" rel="noopener">{escape(self.name)}</a>'


@accepts(ReportSettings)
def report(
    model: OneOrMoreModels,
    inputs: Any,
    out: str | Path = "report.html",
    method: Method = DEFAULT_METHOD,
    *,
    settings: ReportSettings,
    progress: bool | None = None,
) -> ReportFile:
    """Explain molecules and write one self-contained HTML file, which opens offline.

    Some molecules get a full card, with other methods, every sign of trust, and counterfactuals.
    They are the molecules with the strongest atoms, the least trust, activity cliffs and outliers
    (see `cards.in_full`). `towards` is what the model should predict for counterfactuals, as in
    `graphxai.counterfactuals`.

    A list may have `names`, and a file may have a `name_column` and columns of `measured` values.
    Rows that cannot be used are listed in the report. A warning, also on the page, counts measured
    values that are not understood, and names tasks that were measured but not explained. The page
    is the same for any number of `workers`, see `graphxai.explain`.

    With several models, the first one explains the molecules. Each card shows all properties with
    their intervals and how near the molecule is to each training set, the full card also what each
    model sees, and the `goal` how desirable the molecule is (see `gx.profile`).

    Molecules with 2D coordinates, such as those of an SD file, are drawn as they are. Others are
    drawn with their common core, or the `core` given as SMARTS, in the same place.

    Args:
        model: a model from `load`, or its name, or a list of these.
        inputs: the file of a table, or SMILES or RDKit molecules.
        out: the HTML file to write.
        method: see `methods()`.
        settings: the keywords of `ReportSettings`.
        progress: whether to show a bar. By default it is shown only on a terminal.

    Raises:
        KeyboardInterrupt: the report was interrupted. The `results` of the exception are the
            explanations that were finished. No page is written.
        ValueError: no row can be used, there are too many rows, `out` is not .html, the model does
            not offer what `towards` says, or it does not read molecules.
    """
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{out}: a report is a web page; name it .html.")
    panel = ModelPanel.of(model)
    first, several = panel.models[0], is_several(model) or bool(settings.goal)
    for member in panel.models if several else ():
        require_molecules(member)
    if settings.goal:
        read_profile(panel, settings.goal)
    if settings.towards is not None:
        if settings.goal:
            raise ValueError("give either goal or towards: counterfactuals lead to the goal.")
        read_goal(first, settings.towards)
    if settings.core:
        read_pattern(settings.core)
    explainer = get_explainer(method, model=first)
    folder_at(out.parent)
    place_of(out)

    tasks: dict[str, Task] = {}
    for each in panel.properties:
        tasks.setdefault(each.task.name, each.task)  # models may share a task
    source = report_source(inputs, list(tasks.values()), settings)
    level, training = require_level(settings.level), training_set_of(first)
    goal = settings.goal if several else ""
    how = CardSettings(panel, training, explainer, settings.target, level, several, goal)
    workers = workers_for(first, settings.workers)
    cards = make_cards(how, source, workers, progress)
    if cards.ends is None:
        why = f": {cards.rejected[0].reason}" if cards.rejected else ""
        named = source.total > 1 or source.is_file
        which = f"no molecule in {source.name}" if named else "the molecule cannot"
        raise ValueError(f"{which}{' can' if named else ''} be explained{why}")
    cards.align(settings.core)
    chosen = in_full(cards.records, max(0, settings.detailed))
    explained = cards.ends[1].prediction.task
    methods = tuple(n for n in dict.fromkeys(settings.compared) if n != explainer.name)
    measured: Any = None
    if settings.counterfactuals > 0:
        compared_panel = panel if goal else ModelPanel.of(first)
        measured = measurements_of(compared_panel, cards.records, source.measured)
        if not goal:  # the goal's task comes first, or else another one
            towards = settings.towards
            name = read_goal(first, towards).of.name if towards else explained
            measured = measured.get(name) or next(iter(measured.values()), None)
    wished: dict[str, Any] = {
        "counterfactuals": max(0, settings.counterfactuals),
        "towards": settings.towards,
    }
    fully = replace(how, compared=methods, measured=measured, **wished)
    full = make_full_cards(fully, cards, chosen, workers, progress)
    for place, record in enumerate(cards.records):
        content = full.contents.get(place, {})
        level = content["trust"]["level"] if content else record["level"]
        record |= {"level": level, "full": content.get("full")}
    compared = tasks if several else {explained: tasks[explained]}
    notes = _notes(panel.models if several else [first], len(cards), explained, source, compared)
    for note in notes:
        warn(note, stacklevel=3)
    title = settings.title or f"{', '.join(panel.names)}: {source.name}"
    values = {
        each.name: [of_task.get(record["row"]) for record in cards.records]
        for each in panel.properties
        if (of_task := source.measured.known(each.task.name)) and not each.task.classes
    }
    sar = None
    if settings.core or any(value is not None for of in values.values() for value in of):
        written = [record["smiles"] for record in cards.records]
        sar = StructureActivity(panel, written, values).page(settings.core)
    data = page_data(how, cards, full, chosen, source, title=title, notes=notes, sar=sar)
    details = (cards.content(k, full.contents.get(k, {})) for k in range(len(cards)))
    with atomic_write(out) as file:
        model_cards = filter(None, map(model_card, panel.models if several else [first]))
        file.writelines(page_parts(data, details, title, "\n\n".join(model_cards)))
    written = ReportFile(out)
    written.left_out = len(cards.rejected)
    return written


def _notes(
    models: Sequence[Model],
    count: int,
    explained: str,
    source: ReportSource,
    tasks: Mapping[str, Task],
) -> list[str]:
    """Return what the page and warnings say about odd measured values and useless intervals.

    Args:
        models: those that the page shows, the first of which explains.
        tasks: the tasks of which measured values are shown, by name.
    """
    measured = source.measured
    doubts = [
        Measurements(measured.columns[name], {str(row): v for row, v in values.items()}).doubt(task)
        for name, task in tasks.items()
        if (values := measured.values.get(name))
    ]
    unshown = [task for task in models[0].config.tasks if task.name not in tasks]
    notes = (*measured.notes, *doubts, note_on_other_tasks(measured, unshown, explained))
    coverages = [model.origin.metadata.get("coverage") for model in models]
    guesses = chain.from_iterable(map(uninformative, coverages))
    size = (
        f"This page shows {count:,} of up to {LARGEST_TABLE:,} molecules. With more"
        f" than {SMOOTH:,} it scrolls slowly, has no map, and looks for cliffs in the first"
        f" {SMOOTH:,} alone: a limit makes it shorter."
    )
    return [*([size] * (count > SMOOTH)), *filter(None, notes), *guesses]


def page_parts(
    data: dict[str, Any], details: Iterable[dict[str, Any]], title: str, card: str
) -> Iterator[str]:
    """Yield the page as HTML, piece by piece.

    Args:
        data: JSON values, those of `page_data`.
        details: what each card shows, besides its record. They stand before the data in packed
            blocks, which the page unpacks when it shows one of their molecules.
        card: a model card, as Markdown.
    """
    folder = files(__package__)
    style, template = (
        (folder / name).read_text(encoding="utf-8") for name in ("report.css", "template.html")
    )
    style = style.replace("{{LEVELS}}", level_properties("{0}"))
    style = style.replace("{{DARK_LEVELS}}", level_properties("{1}"))
    script = "".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    decimals = max(0, 3 - math.floor(math.log10(data["limit"])))
    names: dict[str, None] = {}
    about = {"block": BLOCK, "feature_decimals": decimals}
    parts: dict[str, Callable[[], Iterable[str]]] = {
        "POLICY": lambda: [escape(security_policy(style, script))],
        "TITLE": lambda: [escape(CONTROL.sub(" ", title))],
        "STYLE": lambda: [style],
        "SCRIPT": lambda: [script],
        "DETAILS": lambda: _blocks(details, decimals, names),
        "DATA": lambda: [embedded(data | about | {"details": [*names]})],
        "CARD": lambda: [card_html(card)],
    }
    # A single pass fills all placeholders, so that inserted text is not searched for them.
    for k, part in enumerate(re.split(r"\{\{(\w+)\}\}", template)):
        yield from parts[part]() if k % 2 else [part]


def _blocks(
    details: Iterable[dict[str, Any]], decimals: int, names: dict[str, None]
) -> Iterator[str]:
    """Yield blocks of details, each as JSON that is deflated (RFC 1951) and in base 64.

    Fifty thousand molecules are so a third as long. The relevance of a feature is written as a
    whole number, in units of the last of these decimals. `names` gets the names of all details.
    """
    rest = iter(details)
    while block := list(islice(rest, BLOCK)):
        for molecule in block:
            names |= dict.fromkeys(molecule)
            if "features" in molecule:
                values = chain.from_iterable(molecule["features"])
                molecule["features"] = [round(value * 10**decimals) for value in values]
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        text = _json(block)
        packed = packer.compress(text.encode("utf-8", "replace")) + packer.flush()
        yield '<script type="text/plain" class="details">'
        yield f"{b64encode(packed).decode()}</script>\n"


def embedded(data: Any) -> str:
    """Return JSON that is safe inside an HTML script: no `<`, `>`, `&` or line separators."""
    text = _json(data)
    for character, reference in FORBIDDEN.items():
        text = text.replace(character, reference)
    return text.encode("utf-8", "replace").decode()  # a lone surrogate is not valid UTF-8


def _json(data: Any) -> str:
    """Return JSON whose texts cannot turn the direction of the page."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return CONTROL.sub(" ", text)


def card_html(markdown: str) -> str:
    """Turn a model card into HTML with headings, paragraphs, tables, lists and code.

    Links and images stay text, and everything else is escaped.
    """
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.disable(["link", "image", "autolink", "reference"])
    tokens = reader.parse(markdown)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"  # below the page's own headings
    return str(reader.renderer.render(tokens, reader.options, {}))
