"""Changes that medicinal chemists make to a molecule, as reaction SMARTS with their sources.

A transformation is (name, reaction SMARTS, source). Atoms with a map number stay. The others leave
or are new.
"""

from collections.abc import Iterator

TOPLISS = "Topliss 1972, J. Med. Chem. 15, 1006"
METHYL = "Barreiro 2011, Chem. Rev. 111, 5215"
FLUORINE = "Gillis 2015, J. Med. Chem. 58, 8315"
NITROGEN = "Pennington 2017, J. Med. Chem. 60, 3552"
BIOISOSTERES = "Meanwell 2011, J. Med. Chem. 54, 2529"
CLASSICAL = "Patani 1996, Chem. Rev. 96, 3147"
ACIDS = "Ballatore 2013, ChemMedChem 8, 385"
AMIDES = "Kumari 2020, J. Med. Chem. 63, 12290"
PHENYLS = "Subbaiah 2021, J. Med. Chem. 64, 14046"
OXETANES = "Wuitschik 2010, J. Med. Chem. 53, 3227"
PENTANES = "Stepan 2012, J. Med. Chem. 55, 3414"
PRIVILEGED = "Welsch 2010, Curr. Opin. Chem. Biol. 14, 347"
HETEROCYCLES = "Lazzara 2020, RSC Med. Chem. 11, 18"
SCAFFOLDS = "Sun 2012, Drug Discov. Today 17, 310"
SATURATION = "Lovering 2009, J. Med. Chem. 52, 6752"

Transformation = tuple[str, str, str]

# substituents of an aromatic ring: name, as a product, as a pattern, source
_ON_RINGS = (
    ("F", "F", "[F]", TOPLISS),
    ("Cl", "Cl", "[Cl]", TOPLISS),
    ("CH3", "C", "[CH3]", TOPLISS),
    ("OCH3", "OC", "[OX2][CH3]", TOPLISS),
    ("CF3", "C(F)(F)F", "[CX4](F)(F)F", TOPLISS),
    ("CN", "C#N", "[CX2]#[NX1]", TOPLISS),
    ("OH", "O", "[OH]", TOPLISS),
    ("NH2", "N", "[NX3;H2]", TOPLISS),
    ("N(CH3)2", "N(C)C", "[NX3]([CH3])[CH3]", TOPLISS),
    ("SO2CH3", "S(C)(=O)=O", "[SX4](=O)(=O)[CH3]", TOPLISS),
    ("C(CH3)3", "C(C)(C)C", "[CX4]([CH3])([CH3])[CH3]", TOPLISS),
    ("OCF3", "OC(F)(F)F", "[OX2][CX4](F)(F)F", FLUORINE),
    ("OCHF2", "OC(F)F", "[OX2][CX4;H1](F)F", FLUORINE),
    ("cyclopropyl", "C1CC1", "[CH]1[CH2][CH2]1", BIOISOSTERES),
    ("CONH2", "C(N)=O", "[CX3](=O)[NH2]", BIOISOSTERES),
)
_SWAPS = (  # old and new substituent, both of the table above
    "F Cl", "Cl F", "Cl CH3", "CH3 Cl", "Cl CF3", "CF3 Cl", "CH3 CF3", "CF3 CH3", "CH3 F", "F CH3",
    "Cl CN", "CN Cl", "OH OCH3", "OCH3 OH", "OH F", "OH NH2", "NH2 OH", "OCH3 OCF3", "OCF3 OCH3",
    "OCH3 OCHF2", "OCH3 F", "OCH3 Cl", "C(CH3)3 CF3", "CF3 C(CH3)3", "CN CONH2", "CONH2 CN",
    "CF3 cyclopropyl", "CN SO2CH3",
)  # fmt: skip

# patterns of several transformations
_PHENYL = "[*:1]-c1[cH][cH][cH][cH][cH]1"
_ETHER = "[#6;!$(C=[O,N,S]):1]-!@[OX2]-!@[#6;!$(C=[O,N,S]):3]"
_CHAIN_CH2 = "[#6:1]-!@[CX4;H2]-!@[#6;!$(C[#7,#8,#16]);!$(C=[O,N,S]):3]"
_AMIDE_NH = "[#6:1][CX3:2](=[O:3])[NX3;H1:4][#6:5]"
_AMIDE_IN_CHAIN = "[#6:1][CX3;!R](=O)[NX3;H1;!R][#6:5]"
_ACID = "[#6:1][CX3:2](=[O:3])[OX2H,OX1-]"
_ACID_LOST = "[#6:1][CX3](=O)[OX2H,OX1-]"
_RING_CH2 = "[CX4;R:1][CX4;H2;R][CX4;R;!$(C[#7,#8,#16]):3]"

_OTHER: tuple[Transformation, ...] = (
    # substituents of saturated carbon
    ("aliphatic H to F", "[CX4;!H0:1]>>[C:1]F", FLUORINE),
    ("aliphatic H to CH3", "[CX4;!H0:1]>>[C:1]C", METHYL),
    ("aliphatic H to OH", "[CX4;!H0;!$(C[O,N,S,F]):1]>>[C:1]O", BIOISOSTERES),
    ("aliphatic F to H", "[CX4:1][F]>>[C:1]", FLUORINE),
    ("aliphatic OH to H", "[CX4:1][OH]>>[C:1]", BIOISOSTERES),
    ("aliphatic OH to F", "[CX4:1][OH]>>[C:1]F", FLUORINE),
    ("aliphatic OH to OCH3", "[CX4:1][OH]>>[C:1]OC", METHYL),
    ("aliphatic OCH3 to OH", "[CX4:1][O][CH3]>>[C:1]O", METHYL),
    ("alcohol to ketone", "[#6:3][CX4;H1:1]([OH:2])[#6:4]>>[*:3][C:1](=[O:2])[*:4]", BIOISOSTERES),
    ("ketone to alcohol", "[#6:3][CX3:1](=[O:2])[#6:4]>>[*:3][C:1]([O:2])[*:4]", BIOISOSTERES),
    ("ketone to CF2", "[#6:3][CX3:1](=O)[#6:4]>>[*:3][C:1](F)(F)[*:4]", FLUORINE),
    ("CH2 to CF2", "[#6:1][CX4;H2:2][#6:3]>>[*:1][C:2](F)(F)[*:3]", FLUORINE),
    ("CF2 to CH2", "[#6:1][CX4:2](F)(F)[#6:3]>>[*:1][C:2][*:3]", FLUORINE),
    # the length and branching of chains
    ("methyl removed", "[#6,#7:1]-[CH3]>>[*:1]", METHYL),
    ("methyl to CF3", "[CX4:1]-[CH3:2]>>[C:1]-[C:2](F)(F)F", FLUORINE),
    ("methyl to isopropyl", "[*:1]-[CH3:2]>>[*:1]-[C:2](C)C", METHYL),
    ("ethyl to cyclopropyl", "[*:1]-[CH2:2][CH3:3]>>[*:1]-[C:2]1C[C:3]1", BIOISOSTERES),
    ("isopropyl to cyclopropyl",
     "[*:1]-[CH:2]([CH3:3])[CH3:4]>>[*:1]-[C:2]1[C:3][C:4]1", BIOISOSTERES),
    ("chain longer by CH2", "[CX4:1]-!@[*;!H0,R:2]>>[C:1]C[*:2]", CLASSICAL),
    ("chain shorter by CH2", "[*:1]-!@[CX4;H2]-!@[*:2]>>[*:1]-[*:2]", CLASSICAL),
    ("C=C to C-C", "[CX3:1]=!@[CX3:2]>>[C:1]-[C:2]", CLASSICAL),
    ("C#C to C-C", "[CX2:1]#[CX2:2]>>[C:1]-[C:2]", CLASSICAL),
    # exchange of atoms in chains
    ("ether O to CH2", f"{_ETHER}>>[*:1]-C-[*:3]", CLASSICAL),
    ("ether O to NH", f"{_ETHER}>>[*:1]-N-[*:3]", CLASSICAL),
    ("ether O to S", f"{_ETHER}>>[*:1]-S-[*:3]", CLASSICAL),
    ("thioether S to O", "[#6:1]-!@[SX2]-!@[#6:3]>>[*:1]-O-[*:3]", CLASSICAL),
    ("thioether S to CH2", "[#6:1]-!@[SX2]-!@[#6:3]>>[*:1]-C-[*:3]", CLASSICAL),
    ("chain CH2 to O", f"{_CHAIN_CH2}>>[*:1]-O-[*:3]", CLASSICAL),
    ("chain CH2 to NH", f"{_CHAIN_CH2}>>[*:1]-N-[*:3]", CLASSICAL),
    ("thioether to sulfone", "[#6:1][SX2:2][#6:3]>>[*:1][S:2](=O)(=O)[*:3]", BIOISOSTERES),
    ("sulfone to sulfoxide", "[#6:1][SX4:2](=[O:4])(=O)[#6:3]>>[*:1][S:2](=[O:4])[*:3]", CLASSICAL),
    ("sulfoxide to sulfone", "[#6:1][SX3:2](=[O:4])[#6:3]>>[*:1][S:2](=[O:4])(=O)[*:3]", CLASSICAL),
    # amines
    ("N-methylation", "[NX3;!H0;!$(NC=[O,N,S]);!$(NS=O);!$(N-[!#6]):1]>>[N:1]C", METHYL),
    ("dimethylamine to pyrrolidine", "[*:1]-[NX3:2]([CH3])[CH3]>>[*:1]-[N:2]1CCCC1", CLASSICAL),
    ("dimethylamine to morpholine", "[*:1]-[NX3:2]([CH3])[CH3]>>[*:1]-[N:2]1CCOCC1", BIOISOSTERES),
    ("dimethylamine to azetidine", "[*:1]-[NX3:2]([CH3])[CH3]>>[*:1]-[N:2]1CCC1", OXETANES),
    ("amine NH2 to OH", "[CX4:1][NX3;H2]>>[C:1]O", CLASSICAL),
    # amides, sulfonamides, ureas, esters
    ("amide reversed", f"{_AMIDE_NH}>>[*:1][N:4][C:2](=[O:3])[*:5]", AMIDES),
    ("amide N-methylated", f"{_AMIDE_NH}>>[*:1][C:2](=[O:3])[N:4](C)[*:5]", AMIDES),
    ("amide to sulfonamide",
     "[#6:1][CX3](=[O:3])[NX3;!R:4]>>[*:1]S(=[O:3])(=O)[N:4]", AMIDES),
    ("sulfonamide to amide",
     "[#6:1][SX4](=[O:3])(=O)[NX3;!R:4]>>[*:1]C(=[O:3])[N:4]", AMIDES),
    ("amide to thioamide", "[#6:1][CX3:2](=O)[NX3:4]>>[*:1][C:2](=S)[N:4]", AMIDES),
    ("amide to amine", "[#6:1][CX3:2](=O)[NX3;!R:4]>>[*:1][C:2][N:4]", AMIDES),
    ("amide to trifluoroethylamine",
     "[#6:1][CX3:2](=O)[NX3;H1;!R:4][#6:5]>>[*:1][C:2](C(F)(F)F)[N:4][*:5]", AMIDES),
    ("amide to oxetane amine",
     "[#6:1][CX3:2](=O)[NX3;!R:4]>>[*:1][C:2]1(COC1)[N:4]", OXETANES),
    ("amide to urea", "[#6:1][CX3:2](=[O:3])[NX3:4]>>[*:1]N[C:2](=[O:3])[N:4]", AMIDES),
    ("urea to amide",
     "[#6:1][NX3;H1][CX3:2](=[O:3])[NX3:4]>>[*:1][C:2](=[O:3])[N:4]", AMIDES),
    ("amide to carbamate",
     "[#6:1][CX3:2](=[O:3])[NX3;H1:4]>>[*:1]O[C:2](=[O:3])[N:4]", AMIDES),
    ("amide to ester",
     "[#6:1][CX3:2](=[O:3])[NX3;H1;!R:4][#6:5]>>[*:1][C:2](=[O:3])O[*:5]", AMIDES),
    ("amide to 1,2,4-oxadiazole", f"{_AMIDE_IN_CHAIN}>>[*:1]c1nc([*:5])no1", AMIDES),
    ("amide to 1,2,3-triazole", f"{_AMIDE_IN_CHAIN}>>[*:1]c1cn([*:5])nn1", AMIDES),
    ("amide to trans-alkene",
     "[#6:1][CX3;!R:2](=O)[NX3;H1;!R][#6:5]>>[*:1]/[C:2]=C/[*:5]", AMIDES),
    ("ester to amide", "[#6:1][CX3:2](=[O:3])[OX2][#6:5]>>[*:1][C:2](=[O:3])N[*:5]", AMIDES),
    ("ester to acid", "[#6:1][CX3:2](=[O:3])[OX2:4][CX4;H3]>>[*:1][C:2](=[O:3])[O:4]", CLASSICAL),
    # carboxylic acids
    ("acid to tetrazole", f"{_ACID_LOST}>>[*:1]c1nnn[nH]1", ACIDS),
    ("acid to hydroxamic acid", f"{_ACID}>>[*:1][C:2](=[O:3])NO", ACIDS),
    ("acid to acylsulfonamide", f"{_ACID}>>[*:1][C:2](=[O:3])NS(C)(=O)=O", ACIDS),
    ("acid to 5-oxo-1,2,4-oxadiazole", f"{_ACID_LOST}>>[*:1]c1noc(=O)[nH]1", ACIDS),
    ("acid to primary amide", f"{_ACID}>>[*:1][C:2](=[O:3])N", ACIDS),
    ("acid to methyl ester", f"{_ACID}>>[*:1][C:2](=[O:3])OC", CLASSICAL),
    ("acid to sulfonic acid", f"{_ACID_LOST}>>[*:1]S(=O)(=O)O", ACIDS),
    ("nitrile to tetrazole", "[#6:1][CX2]#[NX1]>>[*:1]c1nnn[nH]1", ACIDS),
    # aromatic rings
    ("aromatic CH to N", "[cH;r6:1]>>[n:1]", NITROGEN),
    ("aromatic N to CH", "[n;r6;+0;H0;X2:1]>>[cH:1]", NITROGEN),
    ("aromatic N walks", "[n;r6;+0;H0;X2:1]:[cH:2]>>[cH:1]:[n:2]", NITROGEN),
    ("five-ring CH to N", "[cH;r5:1]>>[n:1]", NITROGEN),
    ("five-ring N to CH", "[n;r5;+0;H0;X2:1]>>[cH:1]", NITROGEN),
    ("thiophene S to O", "[s;r5:1]>>[o:1]", CLASSICAL),
    ("furan O to S", "[o;r5:1]>>[s:1]", CLASSICAL),
    ("pyrrole NH to N-methyl", "[nH;r5:1]>>[n:1]C", METHYL),
    ("aromatic N-methyl removed", "[n;r5:1]-[CH3]>>[nH:1]", METHYL),
    ("phenyl to 2-thienyl", f"{_PHENYL}>>[*:1]-c1cccs1", PHENYLS),
    ("phenyl to 3-thienyl", f"{_PHENYL}>>[*:1]-c1ccsc1", PHENYLS),
    ("phenyl to 4-pyrazolyl", f"{_PHENYL}>>[*:1]-c1c[nH]nc1", PHENYLS),
    ("phenyl to 2-thiazolyl", f"{_PHENYL}>>[*:1]-c1nccs1", PHENYLS),
    ("phenyl to cyclohexyl", f"{_PHENYL}>>[*:1]-C1CCCCC1", PHENYLS),
    ("phenyl to cyclopropyl", f"{_PHENYL}>>[*:1]-C1CC1", PHENYLS),
    ("phenyl to bicyclopentyl", f"{_PHENYL}>>[*:1]-C12CC(C1)C2", PENTANES),
    ("para-phenylene to bicyclopentane",
     "[*:1]-!@c1[cH][cH]c(-!@[*:2])[cH][cH]1>>[*:1]-C12CC([*:2])(C1)C2", PENTANES),
    ("cyclohexyl to phenyl",
     "[*:1]-[CX4;H1]1[CH2][CH2][CH2][CH2][CH2]1>>[*:1]-c1ccccc1", PHENYLS),
    ("substituent moves to the next carbon",
     "[c:1](-!@[*;!#1:3])[cH:2]>>[c:1][c:2]-[*:3]", TOPLISS),
    # saturated rings
    ("ring CH2 to O", f"{_RING_CH2}>>[C:1]O[C:3]", CLASSICAL),
    ("ring CH2 to NH", f"{_RING_CH2}>>[C:1]N[C:3]", CLASSICAL),
    ("ring CH2 to N-methyl", f"{_RING_CH2}>>[C:1]N(C)[C:3]", CLASSICAL),
    ("ring CH2 to S", f"{_RING_CH2}>>[C:1]S[C:3]", CLASSICAL),
    ("ring CH2 to C=O", "[CX4;R:1][CX4;H2;R:2][CX4;R:3]>>[C:1][C:2](=O)[C:3]", CLASSICAL),
    ("ring O to CH2", "[CX4;R:1][OX2;R][CX4;R:3]>>[C:1]C[C:3]", CLASSICAL),
    ("ring NH to CH2", "[CX4;R:1][NX3;H1;R][CX4;R:3]>>[C:1]C[C:3]", CLASSICAL),
    ("ring NH to O", "[CX4;R:1][NX3;H1;R][CX4;R:3]>>[C:1]O[C:3]", CLASSICAL),
    ("ring S to CH2", "[CX4;R:1][SX2;R][CX4;R:3]>>[C:1]C[C:3]", CLASSICAL),
    ("ring larger by CH2", "[CX4;R;H2:1]-@[CX4;R;H2:2]>>[C:1]C[C:2]", CLASSICAL),
    ("ring smaller by CH2", "[*;R:1]-@[CX4;R;H2;!r3;!r4]-@[CX4;R:2]>>[*:1][C:2]", CLASSICAL),
    ("ring opened", "[CX4;R1;H2:1]-@[CX4;R1;H2:2]>>([C:1].[C:2])", CLASSICAL),
    ("ring closed by CH2",
     "[CH3:1]-[*;!R:2]-[*;!R:3]-[CH3:4]>>[C:1]1-[*:2]-[*:3]-[C:4]C1", CLASSICAL),
    ("ring closed onto an aromatic CH",
     "[CH3:1]-[*;!R:2]-[*;!R:3]-[c:4][cH:5]>>[C:1]1-[*:2]-[*:3]-[c:4][c:5]1", CLASSICAL),
    ("catechol ether to methylenedioxy",
     "[CH3][O:1][c:2][c:3][O:4][CH3]>>C1[O:1][c:2][c:3][O:4]1", CLASSICAL),
    ("gem-dimethyl to oxetane", "[CX4:1]([CH3])[CH3]>>[C:1]1COC1", OXETANES),
    ("carbonyl to oxetane", "[#6:2][CX3:1](=O)[#6:3]>>[*:2][C:1]1(COC1)[*:3]", OXETANES),
)  # fmt: skip

# rings fused to an aromatic ring that is fused to none: a bond between two CH of such a ring
_SIX_RING = "[cH;$([cH;R1]1[a;R1][a;R1][a;R1][a;R1][a;R1]1):1]:[cH;R1:2]"
_FIVE_RING = "[cH;$([cH;R1]1[a;R1][a;R1][a;R1][a;R1]1):1]:[cH;R1:2]"
_NAPHTHALENE = "[c;R2;$(c12ccccc1cccc2)]"  # an atom of both rings

_FUSED: tuple[Transformation, ...] = (
    # rings fused, and taken away again
    ("benzene ring fused to a six-membered ring",
     f"{_SIX_RING}>>[c:1]1:[c:2]:c:c:c:c:1", PRIVILEGED),
    ("benzene ring fused to a five-membered ring",
     f"{_FIVE_RING}>>[c:1]1:[c:2]:c:c:c:c:1", PRIVILEGED),
    ("pyridine ring fused", f"{_SIX_RING}>>[c:1]1:[c:2]:c:c:c:n:1", PRIVILEGED),
    ("pyrrole ring fused", f"{_SIX_RING}>>[c:1]1:[c:2]:c:c:[nH]:1", PRIVILEGED),
    ("furan ring fused", f"{_SIX_RING}>>[c:1]1:[c:2]:c:c:o:1", PRIVILEGED),
    ("thiophene ring fused", f"{_SIX_RING}>>[c:1]1:[c:2]:c:c:s:1", PRIVILEGED),
    ("imidazole ring fused", f"{_SIX_RING}>>[c:1]1:[c:2]:n:c:[nH]:1", PRIVILEGED),
    ("pyrazole ring fused", f"{_SIX_RING}>>[c:1]1:[c:2]:c:n:[nH]:1", PRIVILEGED),
    ("fused six-membered ring removed",
     "[c;R2:1]1:[cH,n]:[cH,n]:[cH,n]:[cH,n]:[c;R2:2]:1>>[cH:1]:[cH:2]", SCAFFOLDS),
    ("fused five-membered ring removed",
     "[c;R2:1]1:[cH,n]:[cH,n]:[nH,o,s]:[c;R2:2]:1>>[cH:1]:[cH:2]", SCAFFOLDS),
    # a phenyl ring becomes a bicycle
    ("phenyl to 3-quinolyl", f"{_PHENYL}>>[*:1]-c1cnc2ccccc2c1", PRIVILEGED),
    ("phenyl to 2-indolyl", f"{_PHENYL}>>[*:1]-c1cc2ccccc2[nH]1", PRIVILEGED),
    ("phenyl to 3-indolyl", f"{_PHENYL}>>[*:1]-c1c[nH]c2ccccc12", PRIVILEGED),
    ("phenyl to 2-benzofuranyl", f"{_PHENYL}>>[*:1]-c1cc2ccccc2o1", PRIVILEGED),
    ("phenyl to 2-benzothienyl", f"{_PHENYL}>>[*:1]-c1cc2ccccc2s1", PRIVILEGED),
    ("phenyl to 2-benzimidazolyl", f"{_PHENYL}>>[*:1]-c1nc2ccccc2[nH]1", PRIVILEGED),
    # exchange of the heteroatom of a five-membered ring, alone or fused
    ("pyrrole NH to O", "[nH;r5:1]>>[o:1]", HETEROCYCLES),
    ("pyrrole NH to S", "[nH;r5:1]>>[s:1]", HETEROCYCLES),
    ("furan O to NH", "[o;r5:1]>>[nH:1]", HETEROCYCLES),
    ("thiophene S to NH", "[s;r5:1]>>[nH:1]", HETEROCYCLES),
    # one bicycle becomes another
    ("naphthalene to indole",
     f"{_NAPHTHALENE[:-1]}:1]1:[c;R1:2]:[c;R1:3]:[cH]:[cH]:{_NAPHTHALENE[:-1]}:4]:1"
     ">>[c:1]1:[c:2]:[c:3]:[nH]:[c:4]:1", HETEROCYCLES),
    ("indole to naphthalene",
     "[c;R2:1]1:[c;R1:2]:[c;R1:3]:[nH]:[c;R2:4]:1>>[c:1]1:[c:2]:[c:3]:c:c:[c:4]:1", HETEROCYCLES),
    ("quinoline to indole",
     "[n;r6;H0;X2:1]1:[c;R1:2]:[c;R1:3]:[cH]:[c;R2:4]:[c;R2:5]:1"
     ">>[nH:1]1:[c:2]:[c:3]:[c:4]:[c:5]:1", HETEROCYCLES),
    ("indole to quinoline",
     "[c;R2:1]1:[c;R1:2]:[c;R1:3]:[nH:4]:[c;R2:5]:1>>[c:1]1:c:[c:2]:[c:3]:[nH0:4]:[c:5]:1",
     HETEROCYCLES),
    ("indole to indoline",
     "[#7;r5:1]1:[c;R1:2]:[c;R1:3]:[c;R2:4]:[c;R2:5]:1>>[N:1]1-[C:2]-[C:3]-[c:4]:[c:5]-1",
     SATURATION),
    ("indoline to indole",
     "[N;H1;r5:1]1-[CX4:2]-[CX4:3]-[c:4]:[c:5]-1>>[nH:1]1:[c:2]:[c:3]:[c:4]:[c:5]:1", SATURATION),
    ("N-substituted indoline to indole",
     "[NX3;H0;r5:1]1-[CX4:2]-[CX4:3]-[c:4]:[c:5]-1>>[n:1]1:[c:2]:[c:3]:[c:4]:[c:5]:1", SATURATION),
    # rings closed and opened
    ("phenol to indole", "[OH]-[c:1]:[cH:2]>>[c:1]1:[nH]:c:c:[c:2]:1", BIOISOSTERES),
    ("phenol to indazole", "[OH]-[c:1]:[cH:2]>>[c:1]1:[nH]:n:c:[c:2]:1", BIOISOSTERES),
    ("indole to phenol", "[c;R2:1]1:[cH]:[cH]:[nH]:[c;R2:2]:1>>[cH:1]:[c:2]O", BIOISOSTERES),
    ("aniline closed to indole", "[NH2:1]-[c:2]:[cH:3]>>[nH:1]1:c:c:[c:3]:[c:2]:1", SCAFFOLDS),
    ("2-alkylaniline closed to indole",
     "[NH2:1]-[c:2]:[c:3]-[CX4;!H0;!H1:4]>>[nH:1]1:c:[c:4]:[c:3]:[c:2]:1", SCAFFOLDS),
    ("indole opened to 2-alkylaniline",
     "[nH:1]1:[cH]:[c;R1:2]:[c;R2:3]:[c;R2:4]:1>>[N:1]-[c:4]:[c:3]-[C:2]", SCAFFOLDS),
)  # fmt: skip


def _on_rings() -> Iterator[Transformation]:
    by_name = {name: (product, pattern, source) for name, product, pattern, source in _ON_RINGS}
    for name, (product, pattern, source) in by_name.items():
        yield f"aromatic H to {name}", f"[cH:1]>>[c:1]{product}", source
        yield f"aromatic {name} to H", f"[c:1]-{pattern}>>[cH:1]", source
    for swap in _SWAPS:
        old, new = swap.split()
        yield (
            f"aromatic {old} to {new}",
            f"[c:1]-{by_name[old][1]}>>[c:1]{by_name[new][0]}",
            by_name[new][2],
        )


TRANSFORMATIONS: tuple[Transformation, ...] = (*_on_rings(), *_OTHER, *_FUSED)
