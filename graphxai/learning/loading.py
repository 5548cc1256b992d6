"""Make batches for training: graphs of similar size together, in an order fixed by the seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Sampler

from graphxai.contract.batch import GraphBatch
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import collate

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["SizeBuckets", "make_loader", "make_loaders"]

POOL = 32  # batches


class SizeBuckets(Sampler[list[int]]):
    """Batches of graphs of similar size, so that padding is small, in a new order every epoch.

    The graphs are shuffled and cut into pools of `POOL` batches. Each pool is sorted by size and
    cut into batches, and the batches are shuffled. The order depends only on the seed and the
    epoch, so a resumed run sees the same batches as an uninterrupted one. With several processes,
    each takes an equal number of batches.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        epoch: Callable[[], int] = lambda: 0,
        share: Callable[[], tuple[int, int]] = lambda: (0, 1),
    ) -> None:
        self.sizes = list(sizes)
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.pool = POOL if shuffle else max(1, len(self.sizes))
        self.epoch = epoch
        self.share = share

    def __iter__(self) -> Iterator[list[int]]:
        rank, world = self.share()
        batches = self._batches()  # only when the first batch is drawn: a run may be resuming
        batches += batches[: len(self) * world - len(batches)]
        yield from batches[rank::world]

    def __len__(self) -> int:
        world = self.share()[1]
        span = self.pool * self.batch_size
        full, rest = divmod(len(self.sizes), span)
        total = full * self.pool + -(-rest // self.batch_size)
        return -(-total // world)

    def _batches(self) -> list[list[int]]:
        """Return the batches of this epoch, for all processes."""
        chance = random.Random(f"{self.seed}/{self.epoch()}")
        order = list(range(len(self.sizes)))
        if self.shuffle:
            chance.shuffle(order)
        batches = []
        span = self.pool * self.batch_size
        for first in range(0, len(order), span):
            pool = sorted(order[first : first + span], key=self.sizes.__getitem__)
            batches += [pool[k : k + self.batch_size] for k in range(0, len(pool), self.batch_size)]
        if self.shuffle:
            chance.shuffle(batches)
        return batches


def make_loader(
    graphs: list[Data], sampler: SizeBuckets, num_workers: int = 0
) -> DataLoader[GraphBatch]:
    """Make a loader of `GraphBatch` over encoded graphs."""
    return DataLoader(
        graphs,  # type: ignore[arg-type]
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=num_workers,
    )


def make_loaders(
    train: list[Data], valid: list[Data], settings: TrainingSettings, module: Any
) -> tuple[Any, Any]:
    """Make the loaders of training and validation graphs for a Lightning module."""

    def sampler(graphs: list[Data], *, shuffle: bool) -> SizeBuckets:
        return SizeBuckets(
            [int(graph.num_nodes or 0) for graph in graphs],
            settings.batch_size,
            seed=settings.seed,
            shuffle=shuffle,
            epoch=lambda: module.current_epoch,
            share=lambda: (
                (module.trainer.global_rank, module.trainer.world_size) if shuffle else (0, 1)
            ),
        )

    workers = settings.num_workers
    return (
        make_loader(train, sampler(train, shuffle=True), workers),
        make_loader(valid, sampler(valid, shuffle=False), workers) if valid else None,
    )
