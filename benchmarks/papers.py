"""Fill the columns on text and images of the papers' tables, where weights and data are given.

    python benchmarks/papers.py text bert.py:load sst2/dev.tsv --text-column sentence
    python benchmarks/papers.py text bert.py:load imdb.csv --text-column review
    python benchmarks/papers.py rationales bert.py:load eraser/movies
    python benchmarks/papers.py images vit.py:load imagenet/val

The weights are yours, and so is the code that reads them: `bert.py:load` is a function in a file,
which returns a wrapped model and how an input is encoded. For texts that is `encode(words)`, which
returns what the model takes and, for each of its nodes, the number of the word that it belongs to,
or -1. For images it is `encode(pixels)` of an array (H, W, 3) in [0, 1].

* `text`: AUAC and AU-MSE on 11 points (Ali 2022, tables 1 and 2), AOPC and LOdds (Song 2024, table
  1). The label is in the column `label`; a .tsv has tabs between its columns.
* `rationales`: token-F1 of the 10 to 80 most relevant words (Chefer 2021b, figure 4) on a folder as
  ERASER has it: `docs/`, and `test.jsonl` with a classification and evidences.
* `images`: positive and negative perturbation (Chefer 2021b, table 1) on a folder with a folder of
  pictures for each class, in the order of the model's classes.
"""

import argparse
import csv
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import graphxai as gx
from graphxai.evaluation import evaluate_truth
from graphxai.evaluation.ground_truth_report import detail

METHODS = (
    "transformer_attribution", "gae", "rollout", "attention_last", "lrp_zplus", "partial_lrp",
    "grad_cam", "gradient_input", "lrp_ah", "lrp_ln", "lrp_ah_ln", "lrp",
)  # fmt: skip
OF_TEXT = ("auac", "au_mse", "aopc", "lodds")
OF_IMAGES = ("positive_perturbation", "negative_perturbation")
TOP = range(10, 90, 10)  # words of a rationale

Encode = Callable[[Any], Any]


def loaded(place: str) -> tuple[Any, Encode]:
    """Call the function that `FILE.py:NAME` names, and return the model and its encoding."""
    file, colon, name = place.rpartition(":")
    if not colon or name not in (names := runpy.run_path(file)):
        raise SystemExit(f"{place}: write FILE.py:NAME, where NAME is a function in the file.")
    model, encode = names[name]()
    return model, encode


def text_rows(table: Path, column: str, limit: int) -> list[tuple[list[str], int]]:
    """Return the words and the label of the first rows of a table."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t" if table.suffix == ".tsv" else ","))
    return [(row[column].split(), int(row["label"])) for row in rows[:limit]]


def on_text(model: Any, encode: Encode, table: Path, column: str, limit: int) -> str:
    """Measure the curves of removed words, and return the table."""
    rows = text_rows(table, column, limit)
    inputs, labels = [encode(words)[0] for words, _ in rows], [label for _, label in rows]
    return measured(model, inputs, labels, OF_TEXT, steps=11)


def measured(
    model: Any, inputs: list[Any], labels: list[int], metrics: tuple[str, ...], **options: Any
) -> str:
    """Return the table of a report for the true classes."""
    report = gx.evaluate(model, inputs, METHODS, labels=labels, metrics=metrics, **options)
    frame = report.table().assign(passes=report.passes())
    lines = [f"| method | {' | '.join(frame.columns)} |", "|---" * (len(frame.columns) + 1) + "|"]
    lines += [f"| `{name}` | {' | '.join(row)} |" for name, row in frame.iterrows()]
    return "\n".join(lines)


def rationales(folder: Path, limit: int) -> list[tuple[list[str], str, np.ndarray]]:
    """Return the words, the class and the true words (W,) of each document with evidence."""
    documents = []
    for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        evidences = [each for group in document["evidences"] for each in group]
        if not evidences:
            continue
        words = (folder / "docs" / evidences[0]["docid"]).read_text(encoding="utf-8").split()
        true = np.zeros(len(words), dtype=bool)
        for each in evidences:
            true[each["start_token"] : each["end_token"]] = True
        documents.append((words, document["classification"], true))
    return documents[:limit]


def on_rationales(model: Any, encode: Encode, folder: Path, limit: int) -> str:
    """Measure whether the most relevant words are those that a reader named."""
    inputs, truths = [], []
    for words, _, true in rationales(folder, limit):
        nodes, word_of = encode(words)
        inputs.append(nodes)
        truths.append(np.array([word >= 0 and bool(true[word]) for word in word_of]))
    rows = evaluate_truth(model, inputs, truths, METHODS, top=TOP)
    return detail(rows[rows.metric.str.startswith("token_f1")], rows.attrs["seconds"])


def on_images(model: Any, encode: Encode, folder: Path, limit: int) -> str:
    """Measure positive and negative perturbation for the true class."""
    from PIL import Image

    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    chosen = [(path, k) for k, of in enumerate(classes) for path in sorted(of.iterdir())]
    chosen = chosen[:: max(1, len(chosen) // limit)][:limit]  # from all classes
    pixels = [np.asarray(Image.open(path).convert("RGB")) / 255 for path, _ in chosen]
    return measured(model, list(map(encode, pixels)), [k for _, k in chosen], OF_IMAGES, steps=11)


def main(arguments: list[str] | None = None) -> None:
    """Print the table that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("text", "rationales", "images"))
    parser.add_argument("model", help="FILE.py:NAME")
    parser.add_argument("data", type=Path)
    parser.add_argument("--text-column", default="sentence")
    parser.add_argument("--limit", type=int, default=200)
    chosen = parser.parse_args(arguments)
    model, encode = loaded(chosen.model)
    if chosen.kind == "text":
        print(on_text(model, encode, chosen.data, chosen.text_column, chosen.limit))
    elif chosen.kind == "rationales":
        print(on_rationales(model, encode, chosen.data, chosen.limit))
    else:
        print(on_images(model, encode, chosen.data, chosen.limit))


if __name__ == "__main__":
    main()
