"""Say which groups of a molecule nobody can keep, and which no change may therefore make."""

from collections import Counter
from functools import cache

from rdkit import Chem

# groups that nobody can keep in a bottle or in water: name, SMARTS
_FREE_N = "[NX3;!$(N[C,S,P]=[O,N,S])]"  # the nitrogen of an amine
UNSTABLE: tuple[tuple[str, str], ...] = (
    ("hemiaminal", "[OX2H][CX4][NX3]"),
    ("hemiacetal", "[OX2H][CX4][OX2H0]"),
    ("geminal diol", "[OX2H][CX4][OX2H]"),
    ("hemithioacetal", "[$([OX2H][CX4][SX2]),$([SX2H][CX4][O,S,N])]"),
    ("aminal", f"{_FREE_N}[CX4]{_FREE_N}"),
    ("alpha-haloamine", "[F,Cl,Br,I][CX4][NX3]"),
    ("alpha-halo ether", "[$(F[CX4;!$(C(F)F)]),Cl,Br,I][CX4][OX2H0,SX2]"),
    ("alpha-halo alcohol", "[F,Cl,Br,I][CX4][OX2H,SX2H]"),
    ("acyl halide", "[F,Cl,Br,I][CX3]=[O,S,N]"),
    ("sulfonyl halide", "[F,Cl,Br,I][SX2,SX3,SX4,P]"),
    ("halogen at nitrogen or oxygen", "[F,Cl,Br,I][#7,#8]"),
    ("peroxide", "[OX2,SX2H][OX2]"),
    ("enol", "[OX2H,SX2H][CX3]=[CX3,NX2]"),
    ("enamine with N-H", "[NX3;H1,H2;!$(N[C,S,P]=[O,N,S])][CX3]=[CX3;!$(C[C,S,N,P]=,#[O,N])]"),
    ("imine", "[NX2;!R;!$(N-[N,O,S])]=[CX3;!$(C[N,O,S])]"),
    ("anhydride", "[CX3](=O)[OX2,SX2][CX3,S,P]=O"),
    ("carbamic or carbonic acid", "[NX3,OX2,SX2][CX3](=[O,S])[OX2H,SX2H]"),
    ("chain of three heteroatoms", "[NX3,OX2;!R][NX3,OX2,SX2;!R][NX3,OX2,SX2;!R]"),
)


def unstable_groups(mol: Chem.Mol) -> Counter[str]:
    """Count the groups of `UNSTABLE` in a molecule."""
    return +Counter({name: len(mol.GetSubstructMatches(group)) for name, group in _unstable()})


@cache
def _unstable() -> tuple[tuple[str, Chem.Mol], ...]:
    return tuple((name, Chem.MolFromSmarts(smarts)) for name, smarts in UNSTABLE)
