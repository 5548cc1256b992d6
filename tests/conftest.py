import os
from pathlib import Path

import pytest
import torch

# Tests are many small tensors; threads cost more than they bring.
torch.set_num_threads(1)

MOLECULES = {
    "methane": "C",
    "sodium acetate": "CC(=O)[O-].[Na+]",
    "aspirin": "CC(=O)Oc1ccccc1C(=O)O",
    "TEMPO, a radical": "CC1(C)CCCC(C)(C)N1[O]",
    "ferrocene-like": "[CH-]1C=CC=C1.[CH-]1C=CC=C1.[Fe+2]",
    "heavy water": "[2H]O[2H]",
    "verubecestat": "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F",
}


@pytest.fixture(scope="session")
def smiles() -> list[str]:
    return list(MOLECULES.values())


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with data too large for the repository, for tests that compare with it."""
    root = Path(__file__).resolve().parents[1]
    for folder in (os.environ.get("GRAPHXAI_SHARED"), root / "shared", root.parent / "shared"):
        if folder and (Path(folder) / "data").is_dir():
            return Path(folder)
    pytest.skip("no folder of shared data beside the checkout (or named by GRAPHXAI_SHARED)")
