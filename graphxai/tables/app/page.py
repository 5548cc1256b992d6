"""The files of the server's page and the notebook's view, and the limits of what they read."""

import re
from importlib.resources import files

from rdkit import Chem, rdBase

from graphxai.datasets.canonical_form import quietly_read, smiles_with_groups
from graphxai.datasets.molecule_reading import MoleculeError, read_molecules, shortened
from graphxai.datasets.tables.structures import StructureRecord
from graphxai.evaluation.trust.trust import level_properties
from graphxai.visualization.layout import laid_out

# The script of the view. The order matters, because each file uses constants of those before it.
VIEW_SCRIPTS = (
    *("state.js", "choices.js", "molecule.js", "properties.js", "history.js"),
    *("sketch.js", "search.js", "table.js", "structure_activity.js", "series.js"),
    *("basket.js", "controls.js"),
)


OF_REPORT = ("draw.js", "structure_activity.js")  # scripts of reports that the view has, too
MAX_ATOMS = 100
MAX_CHARACTERS = 1000  # how long a SMILES may be
EDITOR = "openchemlib.js"  # in which users draw molecules, see openchemlib/README.md


def text_of(name: str) -> str:
    """Return the text of a file in this folder, of the editor, or of a file of the report."""
    folder = files("graphxai.tables.report" if name in OF_REPORT else __package__)
    place = folder / "openchemlib" / name if name == EDITOR else folder / name
    return place.read_text(encoding="utf-8")


def view_script() -> str:
    """Return the script of the view, which expects `root` and `host` to be defined before it."""
    return "".join(map(text_of, VIEW_SCRIPTS))


def filled(name: str, **parts: str) -> str:
    """Return the text of a file after filling its {{PLACES}}."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], text_of(name))


STYLE = filled("app.css", LEVELS=level_properties("light-dark({0}, {1})"))


def read(smiles: str) -> Chem.Mol:
    """Read the molecule of a SMILES, with its atoms in the order written.

    Raises:
        ValueError: the text is not a SMILES, or the molecule is too large for the page.
    """
    if len(smiles) > MAX_CHARACTERS:
        raise ValueError(
            f"{shortened(smiles, 80)} has {len(smiles):,} characters; the page reads up to"
            f" {MAX_CHARACTERS:,}. For longer ones use `graphxai explain`."
        )
    mol = quietly_read(smiles) if smiles.isprintable() else None
    if mol is None or not mol.GetNumAtoms():
        with rdBase.BlockLogs():
            (problem,) = read_molecules([smiles], MAX_ATOMS)
        raise (
            problem
            if isinstance(problem, MoleculeError)
            else ValueError(f"{shortened(smiles, 80)!r} is not a SMILES that RDKit can read.")
        )
    if mol.GetNumAtoms() > MAX_ATOMS:
        raise ValueError(
            f"this molecule has {mol.GetNumAtoms()} atoms; the page shows up to {MAX_ATOMS}. For"
            " larger ones use `graphxai explain`."
        )
    return mol


def block_of(mol: Chem.Mol) -> str:
    """Return the mol block of a molecule for the editor, which reads groups & and o in it."""
    return Chem.MolToV3KMolBlock(laid_out(mol, keep=True))


def smiles_of_block(block: str) -> str:
    """Return the canonical SMILES of a mol block, with its groups & and o.

    Raises:
        ValueError: the block is not understood, or the molecule is too large for the page.
    """
    return smiles_with_groups(read(str(StructureRecord("", block, {}).smiles)))
