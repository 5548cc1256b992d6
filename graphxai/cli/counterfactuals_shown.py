"""Print what `graphxai counterfactuals` found as a table in the terminal."""

from typing import TYPE_CHECKING

from .terminal import printable

if TYPE_CHECKING:
    from graphxai.chemistry.counterfactuals import Counterfactuals
    from graphxai.chemistry.profile_results import ProfileCounterfactuals


def print_changes(results: "Counterfactuals") -> None:
    """Print a table with a row for each counterfactual."""
    from rich.console import Console  # typer brings it
    from rich.markup import escape
    from rich.table import Column, Table

    from graphxai.chemistry.counterfactual_results import AT_CHANGE, percent

    title = f"{results.explanation.prediction.in_full}, towards {results.goal}"
    shown = Table(
        Column("change", overflow="fold"),
        Column("SMILES", overflow="fold"),
        "prediction",
        "predicted change",
        AT_CHANGE,
        "similarity",
        *(["measured"] if any(change.measured for change in results) else []),
        title=escape(printable(title)),
        title_justify="left",
    )
    for change, share in zip(results, results.at_change, strict=True):
        predicted = f"{change.prediction}, sure" if change.sure else str(change.prediction)
        if change.isomers:
            values = ", ".join(str(prediction) for _, prediction in change.isomers)
            predicted += f", worst of its isomers ({values})"
        cells = [change.changes, change.smiles, predicted, change.change_in_full, percent(share)]
        cells += [
            f"{change.similarity:.2f}",
            *([change.measured.sentence] if change.measured else []),
        ]
        shown.add_row(*(escape(printable(cell)) for cell in cells))
    Console().print(shown)


def print_profile_changes(results: "ProfileCounterfactuals") -> None:
    """Print a table with the molecule and each change, and what it does to all properties."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from graphxai.chemistry.measurements import sentence_about

    goals = [part.goal for part in results.score.parts]
    measured = any(change.measured for change in results)
    shown = Table(
        Column("change", overflow="fold"),
        Column("SMILES", overflow="fold"),
        "desirability",
        *(escape(printable(str(goal))) for goal in goals),
        *(["measured"] if measured else []),
        title=escape(printable(f"towards {results.profile}")),
        title_justify="left",
    )
    rows = [("the molecule", results.smiles, results.score, "")]
    rows += [(c.changes, c.smiles, c.score, sentence_about(c.measured)) for c in results]
    for name, smiles, score, sentence in rows:
        parts = [f"{part.prediction}: {part.desirability or 0:.2f}" for part in score.parts]
        cells = [
            name,
            smiles,
            f"{score.overall or 0:.2f}",
            *parts,
            *([sentence] if measured else []),
        ]
        shown.add_row(*(escape(printable(cell)) for cell in cells))
    Console().print(shown)
