"""Find the cores that series of compounds in a table share."""

from collections import Counter
from collections.abc import Sequence

from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

SMALLEST_SERIES = 4  # compounds


def common_cores(molecules: Sequence[Chem.Mol], most: int) -> dict[str, list[int]]:
    """Return the cores that most molecules have, each with the positions of its molecules.

    A core is the ring systems of a molecule and what links them (Bemis 1996). At least
    `SMALLEST_SERIES` molecules must have it.

    Args:
        molecules: the molecules.
        most: how many cores to return.
    """
    scaffolds = [_scaffold(mol) for mol in molecules]
    counts = Counter(filter(None, scaffolds))
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        core: [k for k, scaffold in enumerate(scaffolds) if scaffold == core]
        for core, count in ranked[:most]
        if count >= SMALLEST_SERIES
    }


def _scaffold(mol: Chem.Mol) -> str:
    try:
        return str(MurckoScaffold.MurckoScaffoldSmiles(mol=mol))
    except (ValueError, RuntimeError):  # RDKit cannot make one of each molecule
        return ""
