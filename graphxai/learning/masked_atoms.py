"""Train the network that draws hidden atoms: it predicts the types of atoms that are hidden."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.contract.batch import GraphBatch
from graphxai.learning.masked_atom_network import Network, small_config
from graphxai.learning.predicting import SizeBuckets
from graphxai.models.graphormer import GraphormerConfig, collate
from graphxai.runtime.progress import Progress

BATCH = 32
RATE, WEIGHT_DECAY = 2e-3, 0.01
WARM_UP = 0.05  # of all steps
SHARES = (0.1, 0.5, 1.0)  # shares of atoms that are hidden when the network is measured


def train_masked_atoms(
    config: GraphormerConfig, graphs: Sequence[Any], epochs: int, seed: int, progress: Progress
) -> Network:
    """Train a network on encoded graphs, with any share of their atoms hidden.

    Args:
        config: configuration of the model for which the network will draw atoms.
        graphs: encoded graphs.
        epochs: passes over them.
        seed: seed of the batches and of the choice of atoms.
        progress: called with the number of graphs done since the last call.
    """
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
            F.cross_entropy(
                _logits(network, batch, hidden), _true_types(network, batch, hidden)
            ).backward()
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
                best = _logits(network, batch, hidden).argmax(-1)
                right += int((best == _true_types(network, batch, hidden)).sum())
                total += int(hidden.sum())
        right_by_share[f"right with {share:.0%} hidden"] = round(right / max(total, 1), 4)
    return right_by_share


def _logits(network: Network, batch: GraphBatch, hidden: Tensor) -> Tensor:
    """Return the logits of the hidden atoms (hidden, types)."""
    degrees = torch.stack([batch.in_degree, batch.out_degree])
    logits: Tensor = network(batch.x, degrees, hidden, network.between_atoms(batch))[hidden]
    return logits


def _true_types(network: Network, batch: GraphBatch, hidden: Tensor) -> Tensor:
    """Return the true type of each hidden atom (hidden,).

    It is -100, which the loss ignores, for a type that the network does not have.
    """
    same = (batch.x[hidden].to(network.types)[:, None] == network.types).all(-1)
    return torch.where(same.any(-1), same.long().argmax(-1), -100)
