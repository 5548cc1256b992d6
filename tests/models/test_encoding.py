"""Many and large graphs are encoded in ways that agree, in bounded memory."""

import sys
import tracemalloc

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import graphxai as gx
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.samples import MOLECULES
from graphxai.models.graphormer import StructureEncoding, encoding
from graphxai.models.graphormer.paths import averaged_bags

UNUSUAL = (
    "C",
    "CC(=O)[O-].[Na+]",
    "C1CC2CC1CC2C3=CC4=C(C=C3)C5CCC4C5",  # bridged rings
    "C1CC2(C1)CC1(C2)CC2(C1)CC1(C2)CCC1",  # each spiro ring doubles the number of paths
    "NCC(=O)" * 30,  # more nodes than dense matrices are used for
)
CARDINALITIES = (5, 6, 2)


@pytest.fixture
def fresh(monkeypatch):
    """Reset the process as if no graph was encoded, so that it chooses its code again."""
    monkeypatch.setattr(encoding, "_encoded", 0)
    choose = encoding.compiled_bags
    choose.cache_clear()
    yield monkeypatch
    choose.cache_clear()


def encoded(smiles, **settings):
    return [StructureEncoding(CARDINALITIES, **settings)(molecule_to_data(s)) for s in smiles]


@pytest.mark.parametrize("settings", [{}, {"max_distance": 4, "num_hops": 3}])
def test_compiled_code_gives_the_same_encodings_bit_for_bit(settings, fresh):
    pytest.importorskip("numba")
    smiles = [*MOLECULES.values(), *UNUSUAL]
    usual = encoded(smiles, **settings)
    fresh.setattr(encoding, "COMPILED_FROM", 0)
    assert encoding.compiled_bags() is not averaged_bags
    for graph, other in zip(usual, encoded(smiles, **settings), strict=True):
        for name in ("bag_codes", "bag_weights", "bag_sizes", "in_degree", "out_degree"):
            assert graph[name].dtype == other[name].dtype
            assert torch.equal(graph[name], other[name])


@pytest.mark.parametrize("settings", [{}, {"max_distance": 4, "num_hops": 3}])
def test_molecules_encoded_together_are_those_encoded_alone(settings, fresh):
    fresh.setattr(encoding, "COMPILED_FROM", np.inf)
    smiles = [*MOLECULES.values(), *UNUSUAL, "CC", "C.CO.C"]
    alone, together = encoded(smiles, **settings), [molecule_to_data(s) for s in smiles]
    StructureEncoding(CARDINALITIES, **settings).add_structures(together)
    small = [graph.get("structure") is not None for graph in together]
    assert small == [1 < len(graph.x) <= encoding.LARGEST_TOGETHER for graph in together]
    for graph, other in zip(alone, together, strict=True):
        for name in encoding.STRUCTURE[:-1] if "structure" in other else ():
            assert graph[name].dtype == other[name].dtype
            assert torch.equal(graph[name], other[name])


def test_a_list_of_molecules_searches_the_paths_of_sixteen_at_once(fresh):
    """The time of small molecules is that of calls, so their number is what may not grow."""
    calls = []
    fresh.setattr(encoding, "COMPILED_FROM", np.inf)
    for name in ("averaged_bags", "averaged_bags_together"):
        make = getattr(encoding, name)
        fresh.setattr(encoding, name, lambda *args, make=make: calls.append(args) or make(*args))
    gx.predict("bace", ["C" * n for n in range(2, 33)])
    assert len(calls) == 2


def test_bonds_of_another_kind_are_refused_for_each_molecule_alone():
    graphs = [molecule_to_data("CC=O") for _ in range(4)]
    encode = StructureEncoding((2, 2))
    encode.add_structures(graphs)
    with pytest.raises(ValueError, match="edge_attr must have shape"):
        encode(graphs[0])


def test_compiled_code_is_loaded_only_for_many_graphs(fresh):
    def refuse():
        raise AssertionError("loaded for one molecule")

    fresh.setattr(encoding, "compiled_bags", refuse)
    encoded(["CCO"])
    fresh.setattr(encoding, "_encoded", encoding.COMPILED_FROM)
    with pytest.raises(AssertionError, match="loaded for one molecule"):
        encoded(["CCO"])


def test_encoding_works_without_numba(fresh):
    fresh.setitem(sys.modules, "numba", None)
    fresh.setattr(encoding, "COMPILED_FROM", 0)
    assert encoding.compiled_bags() is averaged_bags
    assert len(encoded(["CCO"])[0].bag_sizes) == 3


def test_memory_of_a_large_graph_grows_with_its_pairs_only(fresh):
    fresh.setattr(encoding, "COMPILED_FROM", np.inf)
    chain = molecule_to_data("NCC(=O)" * 125)
    tracemalloc.start()
    data = StructureEncoding(CARDINALITIES)(chain)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 240 * int(data.num_nodes) ** 2  # bytes: 0.96 GB for 2,000 nodes


def test_a_graph_too_large_is_refused_at_once_with_the_limit():
    nodes = encoding.MAX_NODES + 1
    data = Data(x=torch.zeros(nodes, 9), edge_index=torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(ValueError, match=f"has {nodes:,} nodes, more than the limit of 4,000"):
        StructureEncoding(CARDINALITIES)(data)


def test_environments_of_many_graphs_are_read_together_and_nothing_given_is_changed(monkeypatch):
    """They are those of each graph alone."""
    calls, rows = [], encoding.environment_rows
    encode = StructureEncoding(CARDINALITIES, environments=500)
    graphs = [molecule_to_data(smiles) for smiles in list(MOLECULES.values())[:12]]
    alone = [encode(graph) for graph in graphs]
    monkeypatch.setattr(
        encoding, "environment_rows", lambda *args: calls.append(len(args[0])) or rows(*args)
    )
    together = encode.each(graphs)
    assert calls == [sum(len(graph.x) for graph in graphs)]
    for graph, single, of_all in zip(graphs, alone, together, strict=True):
        assert torch.equal(single.environments, of_all.environments)
        assert torch.equal(single.bag_weights, of_all.bag_weights)
        assert not {"environments", "structure"} & set(graph.keys())
