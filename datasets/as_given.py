"""How molecules are brought to their parents before a model reads them, what that changed, and
the errors of those that cannot be read.

This file needs no RDKit, so that a model's configuration can name the ways.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Standardisation: TypeAlias = Literal["as drawn", "parent", "tautomers"]
AS_DRAWN: Standardisation = "as drawn"
CENTRE_OPEN = "a centre in a group & or o is read as undefined"
ISOMER_STANDS = "one isomer stands for the groups & and o of several centres"


class AsGiven(NamedTuple):
    """A molecule as it was given, before it was brought to its parent.

    A molecule that was not changed has one if there is a remark on how it was read.

    Args:
        smiles: as given; of an RDKit molecule its canonical SMILES.
        atoms: for each atom of the parent, the number of the same atom in the molecule given.
        size: the number of atoms in the molecule given.
        changes: what was done, as text: "salt removed: besylate".
    """

    smiles: str
    atoms: tuple[int, ...]
    size: int
    changes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What was done, in one line."""
        return "; ".join(self.changes)

    @property
    def has_groups(self) -> bool:
        """Whether several isomers were drawn as one molecule, by groups & or o."""
        return not {CENTRE_OPEN, ISOMER_STANDS}.isdisjoint(self.changes)


class MoleculeError(ValueError):
    """A molecule cannot become a graph. The message says which, why, and what to do."""


class MixtureError(MoleculeError):
    """A molecule is a mixture of several compounds, none of which is a counter-ion."""
