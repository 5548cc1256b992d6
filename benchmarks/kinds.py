"""List which kinds of wrapped models are explained by which methods, and how others are refused.

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


def table() -> str:
    """Return the page: rows of methods and of questions, and the sentences of refusals."""
    sentences: dict[str, int] = {}

    def cell(sentence: str) -> str:
        return f"{sentences.setdefault(sentence, len(sentences) + 1)}" if sentence else "yes"

    alike: dict[tuple[str, ...], list[str]] = {}  # methods with the same answers share a row
    for method in REGISTRY:
        answers = tuple(cell(answer_of_method(kind, method)) for kind in KINDS.values())
        alike.setdefault(answers, []).append(f"`{method}`")
    rows = [(", ".join(methods), *answers) for answers, methods in alike.items()]
    rows += [
        (question, *(cell(answer_to(kind, question)) for kind in KINDS.values()))
        for question in QUESTIONS
    ]
    examples = (f"{name}: {first_line(kind.module)}" for name, kind in KINDS.items())
    return "\n".join(
        [
            "# Kinds of models by methods",
            "",
            "A number stands for the sentence with which a method refuses. Made by"
            " `python benchmarks/kinds.py`, with a small model of each kind:",
            "",
            *(f"* {example}" for example in examples),
            "",
            f"| | {' | '.join(KINDS)} |",
            f"|---|{'---|' * len(KINDS)}",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            *(f"{number}. {sentence}" for sentence, number in sentences.items()),
            "",
        ]
    )


def first_line(module: type) -> str:
    """Return the first line of a class's docstring, to follow a colon."""
    line = (module.__doc__ or "").partition("\n")[0].rstrip(".")
    return line[:1].lower() + line[1:]


if __name__ == "__main__":
    TARGET.write_text(table(), encoding="utf-8")
