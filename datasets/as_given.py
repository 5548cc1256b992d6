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
IS_MEAN = "the mean over"  # begins what a row says of the mean
# Whether one graph stands for a racemate, or results are the mean over the isomers that the groups
# & and o stand for; "mean" is that over the configurations of undefined centres, too.
Isomers: TypeAlias = Literal["one", "groups", "mean"]


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

    @classmethod
    def of(cls, smiles: str, size: int) -> AsGiven:
        """Return the account of a molecule that was not changed."""
        return cls(smiles, tuple(range(size)), size, ())

    @property
    def sentence(self) -> str:
        """What was done, in one line."""
        return "; ".join(self.changes)

    def as_mean(self, of: str) -> AsGiven:
        """Return the same where the mean over isomers, and no isomer, stands for the molecule."""
        others = [each for each in self.changes if each not in (CENTRE_OPEN, ISOMER_STANDS)]
        return self._replace(changes=(*others, f"{IS_MEAN} {of} isomers"))


class MoleculeError(ValueError):
    """A molecule cannot become a graph. The message says which, why, and what to do."""


class MixtureError(MoleculeError):
    """A molecule is a mixture of several compounds, none of which is a counter-ion."""
