"""Names of ring systems: listed ones, and those that follow from the rings by IUPAC's rules.

Single rings are named after Hantzsch and Widman (IUPAC 2013, P-22.2.2 and P-31.1.4), bicycles and
spiro compounds without aromatic rings after von Baeyer (P-23.2 and P-24.2), two fused rings by
their components (P-25). Letters and locants of fusion and of hydrogens are left out, as in
"dihydropyrrolopyrimidine". Larger systems are described by their rings.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby, permutations, product
from typing import Any

from rdkit import Chem
from rdkit.Chem import Mol

from graphxai.runtime.reading import packaged_rows

PREFIXES = {  # in the order in which they are numbered
    **{"O": "oxa", "S": "thia", "Se": "selena", "N": "aza", "P": "phospha", "Si": "sila"},
    "B": "bora",
}
STEMS = {  # with the most double bonds and with none; a ring without nitrogen differs
    **{(3, True): ("irine", "iridine"), (3, False): ("irene", "irane")},
    **{(4, True): ("ete", "etidine"), (4, False): ("ete", "etane")},
    **{(5, True): ("ole", "olidine"), (5, False): ("ole", "olane")},
    **{(6, True): ("ine", "inane"), (6, False): ("ine", "ane")},
    **{(7, True): ("epine", "epane"), (7, False): ("epine", "epane")},
    **{(8, True): ("ocine", "ocane"), (8, False): ("ocine", "ocane")},
}
_HYDRO = ("dihydro-", "tetrahydro-", "hexahydro-", "octahydro-", "decahydro-")
HYDROGENS = dict(enumerate(_HYDRO, 1))
TIMES = {1: "", 2: "di", 3: "tri", 4: "tetra", 5: "penta", 6: "hexa"}
ALKANES = (
    *("meth", "eth", "prop", "but", "pent", "hex", "hept", "oct", "non", "dec", "undec", "dodec"),
    *("tridec", "tetradec", "pentadec", "hexadec", "heptadec", "octadec", "nonadec", "icos"),
)
FUSED = {  # what a ring is called that is fused to another
    **{"benzene": "benzo", "pyridine": "pyrido", "imidazole": "imidazo", "thiophene": "thieno"},
    **{"furan": "furo", "pyrimidine": "pyrimido", "pyrazine": "pyrazino", "pyran": "pyrano"},
}
MOST_HETEROATOMS = 4  # of a macrocycle whose name lists them


def ring_name(mol: Mol, atoms: Sequence[int]) -> str | None:
    """Return the name of the ring system that these atoms form, or None if it is not listed."""
    return ring_names().get(skeleton(mol, atoms))


def ring_system_name(mol: Mol, atoms: Sequence[int]) -> str | None:
    """Return the name of a ring system, or what it is made of, or None if neither is possible."""
    from networkx import biconnected_components

    named = ring_name(mol, atoms) or single_ring_name(mol, atoms)
    if named or not {mol.GetAtomWithIdx(a).GetSymbol() for a in atoms} <= {"C", *PREFIXES}:
        return named
    rings = [ring for ring in mol.GetRingInfo().AtomRings() if {*ring} <= {*atoms}]
    graph = _graph(mol, atoms)
    number = graph.number_of_edges() - graph.number_of_nodes() + 1  # RDKit lists more for cages
    is_aromatic = any(mol.GetAtomWithIdx(a).GetIsAromatic() for a in atoms)
    if number == 1:
        return (
            _component(mol, rings[0], aromatic=True) if is_aromatic else _large_ring(mol, rings[0])
        )
    if hydrogenated := _hydrogenated(mol, atoms):
        return hydrogenated
    if number == 2 and _are_fused(mol, rings):
        return _two_fused(mol, atoms, rings)
    if number == 2 and not is_aromatic and len(atoms) <= len(ALKANES):
        return _bicycle(mol, atoms)
    blocks = sorted(sorted(block) for block in biconnected_components(graph))
    if len(blocks) > 1:
        parts = [ring_system_name(mol, block) or f"{len(block)}-membered ring" for block in blocks]
        return f"spiro[{'-'.join(sorted(parts))}]"
    count = {2: "bicycle", 3: "tricycle", 4: "tetracycle"}.get(number, "polycycle")
    parts = [_component(mol, ring, aromatic=None) for ring in rings]
    counted = [f"{n} {part}s" if n > 1 else part for part, n in sorted(Counter(parts).items())]
    return f"{count} of {', '.join(counted[:-1])}{' and ' * (len(counted) > 1)}{counted[-1]}"


def skeleton(mol: Mol, atoms: Sequence[int], *, bonds: bool = True) -> str:
    """Return elements and bonds of some atoms as canonical SMILES without hydrogens or charges.

    Without `bonds`, all bonds are single.
    """
    bare = Chem.RWMol()
    place = {}
    for index in atoms:
        original = mol.GetAtomWithIdx(index)
        atom = Chem.Atom(original.GetAtomicNum())
        atom.SetIsAromatic(bonds and original.GetIsAromatic())
        atom.SetNoImplicit(True)
        place[index] = bare.AddAtom(atom)
    for bond in mol.GetBonds():
        start, end = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        if start in place and end in place:
            order = bond.GetBondType() if bonds else Chem.BondType.SINGLE
            bare.AddBond(place[start], place[end], order)
    return str(Chem.MolToSmiles(bare))


@cache
def ring_table() -> tuple[tuple[str, Mol, str, str], ...]:
    """Return the listed rings: name, molecule, stem and locants, which may be empty."""
    rows = packaged_rows(__package__, "rings.csv")
    return tuple(
        (r["name"], Chem.MolFromSmiles(r["smiles"]), r["stem"], r["locants"]) for r in rows
    )


@cache
def ring_names() -> dict[str, str]:
    """Return the names of ring systems by canonical SMILES."""
    return {skeleton(mol, range(mol.GetNumAtoms())): name for name, mol, *_ in ring_table()}


@cache
def _parents() -> dict[str, tuple[str, int]]:
    """Return name and number of double bonds of listed rings, by their skeleton without bonds.

    Of those with one skeleton, it is the one with the most double bonds.
    """
    parents: dict[str, tuple[str, int]] = {}
    for name, mol, *_ in ring_table():
        atoms = range(mol.GetNumAtoms())
        key, count = skeleton(mol, atoms, bonds=False), _double_bonds(mol, atoms)
        if key not in parents or count > parents[key][1]:
            parents[key] = name, count
    return parents


def _hydrogenated(mol: Mol, atoms: Sequence[int]) -> str | None:
    """Name a system by a listed one with other double bonds: "tetrahydrocinnoline"."""
    name, most = _parents().get(skeleton(mol, atoms, bonds=False), ("", 0))
    if not name:
        return None
    missing = most - _double_bonds(mol, atoms)
    if name == "steroid" or not missing:  # a class, or double bonds elsewhere
        return name
    hydro = HYDROGENS.get(missing) if missing > 0 else "dehydro-"
    return None if hydro is None else _with_hydrogens(hydro, name)


def _with_hydrogens(hydro: str, name: str) -> str:
    return hydro + name if name[0].isdigit() else hydro.rstrip("-") + name


def _double_bonds(mol: Mol, atoms: Sequence[int]) -> int:
    """Return the number of double bonds in a ring system, half the atoms that take part in one."""
    inside, count = {*atoms}, 0
    for atom in map(mol.GetAtomWithIdx, atoms):
        doubled = any(
            b.GetBondTypeAsDouble() == 2 and b.GetOtherAtomIdx(atom.GetIdx()) in inside
            for b in atom.GetBonds()
        )
        divalent = atom.GetSymbol() in ("O", "S") or (
            atom.GetSymbol() == "N" and atom.GetTotalDegree() > 2 and not atom.GetFormalCharge()
        )
        count += doubled or (atom.GetIsAromatic() and not divalent)
    return count // 2


def _graph(mol: Mol, atoms: Sequence[int]) -> Any:
    """Return the atoms and bonds of a ring system as a graph."""
    import networkx as nx  # torch brings it

    graph = nx.Graph((b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds())
    return graph.subgraph(atoms)


def single_ring_name(mol: Mol, atoms: Sequence[int]) -> str | None:
    """Return the name of a ring, or None if it is no single ring of this kind."""
    ring = next((r for r in mol.GetRingInfo().AtomRings() if set(r) == set(atoms)), None)
    if ring is None or len(ring) > 8:
        return None
    symbols = [mol.GetAtomWithIdx(atom).GetSymbol() for atom in ring]
    if set(symbols) <= {"C"} or not set(symbols) <= {"C", *PREFIXES}:
        return None
    if any(mol.GetAtomWithIdx(atom).GetIsAromatic() for atom in ring):
        return None
    return _hantzsch_widman(symbols, _double_bonds(mol, ring))


def _hantzsch_widman(symbols: Sequence[str], double: int | None) -> str:
    """Name a ring by its elements and number of double bonds, None for as many as it can have."""
    most, none = STEMS[len(symbols), "N" in symbols]
    missing = 0 if double is None else _most_double_bonds(symbols) - double
    heteroatoms, places = _numbered(symbols)
    if missing and not double:
        return _joined(heteroatoms, places, none, "")
    return _joined(heteroatoms, places, most, HYDROGENS.get(missing, ""))


def _most_double_bonds(symbols: Sequence[str]) -> int:
    """Return the largest number of double bonds, which oxygen and sulfur take no part in."""
    divalent = [k for k, symbol in enumerate(symbols) if symbol in ("O", "S", "Se")]
    if not divalent:
        return len(symbols) // 2
    turned = [*symbols[divalent[0] :], *symbols[: divalent[0]]]
    runs = groupby(turned, lambda symbol: symbol in ("O", "S", "Se"))
    return sum(len(list(run)) // 2 for is_divalent, run in runs if not is_divalent)


def _numbered(symbols: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the heteroatoms in order of rank and their places, which are as low as they can be."""
    n = len(symbols)
    orders = [[(s + d * k) % n for k in range(n)] for s in range(n) for d in (1, -1)]
    ranked = min(
        (_heteroatoms([symbols[k] for k in order]) for order in orders),
        key=lambda pairs: (pairs[0][1], sorted(place for _, place in pairs), pairs),
    )
    return [list(PREFIXES)[rank] for rank, _ in ranked], [place for _, place in ranked]


def _heteroatoms(symbols: Sequence[str]) -> list[tuple[int, int]]:
    """Return rank and place, counted from 1, of each heteroatom in this order, by rank."""
    order = list(PREFIXES)
    places = enumerate(symbols, start=1)
    return sorted((order.index(symbol), place) for place, symbol in places if symbol in PREFIXES)


def _joined(heteroatoms: list[str], places: list[int], stem: str, hydrogens: str) -> str:
    """Return a name such as "dihydro-1,2,4-thiadiazine"; a single heteroatom needs no place."""
    where = f"{','.join(map(str, places))}-" if len(places) > 1 else ""
    runs = [(symbol, len(list(run))) for symbol, run in groupby(heteroatoms)]
    name = ""
    for part in [*(f"{TIMES.get(n, '')}{PREFIXES[symbol]}" for symbol, n in runs), stem]:
        name = (name[:-1] if name.endswith("a") and part[0] in "aeio" else name) + part
    return _with_hydrogens(hydrogens, where + name)


def _large_ring(mol: Mol, ring: Sequence[int]) -> str:
    """Name a ring that is neither listed nor small: "cyclononene", "oxacyclotetradecane"."""
    symbols = [mol.GetAtomWithIdx(atom).GetSymbol() for atom in ring]
    few = sum(symbol != "C" for symbol in symbols) <= MOST_HETEROATOMS
    if not few or len(ring) > len(ALKANES):
        return f"{len(ring)}-membered macrocycle"
    double = _double_bonds(mol, ring)
    ending = f"{'a' * (double > 1)}{TIMES.get(double, 'poly')}ene" if double else "ane"
    stem = f"cyclo{ALKANES[len(ring) - 1]}{ending}"
    return _joined(*_numbered(symbols), stem, "") if {*symbols} - {"C"} else stem


def _bicycle(mol: Mol, atoms: Sequence[int]) -> str:
    """Name two rings that share atoms: "3-azabicyclo[3.1.0]hexane", "spiro[3.3]heptane"."""
    best: tuple[Any, ...] = ()
    for order, sizes in _numberings(mol, atoms):
        ranked = _heteroatoms([mol.GetAtomWithIdx(a).GetSymbol() for a in order])
        place = {atom: k for k, atom in enumerate(order, start=1)}
        ends = [
            (place[b.GetBeginAtomIdx()], place[b.GetEndAtomIdx()])
            for b in mol.GetBonds()
            if b.GetBondTypeAsDouble() == 2 and {b.GetBeginAtomIdx(), b.GetEndAtomIdx()} <= {*place}
        ]
        double = sorted(map(min, ends))
        key = sorted(p for _, p in ranked), ranked, double, sizes
        best = min(best, key) if best else key
    _, ranked, double, sizes = best
    many = (
        f"{'a' * (len(double) > 1)}-{','.join(map(str, double))}-{TIMES.get(len(double), 'poly')}"
    )
    kind = f"{'bicyclo' if len(sizes) > 2 else 'spiro'}[{'.'.join(map(str, sizes))}]"
    stem = f"{kind}{ALKANES[len(atoms) - 1]}{f'{many}ene' if double else 'ane'}"
    runs = [(rank, [str(p) for _, p in run]) for rank, run in groupby(ranked, lambda pair: pair[0])]
    listed = [
        f"{','.join(p)}-{TIMES.get(len(p), 'poly')}{[*PREFIXES.values()][rank]}" for rank, p in runs
    ]
    return "-".join(listed) + stem


def _numberings(mol: Mol, atoms: Sequence[int]) -> Iterator[tuple[list[int], tuple[int, ...]]]:
    """Yield the ways to number two rings after von Baeyer, with the sizes of their bridges."""
    import networkx as nx

    graph = _graph(mol, atoms)
    heads = [atom for atom, degree in graph.degree if degree > 2]
    paths = [sorted(path) for path in nx.connected_components(graph.subgraph({*atoms} - {*heads}))]
    # a bond between the heads is a bridge of no atoms
    chains: list[list[int]] = [[]] * (3 - len(paths)) if len(heads) == 2 else []
    for path in paths:  # from the first head to the last
        first = next(a for a in path if graph.has_edge(heads[0], a))
        ends = (a for a in reversed(path) if graph.has_edge(heads[-1], a) and a != first)
        chains.append(nx.shortest_path(graph.subgraph(path), first, next(ends, first)))
    is_spiro = len(heads) == 1
    for chosen, turned, back in product(permutations(chains), (1, -1), (1, -1)):
        sizes = tuple(map(len, chosen))
        if list(sizes) != sorted(sizes, reverse=not is_spiro):
            continue
        if is_spiro:
            yield [*chosen[0][::turned], *heads, *chosen[1][::back]], sizes
        else:
            start, end = heads[::turned]
            there, again, bridge = (chain[::turned] for chain in chosen)
            yield [start, *there, end, *again[::-1], *bridge], sizes


def _are_fused(mol: Mol, rings: Sequence[Sequence[int]]) -> bool:
    """Whether two rings of five to eight atoms, with a heteroatom, share a bond and no more."""
    hetero = any(mol.GetAtomWithIdx(atom).GetSymbol() != "C" for ring in rings for atom in ring)
    sizes = [len(ring) for ring in rings]
    return hetero and len({*rings[0]} & {*rings[1]}) == 2 and min(sizes) > 4 and max(sizes) < 9


def _two_fused(mol: Mol, atoms: Sequence[int], rings: Sequence[Sequence[int]]) -> str:
    """Name two rings that share a bond by their components: "dihydropyrrolopyrimidine"."""
    import networkx as nx

    def seniority(ring: Sequence[int]) -> tuple[Any, ...]:
        kinds = [s for s in (mol.GetAtomWithIdx(a).GetSymbol() for a in ring) if s != "C"]
        rank = -min((list(PREFIXES).index(s) for s in kinds), default=9)
        return "N" in kinds, rank, len(ring), len(kinds), len({*kinds})

    attached, base = (_component(mol, ring, aromatic=True) for ring in sorted(rings, key=seniority))
    graph = _graph(mol, atoms)
    symbols = {atom: mol.GetAtomWithIdx(atom).GetSymbol() for atom in atoms}
    without = {a for a in atoms if symbols[a] != "C" and (symbols[a] != "N" or graph.degree(a) > 2)}
    most = len(nx.max_weight_matching(graph.subgraph({*atoms} - without), maxcardinality=True))
    missing = most - _double_bonds(mol, atoms)
    prefix = FUSED.get(attached, attached.removesuffix("ne" if attached.endswith("ane") else "e"))
    prefix = prefix.removesuffix("e").removesuffix("n") if "cyclo" in prefix else prefix
    joined = prefix if prefix.endswith(("o", "a")) else f"{prefix}o"
    base = f"[{base}]" if base[0].isdigit() else base
    return _with_hydrogens(HYDROGENS.get(missing, ""), f"{joined}{base}")


def _component(mol: Mol, ring: Sequence[int], *, aromatic: bool | None) -> str:
    """Name one ring of a system, with all double bonds if it is `aromatic`, or else as it is."""
    symbols = [mol.GetAtomWithIdx(atom).GetSymbol() for atom in ring]
    if aromatic is None:
        aromatic = all(mol.GetAtomWithIdx(atom).GetIsAromatic() for atom in ring)
    if name := _single_rings().get((skeleton(mol, ring, bonds=False), aromatic)):
        return name
    if {*symbols} == {"C"} or len(ring) > 8:
        return _large_ring(mol, ring)
    return _hantzsch_widman(symbols, None if aromatic else 0)


@cache
def _single_rings() -> dict[tuple[str, bool], str]:
    """Return listed single rings by skeleton without bonds, and whether they have all bonds."""
    rings: dict[tuple[str, bool], str] = {}
    for name, mol, *_ in ring_table():
        atoms = range(mol.GetNumAtoms())
        if mol.GetRingInfo().NumRings() == 1:
            count = _double_bonds(mol, atoms)
            if not count or mol.GetAtomWithIdx(0).GetIsAromatic():
                rings.setdefault((skeleton(mol, atoms, bonds=False), count > 0), name)
    return rings
