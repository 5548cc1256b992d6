"""Activity cliffs: pairs of similar molecules whose measured values differ a lot."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rdkit import Chem, DataStructs, rdBase

from graphxai.datasets.fingerprints import ecfp4_bits

from .matched_pairs import MatchedPair, matched_pairs


@dataclass(frozen=True)
class Cliff:
    """Two rows of a table: `a` with the larger value, `b` with the smaller.

    similarity: Tanimoto similarity of ECFP4. core: SMILES of the shared core of a matched molecular
    pair, `*` where the exchanged part is attached; None if the pair is only similar.
    """

    a: int
    b: int
    difference: float
    similarity: float
    core: str | None = None

    def __repr__(self) -> str:
        """The fields, rounded; the stored values are exact."""
        listed = f"difference={self.difference:.3g}, similarity={self.similarity:.2f}"
        return f"Cliff(a={self.a}, b={self.b}, {listed}, core={self.core!r})"


def activity_cliffs(
    smiles: Sequence[str],
    values: ArrayLike,
    *,
    similarity: float = 0.7,
    difference: float = 1.0,
    matched: bool = True,
) -> list[Cliff]:
    """Pairs of similar structure whose values differ by `difference` or more, the largest first.

    Similar means a Tanimoto similarity of ECFP4 (Morgan, radius 2, 2,048 bits, no chirality) of at
    least `similarity`. With `matched`, matched molecular pairs count too: two molecules that differ
    only in the part attached to one acyclic single bond, which has at most 13 heavy atoms and at
    most half the size of the core, or is hydrogen. smiles, values: of equal length, values in log
    units. Rows without a value are skipped, and so are unreadable SMILES, which a warning lists.
    Two rows with the same molecule are not a cliff; two stereoisomers can be. Raises ValueError if
    the lengths differ, or for a `similarity` outside (0, 1] or a `difference` of 0 or less.

    Source: Maggiora 2006 (cliffs), Hussain 2010 (matched pairs), Hu 2012 (sizes).
    """
    measured = np.asarray(values, dtype=np.float64)
    if measured.shape != (len(smiles),):
        raise ValueError(f"{len(smiles)} molecules, but values of shape {measured.shape}.")
    if not (0 < similarity <= 1 and difference > 0):
        raise ValueError("similarity must lie in (0, 1] and difference above 0.")
    molecules = _read(smiles, np.isfinite(measured))
    rows = np.array(list(molecules), dtype=int)
    own = measured[rows]
    mols = list(molecules.values())
    names = np.array([Chem.MolToSmiles(mol) for mol in mols], dtype=object)
    prints = [ecfp4_bits(mol) for mol in mols]
    pairs: dict[tuple[int, int], MatchedPair] = {}
    if matched:
        pairs = matched_pairs(mols, lambda i, j: abs(own[i] - own[j]) >= difference)
    found = []
    for j in range(1, len(rows)):
        alike = np.array(DataStructs.BulkTanimotoSimilarity(prints[j], prints[:j]))
        gap = own[j] - own[:j]
        far = (np.abs(gap) >= difference) & (names[:j] != names[j])
        shared = [i for i in np.flatnonzero(far) if (int(i), j) in pairs]
        near = np.union1d(np.flatnonzero(far & (alike >= similarity)), shared).astype(int)
        for i in near.tolist():
            high, low = (j, i) if gap[i] > 0 else (i, j)
            found.append(
                Cliff(
                    int(rows[high]),
                    int(rows[low]),
                    abs(float(gap[i])),
                    float(alike[i]),
                    pairs[i, j].core if (i, j) in pairs else None,
                )
            )
    return sorted(found, key=lambda cliff: (-cliff.difference, -cliff.similarity, cliff.a, cliff.b))


def _read(smiles: Sequence[str], wanted: Iterable[Any]) -> dict[int, Chem.Mol]:
    """Molecules by row; unreadable rows are skipped, and a warning lists them."""
    found, bad = {}, []
    with rdBase.BlockLogs():
        for row, (text, use) in enumerate(zip(smiles, wanted, strict=True)):
            mol = Chem.MolFromSmiles(text) if use else None
            if mol is not None:
                found[row] = mol
            elif use:
                bad.append(row)
    if bad:
        listed = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        rows = "row" if len(bad) == 1 else "rows"
        warnings.warn(f"{len(bad)} SMILES cannot be read: {rows} {listed}.", stacklevel=3)
    return found
