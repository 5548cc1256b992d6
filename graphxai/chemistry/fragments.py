"""Sum relevance over parts of a molecule: fragments, rings or functional groups.

    gx.fragments(explanation, "brics")
    gx.fragments(explanation, method="shapley")
    gx.fragments(explanation, method="shares")
    gx.fragment_table(explanations, "groups")

Every atom belongs to exactly one part. Where bonds were explained too, a bond inside a part belongs
to it, and a bond between two parts counts half for each. So the parts add up to the relevance of
all atoms and bonds. The Shapley values of parts add up to what all atoms change in the output.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from rdkit.Chem import Mol

from graphxai.explanation.explanation import Explanation
from graphxai.explanation.result import Drawing, Result
from graphxai.runtime.device import on_cpu_by_default
from graphxai.visualization import Scale
from graphxai.visualization.fragments import (
    Interactions,
    checked_interactions,
    fragment_svg,
    fragments_svg,
    graph_parts_svg,
)
from graphxai.visualization.layout import bonded
from graphxai.visualization.text import minus_signs

from .modalities import Part
from .names import cut_smiles, name_in_words
from .schemes import AUTO, SCHEME_TITLES, Scheme, named_scheme, parts_of_graph
from .substituents import fragment_name, substituent_name

if TYPE_CHECKING:
    import pandas as pd

    from graphxai.explanation.compute.models import Model
    from graphxai.wrapping.removal import Operator

    from .fragment_shapley import FragmentValues, WithoutPart

REST = "rest"  # the atoms that no pattern covers
NO_MOLECULE = "fragments are parts of a molecule or of a graph with edges, but this input has none."

FragmentMethod = Literal["sum", "shapley", "shares"]  # how the value of a fragment is computed


@dataclass(frozen=True)
class Fragment(Drawing):
    """A part of a molecule with the summed relevance of its atoms and bonds, or its Shapley value.

    Args:
        name: what the part is called.
        smiles: canonical SMILES without stereochemistry, with `*` where the part is attached. It is
            empty for a part of a graph that is no molecule.
        atoms: sorted atom indices, or numbers of nodes.
        relevance: its summed relevance, or its Shapley value.
        scheme: how the molecule was divided.
        unsigned: as in `Explanation`.
        error: the standard error of a sampled Shapley value, otherwise None.
        without: with method "shares", the output without this part: `said` by f(none), the shares
            of the other atoms and the curve of size, and `measured` by removing it. None with
            other methods.
    """

    name: str
    smiles: str
    atoms: tuple[int, ...]
    relevance: float
    scheme: str
    unsigned: str = ""
    error: float | None = None
    without: "WithoutPart | None" = None

    @property
    def note(self) -> str:
        """What the picture says beside its value: its standard error, or the output without it."""
        if self.without is not None:
            return str(self.without)
        return "" if self.error is None else f"± {self.error:.2g} standard error"

    @property
    def per_atom(self) -> float:
        """Its relevance, divided by the number of its atoms."""
        return self.relevance / len(self.atoms)

    def svg(  # type: ignore[override]
        self, *, scale: Scale | float | None = None, palette: str = "red-blue"
    ) -> str:
        """Return a small drawing of the fragment in the colour of its relevance."""
        if not self.smiles:
            raise ValueError("a part of a graph has no picture of its own: draw all parts.")
        chosen = Scale.chosen(scale, [self.relevance], palette=palette)
        chosen = replace(chosen, one_sided=bool(self.unsigned))
        return fragment_svg(self.smiles, self.relevance, scale=chosen)

    def _repr_svg_(self) -> str | None:
        return super()._repr_svg_() if self.smiles else None


@dataclass(frozen=True, eq=False)
class Fragments(Result, Sequence[Fragment]):
    """The fragments of one explanation, by descending relevance.

    They sum to `ledger.nodes`, and to atoms and bonds where bonds were explained too.

    Args:
        explanation: explanation of the molecule. With Shapley values, the atoms of a fragment have
            equal shares of its value.
        scheme: how the molecule was divided.
        parts: the fragments.
        shapley: how the Shapley values were computed (exact or sampled, with orders and seed); None
            for summed relevance.
    """

    explanation: Explanation
    scheme: str
    parts: tuple[Fragment, ...]
    shapley: "FragmentValues | None" = None

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...
    @overload
    def __getitem__(self, index: slice) -> "Fragments": ...
    def __getitem__(self, index: int | slice) -> "Fragment | Fragments":
        if isinstance(index, slice):
            return replace(self, parts=self.parts[index])
        return self.parts[index]

    def __repr__(self) -> str:
        named = zip(listed_names(self), self, strict=True)
        listed = ", ".join(f"{name} {part.relevance:+z.3f}" for name, part in named)
        return f"Fragments({self.scheme}: {listed})"

    @property
    def total(self) -> float:
        """The summed relevance of all fragments."""
        return math.fsum(part.relevance for part in self)

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per fragment: name, smiles, relevance, per_atom, atoms.

        The column per_atom is the relevance divided by the number of atoms, and atoms lists their
        indices, separated by spaces. Sampled Shapley values have their standard errors in a further
        column, `error`. With method "shares", the columns `without` and `without_measured` have the
        output without the fragment. The last column, `molecule`, is the SMILES of the molecule.
        """
        import pandas as pd

        rows = [
            (p.name, p.smiles, p.relevance, p.per_atom, " ".join(map(str, p.atoms)), p.error)
            + (p.without or (None, None))
            for p in self
        ]
        columns = ["name", "smiles", "relevance", "per_atom", "atoms", "error"]
        columns += ["without", "without_measured"]
        frame = pd.DataFrame(rows, columns=columns).replace({"smiles": {"": None}})
        frame["molecule"] = self.explanation.smiles
        return frame.dropna(axis=1, how="all") if len(frame) else frame

    def svg(
        self,
        *,
        scale: Scale | float | None = None,
        palette: str = "red-blue",
        interactions: "Interactions | None" = None,
        **options: Any,
    ) -> str:
        """Draw the molecule or graph, its parts in their colours, and a numbered list of the parts.

        Args:
            scale: the relevance shown in full colour; by default the largest |relevance| of a
                fragment, or the largest interaction.
            palette: one of `visualization.PALETTES`.
            interactions: values of pairs of parts of a molecule, such as {(0, 1): 0.5} for the
                first two. Arcs on the same scale show them.
            options: title, subtitle, legend, width and height (pixels).
        """
        explanation = self.explanation
        options.setdefault("title", explanation.headline)
        total = f"{self.total:z.2f}" if explanation.unsigned else f"{self.total:+z.2f}"
        total += f" {explanation.unit}" if explanation.unit and explanation.additive else ""
        named = "named parts" if explanation.molecule is None else "matches of SMARTS"
        over = SCHEME_TITLES.get(self.scheme, named)
        what = f", summed over {over}" if self.shapley is None else f" of {over} ({self.shapley})"
        caption = minus_signs(f"{explanation.title}{what}: {total} in all")
        options.setdefault("subtitle", caption)
        options.setdefault("legend", self.explanation.legend)
        names = listed_names(self)
        listed = [(n, part.atoms, part.relevance) for n, part in zip(names, self, strict=True)]
        values = [part.relevance for part in self]
        values += [value for *_, value in checked_interactions(interactions, len(self))]
        fitted = Scale.chosen(scale, values, palette=palette)
        options["scale"] = explanation.scale(fitted)
        options["notes"] = [part.note for part in self]
        if explanation.molecule is None and explanation.drawn is not None:
            if interactions is not None:
                raise ValueError("interactions are drawn between parts of a molecule only.")
            return graph_parts_svg(explanation.drawn, listed, **options)
        mol = explanation.atoms(NO_MOLECULE)
        return fragments_svg(mol, listed, interactions=interactions, **options)


def listed_names(parts: Fragments) -> list[str]:
    """Return names for a list of parts: those of one name get their first atom, counted from 0."""
    given = parts.explanation.as_given
    order = range(len(parts.explanation)) if given is None else given.atoms
    often = Counter(part.name for part in parts)
    return [
        f"{part.name} (atom {min(order[a] for a in part.atoms)})"
        if often[part.name] > 1
        else part.name
        for part in parts
    ]


@on_cpu_by_default
def fragments(
    explanation: Explanation,
    scheme: Scheme = AUTO,
    method: FragmentMethod = "sum",
    *,
    model: "Model | str | None" = None,
    graph: Any = None,
    operator: "Operator" = "mask",
    seed: int = 0,
) -> Fragments:
    """Sum relevance over the parts of a molecule or graph, or compute the parts' Shapley values.

    A sum has the relevance of a part's atoms. Where bonds were explained too, as for models of
    chemprop, it also has that of the bonds inside, and half of that of each bond that was cut.

    The schemes "brics", "scaffold" and "residues" divide the whole molecule. All others put the
    atoms that no pattern covers into one part, "rest". A match that shares an atom with an earlier
    match is dropped. Functional groups are matched from the largest to the smallest, then in the
    order of `functional_groups.csv`. Your patterns are matched in the order in which you list
    them. Matches of one pattern are ordered by RDKit's canonical ranks, so the atom numbering does
    not matter.

    Shapley values (Shapley 1953) are those of the parts for the output that was explained, whatever
    method explained it. They sum to the output minus the output without any atom. Up to 10 parts
    they are exact, from all coalitions. For more parts they are means over 64 random orders, and
    each has a standard error.

    Shares say what is left without a part: "without it" is f(none), the shares of the other atoms
    and the curve of their number (see `explainers.shares`). Beside it stands the output that the
    model gives when the part is removed.

    Args:
        explanation: explanation of a molecule.
        scheme: "auto" is "residues" for peptides, "protac" for degraders and "brics" for all else;
            the result has the `scheme` that was chosen. "brics", the pieces left after cutting
            BRICS bonds (Degen 2008); "scaffold", the Murcko scaffold (Bemis 1996) and each side
            chain; "rings", ring systems; "groups", functional groups; "residues", a peptide's;
            "protac", E3 ligand, linker and warhead; "components", the molecules of a mixture;
            a `Core`; or SMARTS patterns, as a list or as {name: SMARTS}. A graph that is no
            molecule is divided into "communities" of largest modularity (Clauset 2004), which is
            its "auto", connected "components", or your parts {name: numbers of nodes}, which may
            also be tokens of a text.
        method: "sum" adds the relevance of atoms and bonds; "shapley" asks the model;
            "shares" explains by that method, unless it was, and removes each part.
        model: the model explained, for "shapley" and "shares"; a bundled model need not be passed.
        graph: the graph that was explained, for both. It is needed where the molecule alone
            does not give it, as for most wrapped models.
        operator: how the atoms of absent parts are removed: "mask", "zero" or "delete".
        seed: seed of the sampled orders.

    Raises:
        TypeError: for a list (see `fragment_table`).
        ValueError: for an input with neither a molecule nor edges, an unknown scheme, method or
            operator, unreadable SMARTS, parts with wrong nodes, or a model or graph other than
            those explained.
    """
    if isinstance(explanation, str) or hasattr(explanation, "GetAtoms"):
        raise TypeError(
            "fragments takes an explanation, not a molecule: explain the molecule first, as in"
            " graphxai.fragments(graphxai.explain(model, molecule))."
        )
    if not isinstance(explanation, Explanation):
        raise TypeError(
            f"fragments takes one explanation, not {type(explanation).__name__}: pass them one by"
            " one, or use fragment_table."
        )
    if method not in get_args(FragmentMethod):
        raise ValueError(f'method must be "sum", "shapley" or "shares", not {method!r}.')
    mol = explanation.molecule
    if mol is None and (explanation.drawn is not None or isinstance(scheme, Mapping)):
        name, divided = parts_of_graph(explanation.drawn, len(explanation), scheme)
    else:
        mol = explanation.atoms(NO_MOLECULE)
        name, divided = named_scheme(scheme, mol)
    covered = {index for _, atoms in divided for index in atoms}
    rest = tuple(index for index in range(len(explanation)) if index not in covered)
    parts = divided + ([(REST, rest)] if rest else [])
    if method == "sum":
        return Fragments(explanation, name, _summed(explanation, mol, parts, name))
    from .fragment_shapley import fragment_values, game_of_parts, shared_out, valued  # needs PyG

    atoms = [atoms for _, atoms in parts]
    game = game_of_parts(explanation, atoms, model, graph, operator)
    if method == "shares":
        explanation, without = shared_out(explanation, atoms, game)
        return Fragments(explanation, name, _summed(explanation, mol, parts, name, without=without))
    shapley = fragment_values(game, seed)
    explanation = valued(explanation, atoms, shapley)
    return Fragments(explanation, name, _summed(explanation, mol, parts, name, shapley), shapley)


def _summed(
    explanation: Explanation,
    mol: Mol | None,
    parts: list[Part],
    scheme: str,
    shapley: "FragmentValues | None" = None,
    without: "Sequence[WithoutPart] | None" = None,
) -> tuple[Fragment, ...]:
    pieces: list[list[str]] = [[] for _ in parts]  # the SMILES of the pieces of each part
    if mol is not None:
        part_of = {index: k for k, (_, atoms) in enumerate(parts) for index in atoms}
        ends = bonded(mol).tolist()
        cut = [bond for bond, (i, j) in enumerate(ends) if part_of[i] != part_of[j]]
        for atoms, piece in cut_smiles(mol, cut):
            pieces[part_of[atoms[0]]].append(piece)
    errors = None if shapley is None else shapley.errors
    summed, values = [], explanation.relevance_with_edges
    for k, (name, atoms) in enumerate(parts):
        smiles = ".".join(sorted(pieces[k]))
        relevance = math.fsum(float(values[index]) for index in atoms)
        words = name or fragment_name(smiles)
        if name and name.endswith(":"):  # the structure follows, which tells side chains apart
            named = substituent_name(smiles) or name_in_words(smiles) or smiles
            follows = {"scaffold": named, "core": named, "protac": fragment_name(smiles)}
            words = f"{name} {follows[scheme]}" if scheme in follows else name
        error = None if errors is None else float(errors[k])
        shown = words, smiles, tuple(atoms), relevance, scheme, explanation.unsigned, error
        summed.append(Fragment(*shown, None if without is None else without[k]))
    return tuple(sorted(summed, key=lambda part: (-part.relevance, part.atoms)))
