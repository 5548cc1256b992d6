"""Cut SD files at `$$$$`, so that every record is counted, also one that RDKit refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rdkit import Chem, rdBase

from ..canonical_form import DrawnSmiles
from ..molecule_reading import MoleculeError, shortened
from .dialect import encoding_of
from .opening import HEAD, TableError, opened
from .rows import opened_text

END = "$$$$"
PROPERTY = re.compile(r">.*?<([^>]*)>")  # "> 12 <NAME> (3)"
MAX_RECORD = 1 << 24  # characters
MAX_BLOCK = 1 << 20  # characters of a mol block: some 10,000 atoms


@dataclass(frozen=True)
class StructureRecord:
    """A record of an SD file.

    Attributes:
        title: the first line, usually a name.
        block: the mol block, up to `M  END`.
        properties: the data items by name.
    """

    title: str
    block: str
    properties: dict[str, str]

    @cached_property
    def mol(self) -> Chem.Mol | MoleculeError:
        """Return the molecule without hydrogens and with its stereochemistry.

        If it cannot be read, an error is returned that says why.
        """
        return _molecule(self.block)

    @property
    def smiles(self) -> str:
        """Return the canonical SMILES with the coordinates of the record.

        Raises:
            MoleculeError: the molecule cannot be read.
        """
        if isinstance(self.mol, MoleculeError):
            raise self.mol
        return DrawnSmiles.of(self.mol)


def read_structures(path: Path) -> Iterator[StructureRecord]:
    """Return the records of an SD file, or the only one of a MOL file, one by one."""
    return records_in(_lines(path), str(path))


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of an SD file, also of one in UTF-16 as Windows writes it."""
    with opened(path) as file:
        encoding = encoding_of(file.read(HEAD))
    with opened_text(path, encoding) as text:
        yield from iter(lambda: text.readline(MAX_RECORD), "")


def property_names(path: Path) -> list[str]:
    """Return the names of all data items in an SD file, in the order in which they first occur."""
    names: dict[str, None] = {}
    for line in _lines(path):
        if line.startswith(">") and (match := PROPERTY.match(line)) and match[1].strip():
            names[match[1].strip()] = None
    return list(names)


def record_count(path: Path) -> int:
    """Return how many records an SD file has, counted by their ends."""
    with opened(path) as content:
        ends = sum(
            line.startswith(b"$$$$") for line in iter(lambda: content.readline(MAX_RECORD), b"")
        )
    return max(ends, 1)


def records_in(lines: Iterable[str], source: str) -> Iterator[StructureRecord]:
    """Cut lines at `$$$$` into records. What follows the last one is a record unless it is blank.

    Args:
        source: what the lines are from, for messages.

    Raises:
        TableError: a record is larger than any molecule.
    """
    record: list[str] = []
    size = 0
    for line in lines:
        if line.startswith(END):
            yield _record(record)
            record, size = [], 0
            continue
        record.append(line.rstrip("\r\n"))
        size += len(line)
        if size > MAX_RECORD:
            raise TableError(f"{source} has a record of over {MAX_RECORD:,} characters.")
    if any(line.strip() for line in record):
        yield _record(record)


def _record(lines: list[str]) -> StructureRecord:
    """Take a record apart: mol block and data items."""
    end = next((k for k, line in enumerate(lines) if line.startswith("M  END")), None)
    if end is None:  # a record without the line that ends the block
        end = next((k for k, line in enumerate(lines) if PROPERTY.match(line)), len(lines)) - 1
    properties: dict[str, str] = {}
    value: list[str] | None = None
    name = ""
    within = False  # a value, which ends at a blank line and may begin with ">", such as ">10"
    for line in [*lines[end + 1 :], "", ">"]:
        if not line.startswith(">") or (within and not PROPERTY.match(line)):
            within = within and bool(line.strip())
            if value is not None and line.strip():
                value.append(line)
            continue
        within = True
        if value is not None and name:
            properties.setdefault(name, "\n".join(value))
        match = PROPERTY.match(line)
        name, value = (match[1].strip() if match else ""), []
    title = lines[0].strip() if lines else ""
    return StructureRecord(title, "\n".join(lines[: end + 1]) + "\n", properties)


def _molecule(block: str) -> Chem.Mol | MoleculeError:
    """Read a mol block, or return an error that says why it cannot be read."""
    if not block.strip():
        return MoleculeError("the record is empty: it has no mol block.")
    if len(block) > MAX_BLOCK:
        return MoleculeError(f"its mol block has {len(block):,} characters: too many.")
    with rdBase.BlockLogs():
        mol = _attempt(lambda: Chem.MolFromMolBlock(block))
        if mol is not None and not mol.GetNumAtoms():
            return MoleculeError("its mol block has no atoms.")
        if mol is not None:
            return mol
        raw = _attempt(lambda: Chem.MolFromMolBlock(block, sanitize=False, removeHs=False))
        problems = [] if raw is None else Chem.DetectChemistryProblems(raw)
    if problems:
        reason = problems[0].Message().strip().rstrip(".")
        return MoleculeError(f"its mol block cannot be read: {shortened(reason, 200)}.")
    return MoleculeError("its mol block cannot be read: draw the structure anew, or remove it.")


def _attempt(read: Callable[[], Chem.Mol | None]) -> Chem.Mol | None:
    """Return what RDKit reads, or None if it raises an error, which may be of any type."""
    try:
        return read()
    except Exception:
        return None
