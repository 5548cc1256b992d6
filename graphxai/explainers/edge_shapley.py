"""Compute Shapley values of a graph's edges by EdgeSHAPer (Mastropietro et al. 2022)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.inputs import Input, as_list, prepare_all
from graphxai.contract.model import evaluating
from graphxai.contract.target import Target
from graphxai.runtime.device import on_cpu_by_default

from .control import generator_of
from .orders import prefixes, random_orders

if TYPE_CHECKING:
    from graphxai.wrapping.removal import Model

GRAPHS_AT_A_TIME = 16  # how many graphs have their copies with fewer edges in memory at once


@dataclass(frozen=True, eq=False)
class EdgeShapley:
    """Shapley values of one graph's edges for f_c.

    Args:
        edges: the pairs of nodes (M, 2), each with the smaller number first. Both directions of an
            edge are one pair. In a heterogeneous graph each edge counts by itself, from its first
            node to its second, with their numbers within their types.
        values: the Shapley values (M,) in units of the output. They sum to `output - without`.
        spread: their standard errors (M,) over pairs of orders, zero if there is only one pair.
        output: f_c of the graph.
        without: f_c of the graph's nodes without any edge.
        label: f_c as text.
        types: of a heterogeneous graph, the type of each edge, such as "author writes paper".
    """

    edges: NDArray[np.integer]
    values: NDArray[np.floating]
    spread: NDArray[np.floating]
    output: float
    without: float
    label: str
    types: tuple[str, ...] = ()

    def by_type(self) -> dict[str, NDArray[np.floating]]:
        """Return the values for each type of edge in a heterogeneous graph, in their order."""
        names = np.array(self.types, dtype=object)
        return {name: self.values[names == name] for name in dict.fromkeys(self.types)}


@on_cpu_by_default
def edge_shapley(
    model: "Model",
    inputs: Sequence[Any],
    target: Any = None,
    *,
    node: Any = None,
    pair: Any = None,
    permutations: int = 8,
    seed: int = 0,
) -> list[EdgeShapley]:
    """Average over random orders of the edges how much f_c gains when each edge is added.

    A graph with fewer edges is encoded again, as for counterfactual sets. Its nodes keep their
    features, but degrees and shortest paths follow from the remaining edges, and some nodes may be
    unreachable.

    EdgeSHAPer draws an order and a random set of edges for every edge. Here one order serves all
    edges, which costs M + 1 passes per order and makes the values sum to the output. Every second
    order is the reverse of the order before it. Orders depend on the seed and on the graph's
    features.

    Args:
        model: any model that `explain` takes.
        inputs: graphs, as for `explain`.
        target: the output to explain, as for `explain`.
        node, pair: the node or pair of nodes to explain, as for `explain`.
        permutations: the number of orders.
        seed: draws the orders.

    Raises:
        ValueError: `permutations` is below 1, an input cannot be used or has no edges, the model
            does not have the target, or a wrapped model may read edges from a matrix.
    """
    if permutations < 1:
        raise ValueError(f"permutations must be at least 1, not {permutations}.")
    wanted = Target.of(target)
    if node is not None or pair is not None:
        from graphxai.wrapping.chosen import mark_explained  # loads PyG

        inputs = as_list(mark_explained(inputs, node, pair))[0]
    prepared = prepare_all(model, inputs)
    if any(item.data.get("edge_index") is None for item in prepared):
        raise ValueError("rows of tokens have no edges: explain the tokens.")
    with evaluating(model):
        return [
            values
            for start in range(0, len(prepared), GRAPHS_AT_A_TIME)
            for values in _of_graphs(
                model, prepared[start : start + GRAPHS_AT_A_TIME], wanted, permutations, seed
            )
        ]


def _of_graphs(
    model: "Model", prepared: list[Input], target: Target, permutations: int, seed: int
) -> Iterator[EdgeShapley]:
    """Compute the values of a few graphs in shared passes."""
    from graphxai.wrapping.heterogeneous import SCHEMA, edges_with_types  # loads PyG
    from graphxai.wrapping.removal import outputs_without_edges
    from graphxai.wrapping.subgraphs import undirected_edges

    edges, keeps, places, types = [], [], [], list[tuple[str, ...]]()
    for item in prepared:
        graph = item.data
        of_edges: tuple[str, ...] = ()
        if graph.get(SCHEMA) is None:
            pairs, belongs = undirected_edges(graph.edge_index)
        else:
            pairs, belongs, of_edges = edges_with_types(graph)
        # the same draws for both images of a molecule
        generator = generator_of(seed, sum(each.data.x for each in item.passes))
        orders = random_orders(len(pairs), permutations, generator, antithetic=True)
        place = orders.argsort(-1)  # (P, M)
        before = prefixes(place).flatten(0, 1)  # ((M + 1) P, M)
        edges.append(pairs)
        types.append(of_edges)
        places.append(place)
        keeps.append(before[:, belongs] | (belongs < 0))
    all_outputs = outputs_without_edges(model, prepared, keeps)
    for pairs, names, place, outputs in zip(edges, types, places, all_outputs, strict=True):
        resolved = target.resolve(model.config, outputs[-1:])  # with all edges
        f = resolved(outputs).double().cpu().unflatten(0, (-1, permutations))  # (M + 1, P)
        gains = (f[1:] - f[:-1]).T.gather(1, place).numpy()  # (P, M)
        if permutations % 2 == 0:  # an order and its reverse form one sample
            gains = gains.reshape(permutations // 2, 2, -1).mean(1)
        several = len(gains) > 1
        yield EdgeShapley(
            pairs.numpy(),
            gains.mean(0),
            gains.std(0, ddof=1) / len(gains) ** 0.5 if several else np.zeros(len(pairs)),
            float(f[-1, 0]),
            float(f[0, 0]),
            resolved.labels[0],
            names,
        )
