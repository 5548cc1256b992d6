"""Score relevance against the nodes, shares or pixels that are known to cause the label.

Scores use signed relevance, so high means relevant. A score is NaN if the truth does not
distinguish anything, and `undefined` gives the reason. Ties never depend on the order of the nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from graphxai.contract import prediction_metrics as prediction

Score = Callable[[NDArray[np.float64], NDArray[Any]], float]


def undefined(truth: ArrayLike) -> str:
    """Return the reason why no score is defined for a truth, or "" if scores are defined.

    Args:
        truth: the true nodes or pixels as bool of any shape, or shares as float (N,).
    """
    values = np.asarray(truth)
    if values.dtype != np.bool_:
        return "every share is the same" if not len(values) or np.ptp(values) == 0 else ""
    if not values.any():
        return "nothing is true"
    return "everything is true" if values.all() else ""


def roc_auc(relevance: ArrayLike, truth: ArrayLike) -> float:
    """Return the probability that a true node has more relevance than a false one. Ties count half.

    Raises ValueError for values that cannot be compared.

    Args:
        relevance, truth (bool): (N,).
    """
    scores, true = _comparable(relevance, truth)
    return prediction.roc_auc(scores, true)


def signed_roc_auc(relevance: ArrayLike, truth: ArrayLike, sign: int = 1) -> float:
    """Return the ROC-AUC of the nodes that speak for the target, among those that do not matter.

    Args:
        relevance: (N,).
        truth: (N,) of integers: 1 for nodes that speak for the target, -1 against it, 0 for others.
        sign: 1; or -1 for the nodes that speak against it, whose relevance should be low.
    """
    scores, true = np.asarray(relevance, dtype=np.float64), np.asarray(truth)
    if scores.shape != true.shape:
        return roc_auc(scores, true)  # which says so
    used = (true == 0) | (true == sign)
    return roc_auc(sign * scores[used], true[used] != 0)


def roc_auc_against(relevance: ArrayLike, truth: ArrayLike) -> float:
    """Return the ROC-AUC of the nodes that speak against the target, see `signed_roc_auc`."""
    return signed_roc_auc(relevance, truth, -1)


def unsigned_roc_auc(relevance: ArrayLike, truth: ArrayLike) -> float:
    """Return the ROC-AUC of all nodes that matter, for or against, by |relevance|."""
    return roc_auc(np.abs(np.asarray(relevance, dtype=np.float64)), np.asarray(truth) != 0)


def average_precision(relevance: ArrayLike, truth: ArrayLike) -> float:
    """Return the area under the precision-recall curve in steps, sum_k (r_k - r_(k-1)) p_k.

    Nodes of equal relevance share a step. Raises ValueError for values that cannot be compared.

    Args:
        relevance, truth (bool): (N,).
    """
    scores, true = _comparable(relevance, truth)
    if undefined(true):
        return np.nan
    return prediction.average_precision(scores, true)


def top_k_precision(relevance: ArrayLike, truth: ArrayLike) -> float:
    """Return the share of true nodes among the k most relevant, where k nodes are true.

    If nodes tie at rank k, it is the mean over all ways to choose. Raises ValueError for values
    that cannot be compared.

    Args:
        relevance, truth (bool): (N,).
    """
    count = int(np.asarray(truth, dtype=np.bool_).sum())
    return _true_among_top(relevance, truth, max(count, 1))[0]


def precision_at(relevance: ArrayLike, truth: ArrayLike, k: int) -> float:
    """Return the share of true nodes among the k most relevant, as Precision@20 in Song 2024.

    Of fewer than k nodes all are taken. If nodes tie at rank k, it is the mean over all ways to
    choose. Raises ValueError for values that cannot be compared, or if k is not positive.

    Args:
        relevance, truth (bool): (N,).
    """
    return _true_among_top(relevance, truth, k)[0]


def token_f1(relevance: ArrayLike, truth: ArrayLike, k: int) -> float:
    """Return the token-F1 of the k most relevant nodes (DeYoung 2019; Chefer 2021b, figure 4).

    It is `2 |chosen and true| / (k + |true|)`. Chefer 2021b shows it for k = 10 to 80. Ties and
    errors are as for `precision_at`.
    """
    precision, taken, true = _true_among_top(relevance, truth, k)
    return 2 * precision * taken / (taken + true)


def _true_among_top(relevance: ArrayLike, truth: ArrayLike, k: int) -> tuple[float, int, int]:
    """Return the share of true nodes among the top k, the number taken, and that of true ones."""
    scores, true = _comparable(relevance, truth)
    if k < 1:
        raise ValueError(f"the number of nodes to take must be at least 1, not {k}.")
    k, count = min(k, len(scores)), int(true.sum())
    if undefined(true):
        return np.nan, k, count
    limit = np.sort(scores)[-k]
    above, tied = scores > limit, scores == limit
    places = k - above.sum()
    return float((true[above].sum() + places * true[tied].mean()) / k), k, count


def iou(relevance: ArrayLike, truth: ArrayLike) -> float:
    """Return intersection over union of the true nodes and the nodes above the mean relevance.

    The threshold is that of the segmentation in Chefer 2021b, sec. 4. Raises ValueError for values
    that cannot be compared.

    Args:
        relevance, truth (bool): any shape.
    """
    scores, true = _comparable(relevance, truth)
    if undefined(true):
        return np.nan
    return _overlap(scores > scores.mean(), true)


def iou_top_k(relevance: ArrayLike, truth: ArrayLike) -> float:
    """Return intersection over union of the k true nodes and the k most relevant nodes.

    It equals p / (2 - p), where p is `top_k_precision`.
    """
    precision = top_k_precision(relevance, truth)
    return precision / (2 - precision)


def pearson(relevance: ArrayLike, shares: ArrayLike) -> float:
    """Return Pearson's correlation of relevance and true shares (N,), NaN if either is constant."""
    scores, true = _comparable(relevance, shares, shares=True)
    a, b = scores - scores.mean(), true - true.mean()
    if np.ptp(scores) == 0 or np.ptp(true) == 0:
        return np.nan
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def rank_correlation(relevance: ArrayLike, shares: ArrayLike) -> float:
    """Return Spearman's correlation of signed relevance (N,) and true shares (N,).

    Ties get mean ranks.
    """
    scores, true = _comparable(relevance, shares, shares=True)
    return pearson(rankdata(scores), rankdata(true))


def pixel_accuracy(relevance: ArrayLike, truth: ArrayLike) -> float:
    """Return the share of pixels on the right side of the mean relevance.

    Source: the segmentation test of Chefer 2021b, sec. 4.

    Args:
        relevance, truth (bool): (H, W).
    """
    scores, true = _comparable(relevance, truth)
    return np.nan if undefined(true) else float(((scores > scores.mean()) == true).mean())


def mean_iou(relevance: ArrayLike, truth: ArrayLike) -> float:
    """Return intersection over union at the mean relevance, averaged over fore- and background.

    Args:
        relevance, truth (bool): one picture (H, W). The code of Chefer 2021b pools all pictures.
    """
    scores, true = _comparable(relevance, truth)
    if undefined(true):
        return np.nan
    chosen = scores > scores.mean()
    return (_overlap(chosen, true) + _overlap(~chosen, ~true)) / 2


def mean_average_precision(relevance: ArrayLike, truth: ArrayLike) -> float:
    """Return the mean of the average precisions of foreground and background.

    The foreground is ranked by relevance, the background by negative relevance. Chefer 2021b, sec.
    4, names this metric without a formula.

    Args:
        relevance, truth (bool): (H, W).
    """
    scores, true = _comparable(relevance, truth)
    return (average_precision(scores, true) + average_precision(-scores, ~true)) / 2


NODE_METRICS: Mapping[str, Score] = {
    "roc_auc": roc_auc,
    "average_precision": average_precision,
    "top_k_precision": top_k_precision,
    "iou": iou,
    "iou_top_k": iou_top_k,
}
BOND_METRICS: Mapping[str, Score] = {
    "bond_roc_auc": roc_auc,
    "bond_average_precision": average_precision,
}
SIGNED_METRICS: Mapping[str, Score] = {
    "signed_roc_auc": signed_roc_auc,
    "roc_auc_against": roc_auc_against,
    "unsigned_roc_auc": unsigned_roc_auc,
}
SHARE_METRICS: Mapping[str, Score] = {"rank_correlation": rank_correlation, "pearson": pearson}
PIXEL_METRICS: Mapping[str, Score] = {
    "pixel_accuracy": pixel_accuracy,
    "mean_average_precision": mean_average_precision,
    "mean_iou": mean_iou,
}


def top_metrics(numbers: Sequence[int]) -> Mapping[str, Score]:
    """Return `precision_at` and `token_f1` for each number of nodes, as "precision_at_10"."""
    return {
        f"{score.__name__}_{k}": partial(score, k=k)
        for score in (precision_at, token_f1)
        for k in numbers
    }


def bond_scores(relevance: ArrayLike, ends: ArrayLike) -> NDArray[np.float64]:
    """Score bonds with ends (M, 2) by the mean relevance (N,) of their two atoms."""
    of_ends: NDArray[np.float64] = np.asarray(relevance, dtype=np.float64)[np.asarray(ends)]
    return np.asarray(of_ends.mean(-1))


def outstanding(relevance: ArrayLike) -> float:
    """Return the share of nodes (N,) that stand out: above Q3 + 1.5 (Q3 - Q1), Tukey 1977.

    If no node is true, each of these is a false positive, because the explanation should be flat.
    Differences below 1e-5 of the largest |relevance| count as rounding.
    """
    scores = np.asarray(relevance, dtype=np.float64)
    low, high = np.quantile(scores, (0.25, 0.75))
    limit = high + 1.5 * (high - low) + 1e-5 * np.abs(scores).max()
    return float((scores > limit).mean())


def metrics_for(truth: ArrayLike, top: Sequence[int] = ()) -> Mapping[str, Score]:
    """Return the metrics for a truth: bool (N,) nodes, float (N,) shares, bool (H, W) pixels.

    An int8 (N,) truth has a sign for each node, see `signed_roc_auc`. For nodes, `top` adds those
    of `top_metrics`.
    """
    values = np.asarray(truth)
    if values.dtype == np.bool_ and values.ndim == 1:
        return {**NODE_METRICS, **top_metrics(top)}
    if values.dtype == np.bool_ and values.ndim == 2:
        return PIXEL_METRICS
    if values.dtype == np.int8 and values.ndim == 1:
        return SIGNED_METRICS
    if values.dtype.kind == "f" and values.ndim == 1:
        return SHARE_METRICS
    raise ValueError(
        "a truth is bool (N,) for nodes, int8 (N,) for signs, float (N,) for shares or bool (H, W)"
        f" for pixels, not {values.dtype} {values.shape}."
    )


def _comparable(
    relevance: ArrayLike, truth: ArrayLike, *, shares: bool = False
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return both as flat arrays, relevance as float64 and truth as bool, or float64 for shares."""
    scores, true = np.asarray(relevance, dtype=np.float64), np.asarray(truth)
    if scores.shape != true.shape:
        raise ValueError(f"relevance has shape {scores.shape}, but truth has shape {true.shape}.")
    if not np.isfinite(scores).all():
        raise ValueError("relevance contains values that are not finite.")
    if not shares:
        if true.dtype != np.bool_:
            raise ValueError(f"the true nodes must be bool, not {true.dtype}.")
        return scores.ravel(), true.ravel()
    true = true.astype(np.float64)
    if not np.isfinite(true).all():
        raise ValueError("the true shares contain values that are not finite.")
    return scores.ravel(), true.ravel()


def _overlap(chosen: NDArray[np.bool_], true: NDArray[np.bool_]) -> float:
    """Return intersection over union of two sets that are not both empty."""
    return float((chosen & true).sum() / (chosen | true).sum())
