"""The models that `make fuzz` composes compute the same as their references.

What explanations of them must say is in helpers/hostile.py; what once was a fault, in
data/hostile.jsonl.
"""

import pytest
import torch
from composed import DIM, PARTS, Block, Composed, Pool, expected, graph

import graphxai as gx
from graphxai.evaluation.testing import check_all, check_batching

pytestmark = pytest.mark.usefixtures("only_relevance")


def assert_alike(blocks: list[list[str]], pool: str) -> None:
    """Check that a model has its reference's output and shares, and that shares sum to it."""
    model, data = Composed(blocks, pool), graph(5)
    wanted = expected(model, data)
    batch = torch.zeros(5, dtype=torch.long)
    with torch.no_grad():
        output = float(model(data.x, data.edge_index, data.edge_attr, data.pe, batch)[0, 1])
    total = float(wanted.nodes.sum()) + sum(wanted.lines.values())
    assert output == pytest.approx(wanted.output, rel=1e-9, abs=1e-9 * wanted.largest)
    assert total == pytest.approx(wanted.output, rel=1e-9, abs=1e-9 * wanted.largest)


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_and_its_reference_compute_the_same(kind):
    for spelling in PARTS[kind].spellings:
        assert_alike([["plus", f"{kind}: {spelling}"]], "mean")


def test_connections_and_readouts_compute_the_same():
    for spelling in Block.spellings:
        assert_alike([[spelling, "norm: by hand", "activation: gelu"]], "mean")
    for spelling in Pool.spellings:
        assert_alike([["plus", "attention: softmax"]], spelling)


def test_a_difference_of_softmaxes_is_one_attention():
    module = Composed([["plus", "attention: differential"]], "mean")
    model = gx.wrap(module, kind="multiclass", classes=2)
    for method in ("masked_lrp", "rollout"):
        check_batching(model, [graph(6), graph(4)], method)


def test_methods_that_read_attention_do_not_apply_without_it(few_steps):
    module = Composed([["plus", "messages: mean", "norm: module"]], "mean")

    def forward(model, g):  # positional encodings would not move with the nodes
        return model(g.x, g.edge_index, g.edge_attr, g.x.new_zeros(len(g.x), DIM), g.batch)

    model = gx.wrap(module, kind="multiclass", classes=2, forward=forward)
    check_all(model, [graph(4), graph(3)])
