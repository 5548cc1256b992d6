"""Try the package, installed alone from its wheel, with its lowest or newest dependencies.

    python .ci/versions.py lowest
    python .ci/versions.py newest --torch 2.13.0

In a clean environment, which is deleted first, this runs commands, explains a wrapped model, trains
on a table, and runs the fast tests. `--torch` takes another version of PyTorch than the lowest or
newest one, whose build for the system at hand may bring gigabytes of CUDA libraries.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("images", "train")
TEST_TOOLS = ("pytest", "pytest-xdist", "captum", "hypothesis", "httpx")
FAST_TESTS = (
    "rules", "contract", "explainers", "wrapping/test_wrap.py", "wrapping/test_tiers.py",
    "learning/test_training.py",
)  # fmt: skip
COMMANDS = (
    "--version",
    "models",
    "predict CCO",
    "explain CC(=O)Oc1ccccc1C(=O)O --out aspirin.svg",
    "explain CCO --method attention_flow --out flow.png",
    "explain table.csv --out explained --pictures none",
    "report table.csv --out report.html --limit 10",
    "explain {digit} --model mnist-superpixels --out digit.svg",
    "train table.csv --target-column length --split random --epochs 1 --no-teacher --out run",
    "predict table.csv --model run",
)
WRAPPED = """
import torch, graphxai as gx
from torch_geometric.data import Data
from torch_geometric.nn import TransformerConv

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = TransformerConv(8, 8), torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x, edge_index):
        return self.head(self.norm(self.conv(x, edge_index)).relu().sum(0, keepdim=True))

torch.manual_seed(0)
ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
graph = Data(x=torch.randn(4, 8), edge_index=torch.cat([ring, ring.flip(0)], dim=1))
explanation = gx.explain(gx.wrap(Model().eval(), kind="regression"), graph)
explanation.save("graph.svg")  # laid out by networkx, which torch brings
assert abs(explanation.ledger.unexplained) < 1e-4, explanation.ledger
print(gx.__file__)
"""


def main() -> None:
    """Try the lowest or the newest versions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=("lowest", "newest"))
    parser.add_argument("--torch", default="", help="version of PyTorch to take instead")
    options = parser.parse_args()
    print(f"versions: trying the {options.which} ones", flush=True)
    environment = ROOT / f".venv-{options.which}"
    with tempfile.TemporaryDirectory() as folder:
        installed = install(environment, options.which, options.torch, Path(folder))
        try_commands(environment, Path(folder))
    try_tests(environment)
    shown = ", ".join(f"{name} {version}" for name, version in installed.items())
    print(f"versions: the {options.which} ones work: {shown}")


def project() -> dict:
    """Return the table `project` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements() -> dict[str, str]:
    """Return the lowest version of each required package, and of those of the tried extras."""
    lines = list(project()["dependencies"])
    for extra in EXTRAS:
        lines += project()["optional-dependencies"][extra]
    parts = [re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\w.]+)", line) for line in lines]
    return {part[1]: part[2] for part in parts if part is not None}


def install(environment: Path, which: str, torch: str, folder: Path) -> dict[str, str]:
    """Build the wheel, install it alone, and return the versions of what it requires."""
    shutil.rmtree(environment, ignore_errors=True)
    run(sys.executable, "-m", "venv", environment)
    pip = (environment / "bin" / "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("graphxai-*.whl")
    lowest = requirements()
    versions = lowest if which == "lowest" else {}
    versions = versions | ({"torch": torch} if torch else {})
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
    extras = f"[{','.join(EXTRAS)}]"
    run(*pip, "install", "--constraint", constraints, f"{wheel}{extras}", *TEST_TOOLS)
    listed = run(pip[0], "list", "--format", "json", capture_output=True)
    installed = {each["name"].lower(): each["version"] for each in json.loads(listed.stdout)}
    return {name: installed[name.lower()] for name in lowest}


def try_commands(environment: Path, folder: Path) -> None:
    """Run the commands, a training and a wrapped model outside the checkout."""
    rows = [f"{'C' * n}{end},{n + len(end)}" for n in range(1, 16) for end in ("O", "N", "Cl")]
    (folder / "table.csv").write_text("\n".join(["smiles,length", *rows]) + "\n")
    digit = ROOT / "datasets" / "sample_digits" / "7.png"
    for command in COMMANDS:
        arguments = [part.format(digit=digit) for part in command.split()]
        print("versions: graphxai", *arguments, flush=True)
        run(environment / "bin" / "graphxai", *arguments, cwd=folder, stdout=subprocess.DEVNULL)
    done = run(environment / "bin" / "python", "-c", WRAPPED, cwd=folder, capture_output=True)
    place = Path(done.stdout.strip())
    if environment not in place.parents:
        raise SystemExit(f"versions: the package was loaded from {place}, not from its wheel")


def try_tests(environment: Path) -> None:
    """Run the fast tests against the installed package."""
    places = [ROOT / "tests" / name for name in FAST_TESTS]
    # The program `pytest`, unlike `python -m pytest`, does not look for packages in the checkout.
    run(environment / "bin" / "pytest", "-n", "2", "-p", "no:cacheprovider", *places, cwd=ROOT)


def run(*command: object, **options: object) -> subprocess.CompletedProcess:
    """Run a program without the packages of this environment, and end if it fails."""
    done = subprocess.run(list(map(str, command)), env=variables(), text=True, **options)
    if done.returncode:
        output = (done.stdout or "") + (done.stderr or "")
        raise SystemExit(f"versions: {' '.join(map(str, command))} failed\n{output}".rstrip())
    return done


def variables() -> dict[str, str]:
    """Return the variables of the system without the packages of this environment."""
    others = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    return others | {"OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    main()
