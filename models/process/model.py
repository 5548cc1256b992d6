"""The posterior mean of a Gaussian process, as a model that explainers can read atom by atom.

With the counts x_b of a molecule and c_jb of the molecules j that carry the process,

    f = mean + sum_j a_j mean_kinds [ S_j / (|x| + |c_j| - S_j) ],   S_j = sum_b min(x_b, c_jb)

the min-max kernel (Ralaivola 2005) averaged over five kinds of counts. The count of a structure is
the sum over its occurrences of how far their atoms are present. Presence is 1, and is the only
number in the token of an atom. So hiding an atom drops every occurrence that covers it, and without
atoms f is the mean.

`min(x, c)` is a sum over levels, `sum_(t <= c) min(max(x - t + 1, 0), 1)`, and `S_j` therefore a
linear map of these levels. Under the rules of `rules.conservative` the level is its count times a
constant ratio, as an activation is, and the denominator is a constant scale, as LayerNorm's is.
Gradient x Input then gives each structure its share of S_j (Balfer 2015), and its atoms equal
parts of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from graphxai.contract.inputs import Input, prepare_for
from graphxai.contract.intervals import Conformal
from graphxai.contract.model import NoAttentionError, Origin, ShownModel
from graphxai.contract.tasks import TaskSet
from graphxai.datasets.as_given import AS_DRAWN, Standardisation
from graphxai.datasets.fingerprints import COUNTS, KINDS, similarity
from graphxai.rules import conservative as rules

from . import inputs
from .inputs import ProcessBatch

COLUMNS = KINDS * COUNTS  # of all kinds of counts side by side
BITS = (torch.arange(256)[:, None] >> torch.arange(8) & 1).double()  # of each byte, (256, 8)


@dataclass(frozen=True)
class ProcessConfig(TaskSet):
    """What a process predicts, and how it reads molecules.

    Args:
        carriers: the number of molecules that carry the process.
        standardise: how molecules are brought to their parents before they are read, see
            `datasets.molecules.molecule_to_data`.
        noise: by task, the ratio of measurement variance to process variance that the weights are
            for, if all training molecules carry the process; else ().
    """

    carriers: int = 0
    standardise: Standardisation = AS_DRAWN
    noise: tuple[float, ...] = ()
    reads = "molecules"
    reads_molecules = True
    level = "graph"

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.carriers) is not int or self.carriers < 1:
            raise ValueError(f"carriers must be at least 1, not {self.carriers!r}.")
        object.__setattr__(self, "noise", tuple(map(float, self.noise)))
        if len(self.noise) not in (0, len(self.tasks)) or not all(n > 0 for n in self.noise):
            raise ValueError(f"noise must be a positive number for each task, not {self.noise}.")
        if self.standardise not in get_args(Standardisation):
            ways = ", ".join(map(repr, get_args(Standardisation)))
            raise ValueError(f"standardise must be one of {ways}, not {self.standardise!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class CarriedCounts(NamedTuple):
    """The counts of the m molecules that carry a process, one molecule after another.

    Args:
        starts: where the counts of each molecule begin, and their number (m + 1,).
        columns: the column of each count, ascending for each molecule.
        counts: the counts, at least 1.
    """

    starts: Tensor
    columns: Tensor
    counts: Tensor

    @classmethod
    def of(cls, counts: Sequence[Any]) -> CarriedCounts:
        """Return counts (m, 4096) of each kind, see `structure_counts`, without the zeros."""
        kinds = [torch.from_numpy(kind.astype("int32")).to_sparse() for kind in counts]
        rows = torch.cat([kind.indices()[0] for kind in kinds])
        columns = torch.cat([kind.indices()[1] + COUNTS * k for k, kind in enumerate(kinds)])
        values = torch.cat([kind.values() for kind in kinds])
        order = (rows * COLUMNS + columns).argsort()
        ends = torch.bincount(rows, minlength=len(counts[0])).cumsum(0)
        starts = torch.cat([ends.new_zeros(1), ends])
        return cls(starts, columns[order].to(torch.int32), values[order])


class KernelPart(NamedTuple):
    """The kernel of one kind of counts, between K variants of a molecule and m carriers.

    Args:
        shared: what both have, `sum_b min(x_b, c_jb)`, (K, m).
        either: what one of them has (K, m). The kernel is `shared / either`.
        levels: how far each variant fills each level of its counts (L, K).
        reached: 1 where a carrier reaches the level (L, m).
    """

    shared: Tensor
    either: Tensor
    levels: Tensor
    reached: Tensor


class KernelProcess(ShownModel, nn.Module):
    """A Gaussian process on counts of structures, whose outputs (B, num_outputs) are by task.

    Args:
        config: the tasks, and how molecules are read.
        carried: the counts of the molecules that carry the process.
        weights: the weights a of their similarities (m, num_outputs).
        means: the output of a molecule that resembles none of them (num_outputs,).
    """

    collates_plain_graphs = True  # graphs need not be PyG's `Data`
    takes_variants = True  # of a batch, in one call of `encode`
    default_method = "kernel"
    has_attention = has_subgraphs = False
    empty_alike = True  # the outputs without atoms are the same for all molecules
    feature_names: tuple[str, ...] = ()
    starts: Tensor
    columns: Tensor
    counts: Tensor
    totals: Tensor  # of each kind of counts of each carrier, (kinds, m)
    first_level: Tensor  # the number of the first level of each column, and the number of levels
    reached: Tensor  # which carriers reach each level, in bits (levels, m / 8)

    def __init__(
        self, config: ProcessConfig, carried: CarriedCounts, weights: Tensor, means: Tensor
    ) -> None:
        super().__init__()
        self.config = config
        self.origin = Origin()
        self.conformal: dict[str, Conformal] = {}  # by task, for intervals around predictions
        self.weights, self.means = nn.Parameter(weights), nn.Parameter(means)
        for name, value in carried._asdict().items():
            self.register_buffer(name, value)
        self._index(carried)

    def _index(self, carried: CarriedCounts) -> None:
        """Note for each level of each column which carriers reach it."""
        columns, counts = carried.columns.long(), carried.counts.long()
        rows = torch.arange(self.config.carriers).repeat_interleave(carried.starts.diff())
        totals = torch.zeros(KINDS * self.config.carriers, dtype=torch.int64)
        totals.index_add_(0, columns // COUNTS * self.config.carriers + rows, counts)
        highest = torch.zeros(COLUMNS, dtype=torch.int64)
        highest.scatter_reduce_(0, columns, counts, "amax")
        first_level = torch.cat([highest.new_zeros(1), highest.cumsum(0)])
        below = counts.cumsum(0) - counts
        entry = torch.arange(len(counts)).repeat_interleave(counts)  # once for each level
        levels = first_level[columns][entry] + torch.arange(len(entry)) - below[entry]
        width = -(-self.config.carriers // 8)
        reached = torch.zeros(int(first_level[-1]) * width, dtype=torch.uint8)
        bits = (1 << torch.arange(8)).to(torch.uint8)[rows[entry] % 8]
        reached.index_add_(0, levels * width + rows[entry] // 8, bits)
        derived = {
            "totals": totals.view(KINDS, -1),
            "first_level": first_level,
            "reached": reached.view(-1, width),
        }
        for name, value in derived.items():
            self.register_buffer(name, value, persistent=False)

    @property
    def carried(self) -> CarriedCounts:
        """The counts of the molecules that carry the process."""
        return CarriedCounts(self.starts, self.columns, self.counts)

    # -- inputs --------------------------------------------------------------------------------

    def prepare(self, value: Any) -> Input:
        """Encode one SMILES or RDKit molecule, or raise InputError if it cannot be used."""
        return prepare_for(self, value)

    def prepare_group(self, values: list[Any]) -> Iterator[Input | Exception]:
        """Encode molecules, featurising all of them together."""
        return inputs.prepare_group(self.config.standardise, values)

    def encoded(self, graph: Any) -> list[Any]:
        """Return the graph of a molecule with its counts, which is the only pass over it."""
        return [inputs.encoded(graph, graph).graph]

    collate = staticmethod(inputs.collate)
    renumbered = staticmethod(inputs.renumbered)

    def induced(self, data: Any, choice: Tensor) -> Any:
        """Refuse to encode a part of a molecule, whose structures would be others."""
        raise ValueError(
            "a Gaussian process reads whole molecules: hide atoms with the operator 'mask'."
        )

    thinned = induced

    # -- the contract --------------------------------------------------------------------------

    def embed(self, batch: ProcessBatch) -> Tensor:
        """Return the tokens (B, 1 + N, 1): zero for the graph, and one for each atom."""
        presence = batch.mask.to(self.weights.dtype)
        return torch.cat([torch.zeros_like(presence[:, :1]), presence], dim=1)[..., None]

    def encode(self, tokens: Tensor, batch: ProcessBatch, keep: Tensor | None = None) -> Tensor:
        """Return outputs for tokens (B, 1 + N, 1), or (K * B, 1 + N, 1) for K variants of a batch.

        Args:
            tokens: how far each atom is present.
            batch: the molecules.
            keep: False where an atom is hidden (K * B, N). What covers it does not count.

        Raises:
            NoAttentionError: attention is to be recorded.
        """
        if (tape := rules.current_tape()) is not None and not tape.with_biases:
            raise NoAttentionError.of(type(self).__name__)
        counts = batch.counts(tokens[:, 1:, 0], keep)  # (P, K)
        bounds = zip(batch.bounds[:-1], batch.bounds[1:], strict=True)
        parts = [
            self.similarities(counts[a:b], batch.columns[a:b]) @ self.weights for a, b in bounds
        ]
        outputs = torch.stack(parts, dim=1).flatten(0, 1)  # (K * B, C)
        return rules.add_bias(outputs, self.means)

    def forward(self, batch: ProcessBatch) -> Tensor:
        """Return outputs (B, num_outputs)."""
        return self.encode(self.embed(batch), batch)

    labelled_outputs = forward

    @torch.no_grad()
    def divide_outputs(self, columns: slice, by: float) -> None:
        """Divide some outputs by a temperature."""
        self.weights[:, columns] /= by
        self.means[columns] /= by

    def outputs_without_nodes(self, batch: ProcessBatch) -> Tensor:
        """Return the outputs (1, num_outputs) of a molecule without atoms, which are the means."""
        return self.means[None]

    def split_by_feature(self, batch: ProcessBatch, gradient: Tensor) -> None:
        """Return None, as an atom has no features beyond its presence."""

    # -- the kernel ----------------------------------------------------------------------------

    def similarities(self, counts: Tensor, columns: Tensor) -> Tensor:
        """Return the similarity (K, m) of K variants of one molecule to each carrier.

        Args:
            counts: the counts of the variants (P, K).
            columns: their columns, ascending (P,).
        """
        if len(counts.T) == 1 and not counts.requires_grad and bool((counts % 1 == 0).all()):
            return self._similarities_of_one(counts, columns)
        return torch.stack(
            [rules.quotient(*part[:2]) for part in self.parts(counts, columns)]
        ).mean(0)

    def _similarities_of_one(self, counts: Tensor, columns: Tensor) -> Tensor:
        """Return the similarity (1, m) of a molecule with whole counts (P, 1), to the same bit.

        Every level is full, so what is shared is a number of bits, which integers count faster.
        """
        row, below = self.level_rows(counts, columns)
        bits = self.reached[self.first_level[columns[row]] + below].cpu().numpy()
        kinds = columns // COUNTS
        ends = torch.bincount(kinds[row], minlength=KINDS).cumsum(0).tolist()
        reached = np.unpackbits(bits, axis=1, count=self.config.carriers, bitorder="little")
        narrow = np.uint16 if len(bits) <= np.iinfo(np.uint16).max else np.int64
        sums = [each.sum(0, dtype=narrow) for each in np.split(reached, ends[:-1])]
        shared = torch.from_numpy(np.stack(sums).astype(np.int64)).to(self.totals)  # (KINDS, m)
        of_kinds = torch.bincount(kinds, weights=counts[:, 0], minlength=KINDS).to(shared)
        either = (of_kinds[:, None] + self.totals - shared).clamp(min=1)
        return (shared.to(counts) / either).mean(0, keepdim=True)

    def parts(self, counts: Tensor, columns: Tensor) -> Iterator[KernelPart]:
        """Yield the numerator and the denominator of the kernel of each kind of counts."""
        row, below = self.level_rows(counts, columns)

        def filled(x: Tensor) -> Tensor:
            above = x - below[:, None]
            return torch.where(above > 1, 1.0, above.relu())

        levels = rules.by_ratio(counts[row], filled)  # (L, K)
        bits = F.embedding(self.first_level[columns[row]] + below, self.reached)  # (L, m / 8)
        reached = F.embedding(bits.int(), BITS.to(levels)).flatten(1)[:, : self.config.carriers]
        of_counts, of_levels = (
            torch.bincount(kind, minlength=KINDS).tolist()
            for kind in (columns // COUNTS, columns[row] // COUNTS)
        )
        parts = (counts.split(of_counts), levels.split(of_levels), reached.split(of_levels))
        for x, level, reaches, totals in zip(*parts, self.totals, strict=True):
            shared = level.T @ reaches
            either = x.sum(0)[:, None] + totals - shared
            yield KernelPart(shared, either.clamp(min=1), level, reaches)  # 1 if neither has any

    @cached_property
    def carried_kernel(self) -> NDArray[np.float32]:
        """The similarity of the carriers to each other (m, m)."""
        dense = np.zeros((self.config.carriers, KINDS, COUNTS), np.uint16)
        rows = np.repeat(np.arange(len(dense)), self.starts.diff().numpy())
        columns = self.columns.long().numpy()
        dense[rows, columns // COUNTS, columns % COUNTS] = self.counts.numpy()
        kinds = tuple(dense[:, kind] for kind in range(KINDS))
        return similarity(kinds, kinds)

    def by_measurement(self, similarities: Tensor, column: int) -> Tensor:
        """Return what each measurement adds to the output of a molecule (m,).

        The posterior mean is a weighted sum of measured values, too: with the similarities k and
        the noise s, the weights are $(K + s)^{-1} k$ (Rasmussen 2006, eq. 2.27), and the centred
        values are $(K + s) a$. Without a known noise it is the sum over weights a times
        similarities, in which near-duplicates cancel each other.

        Args:
            similarities: to the carriers (m,).
            column: the output.
        """
        weights = self.weights[:, column].detach()
        if not self.config.noise:
            return weights * similarities
        measured, factor = self._factor_of(column)
        shares = torch.zeros_like(weights)
        wanted = similarities[measured, None].to(factor)
        count_for = torch.cholesky_solve(wanted, factor)[:, 0]
        shares[measured] = (count_for * (factor @ (factor.T @ weights[measured].to(factor)))).to(
            shares
        )
        return shares

    def _factor_of(self, column: int) -> tuple[Tensor, Tensor]:
        """Return the carriers measured for an output (n,), and the factor of K + s (n, n)."""
        if column not in (known := vars(self).setdefault("_factors", {})):
            columns = enumerate(self.config.columns)
            place = next(k for k, task in columns if task.start <= column < task.stop)
            measured = self.weights[:, column].nonzero()[:, 0]
            kernel = torch.from_numpy(self.carried_kernel)[measured][:, measured].double()
            kernel.diagonal().add_(self.config.noise[place])
            known[column] = measured, torch.linalg.cholesky(kernel)
        return known[column]

    def level_rows(self, counts: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each level that counts (P, K) and carriers reach its count, and t - 1."""
        known = self.first_level[columns + 1] - self.first_level[columns]
        number = counts.detach().amax(1).ceil().long().minimum(known)  # (P,)
        row = torch.arange(len(columns), device=columns.device).repeat_interleave(number)
        return row, torch.arange(len(row), device=row.device) - (number.cumsum(0) - number)[row]
