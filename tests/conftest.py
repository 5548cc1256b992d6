import os
from pathlib import Path

import pytest
import torch
from graphxai.datasets.features import ATOM_CARDINALITIES, ATOM_FEATURE_NAMES, BOND_CARDINALITIES
from graphxai.models.graphormer import Graphormer, GraphormerConfig, Task

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


def random_graphormer(**changes: object) -> Graphormer:
    """A molecular Graphormer whose every parameter is of order one, so that nothing hides."""
    settings: dict = {
        "tasks": (Task("activity", "binary", ("inactive", "active")), Task("pIC50", "regression")),
        "num_layers": 3,
        "hidden_dim": 32,
        "ffn_dim": 48,
        "num_heads": 4,
        "node_cardinalities": ATOM_CARDINALITIES,
        "node_feature_names": ATOM_FEATURE_NAMES,
        "edge_cardinalities": BOND_CARDINALITIES,
    }
    model = Graphormer(GraphormerConfig(**(settings | changes)))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.3 * noise)
            elif parameter.dim() == 2 and "bias." not in name:
                parameter.copy_(noise * 1.2 / parameter.shape[1] ** 0.5)
            else:
                parameter.copy_(0.5 * noise)
    return model.eval()


@pytest.fixture
def graphormer() -> Graphormer:
    return random_graphormer()
