"""Small untrained networks of chemprop, and what chemprop itself computes with them."""

from typing import Any

import numpy as np
import torch
from rdkit import Chem

MOLECULES = [
    "CCO",
    "CC(=O)Oc1ccccc1C(=O)O",
    "C",
    "C[C@H](N)C(=O)O",
    "F/C=C/F",
    "[Na+].[Cl-]",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
]
SIZE = 12


class Called:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def mpnn(
    passing: str = "Bond",
    agg: str = "Mean",
    head: str = "RegressionFFN",
    *,
    seed: int = 0,
    features: int = 0,
    batch_norm: bool = False,
    scaled: bool = False,
    message_passing: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return an MPNN in eval mode, whose batch normalisation is not the identity.

    Args:
        passing: "Bond" or "Atom".
        agg: "Mean", "Sum", "Norm" or "Attentive".
        head: the class of its predictor.
        features: the number of features of whole molecules.
        scaled: whether outputs are in units of a table.
        message_passing, options: options of the message passing, and of the predictor.
    """
    from chemprop import models, nn

    torch.manual_seed(seed)
    width = {"output_size": SIZE} if agg == "Attentive" else {}
    tasks = options.get("n_tasks", 1)
    if scaled:
        options["output_transform"] = nn.UnscaleTransform([3.0] * tasks, [2.0] * tasks)
    scaling = nn.ScaleTransform([0.5] * features, [2.0] * features) if features else None
    model = models.MPNN(
        getattr(nn, f"{passing}MessagePassing")(d_h=SIZE, **(message_passing or {})),
        getattr(nn, f"{agg}Aggregation")(**width),
        getattr(nn, head)(input_dim=SIZE + features, hidden_dim=8, **options),
        batch_norm=batch_norm,
        X_d_transform=scaling,
    )
    if batch_norm:
        for values in (model.bn.weight, model.bn.bias, model.bn.running_mean):
            torch.nn.init.normal_(values)
    return model.eval()


def of_chemprop(model: Any, smiles: list[str], features: Any = None, mode: str = "V2") -> Any:
    """Return what a model of chemprop predicts, by chemprop's own road."""
    from chemprop import data, featurizers

    atoms = featurizers.get_multi_hot_atom_featurizer(mode)
    featurizer = featurizers.SimpleMoleculeMolGraphFeaturizer(atoms)
    graphs = [featurizer(Chem.MolFromSmiles(text)) for text in smiles]
    further = None if features is None else torch.as_tensor(np.array(features)).float()
    with torch.no_grad():
        return model(data.BatchMolGraph(graphs), None, further)
