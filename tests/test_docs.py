"""Pages name what exists, link to what is there, and describe all that is public."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from inspect import signature

import pytest
from reports import read_report

import graphxai as gx
from graphxai.datasets.training_set import EDGE, FAR
from graphxai.evaluation.metrics import METRICS, metric
from graphxai.explainers import REGISTRY, Random, Traits, register
from graphxai.models.graphormer import pretrained_names
from graphxai.tables.app.answers import LARGEST_FILE, LONGEST
from graphxai.tables.app.page import MAX_ATOMS
from graphxai.tables.app.tables import MAX_BASKET
from graphxai.tables.settings import LARGEST_TABLE, SMOOTH, ReportSettings
from pages import (
    COMMAND,
    DOCS,
    FENCE,
    LANGUAGES,
    LESS_WORK,
    PAGES,
    ROOT,
    blocks_of,
    commands_of,
)


@pytest.mark.parametrize("page", LESS_WORK)
def test_what_is_replaced_for_less_work_is_on_the_page(page):
    code = "".join(block.text for block in blocks_of(page))
    assert [much for much in LESS_WORK[page] if much not in code] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_block_has_a_known_language(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = blocks_of(page)
    assert len(blocks) * 2 == len(re.findall(r"^\s*```", text, re.MULTILINE)), "a fence is unpaired"
    for block in blocks:
        assert block.kind in LANGUAGES, f"{page}:{block.line}: {block.kind!r}"


def commands_that_set_up() -> list[str]:
    """Return each `make` and `pip` command of all pages once."""
    blocks = [block for page in PAGES for block in blocks_of(page) if block.kind == "sh"]
    words = [words for block in blocks for words in commands_of(block.text)]
    return sorted({shlex.join(w) for w in words if w[0] in ("make", "pip")})


def run_dry(words: list[str]) -> None:
    """Run `make` and `pip` dry if they would change the environment."""
    if words[0] == "pip":
        words = [sys.executable, "-m", *words, "--dry-run", "--no-deps", "--no-build-isolation"]
    else:
        words = [*words, "--dry-run"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
    assert done.stdout.strip()


@pytest.mark.parametrize("command", [c for c in commands_that_set_up() if c.startswith("make")])
def test_commands_of_make_run_without_installing(command):
    run_dry(shlex.split(command))


def test_commands_of_pip_run_without_installing():
    """Commands that differ only in what they install run as one, since pip starts slowly."""
    pytest.importorskip("setuptools", minversion="83")  # as `[build-system]` requires
    alike: dict[tuple[str, ...], list[str]] = {}
    for command in commands_that_set_up():
        *options, package = shlex.split(command)
        if options[0] == "pip":
            alike.setdefault(tuple(options), []).append(package)
    assert alike
    for options, packages in alike.items():
        run_dry([*options, *packages])


def test_extras_that_pip_is_asked_for_exist():
    """They are named in the documentation and in messages about missing extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {}
    for path in [*(ROOT / page for page in PAGES), *(ROOT / "graphxai").rglob("*.py")]:
        for extras in re.findall(r"(?:graphxai|\.)\[([a-z,]+)\]", path.read_text(encoding="utf-8")):
            named |= dict.fromkeys(extras.split(","), path)
    assert {"train", "parquet", "pdf"} <= set(named)
    assert set(named) <= set(project["optional-dependencies"]), named


def test_links_between_pages_and_pictures_exist():
    for page in PAGES:
        text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
        folder = (ROOT / page).parent
        targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
        targets += re.findall(r'<img src="([^"]+)"', text)
        targets += re.findall(r"^:::+\{figure\} (\S+)$", text, re.MULTILINE)
        for target in targets:
            assert "://" in target or (folder / target).exists(), f"{page}: {target}"


DOCUMENTED = {
    match
    for page in (DOCS / "api").glob("*.md")
    for match in re.findall(
        r"^\.\. (?:auto|py:)\w+:: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE
    )
}


@pytest.mark.parametrize(
    "package",
    [
        "graphxai",
        "graphxai.wrapping",
        "graphxai.evaluation",
        "graphxai.explainers",
        "graphxai.models.graphormer",
        "graphxai.tables.report",
        "graphxai.visualization",
    ],
)
def test_every_public_name_is_in_the_reference(package):
    module = import_module(package)
    described = {id(documented(path)) for path in DOCUMENTED}
    assert [name for name in module.__all__ if id(getattr(module, name)) not in described] == []


@pytest.mark.parametrize("page", sorted((DOCS / "api").glob("*.md")), ids=lambda page: page.stem)
def test_every_function_and_class_of_the_reference_is_used_in_an_example_beside_it(page):
    """The examples run in `walkthroughs/test_pages.py`."""
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"^\.\. auto(?:function|class|exception):: (\S+)", text, re.MULTILINE)
    used = set()
    for block in blocks_of(page.relative_to(ROOT).as_posix()):
        if block.kind == "python":
            nodes = list(ast.walk(ast.parse(block.text)))
            used |= {node.id for node in nodes if isinstance(node, ast.Name)}
            used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert [path for path in paths if path.rpartition(".")[2] not in used] == []


def documented(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def test_every_command_is_on_the_command_line_page():
    text = (DOCS / "api" / "command-line.md").read_text(encoding="utf-8")
    assert [name for name in COMMAND.commands if f"`graphxai {name}`" not in text] == []


@pytest.fixture
def registry_tables(monkeypatch):
    """Load Sphinx's extension that makes tables from the registries."""
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    return import_module("registry_tables")


def built(page: str, registry_tables) -> str:
    """Return the Markdown of a page as Sphinx reads it."""
    return registry_tables.filled((DOCS / page).read_text(encoding="utf-8"))


def test_a_new_method_is_in_the_table_and_among_the_definitions(registry_tables, kept_registries):
    def further() -> str:
        """The methods that the page defines by their docstrings."""
        return built("theory/explainers.md", registry_tables).partition("## Further methods")[2]

    # the methods of the papers are defined by hand, those that someone adds by their docstrings
    papers = (
        "lrp",
        "gradient_input",
        "gae",
        "rollout",
        "attention_flow",
        "masked_lrp",
        "occlusion",
    )
    assert not any(f"`{name}`\n:" in further() for name in (*papers, "smoothgrad", "oldest"))

    @register
    class Oldest(Random):
        """Position in the file, |counted| from the first node. Nothing else."""

        name, source = "oldest", "Methuselah 969"
        traits = Traits(large_score_means="early")

    assert "`oldest`\n: Position in the file, |counted| from the first node." in further()
    (row,) = re.findall(r"^\| `oldest` .*$", built("methods.md", registry_tables), re.MULTILINE)
    assert r"| Position in the file, \|counted\| from the first node. | Methuselah 969 |" in row
    assert row.endswith("| scores without a sign (early) |")


def test_a_new_metric_is_in_the_table(registry_tables, kept_registries):
    @metric(False, "this test", classes_only=True)
    def middle(series):
        """Output with half of the nodes."""

    page = built("theory/evaluation.md", registry_tables)
    assert (
        "| `middle` | lower | Output with half of the nodes. Only for classes. | this test |"
        in page
    )


def test_tables_have_a_row_for_each_method_metric_and_model(registry_tables):
    tables = {
        "methods.md": REGISTRY,
        "theory/evaluation.md": METRICS,
        "models.md": pretrained_names(),
    }
    for page, names in tables.items():
        rows = re.findall(r"^\| `([\w-]+)` \|", built(page, registry_tables), re.MULTILINE)
        assert set(names) <= set(rows), page


def test_every_place_for_a_table_is_filled(registry_tables):
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "made from the registry:" not in registry_tables.filled(text), page


def test_methods_said_to_be_checked_exist():
    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    section = text.partition("## What each was checked against")[2].partition("\n## ")[0]
    named = re.findall(r"`([a-z_]+)`", section)
    assert len(named) > 20
    assert set(named) <= REGISTRY.keys()


def test_the_readme_activates_the_environment_before_its_first_command():
    words = [w for b in blocks_of("README.md") if b.kind == "sh" for w in commands_of(b.text)]
    assert words.index(["source", ".venv/bin/activate"]) < min(
        at for at, command in enumerate(words) if command[0] == "graphxai"
    )


def test_docstrings_become_restructuredtext(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    to_rst = import_module("markdown_docstrings").to_rst
    assert to_rst("`a * b` of |x| and y_") == r"``a * b`` of \|x\| and y\_"
    assert to_rst("*args, ``kept``") == r"\*args, ``kept``"
    assert to_rst("A list:\n\n* of *x*\n  * and y") == "A list:\n\n* of \\*x\\*\n  * and y"


def test_parameters_have_their_types_defaults_and_the_words_of_their_settings(monkeypatch):
    pytest.importorskip("sphinx", reason="sphinx is not installed")
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    complete = import_module("parameter_lists").complete
    lines = (gx.report.__doc__ or "").split("\n")
    complete(None, "function", "gx.report", gx.report, None, lines)
    at = lines.index("    level: `float = 0.9`")
    assert lines[at + 1].strip().startswith("How often intervals and sets")
    assert lines.count("Args:") == 1
    listed = {match[1] for line in lines if (match := re.match(r" {4}(\w+): ", line))}
    assert set(signature(gx.report).parameters) - {"settings"} <= listed


def test_an_old_address_leads_to_a_section_that_is_there(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    for old, new in import_module("moved_pages").MOVED.items():
        page, _, anchor = new.partition("#")
        text = (DOCS / page.replace(".html", ".md")).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}, old
        assert not (DOCS / f"{old}.md").exists()


def test_the_exchanges_on_the_first_screen_are_those_of_the_live_report():
    """It says what the model gives for two exchanges, and what the measured one gave."""
    report = json.dumps(read_report(DOCS / "static" / "report.html"), ensure_ascii=False)
    gained, chlorine = re.search(
        r'"aromatic H to chloro".*?pIC50 .([\d.]+) in 1 pair.*?"pIC50: (\+[\d.]+)', report
    ).groups()
    alkyne = re.search(
        r'C#CCH3, fluoro", "source"[^{}]*?"exchange never measured.*?"pIC50: (\+[\d.]+)', report
    )[1]
    shown = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert (
        f"a chlorine on a ring, for {chlorine}, and another ring with an alkyne, for {alkyne}."
        in shown
    )
    assert (
        f"The first exchange was measured once, and gained {gained}; the second never was." in shown
    )


@pytest.mark.parametrize(
    ("page", "stated"),
    [
        ("trust.md", f"{EDGE} and {FAR} for the similarity"),
        ("howto/app.md", f"up to {LARGEST_TABLE:,} rows and {LARGEST_FILE // 10**6} MB"),
        (
            "howto/app.md",
            f"{MAX_ATOMS} atoms for a molecule, {LARGEST_FILE // 10**6} MB for a file,",
        ),
        ("howto/app.md", f"{MAX_BASKET} molecules for a basket and {LONGEST / 60:.0f} minutes"),
        ("howto/tables.md", f"molecules get one (by default {ReportSettings().detailed})"),
        ("howto/tables.md", f"up to {LARGEST_TABLE:,} molecules. With more than {SMOOTH:,}"),
    ],
)
def test_a_limit_is_on_the_pages_what_it_is_in_the_code(page, stated):
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    assert stated in text
