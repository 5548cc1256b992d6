"""Read the value of one molecule as a sum over training molecules, and over structures."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from graphxai.contract.model import evaluating
from graphxai.contract.target import Target
from graphxai.datasets.fingerprints import COUNTS, KINDS, STRUCTURES
from graphxai.datasets.training_set import training_set_of

from .model import KernelProcess

if TYPE_CHECKING:
    import pandas as pd


class TrainingShare(NamedTuple):
    """What one training molecule says: its SMILES, if stored, its similarity, and its share."""

    smiles: str
    similarity: float
    share: float


class Structure(NamedTuple):
    """What a counted structure says: its kind, the atoms of each occurrence, and its share."""

    kind: str
    atoms: tuple[tuple[int, ...], ...]
    share: float


@dataclass(frozen=True)
class KernelAccount:
    """The output f_c of a molecule as a sum, in the units of an explanation.

    Args:
        output: f_c.
        mean: f_c of a molecule that resembles no training molecule.
        training: the shares of the training molecules, the largest first. With the mean, they sum
            to the output. There are none if their structures were not stored.
        structures: the shares of the counted structures, the largest first. So do these.
    """

    output: float
    mean: float
    training: tuple[TrainingShare, ...]
    structures: tuple[Structure, ...]

    def __repr__(self) -> str:
        first = "; ".join(f"{each.smiles} {each.share:+.3g}" for each in self.training[:3])
        return (
            f"KernelAccount(output {self.output:.4g} = mean {self.mean:.4g}"
            f" {self.output - self.mean:+.4g} from {len(self.structures)} structures"
            + (f", or {len(self.training)} training molecules, most from {first}" * bool(first))
            + ")"
        )

    def by_training_molecule(self) -> pd.DataFrame:
        """Return the shares of the training molecules as a table.

        Raises:
            ValueError: the process was trained with `without_structures`.
        """
        import pandas as pd

        if not self.training:
            raise ValueError(
                "there is no account by training molecule: its training structures were not stored"
                " (--without-structures)."
            )

        return pd.DataFrame(self.training, columns=list(TrainingShare._fields))

    def by_structure(self) -> pd.DataFrame:
        """Return the shares of the counted structures as a table."""
        import pandas as pd

        return pd.DataFrame(self.structures, columns=list(Structure._fields))


@torch.no_grad()
def kernel_account(model: Any, molecule: Any, *, target: Any = None) -> KernelAccount:
    """Read the value that a process gives one molecule as two sums.

    Args:
        model: a process.
        molecule: a SMILES or an RDKit molecule.
        target: the output, see `Target`.

    Raises:
        TypeError: the model is another one.
        ValueError: the molecule cannot be used, or the model does not have the target.
    """
    if not isinstance(model, KernelProcess):
        raise TypeError(f"a kernel account needs a process, not {type(model).__name__}.")
    graph = model.prepare(molecule).graph
    batch = model.collate([graph]).to(model.means.device)
    with evaluating(model):
        outputs = model(batch)
        resolved = Target.of(target).resolve(model.config, outputs)
        weights = model.weights @ resolved.weights[0]  # (m,)
        counts = batch.counts(model.embed(batch)[:, 1:, 0], None)
        similarity = model.similarities(counts, batch.columns)[0]  # (m,)
        of_structures = _by_structure(model, counts, batch.columns, weights)
    names, shares = _smiles_of(model), weights * similarity
    order = shares.abs().argsort(descending=True).tolist() if names else []
    training = (TrainingShare(names[j], float(similarity[j]), float(shares[j])) for j in order)
    occurrences = dict[int, list[tuple[int, ...]]]()
    covered = graph.count_atoms.split(graph.count_sizes.tolist())
    for column, atoms in zip(graph.count_columns.tolist(), covered, strict=True):
        occurrences.setdefault(column, []).append(tuple(atoms.tolist()))
    structures = [
        Structure(STRUCTURES[column // COUNTS], tuple(occurrences[column]), share)
        for column, share in zip(occurrences, of_structures.tolist(), strict=True)
        if share
    ]
    return KernelAccount(
        output=float(resolved(outputs)[0]),
        mean=float(resolved(model.outputs_without_nodes(batch))[0]),
        training=tuple(training),
        structures=tuple(sorted(structures, key=lambda each: -abs(each.share))),
    )


def _by_structure(model: KernelProcess, counts: Tensor, columns: Tensor, weights: Tensor) -> Tensor:
    """Return the share (P,) of each count of one molecule."""
    of_levels = [
        part.levels[:, 0] * (part.reached @ (weights / part.either[0])) / KINDS
        for part in model.parts(counts, columns)
    ]
    row, _ = model.level_rows(counts, columns)
    return torch.zeros_like(counts[:, 0]).index_add_(0, row, torch.cat(of_levels))


def _smiles_of(model: KernelProcess) -> list[str]:
    """Return the SMILES of the molecules that carry a process, or "" if another list is stored.

    The list is empty if the process was trained without storing structures.
    """
    stored: dict[str, Any] = model.origin.metadata.get("carriers", {})
    if model.origin.metadata.get("without_structures"):
        return []
    training, rows = training_set_of(model), stored.get("rows")
    known = training is not None and isinstance(rows, list) and len(rows) == model.config.carriers
    if not known or training is None or digest_of(training.given) != stored.get("sha256"):
        return [""] * model.config.carriers
    return [training.given[row] for row in rows or ()]


def digest_of(smiles: tuple[str, ...]) -> str:
    """Return the SHA-256 of training structures in their order."""
    return hashlib.sha256("\n".join(smiles).encode()).hexdigest()
