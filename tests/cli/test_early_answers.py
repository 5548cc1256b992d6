"""A mistake in a name or a SMILES is answered before libraries are imported that take seconds."""

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "torch_geometric",
    "lightning",
    "pandas",
    "scipy",
    "matplotlib",
    "rdkit.Chem.Draw",
)
RUN = f"""
import sys
from graphxai.cli.main import main
try:
    main()
finally:
    print([name for name in {HEAVY} if name in sys.modules])
"""
MISTAKES = {
    "predict CCO --model bacee": "Did you mean 'bace'?",
    "predict CCO --model bace --model hvi": "Did you mean 'hiv'?",
    "explain CCO --method lrpp": "Did you mean 'lrp'?",
    "explain CCO --method lrp,gaee": "Did you mean 'gae'?",
    "explain CCO --methd lrp": "No such option: --methd",
    "explain missing.csv": "no such file",
    "explain table.csv --smiles-column smils": "smils",
    "predict table.csv --name-column nmae": "nmae",
    "report table.csv --smiles-column smils": "smils",
    "report table.csv --method lrpp": "Did you mean 'lrp'?",
    "fragments table.csv --method gaee": "Did you mean 'gae'?",
    "audit table.csv --model bacee": "Did you mean 'bace'?",
    "counterfactuals CCO --towards active --model bacee": "Did you mean 'bace'?",
    "predict C1CC": "ring 1 is opened but never closed",
    "explain CC(=O": "1 ')' missing",
    "predict CCO --level 3": "the level is a share between 0 and 1",
    "report table.csv --out page.xyz": "use one of .html, .htm",
    "train table.csv --target-column pIC5O --out runs": "pIC5O",
    "adapt bacee table.csv --out runs": "Did you mean 'bace'?",
    "adapt bace table.csv --target-column pIC5O --out runs": "pIC5O",
    "changes table.csv --measured-column pIC5O": "pIC5O",
    "changes table.csv --model bacee": "Did you mean 'bace'?",
    "fit-explainer --model bacee": "Did you mean 'bace'?",
    "fit-masked-atoms missing.csv": "no such file",
    "benchmark bace --methods lrpp": "Did you mean 'lrp'?",
    "benchmark bace --model bacee": "Did you mean 'bace'?",
    "app --model bacee": "Did you mean 'bace'?",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_answered_without_heavy_imports(line, tmp_path):
    (tmp_path / "table.csv").write_text("smiles,name\nCCO,ethanol\nCCN,ethylamine\n")
    command = [sys.executable, "-c", RUN, *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0
    assert MISTAKES[line] in " ".join(done.stderr.split())
    assert done.stdout.splitlines()[-1] == "[]"
