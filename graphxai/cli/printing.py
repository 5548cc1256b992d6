"""What the command line prints of explanations, predictions, changes and scores."""

from collections.abc import Mapping, Sequence
from textwrap import fill, indent
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console  # typer brings it

from graphxai.explanation.explanation import Explanation, about_output, about_terms
from graphxai.explanation.prediction import Prediction

from .answers import INVOCATION
from .terminal import echo, print_table, printable, show, tell

if TYPE_CHECKING:
    from graphxai.chemistry.search.counterfactual_results import (
        Counterfactuals,
        ProfileCounterfactuals,
    )

SHOWN_NODES = 5
Rows = list[list[str]]


def print_explanation(explanation: Explanation) -> None:
    """Print the predictions, the ledger if scores add up to the output, and the top nodes."""
    echo(f"{explanation.prediction.task}: {explanation.prediction.in_full}")
    for other in explanation.predictions:
        if other.task != explanation.prediction.task:
            echo(f"{other.task}: {other.in_full}")
    print_note(explanation.note)
    print_nearness(explanation.prediction)
    unit = f" in {explanation.unit}" if explanation.unit and explanation.additive else ""
    echo(f"{explanation.title}, relevance for {explanation.target}{unit}:")
    if explanation.ledger:
        echo(indent(str(explanation.ledger), "  "))
    else:
        caveat = f" ({explanation.caveat})" if explanation.caveat else ""
        echo(f"  scores, not shares of the output {explanation.output:+z.4f}{caveat}")
    order = np.argsort(-np.abs(explanation.relevance), kind="stable")
    molecule, given = explanation.molecule, explanation.as_given
    echo(f"  most relevant {'nodes' if molecule is None else 'atoms'}{explanation.spread_note}:")
    for node in order[:SHOWN_NODES].tolist():
        symbol = "" if molecule is None else molecule.GetAtomWithIdx(node).GetSymbol()
        number = node if given is None else given.atoms[node]  # as in the picture
        echo(f"    {f'{symbol}{number}':6s} {explanation.format_node(node)}")


def print_changes(results: "Counterfactuals | ProfileCounterfactuals") -> None:
    """Print a table with a row for each change. Several goals have one for the molecule too."""
    from graphxai.chemistry.search.counterfactual_results import AT_CHANGE, Counterfactuals, percent

    rows: Rows = []
    if isinstance(results, Counterfactuals):
        title = f"{results.explanation.prediction.in_full}, towards {results.goal}"
        columns = ["prediction", "predicted change", AT_CHANGE, "similarity"]
        for change, share in zip(results, results.at_change, strict=True):
            predicted = f"{change.prediction}, sure" if change.sure else str(change.prediction)
            if change.isomers:
                values = ", ".join(str(prediction) for _, prediction in change.isomers)
                predicted += f", worst of its isomers ({values})"
            cells = [predicted, change.change_in_full, percent(share), f"{change.similarity:.2f}"]
            rows.append([change.changes, change.smiles, *cells, change.measured_sentence])
    else:
        title = f"towards {results.profile}"
        columns = ["desirability", *(str(part.goal) for part in results.score.parts)]
        changes = [(each.changes, each, each.measured_sentence) for each in results]
        for name, each, sentence in [("the molecule", results, ""), *changes]:
            parts = [
                f"{part.prediction}: {part.desirability or 0:.2f}" for part in each.score.parts
            ]
            rows.append([name, each.smiles, f"{each.score.overall or 0:.2f}", *parts, sentence])
    measured = ["measured"] if any(change.measured for change in results) else []
    names = ("change", "SMILES", *columns, *measured)
    looks = {name: {"overflow": "fold"} if name in ("change", "SMILES") else {} for name in names}
    print_table(looks, [row[: len(names)] for row in rows], title=title, title_justify="left")


def print_note(note: str) -> None:
    """Print what was done to the molecule that was given, and nothing if it was left as it is."""
    if note:
        echo(f"molecule: {note}")


def print_nearness(prediction: Prediction) -> None:
    """Print how near a molecule is to the training set, and nothing for a picture."""
    if prediction.nearness is not None:
        echo(f"training set: {prediction.nearness.sentence}")


def nearness_line(counts: Mapping[str, int]) -> str:
    """Say how near the rows of a table are to the training set, in one line."""
    total = sum(counts.values())
    if counts.get("unknown", 0) == total:
        return "training set: unknown, so nothing is said about how near the rows are"
    words = {"far": "far from it", "edge": "at its edge", "near": "near it"}
    parts = [f"{counts[word]} {text}" for word, text in words.items() if counts.get(word)]
    if inside := counts.get("training compound"):
        parts.append("1 a training compound" if inside == 1 else f"{inside} training compounds")
    return f"training set: of {total} rows, {', '.join(parts)} (column training_set)"


def print_glossary(explanations: Sequence[Explanation]) -> None:
    """Tell in a few lines what the words above mean, once for all methods."""
    terms = {name: text for e in explanations for name, text in about_terms(e).items()}
    terms.pop("unexplained", None)
    listed = "; ".join(f"{name}: {text}" for name, text in terms.items())
    for text in (about_output(explanations[0]), listed and f"{listed[0].upper()}{listed[1:]}."):
        if text:
            tell(fill(text, 78, initial_indent="  ", subsequent_indent="  "))


SHORTEST_NAME = 8  # characters of the first column in a narrow terminal


def print_scores(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Print a table whose first column has names, and the others numbers.

    In a terminal that is too narrow, intervals in brackets take a second line. If even that is too
    wide, they are left out, and names and headings take several lines.

    Returns:
        Whether the intervals were printed.
    """
    if INVOCATION.json or INVOCATION.streams_a_file:
        return True
    console, titled = Console(), {"title": title, "title_justify": "left"}
    whole = [list(map(printable, row)) for row in (header, *rows)]
    two_lines = [[cell.replace(" to ", "\nto ") for cell in row] for row in whole]
    for cells, compact in ((whole, False), (two_lines, False), (two_lines, True)):
        widths = [_widest(column, "\n") for column in zip(*cells, strict=True)]
        between = len(widths) if compact else 3 * len(widths) + 1
        if sum(widths) + between <= console.width:
            unbroken = [(heading, {"no_wrap": True}) for heading in cells[0]]
            show(console, unbroken, cells[1:], compact=compact, **titled)
            return True
    values = [[row[0], *(cell.partition(" (")[0] for cell in row[1:])] for row in whole]
    names, *numbers = zip(*values, strict=True)
    widths = [_widest(column) for column in numbers]
    left = console.width - sum(widths) - len(widths)
    widths.insert(0, max(SHORTEST_NAME, min(left, max(map(len, names)))))
    looks = ({"width": width, "overflow": "fold"} for width in widths)
    show(console, zip(values[0], looks, strict=True), values[1:], compact=True, **titled)
    return False


def _widest(column: Sequence[str], separator: str | None = None) -> int:
    """Return the length of the longest line of a column's cells, or of the longest word."""
    return max(len(part) for cell in column for part in cell.split(separator) or [""])
