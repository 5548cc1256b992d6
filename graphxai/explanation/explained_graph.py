"""One graph with the relevance of its nodes, as plain values, and the words that describe them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.target import Target
from graphxai.visualization.layout import equivalent_atoms
from graphxai.visualization.text import minus_signs

from .ledger import Ledger
from .prediction import NotFiniteError, Prediction

if TYPE_CHECKING:
    from rdkit.Chem import Mol

    from graphxai.datasets.as_given import AsGiven
    from graphxai.datasets.training_set import Nearness
    from graphxai.visualization import PlainGraph

NO_MOLECULE = "this graph has no molecule: write .csv, .parquet or .json."


@dataclass(frozen=True, eq=False)
class ExplainedGraph:
    """The relevance of every node of one graph for one output, and what describes the graph.

    Args:
        relevance: the relevance of each node (N,), with its sign.
        target: the explained output, as text.
        wanted: the explained output as a `Target`, for explaining it again.
        prediction: the model's prediction for the task of the target.
        predictions: the model's predictions for all tasks.
        method: the name of the method.
        title: the method's title in pictures.
        output: the explained output f_c.
        without_nodes: f_c of the graph without any nodes, or None if the model has no finite output
            there.
        ledger: how the output divides into shares. It is None for a method whose scores are no
            shares of the output.
        caveat: what to know about the method's scores. It is empty if there is nothing to say.
        unsigned: for a method without negative scores, what a large score says about a node. It is
            empty for other methods.
        features: the relevance split exactly by feature (N, F), or None.
        feature_names: a name for each column of `features`.
        spread: the uncertainty of each score (N,), in its unit. For methods that average over
            samples it is the standard error, and for an ensemble the standard deviation over its
            members. Other explanations have None.
        members: the relevance by each model of an ensemble (K, N), or None.
        relevance_of: by name, the relevance of each row (rows,) of the inputs that were named in
            `wrt`, or of the nodes of each type of a heterogeneous graph. Its edges have names such
            as "author writes paper", under which they have the relevance of `edge_attr` or of
            `edge_index`, in the order of their type.
        features_of: by name, the parts of that relevance (rows, ...), in the input's shape, if the
            method splits by feature.
        smiles: the SMILES of the molecule, or None.
        mol: the RDKit molecule, if the input was one.
        as_given: the molecule that was given, if its parent was explained (see
            `datasets.as_given.AsGiven`). Its `atoms` lead from the atoms explained back to it.
        image: the grey levels (H, W) of a picture with superpixels as nodes, or None.
        segments: the number of the superpixel that each pixel belongs to (H, W), or None.
        graph: `x`, `edge_index`, `edge_attr` and `pos` of the input, if it has them. It is empty
            for graphs with several types of nodes, and for molecules, as their features follow from
            `mol` or `smiles`. A molecule whose bonds were explained has `edge_index`.
        drawn: the edges and labels to draw a graph that is no molecule and no image.
        is_sequence: whether the nodes are words, given by their numbers.
        grid: rows and columns of the patches of an image, whose vectors were given from left to
            right and from top to bottom. A square number of vectors counts as patches.
        provenance: the model, the hash of its checkpoint, the options and the versions.

    Raises:
        NotFiniteError: relevance or ledger are not finite.
    """

    relevance: NDArray[np.floating]
    target: str
    wanted: Target
    prediction: Prediction
    predictions: tuple[Prediction, ...]
    method: str
    title: str
    output: float
    without_nodes: float | None = None
    ledger: Ledger | None = None
    caveat: str = ""
    unsigned: str = ""
    features: NDArray[np.floating] | None = None
    feature_names: tuple[str, ...] = ()
    spread: NDArray[np.floating] | None = None
    members: NDArray[np.floating] | None = None
    relevance_of: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    features_of: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    smiles: str | None = None
    mol: "Mol | None" = None
    as_given: "AsGiven | None" = None
    image: NDArray[np.floating] | None = None
    segments: NDArray[np.integer] | None = None
    graph: dict[str, NDArray[Any]] = field(default_factory=dict)
    drawn: "PlainGraph | None" = None
    is_sequence: bool = False
    grid: tuple[int, int] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arrays = [a for a in (self.relevance, self.features, self.spread) if a is not None]
        arrays += [*self.relevance_of.values(), *self.features_of.values()]
        figures = [self.output, *(self.ledger.figures if self.ledger else ())]
        if not (all(map(math.isfinite, figures)) and all(np.isfinite(a).all() for a in arrays)):
            raise NotFiniteError(
                f"{self.title} gives {self.smiles or f'a graph of {len(self)} nodes'} relevance"
                " that is not a finite number."
            )

    def __len__(self) -> int:
        return len(self.relevance)

    def __repr__(self) -> str:
        output = f"{self.title} for {self.target!r}, output {self.output:+z.3f}"
        if self.ledger:
            output += f", unexplained {self.ledger.unexplained:+.1e}"
        stated = f"{self.smiles or f'{len(self)} nodes'}: {self.prediction.in_full}"
        parts = (stated, output, self.note, self.prediction.warning)
        return f"Explanation({'; '.join(filter(None, parts))})"

    def at(self, level: float) -> Self:
        """Return the explanation with intervals or classes of its predictions at this level."""
        if all(p.level == level for p in (self.prediction, *self.predictions)):
            return self
        predictions = tuple(p.at(level) for p in self.predictions)
        prediction = next(p for p in predictions if p.task == self.prediction.task)
        return replace(self, prediction=prediction, predictions=predictions)

    @property
    def note(self) -> str:
        """What was done to the molecule that was given, such as "salt removed: besylate"."""
        return "" if self.as_given is None else self.as_given.sentence

    def by_atom_given(self, values: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return values of the atoms explained (N,) for the atoms of the molecule given.

        Atoms that were removed have zero. Without `as_given` the values are returned as they are.
        """
        if self.as_given is None:
            return values
        given = np.zeros(self.as_given.size, dtype=values.dtype)
        given[list(self.as_given.atoms)] = values
        return given

    @property
    def nearness(self) -> "Nearness | None":
        """How near the molecule is to the model's training set, or None for other graphs."""
        return self.prediction.nearness

    @property
    def molecule(self) -> "Mol | None":
        """The RDKit molecule with the nodes as its atoms, in order, or None for other graphs."""
        if self.mol is not None or self.smiles is None:
            return self.mol
        from rdkit import Chem

        molecule = read_again(self.smiles)  # cached, and the caller may change what is returned
        return None if molecule is None else Chem.Mol(molecule)

    def atoms(self, error: str = NO_MOLECULE) -> "Mol":
        """Return the molecule with the nodes as its atoms, or raise ValueError(error)."""
        molecule = self.molecule
        if molecule is None or molecule.GetNumAtoms() != len(self):
            raise ValueError(error)
        return molecule

    @property
    def bonds(self) -> "NDArray[np.floating] | None":
        """The relevance of each bond (M,), in RDKit's order, or None if bonds were not explained.

        It is the sum over both directions of the bond.
        """
        edges, ends = self.relevance_of.get("edge_attr"), self.graph.get("edge_index")
        molecule = self.molecule
        if edges is None or ends is None or molecule is None:
            return None
        bonds = np.zeros(molecule.GetNumBonds(), dtype=edges.dtype)
        for value, first, second in zip(edges, *ends.tolist(), strict=True):
            if (bond := molecule.GetBondBetweenAtoms(first, second)) is None:
                return None  # the edges are not the bonds
            bonds[bond.GetIdx()] += value
        return bonds

    @property
    def relevance_with_edges(self) -> NDArray[np.floating]:
        """The relevance of each node (N,) with half of that of every edge at it.

        Where edges were explained, a sum of these over some nodes has the edges among them as a
        whole, and shares each edge that leaves them. The sum over all nodes is that of the nodes
        and edges. Without explained edges it is `relevance`.
        """
        edges, ends = self.relevance_of.get("edge_attr"), self.graph.get("edge_index")
        if edges is None or ends is None:
            return self.relevance
        total = self.relevance.astype(np.float64)
        for end in ends:
            np.add.at(total, end, edges / 2)
        return total

    def value_of(self, nodes: Iterable[int]) -> float:
        """Return the output with only these nodes, by the shares and the curve of their number.

        It is f(none) + their shares + curve, and `ledger.group_error` says how far that is off.

        Raises:
            ValueError: the method has no curve of size, or the graph does not have the nodes.
        """
        if self.ledger is None or self.ledger.group_error is None:
            raise ValueError(
                f"{self.title} does not say what groups of nodes do: explain with method='shares'."
            )
        group = sorted({int(node) for node in nodes})
        if group and not 0 <= group[0] <= group[-1] < len(self):
            raise ValueError(f"the graph has nodes 0 to {len(self) - 1}, not {group}.")
        shares = math.fsum(self.relevance[group].tolist())
        return self.ledger.biases + shares + self.ledger.curve_at(len(group) / len(self))

    @property
    def equivalent(self) -> list[tuple[int, ...]]:
        """The groups of atoms that differ only by the resonance form that is drawn.

        There are none without a molecule. See `visualization.layout.averaged`.
        """
        molecule = self.molecule
        return [] if molecule is None else equivalent_atoms(molecule)

    @property
    def has_picture(self) -> bool:
        """Whether there is a molecule, an image with segments, a graph or a sequence to draw."""
        pictured = any(x is not None for x in (self.molecule, self.segments, self.drawn))
        return pictured or self.is_sequence or self.grid is not None

    @property
    def contested(self) -> NDArray[np.bool_]:
        """Whether the models of the ensemble disagree on the sign of each node (N,)."""
        if self.members is None:
            return np.zeros(len(self), dtype=np.bool_)
        return of_either_sign(self.members)

    @property
    def agreement(self) -> "NDArray[np.floating] | None":
        """The share of the ensemble's models that agree on the sign of the mean (N,), or None."""
        if self.members is None:
            return None
        return (np.sign(self.members) == np.sign(self.relevance)).mean(0)

    @property
    def subject(self) -> str:
        """The target, with its task if the model has several, as in `hERG inhibition: active`."""
        task = self.prediction.task
        several = len(self.predictions) > 1 and self.prediction.label is not None
        if not several or isinstance(self.wanted.choice, tuple):
            return self.target
        return f"{task}: {self.target.removeprefix(f'{task}: ')}"

    @property
    def additive(self) -> bool:
        """Whether relevance is in units of the output, so that a ledger accounts for the rest."""
        return self.ledger is not None

    @property
    def unit(self) -> str:
        """The unit of the output, which is empty for a class, a pair, or a task without a unit."""
        return "" if isinstance(self.wanted.choice, tuple) else self.prediction.unit

    @property
    def legend(self) -> tuple[str, str]:
        """What negative and positive relevance mean. The first is empty if scores have no sign."""
        if self.unsigned:
            return "", self.unsigned
        if isinstance(self.wanted.choice, tuple):
            first, _, second = self.target.partition(" against ")
            return f"for {second}", f"for {first}"
        if self.prediction.label is None:
            value = f"{self.target} ({self.unit})" if self.unit and self.additive else self.target
            return f"lowers {value}", f"raises {value}"
        return f"against {self.target}", f"for {self.target}"

    @property
    def headline(self) -> str:
        """The prediction as text, or both of a pair of two tasks."""
        ends = self.wanted.choice if isinstance(self.wanted.choice, tuple) else ()
        named = [end[0] if isinstance(end, tuple) else end for end in ends]
        of_tasks = [each for each in self.predictions if each.task in named]
        shown = of_tasks if len(of_tasks) > 1 else [self.prediction]
        return minus_signs("; ".join(f"{each.task}: {each}" for each in shown))

    @property
    def caption(self) -> str:
        """What the nodes changed in the output, the method's shares, and what pale nodes mean."""
        if not self.contested.any():
            return self._account
        count = f"{self.contested.sum()} of {len(self)} {self.node_word}"
        return f"{self._account}\nmodels disagree on the sign of {count} (pale)"

    @property
    def _account(self) -> str:
        ledger = self.ledger
        if ledger is None:
            what = "scores without a sign" if self.unsigned else "scores"
            caveat = f" · {self.caveat}" if self.caveat else ""
            return f"{self.title} · {what}, not shares of the output{caveat}"
        terms = {self.node_word: ledger.nodes}
        if ledger.average_node is not None:
            terms[f"average {self.node_word}"] = ledger.average_node
        terms["graph token and biases"] = ledger.graph_token + ledger.biases
        if ledger.structure:
            terms["structure"] = sum(ledger.structure.values())
        for name, value in ledger.others.items():
            is_bonds = name == "edge_attr" and self.smiles is not None
            terms["bonds" if is_bonds else name.replace("_", " ")] = value
        if abs(ledger.unexplained) >= 0.005:
            terms["unexplained"] = ledger.unexplained
        shares = ", ".join(f"{name} {value:+z.2f}" for name, value in terms.items())
        if self.spread is not None and self.members is None:
            most = self.spread.max(initial=0.0)
            shares += f", each {self.node_word[:-1]} \u00b1 {most:.2g} at most"
        if ledger.group_error is not None:
            shares += f"; with curve, a group of {self.node_word} \u00b1 {ledger.group_error:.2f}"
        output = f"output {ledger.output:+z.2f} {self.unit}".rstrip()
        if ledger.change is None:
            return minus_signs(f"{self.title} · {output} = {shares}")
        how = "with zeros for" if ledger.without_nodes is None else "without"
        empty = f"{ledger.output - ledger.change:+z.2f} {how} {self.node_word}"
        changed = f"{ledger.change:+z.2f} from adding them"
        return minus_signs(f"{output} = {empty}, {changed}\n{self.title}: {shares}")

    @property
    def node_word(self) -> str:
        """The word for the nodes, in the plural."""
        if self.smiles is not None:
            return "atoms"
        if self.is_sequence:
            return "tokens"
        return "superpixels" if self.segments is not None else "nodes"

    @property
    def spread_note(self) -> str:
        """What ± means in a list of scores. It is empty if the scores have no spread."""
        if self.members is not None and self.spread is not None:
            return f" ± standard deviation over {len(self.members)} models"
        return "" if self.spread is None else " ± standard error"

    def format_relevance(self, relevance: float) -> str:
        """Format a relevance as text, with a plus sign only if scores have a sign."""
        return f"{relevance:z.4f}" if self.unsigned else f"{relevance:+z.4f}"

    def format_node(self, node: int) -> str:
        """Format a node's relevance as text, with ± its spread if there is one."""
        text = self.format_relevance(self.relevance[node])
        return text if self.spread is None else f"{text} ± {self.spread[node]:.4f}"

    @property
    def provenance_line(self) -> str:
        """The provenance on one line."""
        made = self.provenance
        parts = [self.smiles or f"{len(self)} nodes", self.title]
        if made.get("model"):
            parts.append(f"model {made['model']} ({str(made.get('sha256') or 'not saved')[:12]})")
        parts += [f"{name} {version}" for name, version in dict(made.get("versions", {})).items()]
        return " · ".join(parts)


@lru_cache(maxsize=1024)  # a table looks each molecule up several times, also at its end
def read_again(smiles: str) -> "Mol | None":
    """Return the molecule that a SMILES is read as, None if it cannot be, from a cache."""
    from graphxai.datasets.canonical_form import quietly_read

    return quietly_read(smiles)


def of_either_sign(members: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return for which nodes (N,) the values (K, N) of an ensemble's models differ in sign."""
    return np.logical_and((members > 0).any(0), (members < 0).any(0))
