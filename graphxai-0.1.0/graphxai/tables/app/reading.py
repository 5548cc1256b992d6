"""Read the molecules that the page names, within the limits of the page."""

from rdkit import Chem, rdBase

MAX_ATOMS = 100
MAX_CHARACTERS = 1000  # how long a SMILES may be
PREDICTIONS = 600  # how many predictions a search makes


def read(smiles: str) -> Chem.Mol:
    """Read the molecule of a SMILES, with its atoms in the order written.

    Raises:
        ValueError: the text is not a SMILES, or the molecule is too large for the page.
    """
    mol = None
    if len(smiles) <= MAX_CHARACTERS and smiles.isprintable():
        with rdBase.BlockLogs():
            mol = Chem.MolFromSmiles(smiles)
    if mol is None or not mol.GetNumAtoms():
        raise ValueError(f"{smiles[:80]!r} is not a SMILES that RDKit can read.")
    if mol.GetNumAtoms() > MAX_ATOMS:
        raise ValueError(
            f"this molecule has {mol.GetNumAtoms()} atoms; the page shows up to {MAX_ATOMS}. For"
            " larger ones use `graphxai explain`."
        )
    return mol
