"""How an explained output divides into shares, and how much of it is left unexplained."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

CURVE = ("k(1-k)", "k(1-k)(k-1/2)", "(k(1-k))^2")  # the terms of the curve of size
LedgerRow = tuple[str, float | None, int]  # the name, the value, and how far it is indented


@dataclass(frozen=True)
class Ledger:
    """What the nodes changed, and how a method divides the explained output f_c into shares.

    The first equation is `f_c = without_nodes + change`. It adds what the nodes changed to the
    output of the graph without any nodes. No method is involved in this.

    The second equation has the method's shares: `nodes + average_node + graph_token + biases + sum
    of structure + sum of others + unexplained = output`. Its terms need not agree with those of the
    first, because the graph token and the biases act together with the nodes. Their shares
    therefore differ from graph to graph.

    Args:
        nodes: the summed relevance of the nodes.
        graph_token: the share of the graph token, an extra node from which the model reads its
            answer.
        biases: the share of the model's constants.
        output: the explained output f_c.
        structure: by name, the share of each term of the structural bias. It is empty if no
            relevance flows there, or if the method does not separate the terms.
        remainders: by name, the relevance that the softmax, the attention products, LayerNorm and
            the activation create or lose under the method's rules. They sum to `unexplained`, up to
            rounding. There are figures for Gradient x Input and its LRP variants on Graphormers.
        centrality: the part of `nodes` due to the degree embeddings (Ying 2021, eq. 5), or None if
            relevance is not split by feature.
        node_parts: by name, further parts of `nodes`, such as those of each molecule of an input of
            several, or of features that a user computes.
        without_nodes: the output of the graph without any nodes, or None if the model has no finite
            output there.
        zeroed_nodes: if there is no such output, or it is not wanted (`wrap(..., empty="zeros")`),
            the output of the graph whose nodes are all zeros, from which methods that remove nodes
            start. It is None otherwise.
        average_node: with `baseline="mean"`, the relevance that the same number of average nodes
            would get. It is None with other baselines.
        others: by name, the further shares of a wrapped model. These are inputs beside the nodes'
            features (such as `edge_attr`), `constants` (numbers in the model's code), and `cut off`
            (values of the nodes that the model uses without their gradient).
        curve: of shares that say what groups of nodes do (see `shares`), the factors of the terms
            in `CURVE`, where k is the share of the nodes that are in a group. It is empty for other
            methods.
        group_error: how far `Explanation.value_of` is typically from the output with a group of
            nodes alone: the root mean square over coalitions that the curve was fitted without.
            It is None without a curve.
        along_edges: if edges get relevance (`wrt="edge_index"`), what passes along them, which is
            the sum of theirs. It divides the same output in another way, so that `along_edges +
            not_along_edges = output`. It is None otherwise.
    """

    nodes: float
    graph_token: float
    biases: float
    output: float
    structure: dict[str, float] = field(default_factory=dict, hash=False)
    remainders: dict[str, float] = field(default_factory=dict, hash=False)
    centrality: float | None = None
    without_nodes: float | None = None
    average_node: float | None = None
    others: dict[str, float] = field(default_factory=dict, hash=False)
    node_parts: dict[str, float] = field(default_factory=dict, hash=False)
    zeroed_nodes: float | None = None
    curve: dict[str, float] = field(default_factory=dict, hash=False)
    group_error: float | None = None
    along_edges: float | None = None

    def curve_at(self, share: float) -> float:
        """Return the curve of size at a share k of the nodes. It is zero at 0 and 1."""
        inner = share * (1 - share)
        terms = dict(zip(CURVE, (inner, inner * (share - 0.5), inner**2), strict=True))
        return sum(factor * terms[name] for name, factor in self.curve.items())

    @property
    def change(self) -> float | None:
        """What the nodes changed: the output minus `without_nodes`, or minus `zeroed_nodes`."""
        start = self.zeroed_nodes if self.without_nodes is None else self.without_nodes
        return None if start is None else self.output - start

    @property
    def total(self) -> float:
        """The sum of all shares."""
        shares = self.nodes + (self.average_node or 0.0) + self.graph_token + self.biases
        return shares + sum(self.structure.values()) + sum(self.others.values())

    @property
    def unexplained(self) -> float:
        """The output minus the sum of all shares.

        Under `lrp` it is only rounding. Under other rules it is the gap that the rules leave.
        """
        return self.output - self.total

    @property
    def not_along_edges(self) -> float | None:
        """What passes along no edge, such as by the nodes' own paths, self loops and biases."""
        return None if self.along_edges is None else self.output - self.along_edges

    @property
    def figures(self) -> list[float]:
        """All figures without their names, and without those that are None."""
        values: list[float | None] = [self.change, self.unexplained, self.not_along_edges]
        for value in vars(self).values():
            values += value.values() if isinstance(value, dict) else (value,)
        return [value for value in values if value is not None]

    def to_dict(self) -> dict[str, float]:
        """Return all figures by name, without those that are None.

        Names such as `unexplained: softmax` are parts of `unexplained` and not added to it, just as
        `nodes: centrality` is a part of `nodes`.
        """
        figures = {
            "without_nodes": self.without_nodes,
            "zeroed_nodes": self.zeroed_nodes,
            "change": self.change,
            "nodes": self.nodes,
            "nodes: centrality": self.centrality,
            **{f"nodes: {name}": value for name, value in self.node_parts.items()},
            "average_node": self.average_node,
            "graph_token": self.graph_token,
            "biases": self.biases,
            **{f"structure: {name}": value for name, value in self.structure.items()},
            **self.others,
            "unexplained": self.unexplained,
            **{f"unexplained: {name}": value for name, value in self.remainders.items()},
            "total": self.total,
            "output": self.output,
            **{f"curve: {name}": value for name, value in self.curve.items()},
            "group_error": self.group_error,
            "along_edges": self.along_edges,
            "not_along_edges": self.not_along_edges,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def __repr__(self) -> str:
        """Write a line for each figure: what the nodes changed, the output, the method's shares."""
        lines = [("  " * depth + name, value) for name, value, depth in self._rows()]
        width = max(len(name) for name, _ in lines)
        return "\n".join(
            name if value is None else f"{name:{width}s}  {value:+z9.4f}" for name, value in lines
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align: left; padding-left: {0.5 + 1.5 * depth}em">'
            f"{escape(name)}</td><td>{'' if value is None else f'{value:+z.4f}'}</td></tr>"
            for name, value, depth in self._rows()
        )
        return f"<table>{rows}</table>"

    def _rows(self) -> Iterator[LedgerRow]:
        """Yield what the nodes changed, the output, and the shares, each followed by its parts."""
        figures = self.to_dict()
        del figures["total"]
        for name in ("without_nodes", "zeroed_nodes", "change", "output"):
            if name in figures:
                yield name.replace("_", " "), figures.pop(name), 0
        yield "divided into shares:", None, 0
        curve = {"group_error", *(f"curve: {name}" for name in self.curve)}
        of_groups = {name: figures.pop(name) for name in (*figures,) if name in curve}
        of_edges = {n: figures.pop(n) for n in ("along_edges", "not_along_edges") if n in figures}
        for name, value in figures.items():
            part = name.removeprefix("unexplained: ").removeprefix("nodes: ")
            yield part.replace("_", " "), value, 1 + (part != name)
        for title, parts in (
            ("a group is without nodes + shares + curve:", of_groups),
            ("divided by edges:", of_edges),
        ):
            if parts:
                yield title, None, 0
            for name, value in parts.items():
                yield name.replace("_", " "), value, 1
