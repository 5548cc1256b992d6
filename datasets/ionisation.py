"""Tell acids, bases and permanent charges from the structure: a class, not a pKa."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from rdkit import Chem

from graphxai.runtime.reading import packaged_rows

from .canonical_form import quietly_read
from .standardise import lone_charges, neutral_form

ACIDS, BASES = ("strong acid", "weak acid"), ("strong base", "weak base")  # the strongest first
BOTH = f"{ACIDS[1]} and {BASES[1]}"
KINDS = (*ACIDS, *BASES, BOTH)
CATION = "permanent charge"
IONISED = "more than half ionised at pH 7.4"


@dataclass(frozen=True)
class Ionisation:
    """The class of a compound in water by rules, with the groups that decide it.

    Strong acids have a pKa below 7.4, weak ones up to 11. The conjugate acids of strong bases have
    a pKa above 7.4, those of weak bases from 4. The rules know the groups of
    `ionisable_groups.csv`, and no effects beyond them.

    Args:
        kind: "strong acid", "weak acid", "strong base", "weak base", "weak acid and weak base",
            "zwitterion", "permanently charged" or "neutral".
        groups: (class, name, atom) of each group that gains or loses a proton, or has a permanent
            charge.
    """

    kind: str
    groups: tuple[tuple[str, str, int], ...] = ()

    def __repr__(self) -> str:
        names: dict[str, dict[str, None]] = {}
        for kind, name, _ in sorted(self.groups, key=lambda group: group[0] != self.kind):
            names.setdefault(kind, {})[name] = None
        listed = [f"{kind} ({', '.join(each)})" for kind, each in names.items()]
        if self.kind.startswith("strong"):
            listed[0] += f", {IONISED}"
        text = "; ".join(listed)
        return text if self.kind in KINDS else f"{self.kind}{': ' * bool(text)}{text}"


def ionisation(molecule: Chem.Mol | str) -> Ionisation:
    """Return whether a compound is an acid, a base, a zwitterion or permanently charged.

    Ions count as the compound that they come from, and ions of a single atom do not count.

    Args:
        molecule: an RDKit molecule or a SMILES.

    Raises:
        ValueError: RDKit cannot read the SMILES, or the molecule has no atoms.
    """
    mol = quietly_read(molecule) if isinstance(molecule, str) else molecule
    if mol is None or not mol.GetNumAtoms():
        why = "RDKit cannot read the SMILES" if mol is None else "there are no atoms in"
        raise ValueError(f"{why} {molecule!r}.")
    mol = neutral_form(mol)
    groups: dict[int, tuple[str, str, int]] = {}
    for kind, name, pattern in _groups():
        for atom, *_ in mol.GetSubstructMatches(pattern, uniquify=False):
            groups.setdefault(atom, (kind, name, atom))
    for atom in lone_charges(mol):
        if mol.GetAtomWithIdx(atom).GetDegree():
            groups[atom] = (CATION, mol.GetAtomWithIdx(atom).GetSymbol(), atom)
    kept = sorted(group for group in groups.values() if group[0] != "neutral")
    return Ionisation(_kind({kind for kind, *_ in kept}), tuple(kept))


def _kind(kinds: set[str]) -> str:
    """Return the class of a compound from those of its groups."""
    if ACIDS[0] in kinds and kinds & {BASES[0], CATION}:
        return "zwitterion"
    if CATION in kinds:
        return "permanently charged"
    if not kinds & {ACIDS[0], BASES[0]}:
        return BOTH if len(kinds) > 1 else next(iter(kinds), "neutral")
    return ACIDS[0] if ACIDS[0] in kinds else BASES[0]


@cache
def _groups() -> tuple[tuple[str, str, Chem.Mol], ...]:
    rows = packaged_rows(__package__, "ionisable_groups.csv")
    return tuple((row["kind"], row["name"], Chem.MolFromSmarts(row["smarts"])) for row in rows)
