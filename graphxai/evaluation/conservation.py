"""Compare the sum of relevance with the output over a data set (Ali 2022, Fig. 3)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.api import explain
from graphxai.explainers.registry import Method, each_of, get_explainer, told_apart
from graphxai.explanation.compute.models import Model


@dataclass(frozen=True, eq=False)
class Conservation:
    """The summed relevance and the output of n graphs for one method.

    Args:
        method: the name of the method.
        outputs: the explained outputs f_c (n,).
        tokens: the summed relevance of nodes and graph token (n,).
        biases: the share of additive parameters (n,). If the method separates it, the share of the
            structural bias is included.
    """

    method: str
    outputs: NDArray[np.float64]
    tokens: NDArray[np.float64]
    biases: NDArray[np.float64]

    @property
    def slope(self) -> float:
        """The least-squares slope of summed relevance on output. It is 1 if they agree."""
        centred = self.outputs - self.outputs.mean()
        spread = float((centred**2).sum())
        return float((centred * self.tokens).sum()) / spread if spread else float("nan")

    @property
    def correlation(self) -> float:
        """Pearson's correlation of summed relevance and output, NaN if either is constant."""
        if len(self.outputs) < 2 or not self.outputs.std() or not self.tokens.std():
            return float("nan")
        return float(np.corrcoef(self.outputs, self.tokens)[0, 1])

    @property
    def gap(self) -> float:
        """The mean absolute difference between output and summed relevance."""
        return float(np.abs(self.outputs - self.tokens).mean())

    @property
    def unexplained(self) -> float:
        """The mean absolute difference between output and summed relevance with biases."""
        return float(np.abs(self.outputs - self.tokens - self.biases).mean())


def conservation(
    model: Model,
    inputs: Iterable[Any],
    methods: Sequence[Method] = ("gradient_input", "lrp_ah_ln", "lrp"),
    *,
    target: Any = None,
) -> dict[str, Conservation]:
    """Compare summed relevance with outputs for each method.

    Inputs and target are as for `explain`. Inputs that cannot be used are skipped with a warning.

    Raises:
        ValueError: no input remains.
    """
    measured = {}
    values = list(inputs)
    for method in told_apart(map(get_explainer, each_of(methods))):
        explained = [e for e in explain(model, values, method, target=target) if e is not None]
        if not explained:
            raise ValueError("there is no graph to measure.")
        ledgers = [e.ledger for e in explained]
        measured[explained[0].method] = Conservation(
            explained[0].method,
            outputs=np.array([ledger.output for ledger in ledgers]),
            tokens=np.array([ledger.nodes + ledger.graph_token for ledger in ledgers]),
            biases=np.array(
                [ledger.total - ledger.nodes - ledger.graph_token for ledger in ledgers]
            ),
        )
    return measured
