"""Turn values into bytes for another process of this program, or say why that is impossible."""

from __future__ import annotations

import io
import pickle
from types import FunctionType
from typing import Any

__all__ = ["as_bytes", "sendable_error"]


class _Pickler(pickle.Pickler):
    """Pickle what another process can rebuild, and refuse the rest in a sentence."""

    def reducer_override(self, value: Any) -> Any:
        if type(value).__module__.startswith("rdkit."):
            from rdkit import Chem  # imported already, as the value shows

            if not isinstance(value, Chem.Mol):
                return NotImplemented
            # By default, RDKit leaves out the molecule's properties.
            return Chem.Mol, (value.ToBinary(int(Chem.PropertyPickleOptions.AllProps)),)
        if isinstance(value, FunctionType | type) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the running script")
        if type(value).__name__ == "Generator" and type(value).__module__.startswith("torch"):
            raise pickle.PicklingError(
                "a torch.Generator gives different numbers in every process; a seed does not"
            )
        return NotImplemented


def as_bytes(value: Any) -> bytes:
    """Return a value as bytes for another process.

    Raises:
        ValueError: another process could not rebuild the value. The message says what to do.
    """
    with io.BytesIO() as file:
        try:
            _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
        except Exception as error:  # of any type: objects may define how they are pickled
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(
                f"this cannot be sent to other processes ({why}): give workers=1, or define models"
                " and functions in a module that can be imported, and without lambdas."
            ) from error
        return file.getvalue()


def sendable_error(error: Exception) -> Exception:
    """Return the error, or one with its words if another process could not rebuild it."""
    try:
        rebuilt: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return rebuilt
