"""The account of one explained output: who has which share of it, and what nobody has."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape


@dataclass(frozen=True)
class Ledger:
    """How the explained output f_c divides up.

    `nodes + graph_token + biases + sum of structure + unexplained = output`. Under `lrp` nothing
    is unexplained but rounding; under other rules `unexplained` is their gap. `structure`: the
    share of each term of the structural bias, by name, where relevance flows there and the method
    tells it apart; otherwise empty. `remainders`: what the softmax, the products of attention,
    LayerNorm and the activation each make or lose of the relevance that passes them, where the
    method's rules leave them a remainder; in sum `unexplained`, to rounding. They are known for
    Gradient x Input and its LRP variants on the bundled Graphormer, and otherwise empty.
    `centrality`: the part of `nodes` that the degree embeddings have (Ying 2021, eq. 5), where
    relevance is split by feature; None elsewhere.
    """

    nodes: float
    graph_token: float
    biases: float
    output: float
    structure: dict[str, float] = field(default_factory=dict, hash=False)
    remainders: dict[str, float] = field(default_factory=dict, hash=False)
    centrality: float | None = None

    @property
    def total(self) -> float:
        """What is accounted for: nodes, graph token, biases and structure."""
        return self.nodes + self.graph_token + self.biases + sum(self.structure.values())

    @property
    def unexplained(self) -> float:
        """Output less total."""
        return self.output - self.total

    def to_dict(self) -> dict[str, float]:
        """All six figures by name, and the terms of structure and remainders where there are any.

        `unexplained: softmax` and the like are parts of `unexplained`, not beside it, as
        `nodes: centrality` is one of `nodes`.
        """
        of_nodes = {} if self.centrality is None else {"nodes: centrality": self.centrality}
        return {
            "nodes": self.nodes,
            **of_nodes,
            "graph_token": self.graph_token,
            "biases": self.biases,
            **{f"structure: {name}": value for name, value in self.structure.items()},
            "unexplained": self.unexplained,
            **{f"unexplained: {name}": value for name, value in self.remainders.items()},
            "total": self.total,
            "output": self.output,
        }

    def __str__(self) -> str:
        """A line a summand, with parts of one indented below it, then the output."""
        lines = [("  " * is_part + name, value) for name, value, is_part in self._rows()]
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:{width}s}  {value:+z9.4f}" for name, value in lines)

    def _repr_html_(self) -> str:
        """The same as a table."""
        rows = "".join(
            f'<tr><td style="text-align: left; padding-left: {2 if is_part else 0.5}em">'
            f"{escape(name)}</td><td>{value:+z.4f}</td></tr>"
            for name, value, is_part in self._rows()
        )
        return f"<table>{rows}</table>"

    def _rows(self) -> Iterator[tuple[str, float, bool]]:
        """Name, value, and whether it is a part of the row above, in the order of the sum."""
        for name, value in self.to_dict().items():
            part = name.removeprefix("unexplained: ").removeprefix("nodes: ")
            if name != "total":
                yield part.replace("_", " "), value, part != name
