"""An interrupt keeps what was done, and leaves nothing behind that fails in the next call."""

import pytest

import graphxai as gx
from graphxai.chemistry.search import counterfactuals


def interrupted_at(call, function):
    """Return a function that does the same, but stands for Ctrl-C in a later call."""
    calls = []

    def stopped(*args, **options):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return function(*args, **options)

    return stopped


def sizes(model, batch, target):
    return batch.mask.float()


def test_the_results_of_a_list_are_kept():
    smiles = ["C" * k for k in range(1, 60)]
    whole = gx.explain("solubility", smiles, sizes)
    with pytest.raises(KeyboardInterrupt, match="results") as stop:
        gx.explain("solubility", smiles, interrupted_at(2, sizes))
    kept = stop.value.results
    done = [k for k, e in enumerate(kept) if e is not None]
    assert 0 < len(done) < len(kept) == len(smiles)
    assert f"stopped after {len(done)} of {len(smiles)} inputs" in str(stop.value)
    for k in done:
        assert kept[k].prediction == whole[k].prediction
    assert kept.to_frame(per="input").smiles[done[0]] == smiles[done[0]]


def test_the_report_until_an_interrupt_is_kept(tmp_path):
    smiles = ["C" * k for k in range(2, 40)]
    stopped = interrupted_at(3, sizes)
    stopped.__name__ = "sizes"
    options = {"metrics": ["auac"], "steps": 3, "target": "predicted", "out": tmp_path}
    with pytest.raises(KeyboardInterrupt, match="of 38 graphs") as stop:
        gx.evaluate("bace", smiles, stopped, **options)
    report = gx.evaluate("bace", smiles, sizes, resume=True, **options)
    kept = {(unit.graph, unit.method) for unit in stop.value.results.units}
    assert set() < kept < {(unit.graph, unit.method) for unit in report.units}


def test_the_best_counterfactuals_until_an_interrupt_are_kept(monkeypatch):
    options = {"predictions": 200, "steps": 1, "progress": False}
    with monkeypatch.context() as patched:
        patched.setattr(counterfactuals, "predict", interrupted_at(3, counterfactuals.predict))
        with pytest.raises(KeyboardInterrupt, match="neighbours") as stop:
            gx.counterfactuals("solubility", "CC(=O)Nc1ccc(OC)cc1", ">9", **options)
    kept = stop.value.results
    assert 0 < kept.predicted < 200
    assert len(kept) > 0


def test_the_sets_found_until_an_interrupt_are_kept(monkeypatch):
    monkeypatch.setattr("graphxai.evaluation.counterfactual_set.MAX_GRAPHS", 2)
    smiles = ["CCO", "CCN", "CCCl", "CCF", "CCBr"]
    options = {"exhaustive": 0, "progress": False}
    with pytest.raises(KeyboardInterrupt, match="of 5 inputs") as stop:
        gx.counterfactual_set("bace", smiles, method=interrupted_at(2, sizes), **options)
    first, second, *others = stop.value.results
    whole = gx.counterfactual_set("bace", smiles[:2], method=sizes, **options)
    assert [first.members, second.members] == [each.members for each in whole]
    assert others == [None] * 3


@pytest.mark.parametrize(("at", "done"), [(2, 3), (3, 5)])  # among cards, among full cards
def test_the_explanations_of_a_report_until_an_interrupt_are_kept(at, done, tmp_path, monkeypatch):
    monkeypatch.setattr("graphxai.tables.report.cards.CHUNK", 3)
    smiles = ["CCO", "CCN", "CCCl", "CCF", "CCBr"]
    stopped = interrupted_at(at, sizes)
    stopped.__name__ = "sizes"
    with pytest.raises(KeyboardInterrupt, match="stopped after") as stop:
        gx.report("bace", smiles, tmp_path / "report.html", stopped, compared=[], progress=False)
    assert [e.smiles for e in stop.value.results] == smiles[:done]
    assert not any(tmp_path.iterdir())
