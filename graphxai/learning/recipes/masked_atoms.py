"""Train the network that draws hidden atoms: it predicts the types of atoms that are hidden."""

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.contract.batch import GraphBatch
from graphxai.explainers.learned.train import divided_graphs
from graphxai.explanation.compute.models import Model
from graphxai.learning.predicting import SizeBuckets
from graphxai.models.graphormer import Ensemble, Graphormer, GraphormerConfig, collate
from graphxai.models.graphormer.masked_atoms import MaskedAtoms, Network, small_config
from graphxai.runtime.device import one_thread
from graphxai.runtime.progress import Progress, progress_bar
from graphxai.runtime.randomness import callers_state_kept

BATCH = 32
RATE, WEIGHT_DECAY = 2e-3, 0.01
WARM_UP = 0.05  # of all steps
SHARES = (0.1, 0.5, 1.0)  # shares of atoms that are hidden when the network is measured


def _trained(
    config: GraphormerConfig, graphs: Sequence[Any], epochs: int, seed: int, progress: Progress
) -> Network:
    """Train a network on encoded graphs, with any share of their atoms hidden."""
    types = torch.cat([graph.x for graph in graphs]).unique(dim=0)
    network = Network(small_config(config), types.to(torch.int16))
    generator = torch.Generator().manual_seed(seed)
    epoch = 0
    batches = SizeBuckets([len(g.x) for g in graphs], BATCH, seed=seed, epoch=lambda: epoch)
    total = epochs * len(batches)
    optimiser = torch.optim.AdamW(network.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, RATE, total_steps=total + 1, pct_start=WARM_UP
    )
    network.train()
    for epoch in range(epochs):  # noqa: B007 - read by the batches
        for chosen in batches:
            batch = collate([graphs[k] for k in chosen])
            shares = torch.rand(len(batch), 1, generator=generator)
            hidden = batch.mask & (torch.rand(batch.mask.shape, generator=generator) < shares)
            if not bool(hidden.any()):
                continue
            optimiser.zero_grad()
            F.cross_entropy(*_logits_and_types(network, batch, hidden)).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            progress(len(chosen))
    return network.eval()


@torch.no_grad()
def accuracy(network: Network, graphs: Sequence[Any], seed: int) -> dict[str, float]:
    """Return how often the most probable type is right, by the share of atoms hidden at random."""
    right_by_share: dict[str, float] = {}
    for share in SHARES:
        generator = torch.Generator().manual_seed(seed)
        right = total = 0
        for graph in graphs:
            batch = collate([graph])
            hidden = torch.rand(batch.mask.shape, generator=generator) < share
            if bool(hidden.any()):
                logits, types = _logits_and_types(network, batch, hidden)
                right += int((logits.argmax(-1) == types).sum())
                total += int(hidden.sum())
        right_by_share[f"right with {share:.0%} hidden"] = round(right / max(total, 1), 4)
    return right_by_share


def _logits_and_types(network: Network, batch: GraphBatch, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of the hidden atoms (hidden, types), and their true types (hidden,).

    A type that the network does not have is -100, which the loss ignores.
    """
    degrees = torch.stack([batch.in_degree, batch.out_degree])
    logits = network(batch.x, degrees, hidden, network.between_atoms(batch))[hidden]
    same = (batch.x[hidden].to(network.types)[:, None] == network.types).all(-1)
    return logits, torch.where(same.any(-1), same.long().argmax(-1), -100)


@callers_state_kept()
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
        data: what the graphs are, as text, for the card.
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
    generator = torch.Generator().manual_seed(seed)
    measured, learned = (
        [item.data for item in part]
        for part in divided_graphs(model, graphs, epochs, held_out, generator)
    )
    begun = time.process_time()
    bar = progress_bar("fitting the masked atoms", epochs * len(learned), show=progress)
    with one_thread(), bar as advance:
        torch.manual_seed(seed)
        network = _trained(model.config, learned, epochs, seed, advance)
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
