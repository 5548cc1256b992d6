"""The relevance of the token pairs of one graph: computed in batches, and drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphxai.contract.batching import batches_for, collated
from graphxai.contract.inputs import Input
from graphxai.contract.structure import UNREACHABLE
from graphxai.datasets.training_set import TrainingSet
from graphxai.explainers import Explainer
from graphxai.explainers.pairs import distances_of, pair_relevance, rules_of, walk_relevance
from graphxai.explanation.compute.explaining import explanations_or_errors
from graphxai.explanation.compute.models import Model
from graphxai.explanation.compute.predicting import all_passes, mean_of, or_not_finite
from graphxai.visualization.pairs import graph_pairs_svg, heads_figure, pairs_svg, profile_figure

from .explanation import Explanation
from .prediction import NotFiniteError
from .result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


UNREACHABLE_PAIRS = "unreachable"
TOKEN_READS, READ_TOKEN, TOKEN_ITSELF = "graph token reads", "graph token read", "graph token, self"


@dataclass(frozen=True, eq=False)
class Pairs(Result):
    """The relevance of every pair of the T = N + 1 tokens of one graph, with the graph token first.

    Args:
        explanation: the explanation of the nodes, by the same method and for the same target.
        by_layer: the relevance that token i (row) read from token j (column) in each layer, summed
            over the heads (L, T, T). If the model reads only the graph token in the end, all other
            rows of the last layer are zero.
        distances: the lengths of shortest paths in edges (N, N), -1 where there is none. For a
            sequence of tokens they are |i - j|.
        graph_token: whether the model has a graph token. If not, row and column 0 are zero.
        num_layers: None, or the number of layers that walks pass. Then `by_layer` has one matrix
            with the relevance that began at token j (column) and was in token i (row) after these
            layers.
        by_head: the relevance that came through each head (L, H). The heads of a layer sum to what
            passed through its attention, `by_layer.sum((1, 2))`. It is None for walks. In a wrapped
            model, layers with fewer than H heads have zeros at the end.
    """

    explanation: Explanation
    by_layer: NDArray[np.floating]
    distances: NDArray[np.integer]
    graph_token: bool = True
    num_layers: int | None = None
    by_head: NDArray[np.floating] | None = None

    def __post_init__(self) -> None:
        if not np.isfinite(self.by_layer).all():
            raise NotFiniteError("the relevance of a pair is not a finite number.")

    def __repr__(self) -> str:
        what = self.explanation.smiles or f"{len(self.distances)} nodes"
        walks = self.num_layers is not None
        layers = self._where(None) if walks else f"{len(self.by_layer)} layers"
        return f"Pairs({what}: {layers}; {self.explanation.title} for {self.explanation.target!r})"

    @property
    def matrix(self) -> NDArray[np.floating]:
        """The relevance of pairs summed over the layers (T, T)."""
        return self.by_layer.sum(0)

    def profile(self, layer: int | None = None) -> dict[int | str, float]:
        """Return the relevance of pairs by their shortest-path distance.

        The sum is that of all pairs. Keys are 0 (a node that reads itself), 1, 2 and so on,
        "unreachable" if there are such pairs, and three names for the pairs of a graph token, which
        have no distance.

        Args:
            layer: the layer, counted from 0, or None for all layers.
        """
        relevance = self._of(layer)
        between = relevance[1:, 1:]
        reached = self.distances != UNREACHABLE
        sums = np.bincount(self.distances[reached], weights=between[reached])
        profile: dict[int | str, float] = dict(enumerate(sums.tolist()))
        if not reached.all():
            profile[UNREACHABLE_PAIRS] = float(between[~reached].sum())
        if not self.graph_token:
            return profile
        profile[TOKEN_READS] = float(relevance[0, 1:].sum())
        profile[READ_TOKEN] = float(relevance[1:, 0].sum())
        profile[TOKEN_ITSELF] = float(relevance[0, 0])
        return profile

    def by_bond(self, layer: int | None = None) -> dict[str, float]:
        """Return the relevance of bonded pairs by RDKit's name for the type of the bond.

        It is empty for graphs without a molecule.
        """
        sums: dict[str, float] = {}
        relevance = self._of(layer)[1:, 1:]
        for (i, j), name in self._bonds().items():
            sums[name] = sums.get(name, 0.0) + float(relevance[i, j] + relevance[j, i])
        return sums

    def strongest(
        self, count: int = 12, layer: int | None = None, *, directed: bool = False
    ) -> list[tuple[int, int, float]]:
        """Return the pairs of different nodes with the largest |relevance|.

        Args:
            count: how many pairs to return.
            layer: the layer, counted from 0, or None for all layers.
            directed: whether to list each direction separately, as node i that read from node j. By
                default i < j, and both directions are summed.
        """
        between = self._of(layer)[1:, 1:]
        i, j = np.nonzero(~np.eye(len(between), dtype=bool))
        if not directed:
            between, (i, j) = between + between.T, np.triu_indices(len(between), k=1)
        values = between[i, j]
        order = np.argsort(-np.abs(values), kind="stable")[:count]
        return [(int(i[k]), int(j[k]), float(values[k])) for k in order if values[k] != 0]

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per node pair and layer.

        Its columns are layer, query, key, distance, bond type and relevance, and for a molecule its
        SMILES.
        """
        import pandas as pd

        n, layers = len(self.distances), len(self.by_layer)
        layer, query, key = np.indices((layers, n, n)).reshape(3, -1)
        bonds = np.full((n, n), "", dtype=object)
        for (i, j), name in self._bonds().items():
            bonds[i, j] = bonds[j, i] = name
        columns: dict[str, Any] = {
            "layer": layer,
            "query": query,
            "key": key,
            "distance": self.distances[query, key],
            "bond": bonds[query, key],
            "relevance": self.by_layer[layer, query + 1, key + 1],
        }
        if self.explanation.smiles is not None:
            columns["smiles"] = str(self.explanation.smiles)
        return pd.DataFrame(columns)

    def svg(self, *, count: int = 12, layer: int | None = None, **options: Any) -> str:
        """Draw the graph with its `count` strongest pairs, as arrows to the node that reads.

        A ring around a node shows what the graph token, if there is one, read from it. What nodes
        read from themselves and from the graph token is not drawn. Options are those of `pairs_svg`
        and `graph_pairs_svg`.

        Raises:
            ValueError: the input is an image, or has no edges.
        """
        nodes, molecule, drawn = self.explanation, self.explanation.molecule, self.explanation.drawn
        if molecule is None and drawn is None:
            raise ValueError(
                "pairs can only be drawn on molecules and graphs; use `profile`, `figure` or"
                " `matrix`."
            )
        word = "atom" if molecule is not None else "node"
        relevance = self._of(layer)
        options.setdefault("title", nodes.headline)
        about = f"{nodes.title} {self._where(layer)}"
        if self.num_layers is None:
            about += " · rings: read by the graph token" if self.graph_token else ""
            about += f"; arrows: from the {word} read to its reader"
        else:
            about += f" · rings: in the graph token; arrows: from the {word} where it began"
        options.setdefault("subtitle", about)
        options.setdefault("legend", nodes.legend)
        arrows = self.strongest(count, layer, directed=True)
        if drawn is not None:
            return graph_pairs_svg(drawn, relevance[0, 1:], arrows, **options)
        assert molecule is not None
        return pairs_svg(molecule, relevance[0, 1:], arrows, **options)

    def _options_for(self, width: float, height: float) -> dict[str, Any]:
        return {"title": "", "subtitle": "", "width": width, "height": height}

    @property
    def _title(self) -> str:
        return self.explanation.headline

    def _repr_svg_(self) -> str | None:
        explanation = self.explanation
        has_picture = explanation.molecule is not None or explanation.drawn is not None
        return super()._repr_svg_() if has_picture else None

    def figure(self) -> "Figure":
        """Draw bar charts of relevance by shortest-path distance and by bond type."""
        nodes, every = self.explanation, range(len(self.by_layer))
        profiles = {f"layer {layer + 1}": self.profile(layer) for layer in every}
        how = "through attention"
        if self.num_layers is not None:
            profiles, how = {f"after layer {self.num_layers}": self.profile()}, "along walks"
        title = f"{nodes.title} for {nodes.target}"
        return profile_figure(profiles, self.by_bond(), title=title, how=how)

    def heads_figure(self) -> "Figure":
        """Draw the relevance that came through each head, as a map of layers by heads.

        Raises:
            ValueError: the pairs are those of walks, which are not divided by head.
        """
        if self.by_head is None:
            raise ValueError("walks are not divided by head; leave out num_layers=.")
        nodes = self.explanation
        return heads_figure(self.by_head, title=f"{nodes.title} for {nodes.target}")

    def _where(self, layer: int | None) -> str:
        if self.num_layers is not None:
            return f"along walks of {self.num_layers} layer{'s' if self.num_layers > 1 else ''}"
        which = "all layers" if layer is None else f"layer {range(len(self.by_layer))[layer] + 1}"
        return f"through attention, {which}"

    def _of(self, layer: int | None) -> NDArray[np.floating]:
        return self.matrix if layer is None else self.by_layer[layer]

    def _bonds(self) -> dict[tuple[int, int], str]:
        molecule = self.explanation.molecule
        if molecule is None:
            return {}
        return {
            (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()): bond.GetBondType().name.lower()
            for bond in molecule.GetBonds()
        }


def pairs_or_errors(
    model: Model,
    encoded: Sequence[tuple[int, Input]],
    /,
    *,
    explainer: Explainer,
    target: Any,
    num_layers: int | None,
    training: TrainingSet | None,
) -> Iterator[tuple[int, Pairs | Exception]]:
    """Yield each input's number with its pairs, or with its error.

    Args:
        num_layers: the number of layers that walks pass, or None for what each layer read.
        training: the model's training set, to tell how near each molecule is to it.
    """
    explanations: dict[int, Explanation] = {}
    computed = explanations_or_errors(model, encoded, explainer, target=target, training=training)
    for number, explanation in computed:
        if isinstance(explanation, Exception):
            yield number, explanation
        else:
            explanations[number] = explanation
    rules = rules_of(explainer)
    usable = [entry for entry in encoded if entry[0] in explanations]
    passes = [(entry, each) for entry in usable for each in entry[1].passes]
    waiting: dict[int, list[tuple[NDArray[np.floating], Any]]] = {}
    for part in batches_for(model, passes):
        batch = collated(model, part)
        heads: Any = [None] * len(part)
        if num_layers is None:
            relevance, of_heads = pair_relevance(model, batch, target, rules)  # (B, L, T, T)
            heads = list(of_heads.cpu().to(torch.promote_types(of_heads.dtype, torch.float32)))
        else:
            relevance = walk_relevance(model, batch, num_layers, target, rules)[:, None]
        relevance = relevance.cpu().to(torch.promote_types(relevance.dtype, torch.float32))
        distances = distances_of(batch, [item.graph for _, item in part])
        # The model has a graph token, or one was added.
        of_token = relevance[..., 0, :].any() or relevance[..., 0].any()
        has_graph_token = getattr(batch, "has_graph_token", True) or bool(of_token)
        for row, ((number, item), _) in enumerate(part):
            tokens = item.num_nodes + 1
            of_graph = relevance[row, :, :tokens, :tokens].numpy().copy()
            of_head = None if heads[row] is None else heads[row].numpy().copy()
            of_passes = all_passes(waiting, item, (of_graph, of_head))
            if of_passes is None:
                continue
            of_graph, of_head = map(mean_of, zip(*of_passes, strict=True))
            about = distances[row], has_graph_token, num_layers, of_head
            yield number, or_not_finite(Pairs, explanations[number], of_graph, *about)
