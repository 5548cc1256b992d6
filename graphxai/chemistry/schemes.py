"""Divide a molecule into parts: by BRICS bonds, scaffold, rings, groups, residues or SMARTS.

A graph that is no molecule is divided by communities, components or the user's names.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from rdkit import Chem
from rdkit.Chem import BRICS, Mol
from rdkit.Chem.Scaffolds import MurckoScaffold

from graphxai.runtime.reading import packaged_rows
from graphxai.visualization import PlainGraph

from .matching import matches_in_time, read_pattern
from .modalities import Core, Part, degrader, residues, suitable
from .names import pieces, ring_systems
from .ring_system_names import ring_system_name

MAX_MATCHES = 100_000  # per pattern and molecule
NAMED = 3  # how many nodes of a graph's part its name lists

Scheme: TypeAlias = "str | Sequence[str] | Mapping[str, Any] | Core"  # see `fragments`


def named_scheme(scheme: Scheme, mol: Mol) -> tuple[str, list[Part]]:
    """Return the scheme's name, which "auto" chooses, and the parts of a molecule."""
    if isinstance(scheme, Core):
        return "core", scheme.parts(mol)
    if scheme == AUTO:
        scheme = suitable(mol)
    if isinstance(scheme, str):
        if scheme not in SCHEMES:
            listed = ", ".join(map(repr, (*SCHEMES, AUTO)))
            raise ValueError(
                f"unknown scheme {scheme!r}; choose one of {listed}, or give a list of SMARTS, or"
                " a Core."
            )
        return scheme, SCHEMES[scheme](mol)
    named = dict(scheme) if isinstance(scheme, Mapping) else {smarts: smarts for smarts in scheme}
    if not named:
        raise ValueError("the list of SMARTS is empty.")
    patterns = [(name, read_pattern(smarts)) for name, smarts in named.items()]
    return "SMARTS", _matches(mol, patterns, largest_first=False)


def _scaffold(mol: Mol) -> list[Part]:
    """Divide a molecule into its scaffold and side chains.

    The scaffold is the rings with their linkers, and the atoms double bonded to either.
    """
    marked = Chem.Mol(mol)
    for atom in marked.GetAtoms():
        atom.SetIntProp("origin", atom.GetIdx())
    kept = {
        atom.GetIntProp("origin") for atom in MurckoScaffold.GetScaffoldForMol(marked).GetAtoms()
    }
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()]
    border = [(i, j) for i, j in ends if (i in kept) != (j in kept)]
    outside = "side chain:" if kept else None  # no ring, no scaffold
    return [
        ("scaffold" if kept.issuperset(atoms) else outside, atoms) for atoms in pieces(mol, border)
    ]


def _rings(mol: Mol) -> list[Part]:
    parts: list[Part] = []
    for atoms in ring_systems(mol):
        words = ring_system_name(mol, atoms)
        written = Chem.MolFragmentToSmiles(mol, atoms, isomericSmiles=False)
        parts.append((f"{words} ring" if words else f"ring {written}", atoms))
    return parts


def _matches(mol: Mol, patterns: list[tuple[str, Any]], *, largest_first: bool) -> list[Part]:
    """Return the matches that share no atom. `fragments` says which take precedence."""
    ranks = list(Chem.CanonicalRankAtoms(mol))
    matches = []
    for place, (name, pattern) in enumerate(patterns):
        for match in matches_in_time(mol, pattern, max_matches=MAX_MATCHES):
            size = len(match) if largest_first else 0
            matches.append(
                (-size, place, sorted(ranks[i] for i in match), name, tuple(sorted(match)))
            )
    taken: set[int] = set()
    parts: list[Part] = []
    for *_, name, atoms in sorted(matches):
        if taken.isdisjoint(atoms):
            taken.update(atoms)
            parts.append((name, atoms))
    return parts


def named_groups() -> list[tuple[str, str]]:
    """Return functional groups by name, as SMARTS, in the order in which they are matched."""
    rows = packaged_rows(__package__, "functional_groups.csv")
    return [(row["name"], row["smarts"]) for row in rows]


SCHEMES: dict[str, Callable[[Mol], list[Part]]] = {
    "brics": lambda mol: [
        (None, atoms) for atoms in pieces(mol, (ends for ends, _ in BRICS.FindBRICSBonds(mol)))
    ],
    "scaffold": _scaffold,
    "rings": _rings,
    "groups": lambda mol: _matches(
        mol, [(name, read_pattern(smarts)) for name, smarts in named_groups()], largest_first=True
    ),
    "residues": residues,
    "protac": degrader,
    "components": lambda mol: [(None, atoms) for atoms in pieces(mol, ())],
}
AUTO = "auto"  # the scheme that suits the molecule
GRAPH_SCHEMES = ("communities", "components")
SCHEME_TITLES = {
    "brics": "BRICS fragments",
    "scaffold": "the Murcko scaffold and side chains",
    "rings": "ring systems",
    "groups": "functional groups",
    "residues": "residues",
    "protac": "the parts of a degrader",
    "core": "a core and its R-groups",
    **dict(zip(GRAPH_SCHEMES, GRAPH_SCHEMES, strict=True)),
}


def divided_line(schemes: Mapping[str, int]) -> str:
    """Say how molecules were divided, from their number by scheme: "residues (3 molecules)"."""
    named = ((SCHEME_TITLES.get(name, "matches of SMARTS"), n) for name, n in schemes.items())
    listed = [f"{title} ({n:,} molecule{'s' * (n > 1)})" for title, n in named]
    return ", ".join(sorted(listed))


def parts_of_graph(
    graph: "PlainGraph | None", count: int, scheme: Scheme
) -> tuple[str, list[Part]]:
    """Return the scheme's name and the parts of a graph of `count` nodes that is no molecule.

    Raises:
        ValueError: the scheme is for molecules, or a part has a node twice or that does not exist.
    """
    import networkx as nx  # torch brings it

    if isinstance(scheme, Mapping):
        return "parts", _named_parts(scheme, count)
    if graph is None or not isinstance(scheme, str) or scheme not in (*GRAPH_SCHEMES, AUTO):
        raise ValueError(
            f"{scheme!r} divides molecules: a graph is divided by 'communities', 'components', or"
            " your parts, as {name: numbers of nodes}."
        )
    scheme = GRAPH_SCHEMES[0] if scheme == AUTO else scheme
    undirected = nx.Graph()
    undirected.add_nodes_from(range(count))
    undirected.add_edges_from(graph.edges.T.tolist())
    divide = nx.connected_components
    if scheme == "communities" and undirected.number_of_edges():
        divide = nx.community.greedy_modularity_communities  # (Clauset 2004)
    parts: list[Part] = []
    for nodes in sorted(map(sorted, divide(undirected)), key=min):
        shown = nodes[:NAMED]
        labels = [graph.labels[node] if graph.labels else str(node) for node in shown]
        further = f" and {len(nodes) - len(shown)} more" if len(nodes) > len(shown) else ""
        parts.append((", ".join(labels) + further, tuple(nodes)))
    return scheme, parts


def _named_parts(scheme: Mapping[str, Any], count: int) -> list[Part]:
    """Return the user's parts, or raise ValueError if a node is in two of them or in no graph."""
    parts: list[Part] = []
    taken: set[int] = set()
    for name, members in scheme.items():
        nodes = np.atleast_1d(np.asarray(members))
        if nodes.dtype.kind not in "iu" or nodes.ndim != 1:
            raise ValueError(f"part {name!r} needs numbers of nodes, not {members!r}.")
        numbers = sorted(map(int, nodes))
        if numbers and not 0 <= numbers[0] <= numbers[-1] < count:
            raise ValueError(f"part {name!r} has nodes beyond 0 to {count - 1}.")
        if len({*numbers}) < len(numbers) or not taken.isdisjoint(numbers):
            raise ValueError(f"part {name!r} has a node that is in a part already.")
        taken.update(numbers)
        if numbers:
            parts.append((str(name), tuple(numbers)))
    return parts
