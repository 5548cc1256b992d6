"""Keep explanations in a file without a name, so that a long report needs no more memory.

The values are written as JSON, which can run nothing, and are read back exactly.
"""

import json
import tempfile
from array import array
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import fields
from typing import Any
from weakref import finalize

import numpy as np
from rdkit.Chem import Mol, PropertyPickleOptions

from graphxai.contract.target import Target
from graphxai.datasets.as_given import AsGiven
from graphxai.datasets.cell_numbers import Bound
from graphxai.datasets.training_set import Nearness
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.ledger import Ledger
from graphxai.explanation.prediction import Prediction

from .molecules import ReportRow

PLAIN = (type(None), bool, int, float, str)
RECORDS = (Explanation, Prediction, Nearness, Ledger, Target, ReportRow, Bound)  # by their fields


class Spool(Sequence[Any]):
    """Values in the order in which they were added, in a file that ends with this object.

    Whatever is neither plain, nor an array, a molecule or one of `RECORDS` stays in memory. That is
    once for all values that share it, such as a model's measured errors.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it is open as long as this object
        finalize(self, self._file.close)
        self._ends = array("q", [0])
        self._shared: list[Any] = []
        self._places: dict[int, int] = {}  # the place of a shared value, by its id

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._ends) - 1

    def append(self, value: Any) -> None:
        """Add a value."""
        packed = json.dumps(self._packed(value)).encode()
        self._file.seek(self._ends[-1])
        self._file.write(packed)
        self._ends.append(self._ends[-1] + len(packed))

    def __getitem__(self, place: Any) -> Any:
        """Return the value at a place, made anew."""
        start, end = self._ends[place], self._ends[place + 1]
        self._file.seek(start)
        return self._unpacked(json.loads(self._file.read(end - start)))

    def _packed(self, value: Any) -> Any:
        """Return a plain value as it is, and others as a sequence of their kind and their parts."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind in (list, tuple, dict):
            parts = value.items() if kind is dict else value
            return kind.__name__, [self._packed(part) for part in parts]
        if kind in RECORDS:
            parts = [self._packed(getattr(value, each.name)) for each in fields(value)]
            return "record", RECORDS.index(kind), parts
        if kind is AsGiven:
            return "as given", [self._packed(part) for part in value]
        if kind is np.ndarray and not value.dtype.hasobject:
            return "array", value.dtype.str, value.shape, _text(value.tobytes())
        if kind is Mol:
            return "molecule", _text(value.ToBinary(int(PropertyPickleOptions.AllProps)))
        if id(value) not in self._places:
            self._places[id(value)] = len(self._shared)
            self._shared.append(value)
        return "shared", self._places[id(value)]

    def _unpacked(self, packed: Any) -> Any:
        if not isinstance(packed, list):
            return packed
        match packed:
            case "shared", place:
                return self._shared[place]
            case "molecule", text:
                binary: Any = b64decode(text)
                return Mol(binary)
            case "array", dtype, shape, text:
                return np.frombuffer(bytearray(b64decode(text)), dtype).reshape(shape)
            case "record", place, parts:
                return _record(RECORDS[place], [self._unpacked(part) for part in parts])
        kind, parts = packed
        values = [self._unpacked(part) for part in parts]
        if kind == "as given":
            return AsGiven(*values)
        return {"list": list, "tuple": tuple, "dict": dict}[kind](values)


def _text(binary: bytes) -> str:
    return b64encode(binary).decode()


def _record(kind: type, values: Sequence[Any]) -> Any:
    """Make a dataclass anew from the values of its fields, without checking them again."""
    made: Any = object.__new__(kind)
    for field, value in zip(fields(kind), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made
