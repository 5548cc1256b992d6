"""Explain data frames, with a callable that Ray, Spark and Dask can map over their parts.

It can be pickled. It takes an Arrow table or a pandas frame, and returns one of the same type, with
one row for each row of the input. Nothing in a cell stops it. If a row cannot be explained, it has
a `reason`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from rdkit import Chem

from graphxai.datasets.molecule_reading import MAX_CHARACTERS, MoleculeError, shortened
from graphxai.datasets.tables.columns import named_column
from graphxai.datasets.tables.table import column_values, structure_name

from .batches import ExplainBatch
from .rows import chunk_size, own_cell

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ExplainFrame:
    """Explain the rows of a data frame.

    Attributes:
        batch: the model, the method and the target.
        smiles_column: the column with structures. Without it, it is one with a usual name, or the
            only one with cells that can be read as SMILES.
        row_column: the column with row numbers. Without it, the result has no such column.
        name_column: the column with compound names. Without it, the result has no such column.
    """

    batch: ExplainBatch
    smiles_column: str | None = None
    row_column: str | None = None
    name_column: str | None = None

    @property
    def schema(self) -> "pa.Schema":
        """The columns of the result: those of `explanations.csv` without pictures, and `reason`."""
        import pyarrow as pa

        kinds = {
            int: pa.int64(),
            float: pa.float64(),
            str: pa.string(),
            list: pa.list_(pa.float32()),
        }
        columns = self.batch.columns(self.name_column is not None) | {"reason": str}
        left_out = {"picture"} if self.row_column else {"picture", "row"}
        return pa.schema([(n, kinds[kind]) for n, kind in columns.items() if n not in left_out])

    def __call__(self, frame: Any) -> Any:
        """Explain a `pyarrow.Table`, or a `pandas.DataFrame` and keep its index.

        Raises:
            ValueError: a column is missing.
        """
        is_pandas = isinstance(frame, pd.DataFrame)
        existing = list(map(str, frame.columns if is_pandas else frame.schema.names))
        cells = column_values(frame, structure_name(frame, self.smiles_column))
        values = [Chem.MolToSmiles(v) if isinstance(v, Chem.Mol) else v for v in cells]
        numbers, names = (
            None
            if name is None
            else column_values(frame, named_column("the frame", existing, name))
            for name in (self.row_column, self.name_column)
        )
        table = self.explain(values, numbers, names)
        return table.to_pandas().set_index(frame.index) if is_pandas else table

    def explain(
        self, values: Sequence[Any], numbers: Sequence[int] | None, names: Sequence[Any] | None
    ) -> "pa.Table":
        """Explain the values of a column of SMILES, whatever they are."""
        import pyarrow as pa

        rows: list[dict[str, Any]] = []
        size = chunk_size(self.batch)
        for first in range(0, len(values), size):
            chunk = range(first, min(first + size, len(values)))
            text = [k for k in chunk if values[k] is None or isinstance(values[k], str)]
            chunk_names = (
                None if names is None else ["" if names[k] is None else str(names[k]) for k in text]
            )
            results = self.batch([values[k] or "" for k in text], text, chunk_names)
            row_of = {row["row"]: row for row in results}
            rows += [row_of.get(k) or _not_text(k, values[k]) for k in chunk]
        for k, row in enumerate(rows):
            row["row"] = None if numbers is None else numbers[k]
            if isinstance(value := values[k], str) and len(value) <= MAX_CHARACTERS:
                encoded = value.encode(errors="replace")  # Arrow has no half of a character
                row["smiles"] = own_cell(encoded.decode())
        columns = [
            pa.array([_cell(row.get(field.name), field.type) for row in rows], field.type)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)


def _not_text(row: int, value: Any) -> dict[str, Any]:
    """Make a row that was left out because its cell is not text, or is the error of its row."""
    if isinstance(value, MoleculeError):
        return {"row": row, "smiles": "", "reason": str(value)}
    reason = f"a SMILES must be text, not {type(value).__name__}."
    return {"row": row, "smiles": shortened(repr(value)), "reason": reason}


def _cell(value: Any, kind: "pa.DataType") -> Any:
    """Convert a cell of a row of `ExplainBatch`, which has numbers as text, to this type."""
    import pyarrow.types as types

    if value is None or types.is_string(kind) or types.is_integer(kind):
        return value
    if types.is_list(kind):
        return [float(number) for number in value.split()]
    return float(value) if value != "" else None
