"""A call computes with one thread and leaves torch as it found it."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

import graphxai as gx
from graphxai.runtime.device import one_thread
from graphxai.tables.batches import ExplainBatch
from toy import random_graphormer


@pytest.fixture
def several():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


def seen_by(call, model):
    seen = []

    def counting(model, batch, target):
        seen.append(torch.get_num_threads())
        return batch.mask.float()

    call(model, counting)
    return set(seen)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, method: gx.explain(model, ["CCO", "CC"], method),
        lambda model, method: gx.evaluate(model, ["CCO", "CC"], [method], steps=2),
        lambda model, method: ExplainBatch(model, method)(["CCO"], [1]),
    ],
)
def test_a_call_computes_with_one_thread_and_restores_them(model, several, call):
    assert seen_by(call, model) == {1}
    assert torch.get_num_threads() == 3


def test_they_are_restored_after_an_error(model, several):
    def failing(model, batch, target):
        raise LookupError("not today")

    with pytest.raises(LookupError):
        gx.explain(model, "CCO", failing)
    assert torch.get_num_threads() == 3


def test_blocks_may_be_nested_and_entered_by_several_threads_at_once(several):
    together = Barrier(2, timeout=10)

    def enter(_):
        with one_thread():
            together.wait()
            with one_thread():
                inside = torch.get_num_threads()
            still = torch.get_num_threads()
            together.wait()
        return inside, still, torch.get_num_threads()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(enter, range(2))) == [(1, 1, 3)] * 2
    assert torch.get_num_threads() == 3
