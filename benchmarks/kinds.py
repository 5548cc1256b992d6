"""List which kinds of wrapped models are explained by which methods, and what is refused.

Every method that is registered explains a small model of each kind, and everything else that can be
asked of a model is asked: `python benchmarks/kinds.py` writes `results/kinds.md`, which the pages
show.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from kinds_of_models import KINDS, QUESTIONS, answer_of_method, answer_to  # noqa: E402

from graphxai.explainers import REGISTRY  # noqa: E402

TARGET = ROOT / "benchmarks" / "results" / "kinds.md"


Answers = dict[str, dict[str, str]]  # by kind and by what was asked: "" or why it was refused


def answers() -> Answers:
    """Ask everything of a model of every kind."""
    return {
        name: {f"`{method}`": answer_of_method(kind, method) for method in REGISTRY}
        | {question: answer_to(kind, question) for question in QUESTIONS}
        for name, kind in KINDS.items()
    }


def page(given: Answers) -> str:
    """Return the page: each kind with the numbers of its refusals, and their first sentences."""
    of_all = {
        asked
        for asked, why in next(iter(given.values())).items()
        if why and all(row[asked] == why for row in given.values())
    }
    numbers: dict[tuple[tuple[str, ...], str], int] = {}
    lines = []
    for name, row in given.items():
        refused: dict[str, list[str]] = {}
        for asked, why in row.items():
            if why and asked not in of_all:
                refused.setdefault(first_sentence(why), []).append(asked)
        of_kind = [
            str(numbers.setdefault((tuple(asked), why), len(numbers) + 1))
            for why, asked in refused.items()
        ]
        example = first_line(KINDS[name].module)
        lines.append(f"* {name}: {example}: {', '.join(of_kind) or 'nothing'}")
    return "\n".join(
        [
            "# Kinds of models by methods",
            "",
            "Made by `python benchmarks/kinds.py`. Numbers are refusals. The rest is answered, save"
            f" {' and '.join(sorted(of_all))}, which every kind refuses: {len(REGISTRY)} methods,"
            f" {', '.join(QUESTIONS)}.",
            "",
            *lines,
            "",
            *(f"{number}. {', '.join(asked)}: {why}" for (asked, why), number in numbers.items()),
            "",
        ]
    )


def first_sentence(why: str) -> str:
    """Return the first sentence of a refusal."""
    return why.partition(". ")[0].removesuffix(".")


def first_line(module: type) -> str:
    """Return the first line of a class's docstring, to follow a colon."""
    line = (module.__doc__ or "").partition("\n")[0].rstrip(".")
    return line[:1].lower() + line[1:]


if __name__ == "__main__":
    TARGET.write_text(page(answers()), encoding="utf-8")
