"""Write results to files in the format of their suffix.

| suffix | content | opens in |
|---|---|---|
| .svg .png .pdf | pictures, where a PDF has one per page and the others a grid | anything |
| .html | a complete page with pictures, strongest nodes, ledgers and provenance | browsers |
| .csv .parquet | one row per atom (or node), see `Explanation.to_frame` | pandas, R, spreadsheets |
| .json | everything but the picture | anything |
| .sdf | structures with relevance as atom properties (`atom.dprop.Relevance`) | RDKit, KNIME |
| .smi | lines of CXSMILES, a tab, and what was explained | RDKit: `MolFromSmiles` |

The functions here take plain values. `Explanation` and `Explanations` decide what to write.
"""

import codecs
import io
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphxai.runtime.extras import missing_extra
from graphxai.runtime.writing import atomic_write, folder_at, place_of, write_whole
from graphxai.visualization.layout import laid_out

if TYPE_CHECKING:
    import pandas as pd
    from rdkit.Chem import Mol, SDWriter

PICTURES = (".svg", ".png", ".pdf")
PAGES = (".html",)
TABLES = (".csv", ".parquet", ".json", ".sdf", ".smi")
SUFFIXES = PICTURES + PAGES + TABLES
FRAMES = (".csv", ".tsv", ".parquet")  # what `write_table` writes
BYTE_ORDER_MARK = codecs.BOM_UTF8.decode()
PROPERTY = "Relevance"
DIGITS = ".9g"  # enough digits to read every single-precision number back exactly
METADATA = b"graphxai"  # the key in Parquet's schema under which all values are stored as JSON


def writable(path: str | Path, allowed: Sequence[str] = SUFFIXES) -> Path:
    """Create the folder of a path, and return the path if it can be written.

    Raises:
        ValueError: the suffix is not allowed.
        ImportError: the suffix is that of Parquet, but pyarrow is not installed.
        OSError: the path is a folder, a device or a pipe.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in allowed:
        use = ", ".join(allowed)
        raise ValueError(f"{path}: cannot write {suffix or 'no suffix'!r}; use {use}.")
    if suffix == ".parquet":
        require_pyarrow(path)
    folder_at(path.parent)
    place_of(path)
    return path


def require_pyarrow(path: Path) -> None:
    """Raise an ImportError that says what to do if Parquet cannot be written."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        purpose = f"{path}: Parquet needs"
        raise missing_extra(purpose, "pyarrow", "parquet", "write .csv") from error


def write_json(content: Any, path: Path) -> Path:
    """Write values as indented JSON, or raise ValueError for NaN and infinity, which JSON lacks."""
    return write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_csv(
    frame: "pd.DataFrame", path: Path, *, byte_order_mark: bool = False, **options: Any
) -> Path:
    """Write a table as CSV, with the options of `DataFrame.to_csv`.

    `byte_order_mark` says whether to begin with a byte-order mark, which tells Excel that it is
    UTF-8.
    """
    with atomic_write(path) as file:
        if byte_order_mark:
            file.write(BYTE_ORDER_MARK)
        frame.to_csv(file, lineterminator="\n", **options)
    return path


def write_parquet(frame: "pd.DataFrame", path: Path, content: Any = None) -> Path:
    """Write a table as Parquet, with `content` as JSON in the schema's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    if content is not None:
        text = json.dumps(content, allow_nan=False)
        metadata = {**(table.schema.metadata or {}), METADATA: text.encode()}
        table = table.replace_schema_metadata(metadata)
    with atomic_write(path, "wb") as file:
        pq.write_table(table, file)
    return path


def write_table(frame: "pd.DataFrame", path: Path, **options: Any) -> Path:
    """Write a table without its index as .csv, as .tsv with tabs, or as .parquet.

    `options` are those of `write_csv`. Parquet needs none, as it holds numbers as they are.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return write_parquet(frame, path)
    tabs = {"sep": "\t"} if suffix == ".tsv" else {}
    return write_csv(frame, path, index=False, **options | tabs)


def sdf_record(
    mol: "Mol",
    relevance: NDArray[np.floating] | None,
    *,
    title: str = "",
    properties: Mapping[str, object],
) -> str:
    """Return a record of an SD file, including `$$$$`.

    It is V2000, or V3000 if the molecule needs it. Relevance is written as RDKit's atom property
    list `atom.dprop.Relevance`, which RDKit's readers assign to the atoms (with `removeHs=False` if
    the graph has hydrogens as atoms).

    Args:
        mol: the molecule. If it has no coordinates, a 2D layout is written from which the same
            compound is read again, if there is one.
        relevance: the relevance of its atoms (N,), or None without an explanation.
        title: the record's first line, which is RDKit's `_Name`.
        properties: further properties of the molecule.

    Raises:
        ValueError: RDKit cannot write the molecule in this format.
    """
    from rdkit.Chem import rdCoordGen

    from graphxai.datasets.canonical_form import canonical_smiles

    items = {re.sub(r"[<>\s]+", " ", name): _line(value) for name, value in properties.items()}
    if relevance is not None:
        values = " ".join(f"{value:{DIGITS}}" for value in relevance)
        items = {f"atom.dprop.{PROPERTY}": textwrap.fill(values, 180)} | items
    if title:
        items["_Name"] = _line(one_line(title))
    if mol.GetNumConformers():
        return _sdf_record(mol, items)[0]
    record, read = _sdf_record(drawn := laid_out(mol), items)
    if read is not None and canonical_smiles(read) != (smiles := canonical_smiles(mol)):
        # a double bond may bend so much in a ring that it is read in its other configuration
        rdCoordGen.AddCoords(drawn)
        another, read = _sdf_record(drawn, items)
        if read is not None and canonical_smiles(read) == smiles:
            return another
    return record


def _sdf_record(drawn: "Mol", items: Mapping[str, str]) -> "tuple[str, Mol | None]":
    """Write a molecule with coordinates and items, and return the record and what is read of it."""
    from rdkit import Chem, rdBase

    from graphxai.datasets.isomers import undrawn_places

    mol = Chem.Mol(drawn)
    for place in undrawn_places(mol, Chem.StereoType.Bond_Double):
        # else beside a defined one, it is read as it is drawn
        mol.GetBondWithIdx(place).SetStereo(Chem.BondStereo.STEREOANY)
    for name in mol.GetPropNames():
        mol.ClearProp(name)
    for name, value in items.items():
        mol.SetProp(name, value)
    with io.StringIO() as text, rdBase.BlockLogs():
        writer = Chem.SDWriter(text)
        try:
            _write(writer, mol)
        except RuntimeError as error:  # such as a charged dummy atom
            said = [line.strip() for line in str(error).splitlines()]
            reason = next((line for line in said if line and "Violation" not in line), "")[:100]
            raise ValueError(
                f"{Chem.MolToSmiles(mol)} cannot be written as an SD record"
                f"{f' ({reason})' if reason else ''}: write .smi or .json instead."
            ) from error
        finally:
            writer.close()
        record = text.getvalue()
        return record, Chem.MolFromMolBlock(record)


def _write(writer: "SDWriter", mol: "Mol") -> None:
    """Write a molecule. If a ring has no Kekulé structure, its bonds stay aromatic."""
    from rdkit import Chem

    try:
        writer.write(mol)
    except Chem.KekulizeException:
        writer.SetKekulize(False)
        writer.write(mol)


def cxsmiles(mol: "Mol", relevance: NDArray[np.floating]) -> str:
    """Return the molecule as CXSMILES, in which atom i of the graph has map number i + 1.

    The extension holds relevance (N,) as the atom property "Relevance", as in
    `|atomProp:0.Relevance.0.12:...|`. The first number counts the atoms in the order of the SMILES.
    Readers that ignore extensions, such as RDKit's SmilesMolSupplier, see only the structure and
    the map numbers.
    """
    from rdkit import Chem

    mol = Chem.Mol(mol)
    mol.RemoveAllConformers()
    for atom, value in zip(mol.GetAtoms(), relevance, strict=True):
        for name in atom.GetPropNames():
            atom.ClearProp(name)
        atom.SetAtomMapNum(atom.GetIdx() + 1)
        atom.SetProp(PROPERTY, f"{value:{DIGITS}}")
    return str(Chem.MolToCXSmiles(mol))


def smi_line(smiles: str, comment: str) -> str:
    """Return a line of a .smi file, with a SMILES and a comment."""
    return f"{smiles}\t{_line(comment)}\n"


def one_line(text: str) -> str:
    """Return text as one printable line, with spaces for control and format characters."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split())


def _line(value: object) -> str:
    """Format a value as one line that cannot be mistaken for the end of a record in an SD file."""
    if isinstance(value, float | np.floating):
        return f"{value:{DIGITS}}"
    text = " ".join(str(value).split())
    return f" {text}" if text.startswith(("$$$$", ">")) else text
