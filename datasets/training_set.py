"""Read the compounds that a model was trained on, and say how similar a molecule is to them.

The compounds are in `training.csv` beside the checkpoint, in the column `smiles`. `held_out.csv`
beside it lists the compounds held out in training, in the columns `smiles` and `part`
("validation" or "test").
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections import Counter, UserDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from graphxai.runtime.writing import csv_text, write_whole

if TYPE_CHECKING:
    from rdkit.Chem import Mol
    from rdkit.DataStructs import ExplicitBitVect

    from .fingerprints import BitTable

LISTED = 5  # how many compounds a notebook shows
FILE, HELD_OUT = "training.csv", "held_out.csv"
# Fitted on held-out molecules with measured values, see benchmarks/results/trust.md.
EDGE, FAR = 0.79, 0.59
# The bits and elements of molecules that nobody changes, while these are in use.
_DESCRIBED: WeakKeyDictionary[Mol, tuple[ExplicitBitVect, frozenset[str]]] = WeakKeyDictionary()
Word = Literal["training compound", "near", "edge", "far", "unknown"]


@dataclass(frozen=True)
class Nearness:
    """How near a molecule is to a training set.

    Args:
        word: "training compound", "unknown", or how near it is by `similarity`: "near", "edge"
            (below `EDGE`) or "far" (below `FAR`, or with an element in `unseen`).
        similarity: ECFP4 Tanimoto similarity to the nearest training compound.
        compound: SMILES of that compound, as it stands in the training set.
        unseen: elements of the molecule that no training compound has.
    """

    word: Word
    similarity: float | None = None
    compound: str | None = None
    unseen: tuple[str, ...] = ()

    @property
    def nearest(self) -> str | None:
        """The canonical SMILES of the nearest training compound, which is made when it is read."""
        return None if self.compound is None else _canonical(self.compound)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, with the SMILES of `nearest`."""
        parts = {"word": self.word, "similarity": self.similarity, "nearest": self.nearest}
        return parts | {"unseen": list(self.unseen)}

    @property
    def sentence(self) -> str:
        """The nearness as text."""
        if self.unseen:
            return f"no training compound contains {' or '.join(self.unseen)}"
        place = {"near": "near", "edge": "at the edge of", "far": "far from"}.get(self.word)
        if place is None:
            return {"unknown": "the training set is unknown"}.get(self.word, "a training compound")
        return f"{place} the training set (nearest similarity {self.similarity:.2f})"

    @property
    def columns(self) -> dict[str, Any]:
        """The cells of a table: `nearest_similarity`, empty if unknown, and `training_set`."""
        text = "" if self.similarity is None else f"{self.similarity:.4g}"
        return {"nearest_similarity": text, "training_set": self.word}


UNKNOWN = Nearness("unknown")


class _Parts(UserDict[str, str]):
    """Parts by canonical SMILES, which are computed when a part is first asked for."""

    def __init__(self, given: dict[str, str]) -> None:
        self._given = given

    @cached_property
    def data(self) -> dict[str, str]:  # type: ignore[override]
        return {_canonical(smiles): part for smiles, part in self._given.items()}


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Training compounds, whose structures are read when they are first asked for.

    Args:
        given: SMILES, each once. Those that cannot be read are ignored.
        held_out: the part of each compound held out in training, by canonical SMILES.
    """

    given: tuple[str, ...]
    held_out: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"TrainingSet({len(self.given):,} compounds, {len(self.held_out):,} held out)"

    def _repr_html_(self) -> str:
        """Return how many compounds each part has, and the first ones."""
        parts = {"training": len(self.given)} | Counter(self.held_out.values())
        rows = "".join(
            f"<tr><th>{escape(part)}</th><td>{count:,}</td></tr>" for part, count in parts.items()
        )
        first = "".join(f"<li><code>{escape(smiles)}</code></li>" for smiles in self.given[:LISTED])
        return f"<table>{rows}</table><p>training compounds, the first:</p><ul>{first}</ul>"

    @cached_property
    def _compounds(self) -> CompoundBits:
        """The bits and elements of the readable compounds, kept from an earlier process or new."""
        import rdkit

        from .fingerprints import packed_bits

        path = place_for(self.given, rdkit.__version__)
        if path is not None and (kept := kept_at(path)) is not None:
            return kept
        read = [(k, each) for k, each in enumerate(map(_compound, self.given)) if each is not None]
        bits = CompoundBits(
            np.array([k for k, _ in read], np.int64),
            packed_bits([bits for _, (bits, _) in read]),
            frozenset().union(*(elements for _, (_, elements) in read)),
        )
        if path is not None and read:
            keep_at(path, bits)
        return bits

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The SMILES of the readable compounds, as given."""
        return tuple(self.given[k] for k in self._compounds.readable.tolist())

    @cached_property
    def fingerprints(self) -> tuple[ExplicitBitVect, ...]:
        """The ECFP4 fingerprints of the readable compounds."""
        from rdkit.DataStructs import CreateFromBinaryText

        return tuple(CreateFromBinaryText(row.tobytes()) for row in self._compounds.packed)

    @property
    def elements(self) -> frozenset[str]:
        """All elements of the compounds."""
        return self._compounds.elements

    def nearness(self, mol: Mol, *, smiles: str = "", unchanging: bool = False) -> Nearness:
        """Return how near a molecule is to the set.

        The fingerprint ignores stereochemistry. If several compounds are equally near and the
        molecule itself is one of them, it is the nearest. If the molecule is `unchanging`, other
        sets need not compute its fingerprint again. A `smiles` of it, if there is one already,
        saves writing one.
        """
        from .canonical_form import canonical_smiles, smiles_as_read, without_labels

        described = _DESCRIBED.get(mol) if unchanging else None
        if described is None:
            bare = without_labels(mol)
            described = _described(bare)
            if unchanging and bare is mol:
                _DESCRIBED[mol] = described
            mol = bare
        bits, elements = described
        similarities = self._bits.similarities(bits)
        first = int(similarities.argmax())
        similarity = float(similarities[first])
        if similarity == 1:
            equals = [self.written[i] for i in np.flatnonzero(similarities == 1)]
            if smiles in equals:
                return Nearness("training compound", 1.0, smiles)
            # most are written and read as in their canonical form, which takes long to make
            for written in (smiles_as_read, canonical_smiles):
                if (smiles := written(mol)) in equals or smiles in map(_canonical, equals):
                    return Nearness("training compound", 1.0, smiles)
        unseen = sorted(elements - self.elements)
        word: Word = (
            "far" if unseen or similarity < FAR else "edge" if similarity < EDGE else "near"
        )
        return Nearness(word, similarity, self.written[first], tuple(unseen))

    def most_similar(self, mol: Mol, n: int) -> tuple[str, ...]:
        """Return the n compounds most similar to a molecule, as SMILES, the nearest first."""
        from .canonical_form import without_labels
        from .fingerprints import ecfp4_bits

        similarities = self._bits.similarities(ecfp4_bits(without_labels(mol)))
        order = similarities.argsort(kind="stable")[::-1]
        return tuple(_canonical(self.written[i]) for i in order[:n].tolist())

    @cached_property
    def _bits(self) -> BitTable:
        from .fingerprints import BitTable

        return BitTable(self._compounds.packed)

    @cached_property
    def smiles(self) -> tuple[str, ...]:
        """The canonical SMILES of all compounds."""
        return tuple(map(_canonical, self.written))

    @cached_property
    def _canonical_smiles(self) -> frozenset[str]:
        return frozenset(self.smiles)

    def part(self, mol: Mol) -> str:
        """Return which part a molecule, or its parent, was in: "training", "validation" or "test".

        It is "" if the molecule is in none of them.
        """
        from rdkit import rdBase

        from .canonical_form import canonical_smiles
        from .standardise import parent_of

        smiles = canonical_smiles(mol)
        if smiles not in self._canonical_smiles and smiles not in self.held_out:
            # what cannot be standardised stays as it is
            with suppress(ValueError, RuntimeError), rdBase.BlockLogs():
                parent = parent_of(mol, "parent")
                smiles = smiles if parent is None else canonical_smiles(parent.mol)
        return "training" if smiles in self._canonical_smiles else self.held_out.get(smiles, "")


def held_out_csv(parts: Mapping[str, Iterable[str]]) -> str:
    """Return the file `HELD_OUT` of a checkpoint as text, from canonical SMILES by part."""
    rows = ([smiles, part] for part, chosen in parts.items() for smiles in chosen)
    return csv_text(["smiles", "part"], rows)


def training_set_of(model: Any) -> TrainingSet | None:
    """Return a model's training set, or that beside its checkpoint, or None if there is none.

    Raises ValueError if `training.csv` has no column `smiles`.
    """
    if (known := getattr(model, "training_set", None)) is not None:
        return known  # of a wrapped model, see `learned_from`
    folder = getattr(getattr(model, "origin", None), "folder", None)
    path = None if folder is None else Path(folder) / FILE
    if path is None or not path.is_file():
        return None
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1 << 16)
def _canonical(smiles: str) -> str:
    """Return the canonical SMILES of a compound. Few are ever needed, and each takes time."""
    from . import canonical_form as canonical

    if (read := _read_form(smiles)) is None:
        return smiles
    form, is_as_read = read
    return canonical.smiles_as_read(form) if is_as_read else canonical.canonical_smiles(form)


@lru_cache(maxsize=1 << 16)
def _compound(smiles: str) -> tuple[ExplicitBitVect, frozenset[str]] | None:
    """Return the bits and elements of a compound, once for all models trained on its table."""
    read = _read_form(smiles)
    return None if read is None else _described(read[0])


def _described(mol: Mol) -> tuple[ExplicitBitVect, frozenset[str]]:
    """Return the bits and elements of a molecule without labels."""
    from .fingerprints import ecfp4_bits

    return ecfp4_bits(mol), frozenset(_elements(mol))


def _read_form(smiles: str) -> tuple[Mol, bool] | None:
    """Return a compound in the form in which molecules are compared, or None if it is unreadable.

    Older training sets may be drawn otherwise. So it comes with whether it is as it was read.
    """
    from rdkit import rdBase

    from . import canonical_form as canonical
    from .tautomer_form import one_proton_form

    with rdBase.BlockLogs(), canonical.one_perception():
        if (mol := canonical.read_smiles(smiles)) is None:
            return None
        form = one_proton_form(canonical.without_labels(mol))
        return form, form is mol and not canonical.is_labelled(smiles)


def _elements(mol: Mol) -> set[str]:
    """Return the elements of a molecule's atoms, from its formula.

    That is ten times faster than atom by atom.
    """
    from rdkit.Chem.rdMolDescriptors import CalcMolFormula

    if mol.GetNumAtoms() > mol.GetNumHeavyAtoms():  # some hydrogens are atoms, or there are dummies
        return {atom.GetSymbol() for atom in mol.GetAtoms()}
    return set(re.findall("[A-Z][a-z]?", CalcMolFormula(mol))) - {"H"}


@lru_cache(maxsize=32)  # more than there are bundled models, which may be used in turn
def _read(path: Path, modified: int) -> TrainingSet | None:
    """Read the training set of a file, anew when its time of modification changes."""
    from .tables.table import open_table

    given = dict.fromkeys(
        record.cells["smiles"] for record in open_table(path, "smiles").records(["smiles"])
    )
    if all(_compound(smiles) is None for smiles in given):
        return None
    held_out = path.with_name(HELD_OUT)
    rows = open_table(held_out, "smiles").records(["smiles", "part"]) if held_out.is_file() else ()
    parts = _Parts({row.cells["smiles"]: row.cells["part"] for row in rows})
    return TrainingSet(tuple(given), parts)


# -- fingerprints in the user's cache ------------------------------------------------------------
#
# Reading 1,200 compounds takes a third of the time of `import torch`, and a nearness needs them
# all. The files hold derived values only: without them, or where they cannot be written, the
# fingerprints are computed. They do not lie beside the checkpoint, as those of the bundled models
# would take 3 MB of every installation.

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
