"""Featurise SMILES in several processes: RDKit's parsing, the slowest step, is single-threaded.

Chunks of SMILES go out, a few small arrays per chunk come back, and results keep the order of the
source. The source is read only far enough ahead to keep the processes busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import partial

from rdkit import Chem

from graphxai.runtime.workers import LostItem, in_workers

from .featurising import TURN, Featurised, featurise, featurise_packed, unpack
from .molecule_reading import MoleculeError

__all__ = ["featurise_in_workers"]

_CHUNK = 4 * TURN  # a worker takes about 30 ms for them, and its answer is some 50 kB

_Result = Featurised | MoleculeError


def featurise_in_workers(
    molecules: Iterable[str | Chem.Mol], max_atoms: int, canonical: bool, workers: int
) -> Generator[_Result, None, None]:
    """Yield features or errors in the order of the source, using `workers` processes for SMILES.

    RDKit molecules are featurised in this process. The workers end with the generator.
    """
    waiting: deque[list[_Result | None]] = deque()  # of each chunk, without those of its SMILES

    def pieces() -> Iterator[list[str]]:
        for chunk in _chunks(molecules):
            given = featurise([m for m in chunk if not isinstance(m, str)], max_atoms, canonical)
            own = iter(given)
            waiting.append([None if isinstance(one, str) else next(own) for one in chunk])
            yield [str(one) for one in chunk if isinstance(one, str)]

    work = partial(featurise_packed, max_atoms=max_atoms, canonical=canonical)
    with closing(in_workers(work, pieces(), workers)) as done:
        for parts in done:
            of_smiles: dict[int, _Result] = {}
            for smiles, places, found in parts:
                lost = isinstance(found, LostItem)
                one_by_one = [MoleculeError(found.reason)] if lost else unpack(smiles, found)
                of_smiles |= dict(zip(places, one_by_one, strict=True))
            in_order = iter(of_smiles[place] for place in sorted(of_smiles))
            for given in waiting.popleft():
                yield next(in_order) if given is None else given


def _chunks(molecules: Iterable[str | Chem.Mol]) -> Iterator[list[str | Chem.Mol]]:
    """The molecules, `_CHUNK` at a time; those before an error of the source come out first."""
    chunk: list[str | Chem.Mol] = []
    try:
        for one in molecules:
            chunk.append(one)
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
    except Exception:
        yield chunk
        raise
    yield chunk
