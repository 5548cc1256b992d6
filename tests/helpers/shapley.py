"""Encode molecules for a model, and compute exact Shapley values of their atoms."""

from itertools import chain, combinations
from math import comb

import numpy as np
import torch

from graphxai.datasets.molecules import molecule_to_data
from graphxai.models.graphormer import StructureEncoding, collate
from graphxai.wrapping.removal import outputs_of_parts


def graph_of(model, smiles):
    return StructureEncoding.from_config(model.config)(molecule_to_data(smiles))


def batch_of(model, smiles):
    return collate([graph_of(model, s) for s in smiles])


def shapley_by_brute_force(model, graph, operator):
    """Apply Shapley's own formula, a weighted sum over all subsets of the other nodes."""
    n = graph.num_nodes
    subsets = list(chain.from_iterable(combinations(range(n), k) for k in range(n + 1)))
    keep = torch.tensor([[i in subset for i in range(n)] for subset in subsets])
    outputs = outputs_of_parts(model, graph, keep, operator)[:, 0]
    value = dict(zip(subsets, outputs.tolist(), strict=True))
    scores = np.zeros(n)
    for i in range(n):
        for subset in (s for s in subsets if i not in s):
            joined = tuple(sorted((*subset, i)))
            scores[i] += (value[joined] - value[subset]) / (n * comb(n - 1, len(subset)))
    return scores
