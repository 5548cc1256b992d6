"""Read the pages of the documentation: their blocks of code, and a folder to run them in."""

import contextlib
import csv
import gzip
import io
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from graphxai.cli import main as cli
from graphxai.datasets.samples import example_files
from graphxai.evaluation import Report
from graphxai.learning.recipes.rules import TRAINING
from graphxai.models.graphormer import locate
from other_models import quick_explainer

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    if not {"_build", "benchmarks"} & set(page.parts)  # both are made by `make docs`
)
FENCE = re.compile(
    r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LANGUAGES = {"python", "sh", "text", "{eval-rst}"}
PLATFORM = "docs/howto/platform.md"
CHEMPROP = "docs/howto/other-models.md"  # its blocks of chemprop stand under this heading:
NEEDS_CHEMPROP = "A model of chemprop"
ENGINES = ("ray", "pyspark", "dask", "fastapi")  # each has a test of its own, if it is installed
COMMAND = typer.main.get_command(cli.app)
# Commands as pages show them take minutes to hours, so here they get these options. Tables that are
# trained on have few rows, forests have few trees, methods that sample or learn take few steps, and
# reports come without figures.
CHEAPER = {
    "train": ["--epochs", "1", "--no-teacher"],
    "train motifs": ["--epochs", "1", "--no-baselines"],
    "benchmark": ["--limit", "2", "--steps", "5"],
    "benchmark rules": ["--limit", "2", "--methods", "lrp,gae"],  # has no curves with steps
    "report": ["--detailed", "1"],
    "fit-explainer": ["--graphs", "20", "--epochs", "1"],
    "fit-masked-atoms": ["--epochs", "1"],
    "counterfactuals": ["--predictions", "50"],
}
ROWS = 60  # of a table that a command trains on
# Replacements, by page, with which a block does the same kind of thing in less time. None of these
# blocks says what it prints.
LESS_WORK = {
    "docs/howto/own-graphs.md": {
        "1, 500, tree": "1, 20, tree",
        "epochs=2": "epochs=1",
        "[:100]": "[:20]",
        "[70, 71, 72]": "[70, 71]",
    },
    "docs/howto/counterfactuals.md": {"predictions=100": "predictions=20"},
}
OFFICIAL = [["benchmark", "bace"], ["benchmark", "mnist-superpixels"]]  # need official data


@dataclass(frozen=True)
class Block:
    """A fenced block: language, first line, text, what it prints, the heading above it."""

    kind: str
    line: int
    text: str
    prints: str | None = None
    section: str = ""


def blocks_of(page: str) -> list[Block]:
    source = (ROOT / page).read_text(encoding="utf-8")
    fences = list(FENCE.finditer(source))
    blocks = []
    for match, after in pairwise([*fences, None]):
        prints = None
        if after and after["kind"] == "text" and not source[match.end() : after.start()].strip():
            prints = after["text"]
        line = source.count("\n", 0, match.start("text")) + 1
        headings = re.findall(r"^## (.*)$", source[: match.start()], re.MULTILINE)
        section = headings[-1] if headings else ""
        blocks.append(Block(match["kind"], line, match["text"], prints, section))
    return blocks


def commands_of(text: str) -> list[list[str]]:
    """Return the words of each command in a shell block; a backslash continues a line."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def parse(words: list[str]) -> None:
    """Check a `graphxai` command's name and options without running it."""
    context = COMMAND.make_context("graphxai", list(words), resilient_parsing=True)
    if words[0].startswith("-"):  # an option of graphxai itself, such as --schema
        assert words[0] in {name for option in COMMAND.params for name in option.opts}
        return
    name, command, rest = COMMAND.resolve_command(context, words)
    command.make_context(name, rest, parent=context)


def sketched(report: Report, kind: str, stem: Path, operator: str | None) -> None:
    """Draw the figures of reports small: the large ones, tested elsewhere, take longer."""
    figure = report.plot(kind, operator=operator)
    figure.set_layout_engine("none")
    figure.savefig(stem.with_suffix(".png"), dpi=30)


def left_out(report: Report, kind: str, stem: Path, operator: str | None) -> None:
    """Write an empty file in place of a figure, which is drawn where reports are tested."""
    stem.with_suffix(".png").touch()


def with_fewer_rows(words: list[str]) -> list[str]:
    """Return a command that trains on the first rows of its table."""
    if words[0] != "train" or not words[1].endswith(".csv"):
        return words
    table = Path(words[1])
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    short = table.with_stem(f"{table.stem}_short")
    short.write_text("".join(lines[: ROWS + 1]), encoding="utf-8")
    return [words[0], str(short), *words[2:]]


def run(words: list[str], monkeypatch) -> None:
    monkeypatch.setattr("graphxai.learning.teachers.forests.TREES", 30)
    monkeypatch.setattr("graphxai.learning.scores.RESAMPLES", 50)
    monkeypatch.setattr("graphxai.explainers.get_explainer", quick_explainer)
    monkeypatch.setitem(TRAINING, "indole", {"size": 60, "epochs": 1})
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    cheaper = CHEAPER.get(" ".join(words[:2]), CHEAPER.get(words[0], []))
    if "process" in words:  # which has neither epochs nor a teacher
        cheaper = []
    monkeypatch.setattr(sys, "argv", ["graphxai", *with_fewer_rows(words), *cheaper])
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0, f"graphxai {shlex.join(words)} failed"


def files_of_the_reader(folder: Path, page: str) -> None:
    """Put what `graphxai examples .` writes and a published checkpoint into a page's folder.

    A page on benchmarks also finds a model, its test set, and a library. The README finds nothing:
    its commands are typed as they stand.
    """
    if page == "README.md":
        return
    for name, path in example_files().items():
        shutil.copy(path, folder / name)
    published = ROOT / "tests" / "data" / "reference" / "postln"
    (folder / "folder").mkdir()
    shutil.copy(published / "config.json", folder / "folder")
    weights = gzip.decompress((published / "model.safetensors.gz").read_bytes())
    (folder / "folder" / "model.safetensors").write_bytes(weights)
    if page == "docs/get-started.md":
        (folder / "mine.csv").write_text("name,smiles\nphenol,Oc1ccccc1\naniline,Nc1ccccc1\n")
    if page == CHEMPROP:
        shutil.copytree(ROOT / "tests/data/chemprop/run_2.2.4", folder / "solubility_run")
    if page == "docs/howto/researcher.md":
        shutil.copytree(locate("bace"), folder / "runs" / "mine")
        write_assay(folder / "runs" / "mine" / "test.csv", rows=10)
        shutil.copy(locate("bace") / "training.csv", folder / "library.csv")


def write_assay(path: Path, rows: int) -> None:
    """Write the bundled model's first training compounds to a table, with values of pIC50."""
    with (locate("bace") / "training.csv").open() as file:
        smiles = [row["smiles"] for _, row in zip(range(rows), csv.DictReader(file), strict=False)]
    lines = [f"{text},{5 + k % 3}" for k, text in enumerate(smiles)]
    path.write_text("\n".join(["smiles,pIC50", *lines]) + "\n")


def with_less_work(block: Block, page: str) -> str:
    """Return the text of a block with the replacements in `LESS_WORK`."""
    text = block.text
    for much, little in LESS_WORK.get(page, {}).items():
        assert much not in text or block.prints is None, f"{page}:{block.line} says what it prints"
        text = text.replace(much, little)
    return text


def run_block(block: Block, page: str, names: dict, monkeypatch) -> None:
    monkeypatch.setattr("graphxai.evaluation.output._save", left_out)
    if block.kind == "python":
        code = compile("\n" * (block.line - 1) + with_less_work(block, page), page, "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        if block.prints is not None:
            said = printed.getvalue()
            assert said.split() == block.prints.split(), f"{page}:{block.line} prints {said}"
    elif block.kind == "sh":
        for words in commands_of(block.text):
            if words[0] == "graphxai":
                parse(words[1:])
                if words[1:3] not in OFFICIAL:
                    run(words[1:], monkeypatch)


def engine_of(block: Block) -> str | None:
    """Return the engine that a block of the page for platform engineers needs, or None."""
    marks = {"ray": ("import ray", "--engine ray", "cluster/"), "pyspark": ("pyspark",)}
    marks |= {"dask": ("import dask",), "fastapi": ("from fastapi",)}
    return next((e for e in ENGINES if any(mark in block.text for mark in marks[e])), None)


def run_blocks_for(engine: str, folder: Path, monkeypatch) -> None:
    """Run the blocks of the page for platform engineers that need this engine, on its table."""
    files_of_the_reader(folder, PLATFORM)
    monkeypatch.chdir(folder)
    names: dict = {"__name__": "page"}
    exec("import json\nfrom pathlib import Path\nimport pandas as pd\nimport graphxai as gx", names)
    names["pd"].read_csv("molecules.csv").to_parquet("molecules.parquet")
    blocks = [block for block in blocks_of(PLATFORM) if engine_of(block) == engine]
    assert blocks
    for block in blocks:
        run_block(block, PLATFORM, names, monkeypatch)
