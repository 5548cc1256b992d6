"""Draw small Graphormers for tests."""

import torch

from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, ATOM_FEATURE_NAMES, BOND_CARDINALITIES
from graphxai.models.graphormer import Graphormer, GraphormerConfig

SMALL = {"num_layers": 1, "hidden_dim": 16, "ffn_dim": 16, "num_heads": 2}


def random_graphormer(**changes: object) -> Graphormer:
    """Draw a molecular Graphormer with parameters of order one, so that no error stays hidden."""
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
