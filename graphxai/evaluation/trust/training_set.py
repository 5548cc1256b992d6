"""The compounds a model was trained on, to measure how similar a molecule is to them.

They are in `training.csv` beside the checkpoint, in the column `smiles`.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdkit.Chem import Mol
    from rdkit.DataStructs import ExplicitBitVect

FILE = "training.csv"


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Training compounds: canonical SMILES, fingerprints (ECFP4) and elements."""

    smiles: tuple[str, ...]
    fingerprints: "tuple[ExplicitBitVect, ...]"
    elements: frozenset[str]

    def nearest(self, mol: "Mol") -> tuple[float, str, bool]:
        """Tanimoto similarity and SMILES of the nearest compound, and whether it is this molecule.

        The fingerprint ignores stereochemistry; if several are equally near, the molecule itself
        comes first.
        """
        from rdkit import Chem
        from rdkit.DataStructs import BulkTanimotoSimilarity

        from graphxai.datasets.fingerprints import ecfp4_bits

        own = Chem.MolToSmiles(mol)
        if own in self.smiles:
            return 1.0, own, True
        similarity = BulkTanimotoSimilarity(ecfp4_bits(mol), list(self.fingerprints))
        best = max(range(len(similarity)), key=similarity.__getitem__)
        return similarity[best], self.smiles[best], False


def training_set_of(model: Any) -> TrainingSet | None:
    """The training set beside a model's checkpoint; None if there is none.

    Raises ValueError if `training.csv` has no column `smiles`.
    """
    folder = getattr(model.origin, "folder", None)
    path = None if folder is None else Path(folder) / FILE
    if path is None or not path.is_file():
        return None
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: Path, modified: int) -> TrainingSet | None:
    from rdkit import Chem, rdBase

    from graphxai.datasets.fingerprints import ecfp4_bits
    from graphxai.datasets.molecules import iter_records

    with rdBase.BlockLogs():
        molecules = [
            Chem.MolFromSmiles(record["smiles"]) for _, record in iter_records(path, ("smiles",))
        ]
    molecules = [mol for mol in molecules if mol is not None]
    if not molecules:
        return None
    return TrainingSet(
        tuple(Chem.MolToSmiles(mol) for mol in molecules),
        tuple(ecfp4_bits(mol) for mol in molecules),
        frozenset(atom.GetSymbol() for mol in molecules for atom in mol.GetAtoms()),
    )
