"""Read the rows of a table of molecules: group identical molecules, and reject unusable rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdkit import Chem, rdBase
from torch_geometric.data import Data

from .as_given import AS_DRAWN, AsGiven, MixtureError, Standardisation
from .canonical_form import ISOTOPE_UNSEEN, is_labelled
from .labels import is_missing
from .molecule_reading import is_inchi, shortened
from .molecules import MAX_QUOTED, MoleculeError, RejectedRow, molecule_graph
from .tables.table import Table

MISFIT = "more or fewer cells than the header"
LARGEST = 5000  # atoms up to which a molecule is read to say how many it has


@dataclass(eq=False)
class TableMolecule:
    """A molecule as its first row has it, and the positions of its rows among the usable ones."""

    graph: Data
    drawn: str  # SMILES with what no feature tells apart
    canonical: str  # SMILES of the canonical form
    flat: str  # SMILES without stereochemistry
    parts: int
    mol: Chem.Mol  # in its canonical form
    rows: list[int] = field(default_factory=list)


@dataclass(eq=False)
class TableRows:
    """The rows of a table.

    Args:
        read: how many rows there are.
        numbers, smiles, cells: those of the usable rows.
        beside: for each further column, its cells in the usable rows.
        molecules: each once.
        standardised: rows whose molecule was replaced by its parent.
        remarks: rows whose molecule was read as it is drawn, with a remark on it.
        isotopes: rows with isotopes, which no model sees.
        alike: positions of usable rows with another molecule than the first row of theirs, which
            the features of a model cannot tell apart from it.
        left_out: unusable rows, by the check that they failed.
    """

    read: int = 0
    numbers: list[int] = field(default_factory=list)
    smiles: list[str] = field(default_factory=list)
    cells: list[tuple[str, ...]] = field(default_factory=list)
    beside: dict[str, list[str]] = field(default_factory=dict)
    molecules: list[TableMolecule] = field(default_factory=list)
    standardised: list[RejectedRow] = field(default_factory=list)
    remarks: list[RejectedRow] = field(default_factory=list)
    isotopes: list[RejectedRow] = field(default_factory=list)
    alike: list[int] = field(default_factory=list)
    left_out: dict[str, list[RejectedRow]] = field(default_factory=lambda: defaultdict(list))

    def row(self, k: int, reason: str) -> RejectedRow:
        """Return the usable row at position `k` with a remark about it."""
        return RejectedRow(self.numbers[k], self.smiles[k], reason)


def read_rows(
    table: Table,
    target_columns: Sequence[str],
    max_atoms: int,
    progress: Callable[[int], None],
    standardise: Standardisation = AS_DRAWN,
    beside: Sequence[str] = (),
    split_column: str | None = None,
) -> TableRows:
    """Sort every row into `TableRows`. A molecule is kept once, at its first row.

    Molecules that differ only in what the features of a model leave out count as one.

    Args:
        standardise: what is kept instead of each molecule, see `molecule_to_data`.
        beside: further columns, whose cells are kept in `TableRows.beside`.
        split_column: a column of parts, in each of which a molecule is kept once.
    """
    rows = TableRows(beside={name: [] for name in beside})
    index_of: dict[str, dict[str, TableMolecule]] = defaultdict(dict)  # by part
    structures = table.structures.name
    columns = (structures, *target_columns, *beside, *([split_column] if split_column else []))
    unusable = "SMILES unreadable" if table.format == "structures" else MISFIT
    with rdBase.BlockLogs():
        for number, record, misfit in table.records(columns):
            rows.read += 1
            progress(1)
            text = record[structures]
            cells = tuple(record[name] for name in target_columns)
            problem: tuple[str, str] | None = (unusable, misfit)
            if not misfit:
                index = index_of[record[split_column] if split_column else ""]
                problem = _add_row(rows, index, number, text, cells, max_atoms, standardise)
            if problem is None:
                for name, kept in rows.beside.items():
                    kept.append(record[name])
            else:
                check, reason = problem
                rejected = RejectedRow(number, shortened(text, MAX_QUOTED), reason)
                rows.left_out[check].append(rejected)
    return rows


def _add_row(
    rows: TableRows,
    index: dict[str, TableMolecule],
    number: int,
    text: str,
    cells: tuple[str, ...],
    max_atoms: int,
    standardise: Standardisation,
) -> tuple[str, str] | None:
    """Add a usable row to its molecule. For any other row, return the check it fails, and why."""
    if not text:
        return "SMILES empty", "the SMILES is empty"
    if all(is_missing(cell) for cell in cells):
        return "no label", "no target column has a label"
    try:
        options: dict[str, Any] = {"canonical": True, "standardise": standardise}
        options["isomers"] = "groups"  # as models read a molecule by default
        graph = molecule_graph(text, max_atoms=max(max_atoms, LARGEST), **options)
    except MixtureError as error:
        return "mixture of compounds", str(error)
    except MoleculeError as error:
        return "SMILES unreadable", str(error) + _other_separator(text)
    if (size := int(graph.num_nodes or 0)) > max_atoms:
        return f"more than {max_atoms} atoms", f"{size} atoms"
    mol: Chem.Mol = graph.read
    canonical = str(Chem.MolToSmiles(mol))
    drawn = str(Chem.CanonSmiles(text)) if is_labelled(text) else canonical
    as_given: AsGiven | None = graph.get("as_given")
    if as_given is not None:
        is_changed = as_given.smiles != graph.smiles
        reason = f"{as_given.sentence}: {graph.smiles}" if is_changed else as_given.sentence
        remarks = rows.standardised if is_changed else rows.remarks
        remarks = rows.isotopes if as_given.changes == (ISOTOPE_UNSEEN,) else remarks
        remarks.append(RejectedRow(number, shortened(text, MAX_QUOTED), reason))
        text = graph.smiles
        del graph.as_given
    molecule = index.get(canonical)
    if molecule is None:
        graph.row = number
        flat = Chem.MolToSmiles(mol, isomericSmiles=False)
        parts = canonical.count(".") + 1
        data = graph.to_data()
        if graph.get("isomers") is not None:
            data.isomers = tuple(isomer.to_data() for isomer in graph.isomers)
        molecule = TableMolecule(data, drawn, canonical, flat, parts, mol)
        index[canonical] = molecule
        rows.molecules.append(molecule)
    elif drawn != molecule.drawn:
        rows.alike.append(len(rows.numbers))
    molecule.rows.append(len(rows.numbers))
    rows.numbers.append(number)
    rows.smiles.append(text)
    rows.cells.append(cells)
    return None


def _other_separator(text: str) -> str:
    """Return a hint for a message if a cell looks like a whole row, or ""."""
    if is_inchi(text):  # it may contain commas and semicolons
        return ""
    for sign, name in (";", "semicolon"), ("\t", "tab"), (",", "comma"):
        if sign in text:
            return f" It contains a {name}: is this row separated differently from the header?"
    return ""
