"""What a model still knows with some of its nodes removed, on which curves depend.

Activation and pruning curves show the model graphs with nodes missing. If it no longer tells the
classes apart there, their areas say how methods fare on graphs that the model cannot read, and not
which nodes it uses. So every report starts with the model's accuracy (or R2) without 0, 25, 50 and
75 % of the nodes, drawn at random.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

SHARES = (0.0, 0.25, 0.5, 0.75)  # of the nodes that are removed
ENOUGH = 0.5  # of the score above chance that has to remain without half of the nodes


@dataclass(frozen=True)
class Robustness:
    """The score of a model with shares of the nodes removed, `SHARES`.

    Args:
        measure: "accuracy", "R2", or, without labels, "agreement" with its own prediction for the
            whole graph (for a regression R2 against it).
        values: the score for each share.
        chance: the score of the best constant answer.
        graphs: how many graphs were scored.
        unseen: how many graphs have the same output, to the last bit, without any of their nodes.
            Their curves are undefined.
    """

    measure: str
    values: tuple[float, ...]
    chance: float
    graphs: int
    unseen: int = 0

    @property
    def kept(self) -> float:
        """The share of the score above chance that remains without half of the nodes."""
        above = self.values[0] - self.chance
        return (self.values[2] - self.chance) / above if above > 0 else 0.0

    def sentence(self, operator: str) -> str:
        """Say whether rankings of methods under an operator can be trusted."""
        left = (
            f"Without half of the nodes (`{operator}`) the {self.measure} is"
            f" {self.values[2]:.2f} instead of {self.values[0]:.2f}; always the same answer has"
            f" {self.chance:.2f}."
        )
        if self.unseen:
            graphs = "graph" if self.unseen == 1 else "graphs"
            left += (
                f" On {self.unseen} {graphs} the output is the same without any node, so that the"
                " curves are undefined."
            )
        if self.kept >= ENOUGH:
            return left
        return (
            f"{left} So rankings under `{operator}` cannot be trusted: curves show how methods fare"
            " on graphs that the model cannot read."
        )


def merged_robustness(by_model: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average what several models keep, by operator."""
    merged: dict[str, Any] = {}
    for operator in by_model[0] if by_model else ():
        parts = [Robustness(**of[operator]) for of in by_model if operator in of]
        if len({part.measure for part in parts}) == 1 and len(parts) == len(by_model):
            values = np.mean([part.values for part in parts], axis=0).tolist()
            chance = float(np.mean([part.chance for part in parts]))
            graphs = sum(part.graphs for part in parts)
            unseen = sum(part.unseen for part in parts)
            merged[operator] = asdict(
                Robustness(parts[0].measure, tuple(values), chance, graphs, unseen)
            )
    return merged
