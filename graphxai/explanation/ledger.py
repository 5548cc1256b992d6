"""How one explained output divides into shares, and how much is left unexplained."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape


@dataclass(frozen=True)
class Ledger:
    """How the explained output f_c divides into shares.

    `nodes + graph_token + biases + sum of structure + unexplained = output`. Under `lrp` only
    rounding is unexplained; under other rules `unexplained` is the gap they leave. `structure`:
    the share of each term of the structural bias, by name, if relevance flows there and the method
    separates the terms; otherwise empty. `remainders`: the relevance that the softmax, the
    attention products, LayerNorm and the activation create or lose under the method's rules; they
    sum to `unexplained`, up to rounding. They are known for Gradient x Input and its LRP variants
    on the bundled Graphormer, and otherwise empty. `centrality`: the part of `nodes` due to the
    degree embeddings (Ying 2021, eq. 5), if relevance is split by feature; otherwise None.
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
        """The sum of nodes, graph token, biases and structure."""
        return self.nodes + self.graph_token + self.biases + sum(self.structure.values())

    @property
    def unexplained(self) -> float:
        """Output minus total."""
        return self.output - self.total

    def to_dict(self) -> dict[str, float]:
        """All six figures by name, with the terms of structure and the remainders, if any.

        `unexplained: softmax` and the like are parts of `unexplained`, not additional to it, just
        as `nodes: centrality` is a part of `nodes`.
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
        """One line per summand, with its parts indented below, then the output."""
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
        """Name, value, and whether the row is a part of the one above, in order of the sum."""
        for name, value in self.to_dict().items():
            part = name.removeprefix("unexplained: ").removeprefix("nodes: ")
            if name != "total":
                yield part.replace("_", " "), value, part != name
