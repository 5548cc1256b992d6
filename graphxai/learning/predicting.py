"""Put graphs through a model: encode them, sort them into batches, predict, read the outputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate, chain, pairwise, starmap
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from graphxai.contract.prediction_metrics import FloatArray, readings
from graphxai.datasets.graph import Graph
from graphxai.datasets.molecules import require_graphs
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import (
    NODE_LABELS,
    GraphormerConfig,
    LoadedModel,
    StructureEncoding,
    collate,
)
from graphxai.runtime.progress import in_chunks

if TYPE_CHECKING:
    from torch_geometric.data import Data

BATCH = 64  # graphs
POOL = 32  # batches


def encode_all(graphs: Sequence[Data], config: GraphormerConfig) -> list[Data]:
    """Return copies of the graphs with their structure encoded (see `StructureEncoding`).

    What the encoding leaves as it is, such as `x` and `y`, is not copied.
    """
    encode = StructureEncoding.from_config(config)
    encoded = encode.each(graphs)
    for graph in encoded:
        if graph.get("isomers") is not None:
            graph.isomers = tuple(encode.each(graph.isomers))
    return encoded


def isomers_of(graph: Data) -> list[Data]:
    """Return the graphs that a model reads a molecule as: itself, or each isomer of a racemate.

    They have its labels.
    """
    if graph.get("isomers") is None:
        return [graph]
    labels = {name: graph[name] for name in ("y", "bounds") if name in graph}
    return [copy(isomer).update(labels) for isomer in graph.isomers]


def encoded_molecules(
    smiles: Sequence[str], config: GraphormerConfig, settings: TrainingSettings
) -> list[Data]:
    """Return the encoded graphs of molecules, for a model with this configuration."""
    graphs: list[Data] = []
    for part in in_chunks(smiles, "encoding", show=settings.show):
        graphs += encode_all(require_graphs(part), config)
    return graphs


@dataclass(eq=False)
class SizeBuckets(Sampler[list[int]]):
    """Batches of graphs of similar size, so that padding is small, in a new order every epoch.

    The graphs are shuffled and cut into pools of `POOL` batches. Each pool is sorted by size and
    cut into batches, and the batches are shuffled. The order depends only on the seed and the
    epoch, so a resumed run sees the same batches as an uninterrupted one. With several processes,
    each takes an equal number of batches.

    Of a racemate, every epoch draws one isomer: `isomers` has the numbers of those of each graph.
    """

    sizes: Sequence[int]
    batch_size: int
    _: KW_ONLY
    isomers: Sequence[Sequence[int]] = ()
    seed: int = 0
    shuffle: bool = True
    epoch: Callable[[], int] = lambda: 0
    share: Callable[[], tuple[int, int]] = lambda: (0, 1)

    @property
    def pool(self) -> int:
        """The number of batches that are sorted together."""
        return POOL if self.shuffle else max(1, len(self.sizes))

    def __iter__(self) -> Iterator[list[int]]:
        rank, world = self.share()
        batches = self._batches()  # a resumed run knows its epoch when it draws the first batch
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
        return [[self._drawn(k, chance) for k in batch] for batch in batches]

    def _drawn(self, k: int, chance: random.Random) -> int:
        """Return the number of a graph, or that of one of its isomers."""
        if not self.isomers:
            return k
        return self.isomers[k][0] if len(self.isomers[k]) == 1 else chance.choice(self.isomers[k])


@torch.no_grad()
def predict(model: LoadedModel, graphs: Sequence[Data]) -> torch.Tensor:
    """Return the model's outputs (G, num_outputs) for graphs, on the CPU, in the given order.

    Those of a racemate are the mean over its isomers. A model of nodes answers for the nodes that
    have a label, in the order of graphs and nodes.
    """
    if (encode := getattr(model, "encoded", None)) is None:  # a Graphormer
        passes = list(map(isomers_of, encode_all(graphs, model.config)))
    else:
        passes = list(map(encode, graphs))
    encoded = list(chain.from_iterable(passes))
    sizes = [int(graph.num_nodes or 0) for graph in encoded]
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    parts: dict[int, Tensor] = {}  # (rows, num_outputs) of each graph
    for numbers in SizeBuckets(sizes, BATCH, shuffle=False):
        batch = model.collate([encoded[k] for k in numbers]).to(device)
        outputs = model.labelled_outputs(batch).float().cpu()
        rows = [sizes[k] for k in numbers] if model.config.level == "node" else 1
        parts |= dict(zip(numbers, outputs.split(rows), strict=True))
    model.train(training)
    joined = [torch.empty(0, model.config.num_outputs), *(parts[k] for k in range(len(encoded)))]
    if model.config.level == "node":
        labels = torch.cat([graph[NODE_LABELS] for graph in encoded])
        return torch.cat(joined)[~labels.isnan().all(1)]
    of_graphs = torch.cat(joined).split(list(map(len, passes)))
    return torch.cat([joined[0], *(each.mean(0, keepdim=True) for each in of_graphs)])


def task_readings(model: LoadedModel, graphs: Sequence[Data]) -> list[FloatArray]:
    """Return a model's probabilities and values for graphs, by task."""
    outputs = predict(model, graphs)
    by_task = zip(model.config.tasks, model.config.columns, strict=True)
    return [readings(task, outputs[:, columns]) for task, columns in by_task]


def make_loaders(
    train: list[Data], valid: list[Data], settings: TrainingSettings, module: Any
) -> tuple[Any, Any]:
    """Make the loaders of training and validation graphs for a Lightning module."""

    def loader(compounds: list[Data], *, shuffle: bool) -> Any:
        each = [isomers_of(compound) for compound in compounds]
        graphs = list(chain.from_iterable(each))
        ends = list(accumulate(map(len, each), initial=0))
        sizes = [int(graph.num_nodes or 0) for graph in (compounds if shuffle else graphs)]
        sampler = SizeBuckets(
            sizes,
            settings.batch_size,
            seed=settings.seed,
            shuffle=shuffle,
            isomers=list(starmap(range, pairwise(ends))) if shuffle else (),
            epoch=lambda: module.current_epoch,
            share=lambda: (
                (module.trainer.global_rank, module.trainer.world_size) if shuffle else (0, 1)
            ),
        )
        workers: Any = {"collate_fn": collate, "num_workers": settings.num_workers}
        plain = [Graph(**graph.to_dict()) for graph in graphs]  # whose attributes are read faster
        return DataLoader(plain, batch_sampler=sampler, **workers)  # type: ignore[arg-type]

    return loader(train, shuffle=True), loader(valid, shuffle=False) if valid else None
