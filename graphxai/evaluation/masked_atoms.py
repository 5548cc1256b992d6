"""Fit the network from which the operator `resample` draws atoms."""

import time
import warnings
from typing import Any

import torch

from graphxai.contract.inputs import Input, as_list, prepare_each
from graphxai.explanation.compute.models import Model
from graphxai.learning.masked_atom_network import MaskedAtoms
from graphxai.learning.masked_atoms import accuracy, train_masked_atoms
from graphxai.models.graphormer import Ensemble, Graphormer
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.threads import one_thread

__all__ = ["MaskedAtoms", "fit_masked_atoms"]

FEWEST = 16  # how many graphs are needed to learn from


def fit_masked_atoms(
    model: Model,
    graphs: Any,
    *,
    epochs: int = 30,
    held_out: float = 0.1,
    seed: int = 0,
    data: str = "",
    progress: bool | None = None,
) -> MaskedAtoms:
    """Fit a network that draws hidden atoms from the other atoms and all bonds.

    A thousand molecules take one or two minutes. `MaskedAtoms.save(folder)` stores the result
    beside the checkpoint, where the operator `resample` looks for it. The same seed gives the same
    network.

    Args:
        model: the model that encodes atoms and bonds. Its weights are not used.
        graphs: the graphs that the model was trained on, as for `explain`. Graphs that cannot be
            used are left out with a warning.
        epochs: the number of passes over the graphs. Each pass hides other atoms, and any share of
            them.
        held_out: the share of the graphs that is held out for measuring.
        seed: the seed of all random numbers.
        data: what the graphs are, in words, for the card.
        progress: as for `explain`.

    Raises:
        TypeError: the model is a wrapped one.
        ValueError: the nodes have continuous features, or there are fewer than 16 graphs to learn
            from.

    Source: Hu 2020, attribute masking, with any share of the atoms.
    """
    if not isinstance(model, Graphormer | Ensemble):
        raise TypeError(
            "fit_masked_atoms reads a Graphormer's encoding of atoms and bonds, which a wrapped"
            " model does not have."
        )
    if not model.config.node_cardinalities:
        raise ValueError(
            "the nodes of this model have continuous features, so there are no types of atoms to"
            " draw: use operator 'mask', 'zero' or 'delete'."
        )
    if epochs < 1 or not 0 <= held_out < 1:
        raise ValueError(f"epochs ({epochs}) must be at least 1, held_out ({held_out}) in [0, 1).")
    encoded = list(prepare_each(model, as_list(graphs)[0]))
    usable = [item.data for item in encoded if isinstance(item, Input)]
    if len(usable) < len(encoded):
        error = next(item for item in encoded if isinstance(item, Exception))
        warnings.warn(
            f"{len(encoded) - len(usable)} of {len(encoded)} graphs were left out;"
            f" the first: {error}",
            stacklevel=2,
        )
    order = torch.randperm(len(usable), generator=torch.Generator().manual_seed(seed)).tolist()
    num_held_out = round(held_out * len(usable))
    if len(usable) - num_held_out < FEWEST:
        raise ValueError(
            f"{len(usable) - num_held_out} usable graphs are too few to learn from: give {FEWEST}"
            " or more, better a thousand."
        )
    begun = time.process_time()
    learned = [usable[k] for k in order[num_held_out:]]
    measured = [usable[k] for k in order[:num_held_out]]
    bar = progress_bar("fitting the masked atoms", epochs * len(learned), show=progress)
    with (
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        one_thread(),
        bar as advance,
    ):
        torch.manual_seed(seed)
        network = train_masked_atoms(model.config, learned, epochs, seed, advance)
        scores = accuracy(network, measured, seed) if measured else {}
    card = {
        "data": data,
        "graphs": len(learned),
        "types": len(network.types),
        "seed": seed,
        "epochs": epochs,
        "processor_seconds": round(time.process_time() - begun, 1),
        "held_out": {"graphs": len(measured)} | scores,
    }
    return MaskedAtoms(network, card)
