"""Turn molecules into arrays of features, in this process or in several.

RDKit's parsing, the slowest step, is single-threaded, so several processes featurise SMILES. Chunks
go out, and arrays come back. Neither this file nor what it imports needs torch, so a worker process
starts in a fraction of a second and stays small.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase

from graphxai.runtime.workers import LostItem, in_workers

from .as_given import AS_DRAWN, AsGiven, Isomers, Standardisation
from .canonical_form import one_perception
from .features import ATOM_FEATURE_NAMES, atom_features, bond_features, canonical_chirality
from .isomers import isomers_in_order, undrawn_centres
from .molecule_reading import MoleculeError, ReadMolecule, read_molecules, shortened

MAX_ATOMS = 500  # of a molecule; time and memory of attention grow with the square
# The steps from SMILES to graph evict each other from the processor's caches. Doing each step for
# this many molecules before the next one saves a tenth of the time.
TURN = 32

_CHIRALITY = ATOM_FEATURE_NAMES.index("chirality")
_CHUNK = 4 * TURN  # a worker takes about 30 ms for them, and its answer is some 700 kB


class Featurised(NamedTuple):
    """A molecule's SMILES and its features in OGB's codes.

    There is the RDKit molecule if one was given, the molecule as given if this is its parent, and
    the form in which the molecule was read, unless another process read it. If results are the mean
    over several isomers, `isomers` has the features of each.
    """

    text: str
    mol: Chem.Mol | None
    atoms: NDArray[np.int64]  # (N, 9)
    ends: NDArray[np.int64]  # (2, E), both directions of every bond
    bonds: NDArray[np.int64]  # (E, 3)
    as_given: AsGiven | None = None
    read: Chem.Mol | None = None
    isomers: tuple[Featurised, ...] = ()


def featurise(
    molecules: Iterable[str | Chem.Mol],
    max_atoms: int = MAX_ATOMS,
    canonical: bool = False,
    standardise: Standardisation = AS_DRAWN,
    isomers: Isomers = "one",
) -> Iterator[Featurised | MoleculeError]:
    """Yield the features of each molecule, or an error if it cannot become a graph."""
    remaining = iter(molecules)
    while turn := list(islice(remaining, TURN)):
        try:
            featurised = _featurised(turn, max_atoms, canonical, standardise, isomers)
        except Exception as error:  # RDKit raises any type; one molecule must not stop others
            if len(turn) > 1:
                for molecule in turn:
                    yield from featurise([molecule], max_atoms, canonical, standardise, isomers)
                continue
            reason = " ".join(str(error).split()) or type(error).__name__
            text = f"RDKit cannot read this molecule: {shortened(reason, 300)}"
            featurised = [MoleculeError(text)]
        yield from featurised


def _featurised(
    molecules: Sequence[str | Chem.Mol],
    max_atoms: int,
    canonical: bool,
    standardise: Standardisation,
    isomers: Isomers,
) -> list[Featurised | MoleculeError]:
    with rdBase.BlockLogs(), one_perception() if canonical else nullcontext():
        read = read_molecules(molecules, max_atoms, standardise, canonical)
        featurised = [
            each if isinstance(each, MoleculeError) else _features(each, each.form) for each in read
        ]
        if canonical:
            return [
                item
                if isinstance(item, MoleculeError) or isinstance(molecule, MoleculeError)
                else _canonical(item, molecule, isomers)
                for item, molecule in zip(featurised, read, strict=True)
            ]
    return featurised


def _features(molecule: ReadMolecule, form: Chem.Mol) -> Featurised:
    of_form = atom_features(form), *bond_features(form)
    return Featurised(molecule.text, molecule.shown, *of_form, molecule.as_given, form)


def _canonical(item: Featurised, molecule: ReadMolecule, isomers: Isomers) -> Featurised:
    """Return the features with canonical chirality, and those of each isomer that is meant."""
    mols: list[Chem.Mol] = []
    if isomers != "one":
        undrawn = undrawn_centres(molecule.form) if isomers == "mean" else []
        mols, of = isomers_in_order(molecule.form, molecule.mol, undrawn)
    if mols:
        given = molecule.as_given or AsGiven.of(molecule.text, molecule.mol.GetNumAtoms())
        molecule = molecule._replace(as_given=given.as_mean(of))
        each = tuple(_canonical(_features(molecule, mol), molecule, "one") for mol in mols)
        return each[0]._replace(read=item.read, isomers=each)
    if item.read is not None and (chirality := canonical_chirality(item.read)) is not None:
        item.atoms[:, _CHIRALITY] = chirality
    return item


def _featurise_to_send(smiles: Sequence[str], **reading: Any) -> list[Featurised | MoleculeError]:
    """Featurise SMILES in a worker process, without the molecules that were read."""
    results = featurise(smiles, **reading)
    return [r._replace(read=None) if isinstance(r, Featurised) else r for r in results]


def featurise_in_workers(
    molecules: Iterable[str | Chem.Mol], workers: int, **reading: Any
) -> Generator[Featurised | MoleculeError, None, None]:
    """Yield features or errors in the order of the source, using `workers` processes for SMILES.

    RDKit molecules are featurised in this process. The workers end with the generator. `reading`
    is as for `featurise`.
    """
    # The results of each chunk; None stands for a SMILES, whose result is still to come.
    waiting: deque[list[Featurised | MoleculeError | None]] = deque()

    def pieces() -> Iterator[list[str]]:
        for chunk in _chunks(molecules):
            rdkit_molecules = [m for m in chunk if not isinstance(m, str)]
            made_here = featurise(rdkit_molecules, **reading)
            waiting.append([None if isinstance(m, str) else next(made_here) for m in chunk])
            yield [m for m in chunk if isinstance(m, str)]

    work = partial(_featurise_to_send, **reading)
    with closing(in_workers(work, pieces(), workers)) as results_by_piece:
        for piece_results in results_by_piece:
            by_position: dict[int, Featurised | MoleculeError] = {}
            for _, positions, answer in piece_results:
                lost = isinstance(answer, LostItem)
                results = [MoleculeError(answer.reason)] if lost else answer
                by_position |= dict(zip(positions, results, strict=True))
            smiles_results = iter(by_position[position] for position in sorted(by_position))
            for result in waiting.popleft():
                yield next(smiles_results) if result is None else result


def _chunks(molecules: Iterable[str | Chem.Mol]) -> Iterator[list[str | Chem.Mol]]:
    """Yield the molecules, `_CHUNK` at a time. An error of the source comes after all of them."""
    chunk: list[str | Chem.Mol] = []
    try:
        for molecule in molecules:
            chunk.append(molecule)
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
    except Exception:
        yield chunk
        raise
    yield chunk
