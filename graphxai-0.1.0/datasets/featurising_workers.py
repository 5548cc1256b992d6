"""Featurise SMILES in several processes: RDKit's parsing, the slowest step, is single-threaded.

Chunks of SMILES go out and a few small arrays per chunk come back. Results keep the order of the
source, which is read only far enough ahead to keep the processes busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import partial

from rdkit import Chem

from graphxai.runtime.workers import LostItem, in_workers

from .as_given import AS_DRAWN, Standardisation
from .featurising import TURN, Featurised, featurise, featurise_packed, unpack
from .molecule_reading import MoleculeError

__all__ = ["featurise_in_workers"]

_CHUNK = 4 * TURN  # a worker takes about 30 ms for them, and its answer is some 50 kB

_Result = Featurised | MoleculeError


def featurise_in_workers(
    molecules: Iterable[str | Chem.Mol],
    max_atoms: int,
    canonical: bool,
    workers: int,
    standardisation: Standardisation = AS_DRAWN,
) -> Generator[_Result, None, None]:
    """Yield features or errors in the order of the source, using `workers` processes for SMILES.

    RDKit molecules are featurised in this process. The workers end with the generator.
    """
    # The results of each chunk; None stands for a SMILES, whose result is still to come.
    waiting: deque[list[_Result | None]] = deque()

    def pieces() -> Iterator[list[str]]:
        for chunk in _chunks(molecules):
            rdkit_molecules = [m for m in chunk if not isinstance(m, str)]
            made_here = iter(featurise(rdkit_molecules, max_atoms, canonical, standardisation))
            waiting.append([None if isinstance(m, str) else next(made_here) for m in chunk])
            yield [m for m in chunk if isinstance(m, str)]

    work = partial(
        featurise_packed,
        max_atoms=max_atoms,
        canonical=canonical,
        standardisation=standardisation,
    )
    with closing(in_workers(work, pieces(), workers)) as results_by_piece:
        for piece_results in results_by_piece:
            by_position: dict[int, _Result] = {}
            for smiles, positions, answer in piece_results:
                lost = isinstance(answer, LostItem)
                results = [MoleculeError(answer.reason)] if lost else unpack(smiles, answer)
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
