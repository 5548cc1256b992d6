"""Parts that suit a kind of molecule: residues, warhead and linker, a core and its R-groups."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import Any, TypeAlias

from rdkit import Chem, rdBase
from rdkit.Chem import Mol, rdChemReactions
from rdkit.Chem.MolStandardize import rdMolStandardize

from graphxai.datasets.canonical_form import mirror_image
from graphxai.runtime.reading import packaged_rows

from .matching import matches_in_time, read_pattern, series_core
from .names import cut_smiles, pieces, ring_systems
from .substituents import substituent_name

Part: TypeAlias = "tuple[str | None, tuple[int, ...]]"  # name, if it has one; atoms

LARGEST_RING = 7  # an amide in a larger ring is one between residues
FEWEST_RESIDUES = 3  # of a peptide
LINKER = 4  # the fewest atoms between the ligands of a degrader
WARHEAD = 12  # the fewest atoms of its warhead
# A bond is cut between the first two atoms of each.
_AMIDES = ("[CX3;$(C=O)][NX3;!H2]", "[SX4;$(S(=O)=O)][NX3;$(N[#6][CX3]=O)]")
_BRIDGES = ("[SX2][SX2]", "[CX3;r;$(C=O)][OX2;r]")
_ALPHA = "[NX3,NX4+]-[CX4]-[CX3]=[OX1]"  # of an amino acid
# What is removed from a residue that is not listed, and what its name gets.
_CHANGED = (
    ("[NX3;H1;!R:1]([CH3])[C:2][C:3]=[O:4]>>[N:1][C:2][C:3]=[O:4]", "N-Me-{}"),
    ("[N:1][C:2][C:3](=[O:4])[NH2]>>[N:1][C:2][C:3](=[O:4])O", "{}-NH2"),
    ("[N:1][C:2][C:3](=[O:4])O[CH3]>>[N:1][C:2][C:3](=[O:4])O", "{}-OMe"),
)


def residues(mol: Mol) -> list[Part]:
    """Divide a peptide at its amide bonds, disulfides and the esters of its ring.

    A residue is named by its amino acid: "Leu", "D-Ala", "N-Me-Val", "Gly-NH2".
    """
    rings = mol.GetRingInfo()
    cut = set()
    for pattern in map(read_pattern, (*_AMIDES, *_BRIDGES)):
        for a, b, *_ in matches_in_time(mol, pattern):
            bond = mol.GetBondBetweenAtoms(a, b).GetIdx()
            if not 0 < rings.MinBondRingSize(bond) <= LARGEST_RING:
                cut.add(bond)
    divided = cut_smiles(mol, sorted(cut), stereo=True)
    return [(_residue_name(smiles), tuple(sorted(atoms))) for atoms, smiles in divided]


@lru_cache(maxsize=1 << 12)
def _residue_name(smiles: str) -> str | None:
    """Return the name of a residue, with dummy atoms at its cuts, or None if it has none."""
    acid = Chem.RWMol(Chem.MolFromSmiles(smiles))
    for atom in acid.GetAtoms():
        if not atom.GetAtomicNum():  # the free amino acid has OH at its carbonyl, and H elsewhere
            atom.SetAtomicNum(8 if any(a.GetSymbol() == "C" for a in atom.GetNeighbors()) else 1)
    try:
        Chem.SanitizeMol(acid)
        with rdBase.BlockLogs():
            free = rdMolStandardize.Uncharger().uncharge(Chem.RemoveHs(acid))
    except (ValueError, RuntimeError):
        return None
    if (name := _listed(free)) is not None:
        return name
    (match,) = free.GetSubstructMatches(read_pattern(_ALPHA), maxMatches=1) or ((),)
    if not match:
        return None
    nitrogen, alpha, carbonyl, _ = match
    bonds = [
        bond.GetIdx()
        for bond in free.GetAtomWithIdx(alpha).GetBonds()
        if not bond.IsInRing() and bond.GetOtherAtomIdx(alpha) not in (nitrogen, carbonyl)
    ]
    sides = [
        substituent_name(text)
        for atoms, text in cut_smiles(free, bonds)
        if bonds and alpha not in atoms
    ]
    return f"amino acid with {sides[0]}" if len(sides) == 1 and sides[0] else None


def _listed(acid: Mol, removed: int = 0) -> str | None:
    """Return the name of a listed amino acid, also with a methyl at N or a C-terminal amide."""
    listed = _amino_acids().get(Chem.MolToSmiles(acid, isomericSmiles=False))
    if listed:
        smiles = Chem.MolToSmiles(acid)
        if smiles in listed:
            return listed[smiles]
        mirrored = {
            str(Chem.MolToSmiles(mirror_image(Chem.MolFromSmiles(text)))): name
            for text, name in listed.items()
        }
        if smiles in mirrored:
            return f"D-{mirrored[smiles]}"
        return f"{next(iter(listed.values()))} ({'another isomer' if '@' in smiles else 'D or L'})"
    for reaction, title in _CHANGED[removed:]:
        for (product,) in rdChemReactions.ReactionFromSmarts(reaction).RunReactants((acid,), 1):
            Chem.SanitizeMol(product)
            if (name := _listed(product, removed + 1)) is not None:
                return title.format(name)
    return None


@cache
def _amino_acids() -> dict[str, dict[str, str]]:
    """Return the names of amino acids by SMILES, for each SMILES without stereochemistry."""
    listed: dict[str, dict[str, str]] = {}
    for row in packaged_rows(__package__, "residues.csv"):
        mol = Chem.MolFromSmiles(row["smiles"])
        flat = Chem.MolToSmiles(mol, isomericSmiles=False)
        listed.setdefault(flat, {})[Chem.MolToSmiles(mol)] = row["name"]
    return listed


def degrader(mol: Mol) -> list[Part]:
    """Divide a degrader (PROTAC) into the ligand of its E3 ligase, linker and warhead.

    The ligand is one of a list of patterns, with what is bound to it beside the linker. The warhead
    begins at the bond closest to it that has all rings of the rest on its side, apart from the
    rings of linkers: single saturated ones and 1,2,3-triazoles. An acyl group at this bond belongs
    to it.
    """
    for row in packaged_rows(__package__, "degraders.csv"):
        match: set[int] = set(*matches_in_time(mol, read_pattern(row["smarts"]), max_matches=1)[:1])
        if match:
            break
    else:
        return []
    border = [ends for ends in map(_ends, mol.GetBonds()) if len(match & {*ends}) == 1]
    bound = set(chain.from_iterable(border)) - match
    others = [piece for piece in pieces(mol, border) if bound & {*piece}]
    longest = max(others, key=len, default=())
    ligand = {*match, *chain.from_iterable(part for part in others if part != longest)}
    parts: list[Part] = [(row["name"], tuple(sorted(ligand)))]
    if not longest:
        return parts
    warhead = _warhead(mol, longest, ligand)
    linker = tuple(atom for atom in longest if atom not in warhead)
    named = (("linker:", linker), ("warhead:", tuple(sorted(warhead))))
    return parts + [(name, atoms) for name, atoms in named if atoms]


def _warhead(mol: Mol, atoms: Sequence[int], ligand: set[int]) -> set[int]:
    """Return the atoms of a degrader's warhead, from those that are not its ligand's."""
    import networkx as nx

    graph = nx.Graph(map(_ends, mol.GetBonds()))
    start = next(a for a in atoms if any(n in ligand for n in graph[a]))
    graph = graph.subgraph(atoms)
    of_warhead = {
        atom
        for system in ring_systems(mol)
        if {*system} <= {*atoms} and not _in_linkers(mol, system)
        for atom in system
    }
    if not of_warhead:
        return set()
    best, entry = {*atoms}, (start, start)
    for near, far in nx.bfs_edges(graph, start):
        if mol.GetBondBetweenAtoms(near, far).IsInRing():
            continue
        cut = nx.restricted_view(graph, [], [(near, far)])
        side = nx.node_connected_component(cut, far)
        if of_warhead <= side and len(side) < len(best):
            best, entry = side, (near, far)
    return best | _acyl(mol, graph, entry, start)


def _acyl(mol: Mol, graph: Any, entry: tuple[int, int], start: int) -> set[int]:
    """Return the acyl group through which a warhead is bound: CO, CH2CO or CH2CH2CO."""
    import networkx as nx

    path = nx.shortest_path(graph, entry[0], start)  # from the warhead to the ligand
    for k, atom in enumerate(path[:3]):
        if mol.GetAtomWithIdx(atom).GetSymbol() != "C" or mol.GetAtomWithIdx(atom).IsInRing():
            break
        oxygens = [n for n in graph[atom] if graph.degree(n) == 1]
        if any(mol.GetBondBetweenAtoms(atom, n).GetBondTypeAsDouble() == 2 for n in oxygens):
            return {*path[: k + 1], *oxygens} if k + 1 < len(path) else set()
    return set()


def _in_linkers(mol: Mol, system: Sequence[int]) -> bool:
    """Whether a ring system is one of linkers: one or two saturated rings, or a triazole."""
    atoms = [mol.GetAtomWithIdx(atom) for atom in system]
    if any(atom.GetIsAromatic() for atom in atoms):
        return sum(atom.GetSymbol() == "N" for atom in atoms) == 3 and len(atoms) == 5
    return len(atoms) <= 12


def suitable(mol: Mol) -> str:
    """Return the scheme that suits a molecule: "residues", "protac" or else "brics".

    A peptide has at least three named residues, which make up at least half of it. A degrader has a
    ligand of an E3 ligase, a linker and a warhead.
    """
    if mol.GetNumHeavyAtoms() < FEWEST_RESIDUES * 4:
        return "brics"
    named = [len(atoms) for name, atoms in residues(mol) if name is not None]
    if len(named) >= FEWEST_RESIDUES and 2 * sum(named) >= mol.GetNumAtoms():
        return "residues"
    parts = degrader(mol) if mol.GetNumHeavyAtoms() > LINKER + 2 * WARHEAD else []
    sizes = {(name or "").partition(":")[0]: len(atoms) for name, atoms in parts}
    is_degrader = sizes.get("linker", 0) >= LINKER and sizes.get("warhead", 0) >= WARHEAD
    return "protac" if is_degrader else "brics"


@dataclass(frozen=True)
class Core:
    """The core of a series, which divides each molecule into the core and its R-groups.

    An R-group has the number of the core's atom at which it is bound, counted from 1 in the order
    of the SMARTS, or the number of the place that the SMARTS names, as in "c1cc([*:1])ccc1[*:2]".

    Args:
        smarts: SMARTS of the core.
    """

    smarts: str

    @classmethod
    def of(cls, molecules: Iterable[Any]) -> "Core":
        """Return the maximum common core of a series.

        Rings match whole rings, atoms match by element and bonds by order.

        Args:
            molecules: at least two SMILES, RDKit molecules or explanations.

        Raises:
            ValueError: they have fewer than three connected atoms in common.
        """
        return cls(series_core(molecules))

    def parts(self, mol: Mol) -> list[Part]:
        """Return the core and the R-groups of a molecule, or nothing if it has no core."""
        pattern, places = _core_pattern(self.smarts)
        ranks = list(Chem.CanonicalRankAtoms(mol))
        best: tuple[Any, ...] = ()
        for match in matches_in_time(mol, pattern, uniquify=False):
            inside = {atom: places[k] for k, atom in enumerate(match)}
            ends = [
                (inside[a], ranks[b])
                for bond in mol.GetBonds()
                for a, b in (_ends(bond), _ends(bond)[::-1])
                if a in inside and b not in inside
            ]
            key = sorted(ends), [ranks[atom] for atom in match], inside
            best = min(best, key, key=lambda item: item[:2]) if best else key
        if not best:
            return []
        inside = best[-1]
        border = [ends for ends in map(_ends, mol.GetBonds()) if len(inside.keys() & {*ends}) == 1]
        parts: list[Part] = [("core", tuple(sorted(inside)))]
        for piece in pieces(mol, border):
            if inside.keys().isdisjoint(piece):
                bound = chain.from_iterable(ends for ends in border if {*ends} & {*piece})
                at = sorted({inside[atom] for atom in bound if atom in inside})
                label = ",".join(f"R{place}" for place in at)
                parts.append((f"{label}:" if label else None, piece))
        return parts


def _ends(bond: Any) -> tuple[int, int]:
    return bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()


@cache
def _core_pattern(smarts: str) -> tuple[Mol, list[int]]:
    """Return the pattern of a core without the places of its R-groups, and each atom's place."""
    pattern = Chem.RWMol(read_pattern(smarts))
    places = [k + 1 for k in range(pattern.GetNumAtoms())]
    open_ends = [
        atom for atom in pattern.GetAtoms() if not atom.GetAtomicNum() and atom.GetAtomMapNum()
    ]
    for atom in open_ends:
        for other in atom.GetNeighbors():
            places[other.GetIdx()] = atom.GetAtomMapNum()
    gone = {atom.GetIdx() for atom in open_ends}
    pattern.BeginBatchEdit()
    for number in gone:
        pattern.RemoveAtom(number)
    pattern.CommitBatchEdit()
    kept = [place for k, place in enumerate(places) if k not in gone]
    return Chem.MolFromSmarts(Chem.MolToSmarts(pattern)), kept
