"""Try each extra alone, beside the package installed from its wheel.

    python .ci/extras.py              # every extra: half an hour and 5 GB of disk
    python .ci/extras.py excel app

The wheel is installed with the pinned versions into a clean environment. Each extra gets a copy of
that environment. There, what the extra is for first has to fail with the command that installs the
extra, and after that command it has to work.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from versions import ROOT, project, run, variables

BASE = ROOT / ".venv-extras"
DEVELOPERS = ("test", "types", "release", "docs")
DIGIT = ROOT / "datasets" / "sample_digits" / "7.png"
CHEMPROP = ROOT / "tests" / "data" / "chemprop" / "run_2.2.4"

PDF = """
from graphxai.cli.main import app
app(["explain", "CCO", "--out", "one.pdf"], standalone_mode=False)
content = open("one.pdf", "rb").read()
assert b"/Subtype /Image" not in content, "the page is an image"
"""
FAST = """
from graphxai.models.graphormer import encoding
assert encoding.compiled_bags() is not encoding.averaged_bags, "nothing is compiled"
"""
EXCEL = """
from pathlib import Path
try:
    import openpyxl
except ImportError:
    Path("table.xlsx").write_bytes(b"PK\x03\x04")
else:
    book = openpyxl.Workbook()
    book.active.append(["smiles"])
    book.active.append(["CCO"])
    book.save("table.xlsx")
from graphxai.cli.main import app
app(["predict", "table.xlsx", "--out", "predicted.csv"], standalone_mode=False)
"""
APP = """
import re, subprocess, sys, urllib.request
command = [sys.executable, "-m", "graphxai", "app", "--no-browser"]
process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    printed = ""
    for line in process.stdout:
        printed += line
        if address := re.search(r"http://\\S+", line):
            assert urllib.request.urlopen(address[0]).status == 200
            break
    else:
        sys.exit(printed)
finally:
    process.terminate()
"""


@dataclass(frozen=True)
class Use:
    """What an extra is for.

    command: arguments of `graphxai`, or else a script.
    needed: whether it fails without the extra.
    """

    command: str = ""
    script: str = ""
    needed: bool = True


USES = {
    "images": Use(f"explain {DIGIT} --model mnist-superpixels --out digit.svg"),
    "train": Use(
        "train table.csv --target-column length --split random --epochs 1 --no-teacher --out run"
    ),
    "parquet": Use("explain table.csv --out explained --pictures none --format csv,parquet"),
    "excel": Use(script=EXCEL),
    "fast": Use(script=FAST, needed=False),
    "counterfactuals": Use("counterfactuals CCO --towards active --sources selfies --out c.csv"),
    "scale": Use("explain table.csv --engine ray --out shards"),
    "app": Use(script=APP),
    "notebook": Use(script="import graphxai as gx\nassert gx.explore('bace', 'CCO').smiles"),
    "pdf": Use(script=PDF, needed=False),
    "chemprop": Use(f"predict CCO --model {CHEMPROP}"),
}


def main() -> None:
    """Try the extras that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", default=USES, help=f"of {', '.join(USES)}")
    options = parser.parse_args()
    declared = set(project()["optional-dependencies"]) - set(DEVELOPERS)
    if declared != set(USES):
        raise SystemExit(f"extras: tried are {sorted(USES)}, but declared {sorted(declared)}")
    with tempfile.TemporaryDirectory() as folder:
        wheel = install(Path(folder))
        faults = [fault for extra in options.extras for fault in tried(extra, wheel, Path(folder))]
    sys.exit("\n".join(faults) if faults else None)


def install(folder: Path) -> Path:
    """Build the wheel, install it into a clean environment, and return it."""
    shutil.rmtree(BASE, ignore_errors=True)
    run(sys.executable, "-m", "venv", BASE)
    pip = pip_in(BASE)
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("graphxai-*.whl")
    run(*pip, "install", "--constraint", ROOT / "constraints.txt", wheel)
    return wheel


def tried(extra: str, wheel: Path, folder: Path) -> list[str]:
    """Try an extra in a copy of the environment, and return what went wrong."""
    environment = BASE.with_name(f"{BASE.name}-{extra}")
    shutil.rmtree(environment, ignore_errors=True)
    # Links in place of copies: pip replaces files, and changes none.
    run("cp", "--archive", "--link", BASE, environment)
    place = folder / extra
    place.mkdir()
    rows = [f"{'C' * n}{end},{n + len(end)}" for n in range(1, 16) for end in ("O", "N", "Cl")]
    (place / "table.csv").write_text("\n".join(["smiles,length", *rows]) + "\n")
    faults = []
    status, said = used(environment, USES[extra], place)
    command = f'in your copy of the repository, run `pip install -c constraints.txt ".[{extra}]"`'
    if USES[extra].needed and (status == 0 or command not in " ".join(said.split())):
        faults.append(f"extras: without {extra}, status {status}:\n{said[-2000:]}")
    constraints = ROOT / "constraints.txt"
    run(*pip_in(environment), "install", "--constraint", constraints, f"{wheel}[{extra}]")
    status, said = used(environment, USES[extra], place)
    if status:
        faults.append(f"extras: with {extra}, status {status}:\n{said[-2000:]}")
    print(f"extras: {extra} {'fails' if faults else 'works alone'}", flush=True)
    shutil.rmtree(environment)
    return faults


def used(environment: Path, use: Use, place: Path) -> tuple[int, str]:
    """Do what the extra is for, and return the status and what was printed."""
    rest = ["-c", use.script] if use.script else ["-m", "graphxai", *use.command.split()]
    done = subprocess.run(
        [environment / "bin" / "python", "-I", *rest],
        cwd=place,
        env=variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def pip_in(environment: Path) -> tuple[str | Path, ...]:
    """Return the command of pip in an environment that may be a copy of another."""
    python = environment / "bin" / "python"
    return python, "-m", "pip", "--disable-pip-version-check", "--quiet"


if __name__ == "__main__":
    main()
