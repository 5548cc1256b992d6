"""Explanations in files that other tools read, one or many to a file.

| suffix | what | opens in |
|---|---|---|
| .svg .png .pdf | pictures; a PDF of many has a page for each, the others a grid | anything |
| .html | a page by itself: pictures, strongest nodes, ledgers, where they come from | browsers |
| .csv .parquet | a row an atom (or node), see `Explanation.to_frame` | pandas, R, spreadsheets |
| .json | everything but the picture | anything |
| .sdf | structures, relevance as atom properties (`atom.dprop.Relevance`) | RDKit, KNIME |
| .smi | lines of CXSMILES, a tab, what was explained; see `cxsmiles` | RDKit: `MolFromSmiles` |
"""

import io
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from rdkit.Chem import Mol
    from torch_geometric.explain import Explanation as PygExplanation

    from graphxai.explanation import Explanation

PICTURES = (".svg", ".png", ".pdf")
PAGES = (".html",)
TABLES = (".csv", ".parquet", ".json", ".sdf", ".smi")
SUFFIXES = PICTURES + PAGES + TABLES
PROPERTY = "Relevance"
DIGITS = ".9g"  # enough for every single-precision number to be read back exactly
METADATA = b"graphxai"  # key of the Parquet schema under which all but the picture stands as JSON


def save(explanation: "Explanation", path: str | Path, **options: Any) -> Path:
    """Write one explanation, its format by the suffix; options of pictures as for `svg`.

    Raises ValueError for another suffix and for what the explanation lacks (a molecule, an
    image), ImportError for Parquet without pyarrow.
    """
    path = _writable(path)
    if path.suffix.lower() in PICTURES:
        return write_picture(explanation.svg(**options), path)
    if path.suffix.lower() in PAGES:
        _write_page([explanation], path, options)
    elif path.suffix.lower() == ".csv":
        explanation.to_frame().to_csv(path)
    elif path.suffix.lower() == ".parquet":
        _write_parquet(explanation.to_frame().reset_index(), explanation.to_dict(), path)
    elif path.suffix.lower() == ".json":
        _write_json(explanation.to_dict(), path)
    else:
        _write_structures([explanation], path)
    return path


def save_all(
    explanations: "Sequence[Explanation | None]", path: str | Path, **options: Any
) -> Path:
    """Write many explanations into one file; those that are None are left out.

    In tables, `input` is the place of the explanation in the list. Pictures go as in `grid`, with
    its options; those of PDF and HTML one by one, as in `Explanation.svg`. Errors as for `save`.
    """
    path = _writable(path)
    suffix = path.suffix.lower()
    found = {place: e for place, e in enumerate(explanations) if e is not None}
    if suffix == ".pdf":
        from graphxai.visualization.pdf import pictures_to_pdf

        path.write_bytes(pictures_to_pdf([e.svg(**options) for e in found.values()]))
    elif suffix in PICTURES:
        from graphxai.pictures import grid

        write_picture(grid(list(found.values()), **options), path)
    elif suffix in PAGES:
        _write_page(list(found.values()), path, options)
    elif suffix == ".csv":
        to_frame(explanations).to_csv(path, index=False)
    elif suffix == ".parquet":
        dicts = [{"input": place} | e.to_dict() for place, e in found.items()]
        _write_parquet(to_frame(explanations), dicts, path)
    elif suffix == ".json":
        _write_json([{"input": place} | e.to_dict() for place, e in found.items()], path)
    else:
        _write_structures(list(found.values()), path)
    return path


def to_frame(explanations: "Sequence[Explanation | None]") -> "pd.DataFrame":
    """One row an atom of each: input (its place in the list), atom, symbol, relevance, parts."""
    import pandas as pd

    frames = []
    for place, explanation in enumerate(explanations):
        if explanation is not None:
            frame = explanation.to_frame().reset_index()
            frame.insert(0, "input", place)
            frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"input": []})


def write_picture(svg: str, path: Path) -> Path:
    """Write a picture as .svg, .png or .pdf; ValueError for another suffix."""
    if path.suffix.lower() == ".pdf":
        from graphxai.visualization.pdf import pictures_to_pdf

        path.write_bytes(pictures_to_pdf([svg]))
        return path
    from graphxai.visualization import save_picture

    return save_picture(svg, path)


def write_picture_or_table(
    svg: Callable[..., str],
    frame: "Callable[[], pd.DataFrame]",
    path: str | Path,
    options: dict[str, Any],
) -> Path:
    """Write `frame()` for .csv, else the picture `svg(**options)`, by suffix.

    Raises ValueError for another suffix.
    """
    path = Path(path)
    _require_suffix(path, (*PICTURES, ".csv"))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".csv":
        frame().to_csv(path, index=False)
        return path
    return write_picture(svg(**options), path)


def sdf_record(explanation: "Explanation", *, title: str = "", **properties: object) -> str:
    """One record of an SD file, `$$$$` included: V2000, or V3000 where the molecule needs it.

    Relevance is RDKit's atom property list `atom.dprop.Relevance`, which its readers put on the
    atoms (with `removeHs=False` where hydrogens are atoms of the graph). Target, method,
    predictions, ledger and model are properties of the molecule. Coordinates are the molecule's,
    or a 2D layout. `title`: the record's first line, RDKit's `_Name`; `properties`: more of these.
    """
    from rdkit import Chem

    from graphxai.visualization.layout import laid_out

    mol = _molecule(explanation)
    mol = Chem.Mol(mol) if mol.GetNumConformers() else laid_out(mol)
    for name in mol.GetPropNames():
        mol.ClearProp(name)
    if title:
        mol.SetProp("_Name", _line(one_line(title)))
    values = " ".join(f"{value:{DIGITS}}" for value in explanation.relevance)
    mol.SetProp(f"atom.dprop.{PROPERTY}", textwrap.fill(values, 180))
    for name, value in {**properties, **_properties(explanation)}.items():
        mol.SetProp(re.sub(r"[<>\s]+", " ", name), _line(value))
    with io.StringIO() as text:
        writer = Chem.SDWriter(text)
        try:
            writer.write(mol)
        except Chem.KekulizeException:
            writer.SetKekulize(False)  # an odd aromatic ring keeps its aromatic bonds
            writer.write(mol)
        writer.close()
        return text.getvalue()


def cxsmiles(explanation: "Explanation") -> str:
    """The molecule as CXSMILES: atom i of the graph has map number i + 1, and its relevance.

    Relevance is the atom property "Relevance" of the extension: `|atomProp:0.Relevance.0.12:...|`,
    where the first number counts atoms as written. Readers without extensions, RDKit's
    SmilesMolSupplier among them, find the structure and the map numbers alone.
    """
    from rdkit import Chem

    mol = Chem.Mol(_molecule(explanation))
    mol.RemoveAllConformers()
    for atom, value in zip(mol.GetAtoms(), explanation.relevance, strict=True):
        for name in atom.GetPropNames():
            atom.ClearProp(name)
        atom.SetAtomMapNum(atom.GetIdx() + 1)
        atom.SetProp(PROPERTY, f"{value:{DIGITS}}")
    return str(Chem.MolToCXSmiles(mol))


def to_pyg(explanation: "Explanation") -> "PygExplanation":
    """The explanation as `torch_geometric.explain.Explanation`.

    `node_mask` (N, 1): signed relevance. For molecules with `x` and `edge_attr` in OGB's codes and
    `edge_index`; other graphs have the number of their nodes alone. Beside them `smiles`,
    `method`, `label` (the target in words) and `ledger`.
    """
    import torch
    from torch_geometric.explain import Explanation as PygExplanation

    from graphxai.datasets.molecules import molecule_to_data

    content: dict[str, Any] = {
        "node_mask": torch.from_numpy(explanation.relevance)[:, None].clone()
    }
    molecule = explanation.molecule
    if molecule is not None and molecule.GetNumAtoms() == len(explanation):
        data = molecule_to_data(molecule, max_atoms=len(explanation))
        content |= {"x": data.x, "edge_index": data.edge_index, "edge_attr": data.edge_attr}
        content["smiles"] = explanation.smiles
    else:
        content["num_nodes"] = len(explanation)
    return PygExplanation(
        **content,
        method=explanation.method,
        label=explanation.target,
        ledger=explanation.ledger.to_dict(),
    )


def require_pyarrow(path: Path) -> None:
    """Raise an ImportError that says what to do, if Parquet cannot be written."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f'{path}: Parquet needs pyarrow: pip install "graphxai[parquet]", or write .csv.'
        ) from error


def _writable(path: str | Path) -> Path:
    path = Path(path)
    _require_suffix(path, SUFFIXES)
    if path.suffix.lower() == ".parquet":
        require_pyarrow(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _require_suffix(path: Path, allowed: Sequence[str]) -> None:
    suffix = path.suffix.lower()
    if suffix not in allowed:
        use = ", ".join(allowed)
        raise ValueError(f"{path}: cannot write {suffix or 'no suffix'!r}; use {use}.")


def _write_page(explanations: "Sequence[Explanation]", path: Path, options: dict[str, Any]) -> None:
    from graphxai.notebook import explanations_page

    path.write_text(explanations_page(explanations, **options), encoding="utf-8")


def _write_json(content: Any, path: Path) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _write_parquet(frame: "pd.DataFrame", content: Any, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {**(table.schema.metadata or {}), METADATA: json.dumps(content).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def _write_structures(explanations: "Sequence[Explanation]", path: Path) -> None:
    """An SD file, or lines of CXSMILES, a tab, and what was explained."""
    if path.suffix.lower() == ".sdf":
        text = "".join(sdf_record(explanation) for explanation in explanations)
    else:
        text = "".join(f"{cxsmiles(e)}\t{_line(_summary(e))}\n" for e in explanations)
    path.write_text(text, encoding="utf-8")


def _summary(explanation: "Explanation") -> str:
    output = f"{explanation.ledger.output:{DIGITS}}"
    return f"{explanation.method} for {explanation.target}, output {output}"


def _molecule(explanation: "Explanation") -> "Mol":
    mol = explanation.molecule
    if mol is None or mol.GetNumAtoms() != len(explanation):
        raise ValueError("this graph came without a molecule: write .csv, .parquet or .json.")
    return mol


def _properties(explanation: "Explanation") -> dict[str, object]:
    """What an SD file says of the molecule beside its atoms."""
    told: dict[str, object] = {
        "SMILES": explanation.smiles or "",
        "Method": explanation.method,
        "Target": explanation.target,
    }
    for prediction in explanation.predictions:
        told[f"Prediction {prediction.task}"] = prediction
    for name, value in explanation.ledger.to_dict().items():
        told[name.replace("_", " ").capitalize()] = value
    for name in ("model", "sha256"):
        told[name.capitalize()] = explanation.provenance.get(name) or ""
    return told


def one_line(text: str) -> str:
    """A text as one line that can be printed: control and format characters become spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _line(value: object) -> str:
    """A value as one line that no reader of SD files can take for the end of a record."""
    if isinstance(value, float | np.floating):
        return f"{value:{DIGITS}}"
    text = " ".join(str(value).split())
    return f" {text}" if text.startswith(("$$$$", ">")) else text
