"""What attention heads look at, as a heat map."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphxai.visualization.curves import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from graphxai.explainers.heads import HeadStatistics


def heads_figure(statistics: "HeadStatistics") -> "Figure":
    """Layers x heads: the largest share of rows at one distance, then each relation's excess.

    Excess is the share of rows in the relation less the relation's base rate. The heads with a
    frame are positional, or relational by this relation (Song 2024, section 4.2).
    """
    from graphxai.explainers.heads import POSITIONAL, RELATIONAL

    layers, heads = statistics.distances.shape[:2]
    excess = statistics.related - statistics.base_rates  # (L, H, K)
    count = 1 + len(statistics.relations)
    figure = new_figure(count * (1.1 + 0.22 * heads), 1.2 + 0.3 * layers)
    axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    largest = statistics.distances[..., :-2].max(-1)
    first = _heat_map(axes[0], "one distance", largest, POSITIONAL, "Reds", 0.0)
    figure.colorbar(first, ax=axes[0], label="share of rows")
    for k, name in enumerate(statistics.relations):
        image = _heat_map(axes[k + 1], name, excess[..., k], RELATIONAL, "RdBu_r", -1.0)
    figure.colorbar(image, ax=list(axes[1:]), label="share of rows above chance")
    axes[0].set_ylabel("layer")
    return figure


def _heat_map(
    axes: Any, title: str, values: NDArray[np.float64], limit: float, colours: str, low: float
) -> Any:
    """Values (L, H) from `low` to 1; those above `limit` with a frame."""
    from matplotlib.patches import Rectangle

    image = axes.imshow(values, vmin=low, vmax=1.0, cmap=colours)
    for layer, head in np.argwhere(values > limit):
        axes.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, linewidth=1.5))
    layers, heads = values.shape
    axes.set(title=title, xlabel="head")
    axes.set_xticks(range(heads), [str(h + 1) for h in range(heads)])
    axes.set_yticks(range(layers), [str(n + 1) for n in range(layers)])
    return image
