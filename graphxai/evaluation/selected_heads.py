"""Compare a selection of attention heads with random ones, as Song 2024 does in section 5.4.

The control masks have as many heads of each kind as the selection, drawn at random. The corruption
curve adds more and more of the other heads. With all heads of one kind, masked LRP is transformer
attribution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from graphxai.explainers import get_explainer

from .benchmark import evaluate
from .ground_truth import evaluate_truth
from .metrics import METRICS

RATES = (0.25, 0.5, 0.75, 1.0)  # of the other heads, in the corruption curve
PER_RATE = 5  # corrupted masks

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeadControl:
    """A selection of heads beside random masks and corrupted ones, measured on the same n graphs.

    Args:
        metric: the name of the measure.
        selected: its values for the selection (n,).
        random: its values for K random masks of the same size (K, n).
        corrupted: by the share of the other heads that were added, the values of such masks (D, n).
        higher_is_better: whether a large value is good.
    """

    metric: str
    selected: FloatArray
    random: FloatArray
    corrupted: Mapping[float, FloatArray]
    higher_is_better: bool = True

    @property
    def p_value(self) -> float:
        """The share of masks of this size with a mean at least as good (Phipson and Smyth 2010).

        The selection counts as one of them, so K masks give no p below 1 / (K + 1).
        """
        sign = 1 if self.higher_is_better else -1
        means, selected = np.nanmean(self.random, axis=1), np.nanmean(self.selected)
        as_good = sign * means >= sign * selected - 1e-12
        return float((1 + as_good.sum()) / (1 + len(means)))

    def to_frame(self) -> pd.DataFrame:
        """Return a table with mean, lowest and highest mean of the masks of each kind."""
        kinds = {"selected": self.selected[None], "random": self.random}
        kinds |= {f"{100 * rate:.0f} % of the others": of for rate, of in self.corrupted.items()}
        rows = []
        for kind, values in kinds.items():
            means = np.nanmean(values, axis=1)
            rows.append((kind, len(means), means.mean(), means.min(), means.max()))
        return pd.DataFrame(rows, columns=["heads", "masks", "mean", "lowest", "highest"])

    def __repr__(self) -> str:
        selected, random = np.nanmean(self.selected), np.nanmean(self.random)
        return (
            f"HeadControl({self.metric} {selected:.3f}, random masks {random:.3f},"
            f" p = {self.p_value:.3f}, {len(self.selected)} graphs)"
        )


def head_control(
    model: Any,
    inputs: Sequence[Any],
    heads: ArrayLike,
    *,
    truths: Sequence[ArrayLike] | None = None,
    metric: str | None = None,
    masks: int = 199,
    seed: int = 0,
    **options: Any,
) -> HeadControl:
    """Compare masked LRP through selected heads with that through random heads.

    Args:
        model: the explained model.
        inputs: inputs as for `explain`.
        heads: the mask (L, H) of the selection, such as `HeadStatistics.mask()`. See `MaskedLrp`.
        truths: the true nodes of each input, as for `evaluate_truth`. Without them the curves of
            removed nodes are measured.
        metric: one metric, by default "roc_auc" with truths and "auac" without.
        masks: the number of random masks.
        seed: the seed of the masks.
        options: keywords of `evaluate_truth` or `evaluate`, such as `target`, `labels` and `steps`.

    Raises:
        ValueError: the mask does not fit the model, or selects no heads or all of them.
    """
    mask = np.asarray(heads)
    if not (mask > 0).any() or (mask > 0).all():
        raise ValueError(
            f"the mask selects {(mask > 0).sum()} of {mask.size} heads, so that there are no other"
            " masks of this size."
        )
    generator = np.random.default_rng(seed)
    drawn: dict[tuple[Any, int], NDArray[Any]]
    drawn = {("random", k): generator.permutation(mask.ravel()) for k in range(masks)}
    others = np.flatnonzero(mask.ravel() == 0)
    for rate in RATES:
        for k in range(PER_RATE if rate < 1 else 1):
            corrupted = mask.ravel().copy()
            corrupted[generator.permutation(others)[: round(rate * len(others))]] = 1
            drawn[rate, k] = corrupted
    methods = [_masked("selected", mask)]
    methods += [
        _masked(f"{kind} {k}", each.reshape(mask.shape)) for (kind, k), each in drawn.items()
    ]
    if truths is None:
        metric = metric or "auac"
        report = evaluate(model, inputs, methods, metrics=[metric], progress=False, **options)
        by_name, better = report.values(metric), METRICS[metric].higher_is_better
    else:
        metric, better = metric or "roc_auc", True
        rows = evaluate_truth(model, inputs, truths, methods, progress=False, **options)
        wide = rows[rows.metric == metric].pivot(index="graph", columns="method", values="value")
        by_name = {name: wide[name].to_numpy() for name in wide}

    def of(kind: Any) -> FloatArray:
        return np.stack([by_name[f"{name} {k}"] for name, k in drawn if name == kind])

    curve = {rate: of(rate) for rate in RATES}
    return HeadControl(metric, by_name["selected"], of("random"), curve, better)


def _masked(name: str, mask: NDArray[Any]) -> Any:
    explainer = get_explainer("masked_lrp", heads=mask)
    explainer.name = name  # type: ignore[misc]
    return explainer
