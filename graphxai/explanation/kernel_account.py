"""Read the value of one molecule as a sum over training molecules, and over structures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.checkpoint_files import lists_as_written
from graphxai.contract.inputs import prepare_each
from graphxai.contract.model import evaluating
from graphxai.contract.target import Target
from graphxai.datasets.fingerprints import COUNTS, KINDS, STRUCTURES, structure_occurrences
from graphxai.datasets.tables.table import open_table
from graphxai.datasets.training_set import FILE, training_set_of
from graphxai.models.process import KernelProcess
from graphxai.models.process.inputs import read_again
from graphxai.models.process.sum import COUNTED
from graphxai.visualization import Scale, grid_svg, molecule_svg

from .compute.models import loaded_once
from .result import Result

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]
ATOMS = 2  # the fewest atoms of a structure that is drawn by itself
PANEL = {"width": 215.0, "height": 190.0, "color_bar": False}


class TrainingShare(NamedTuple):
    """What one training molecule says.

    Args:
        smiles: the molecule, "" if structures are not stored.
        measured: what was measured, as in the file of training molecules.
        similarity: its similarity, the mean over the kinds of counts.
    """

    smiles: str
    measured: str
    similarity: float
    share: float

    @property
    def measured_text(self) -> str:
        """What was measured, a number with four digits; a bound or a class stays as it is."""
        try:
            return f"{float(self.measured):.4g}"
        except ValueError:
            return self.measured


class Structure(NamedTuple):
    """What a counted structure says: its kind, the atoms of each occurrence, and its share."""

    kind: str
    atoms: tuple[tuple[int, ...], ...]
    share: float


@dataclass(frozen=True, eq=False)
class KernelAccount(Result):
    """The output f_c of a molecule as a sum, in the units of an explanation.

    Args:
        output: f_c.
        mean: f_c of a molecule that resembles no training molecule.
        training: the shares of the training molecules, the largest first. With the mean, and with
            the model beside a process, they sum to the output. There are none if their structures
            were not stored.
        structures: the shares of the counted structures, the largest first. So do these.
        beside: what the other model of a sum says, see `SummedModel`.
        subject: the words for f_c.
        molecule: the molecule as an RDKit molecule.
        counts: the counts of the molecule in each of the passes that the output is the mean over
            (passes, 5 * 4096).
        worth: by pass and kind, what a count in common adds to the share of each training molecule
            (passes, 5, m).
    """

    output: float
    mean: float
    training: tuple[TrainingShare, ...]
    structures: tuple[Structure, ...]
    beside: float = 0.0
    subject: str = "output"
    molecule: Any = field(default=None, repr=False)
    counts: FloatArray = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    worth: FloatArray = field(default_factory=lambda: np.zeros((0, KINDS, 0)), repr=False)

    def __repr__(self) -> str:
        named = [each for each in self.training[:3] if each.smiles]
        first = "; ".join(f"{each.smiles} {each.share:+.3g}" for each in named)
        return (
            f"KernelAccount({self.sentence} from {len(self.structures)} structures"
            + (f", or {len(self.training)} training molecules, most from {first}" * bool(first))
            + ")"
        )

    @property
    def sentence(self) -> str:
        """The sum as text."""
        beside = f" {self.beside:+.3f} from the other model" if self.beside else ""
        gain = self.output - self.mean - self.beside
        return f"{self.subject} {self.output:.3f} = mean {self.mean:.3f}{beside} {gain:+.3f}"

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

    def to_frame(self) -> pd.DataFrame:
        """Return the shares of the training molecules, or of the structures without these."""
        return self.by_training_molecule() if self.training else self.by_structure()

    @property
    def relevance(self) -> FloatArray:
        """The shares of the structures on the atoms that they cover, (N,), as `kernel` has them."""
        return self._on_atoms((each.atoms, each.share) for each in self.structures)

    def strongest(self, count: int = 5) -> tuple[list[int], list[int]]:
        """Return the places of the training molecules that speak most for f_c, and against it."""
        named = [(k, each.share) for k, each in enumerate(self.training) if each.smiles]
        speaking = [k for k, share in named if share > 0], [k for k, share in named if share < 0]
        return speaking[0][:count], speaking[1][:count]

    def shared_atoms(self, place: int) -> tuple[Any, FloatArray]:
        """Return a training molecule, and its share on its atoms (N,) that this one has as well.

        Args:
            place: its place in `training`.

        Raises:
            ValueError: its structure was not stored.
        """
        if not self.training[place].smiles:
            raise ValueError("the structures of the training molecules were not stored.")
        mol = read_again(self.training[place].smiles)
        columns, sizes, atoms = structure_occurrences(mol)
        of_other = np.bincount(columns, minlength=self.counts.shape[1])[columns]
        shared = np.minimum(self.counts[:, columns], of_other) / of_other  # of each occurrence
        shared = (shared * self.worth[:, columns // COUNTS, place]).sum(0) / sizes
        relevance = np.bincount(atoms, np.repeat(shared, sizes), mol.GetNumAtoms())
        return mol, np.asarray(relevance, np.float64)

    def parts(self, count: int = 3) -> list[Structure]:
        """Return the strongest structures of more than one atom, and at most half of all.

        Those of all kinds that cover the same atoms are added up. Of two that share most of their
        atoms, the stronger one stands for both.
        """
        atoms, total = self.molecule.GetNumAtoms(), dict[frozenset[frozenset[int]], float]()
        for each in self.structures:
            covered = frozenset(map(frozenset, each.atoms))
            total[covered] = total.get(covered, 0.0) + each.share
        whole = [
            Structure("", (tuple(sorted(place)),), share)
            for (place, *more), share in ((tuple(covered), s) for covered, s in total.items())
            if not more and ATOMS <= len(place) <= atoms / 2
        ]
        kept: list[Structure] = []
        for part in sorted(whole, key=lambda each: -abs(each.share)):
            of_part = set(part.atoms[0])
            if all(len(of_part & {*k.atoms[0]}) <= len(of_part | {*k.atoms[0]}) / 2 for k in kept):
                kept.append(part)
        return kept[:count]

    def svg(self, *, count: int = 5, structures: int = 4, **options: Any) -> str:
        """Draw the molecule, its strongest structures, and what speaks for and against its value.

        Training molecules are coloured where they have structures in common with the molecule. The
        colours of each of them sum to its share.

        Args:
            count: how many training molecules speak for it, and how many against it.
            structures: how many structures are drawn.
            options: options of `molecule_svg` for all molecules.
        """
        picture: dict[str, Any] = PANEL | options
        relevance = self.relevance
        panels: list[Any] = [("all structures", self.molecule, relevance, ())]
        for part in self.parts(structures):
            outlined = sorted({atom for place in part.atoms for atom in place})
            on_atoms = self._on_atoms([part[1:]])
            panels.append((f"one part {part.share:+.3f}", self.molecule, on_atoms, outlined))
        scale = Scale.fit(relevance)
        drawn = [
            molecule_svg(mol, of, title=title, outlined=outlined, **({"scale": scale} | picture))
            for title, mol, of, outlined in panels
        ]
        rows = [grid_svg(drawn, len(drawn), self.sentence, scale=scale, values=relevance)]
        both = self.strongest(count)
        atoms = {place: self.shared_atoms(place) for place in (*both[0], *both[1])}
        if atoms:
            scale = Scale.fit(*(of for _, of in atoms.values()))
        for places, ends in zip(both, ("for", "against"), strict=True):
            drawn = []
            for each, (mol, of) in ((self.training[k], atoms[k]) for k in places):
                about: dict[str, Any] = {
                    "scale": scale,
                    "title": f"measured {each.measured_text or '–'}",
                    "subtitle": f"share {each.share:+.3f}, similarity {each.similarity:.2f}",
                }
                drawn.append(molecule_svg(mol, of, **(about | picture)))
            title = f"The {len(places)} training molecules that speak most {ends} it"
            rows += [grid_svg(drawn, count, title)] if drawn else []
        return grid_svg(rows, 1)

    def _on_atoms(self, shares: Iterable[tuple[Any, float]]) -> FloatArray:
        """Deal the share of each structure to its occurrences, and those to their atoms (N,)."""
        relevance = np.zeros(self.molecule.GetNumAtoms())
        for places, share in shares:
            for atoms in places:
                np.add.at(relevance, list(atoms), share / len(places) / len(atoms))
        return relevance


@torch.no_grad()
def kernel_account(model: Any, molecule: Any, *, target: Any = None) -> KernelAccount:
    """Read the value that a process gives one molecule as two sums.

    Args:
        model: a process, or a model and a process whose outputs are added, or the name or folder
            of one.
        molecule: a SMILES or an RDKit molecule.
        target: the output, see `Target`.

    Raises:
        TypeError: the model is another one.
        ValueError: the molecule cannot be used, or the model does not have the target.
    """
    model = loaded_once(model) if isinstance(model, str | Path) else model
    process = getattr(model, "process", model)
    if not isinstance(process, KernelProcess):
        raise TypeError(f"a kernel account needs a process, not {type(model).__name__}.")
    item = model.prepare(molecule)
    passes = [each.graph for each in item.passes]
    graphs = passes if process is model else [graph.get(COUNTED) for graph in passes]
    batch = process.collate(graphs).to(process.means.device)
    named = _training_of(model, process, Target.of(target))
    if model.origin.metadata.get("adapted") and named:
        _read_carriers_in_both_images(model, process, [smiles for smiles, _ in named])
    with evaluating(model):
        outputs = model(model.collate(passes).to(process.means.device)).mean(0, keepdim=True)
        resolved = Target.of(target).resolve(model.config, outputs)
        of_process = resolved(process(batch).mean(0, keepdim=True).to(outputs))
        chosen = resolved.weights[0].to(process.weights)
        counts = batch.counts(process.embed(batch)[:, 1:, 0], None)  # (P, 1)
        each = [
            _of_pass(process, counts[a:b], batch.columns[a:b], chosen, bool(named))
            for a, b in pairwise(batch.bounds)
        ]
    of_structures, *of_carriers = zip(*each, strict=True)
    similarity, shares, worth = (torch.stack(values) / len(each) for values in of_carriers)
    similarity, shares = similarity.sum(0), shares.sum(0)
    order = shares.abs().argsort(descending=True)[: len(named)].tolist()
    total = dict[tuple[int, Any], float]()  # of each structure and the atoms that it covers
    for graph, of_pass in zip(graphs, of_structures, strict=True):
        occurrences = dict[int, list[tuple[int, ...]]]()
        covered = graph.count_atoms.split(graph.count_sizes.tolist())
        for column, atoms in zip(graph.count_columns.tolist(), covered, strict=True):
            occurrences.setdefault(column, []).append(tuple(atoms.tolist()))
        for (column, places), share in zip(occurrences.items(), of_pass, strict=True):
            key = column, tuple(places)
            total[key] = total.get(key, 0.0) + share / len(each)
    structures = [
        Structure(STRUCTURES[column // COUNTS], atoms, share)
        for (column, atoms), share in total.items()
        if share
    ]
    return KernelAccount(
        output=float(resolved(outputs)[0]),
        mean=float(resolved(process.means[None].to(outputs))[0]),
        training=tuple(
            TrainingShare(named[j][0], named[j][1], float(similarity[j]), float(shares[j]))
            for j in order
        ),
        structures=tuple(sorted(structures, key=lambda each: -abs(each.share))),
        beside=float((resolved(outputs) - of_process)[0]),
        subject=resolved.labels[0],
        molecule=item.molecule or item.read or read_again(item.smiles or ""),
        counts=np.stack(
            [np.bincount(graph.count_columns, minlength=COUNTS * KINDS) for graph in graphs]
        ).astype(np.float64),
        worth=worth[:, :, order].numpy(),
    )


def _of_pass(
    process: KernelProcess, counts: Tensor, columns: Tensor, chosen: Tensor, is_known: bool
) -> tuple[list[float], Tensor, Tensor, Tensor]:
    """Read what a process says of one pass over a molecule, in one output.

    Args:
        counts: the counts (P, 1).
        columns: their columns (P,).
        chosen: how much each output counts (C,).
        is_known: whether the carriers are known, which have no shares otherwise.

    Returns:
        The share of each count (P,); the similarity to each carrier (m,), its share (m,), and by
        kind what a count in common adds to that (5, m).
    """
    weights = process.weights @ chosen  # (m,)
    parts = list(process.parts(counts, columns))
    of_levels = [
        part.levels[:, 0] * (part.reached @ (weights / part.either[0])) / KINDS for part in parts
    ]
    row, _ = process.level_rows(counts, columns)
    of_structures = torch.zeros_like(counts[:, 0]).index_add_(0, row, torch.cat(of_levels))
    either = torch.stack([part.either[0] for part in parts])  # (5, m)
    similarity = (torch.stack([part.shared[0] for part in parts]) / either).mean(0)
    shares = torch.zeros_like(weights)
    for k in chosen.nonzero()[:, 0].tolist() if is_known else ():
        shares += chosen[k] * process.by_measurement(similarity, k)
    worth = shares / similarity.clamp(min=1e-9) / either / KINDS
    return of_structures.tolist(), similarity, shares, worth


def _read_carriers_in_both_images(
    model: Any, process: KernelProcess, smiles: Sequence[str]
) -> None:
    """Give a process the kernel of its carriers that its weights were fitted with.

    A model that cannot tell mirror images apart takes the mean over both of them, for the molecules
    that it was adapted to, too. What is stored are the counts of one image.

    Raises:
        ValueError: there are such molecules, and their structures were not stored.
    """
    if vars(process).setdefault("_carriers_as_read", False):
        return
    if not all(smiles) and model.prepare("C[C@H](N)O").mirrored is not None:
        raise ValueError(
            "the model takes the mean over mirror images, and its training molecules, which an"
            " account needs for that, are not stored."
        )
    chiral = [row for row, text in enumerate(smiles) if "@" in text]
    items = prepare_each(model, [smiles[row] for row in chiral], Exception)
    images = {
        row: item.passes[1].graph.get(COUNTED)
        for row, item in zip(chiral, items, strict=True)
        if not isinstance(item, Exception) and item.mirrored is not None
    }
    if images:
        batch = process.collate(list(images.values())).to(process.means.device)
        counts, kernel = (
            batch.counts(process.embed(batch)[..., 1:, 0], None),
            process.carried_kernel,
        )
        for row, (a, b) in zip(images, pairwise(batch.bounds), strict=True):
            near = process.similarities(counts[a:b], batch.columns[a:b])[0].cpu().numpy()
            kernel[row] = (kernel[row] + near) / 2
    vars(process)["_carriers_as_read"] = True


def _training_of(model: Any, process: KernelProcess, target: Target) -> list[tuple[str, str]]:
    """Return the SMILES and the measured value of each molecule that carries a process, as text.

    Both are "" if another list is stored. The list is empty if structures were not stored.
    """
    metadata, carriers = model.origin.metadata, process.config.carriers
    if metadata.get("without_structures"):
        return []
    stored: dict[str, Any] = metadata.get("carriers", {})
    training, rows = training_set_of(model), stored.get("rows")
    known = isinstance(rows, list) and len(rows) == carriers
    if not known or training is None or not lists_as_written(model.origin).get(FILE):
        return [("", "")] * carriers
    opened = open_table(Path(model.origin.folder) / FILE, "smiles")
    task = target.tasks_in(model.config)[0]
    column = opened.source_of(task.name, task.unit)
    cells = [record.cells for record in opened.records(["smiles", *([column] if column else [])])]
    measured = {row["smiles"]: row[column] if column else "" for row in cells}
    return [(training.given[row], measured[training.given[row]]) for row in rows or ()]
