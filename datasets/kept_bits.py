"""Keep the fingerprints of training sets in the user's cache, as computing them takes a while.

Reading 1,200 compounds takes a third of the time of `import torch`, and a nearness needs them all.
The files hold derived values only: without them, or where they cannot be written, the fingerprints
are computed. They do not lie beside the checkpoint, as those of the bundled models would take
3 MB of every installation.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

KEPT_FROM = 200  # compounds; fewer are read in no time
MOST_FILES = 64
# What a fingerprint depends on apart from RDKit. A change of one of these makes other keys.
_SOURCES = ("canonical_form.py", "fingerprints.py", "tautomer_form.py", "training_set.py")


class CompoundBits(NamedTuple):
    """The fingerprints of the compounds of a training set.

    Args:
        readable: the places of the n readable compounds among those given, (n,).
        packed: their ECFP4, eight bits a byte, the first bit lowest, (n, 256).
        elements: all elements that they have.
    """

    readable: NDArray[np.int64]
    packed: NDArray[np.uint8]
    elements: frozenset[str]


def place_for(smiles: Sequence[str], rdkit: str) -> Path | None:
    """Return the file for the fingerprints of compounds, or None if none is kept.

    Its name is a hash of the compounds, of RDKit's version and of the code that computes.
    """
    if len(smiles) < KEPT_FROM:
        return None
    try:
        sources = [Path(__file__).with_name(name).read_bytes() for name in _SOURCES]
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except (OSError, RuntimeError):  # a package in an archive, or a user without a home
        return None
    content = hashlib.sha256("\n".join((rdkit, *smiles)).encode())
    for source in sources:
        content.update(hashlib.sha256(source).digest())
    return Path(home) / "graphxai" / "fingerprints" / f"{content.hexdigest()}.npz"


def kept_at(path: Path) -> CompoundBits | None:
    """Read a file of fingerprints, or return None if there is none, or a broken one."""
    with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile):
        with np.load(path, allow_pickle=False) as arrays:
            readable, packed = arrays["readable"], arrays["packed"]
            elements = frozenset(arrays["elements"].tolist())
        if packed.dtype == np.uint8 and len(packed) == len(readable) > 0:
            return CompoundBits(readable, packed, elements)
    return None


def keep_at(path: Path, bits: CompoundBits) -> None:
    """Write a file that only the user can read, and remove the oldest of too many."""
    from graphxai.runtime.writing import write_whole

    content = io.BytesIO()
    elements = np.array(sorted(bits.elements))
    np.savez_compressed(content, readable=bits.readable, packed=bits.packed, elements=elements)
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, content.getvalue())
        path.chmod(0o600)
        files = sorted(path.parent.glob("*.npz"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MOST_FILES]:
            file.unlink(missing_ok=True)
