"""Fragments over many molecules: running figures against NumPy, memory, and tables of nothing."""

import tracemalloc

import numpy as np
import pytest

from graphxai import cli
from graphxai.evaluation.statistics import bootstrap
from graphxai.fragment_statistics import RESAMPLED, WAYS, Tally


def tally_of(molecules: list[list[float]]) -> Tally:
    tally = Tally()
    for place, relevance in enumerate(molecules):
        tally.add(relevance, place, f"molecule {place}")
    return tally


@pytest.fixture(scope="module")
def skewed():
    rng = np.random.default_rng(0)
    return [rng.exponential(size=rng.integers(1, 4)).tolist() for _ in range(5 * RESAMPLED)]


def test_running_figures_are_those_of_all_values_at_once(skewed):
    tally = tally_of(skewed)
    means = np.array([np.mean(relevance) for relevance in skewed])
    assert tally.molecules == len(means)
    assert tally.count == sum(map(len, skewed))
    assert tally.mean == pytest.approx(means.mean(), rel=1e-12)
    assert tally.sd == pytest.approx(means.std(ddof=1), rel=1e-12)
    strongest = np.argsort(-np.abs(means))[:3]
    assert [text for *_, text in tally.examples] == [f"molecule {k}" for k in strongest]


def test_few_molecules_have_the_interval_of_the_bootstrap(skewed):
    tally = tally_of(skewed[:RESAMPLED])
    interval = bootstrap([np.mean(relevance) for relevance in skewed[:RESAMPLED]])
    assert tally.interval == (interval.low, interval.high)


def test_many_molecules_have_an_interval_that_the_bootstrap_cannot_tell_from_its_own(skewed):
    """The ends differ by less than a tenth of the standard error, as two seeds may."""
    low, high = tally_of(skewed).interval
    means = np.array([np.mean(relevance) for relevance in skewed])
    interval = bootstrap(means)
    error = means.std(ddof=1) / np.sqrt(len(means))
    assert abs(low - interval.low) < 0.1 * error
    assert abs(high - interval.high) < 0.1 * error
    assert high - low == pytest.approx(2 * 1.96 * error, rel=1e-4)


def test_memory_does_not_grow_with_the_number_of_molecules():
    tally = Tally()
    tracemalloc.start()
    try:
        sizes = []
        for round_ in range(2):
            for place in range(10 * RESAMPLED):
                tally.add([1.0], place + round_ * 10 * RESAMPLED, "c1ccccc1")
                tally.written(("rest", f"*{place}"))
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 0.02 * sizes[0]


def test_the_most_frequent_way_to_write_a_fragment_survives_many_rare_ones():
    tally = Tally()
    for k in range(5 * WAYS):
        tally.written(("rest", f"rare {k}"))
        if k % 3 == 0:
            tally.written(("rest", "often"))
    assert max(tally.ways, key=tally.ways.__getitem__) == ("rest", "often")
    assert len(tally.ways) <= WAYS


@pytest.mark.parametrize(
    ("rows", "reason"),
    [([], "it has no rows"), (["C1CC", "not a molecule"], "row 1: 'C1CC' cannot be read")],
)
def test_a_table_without_a_usable_molecule_is_an_error(rows, reason, tmp_path, monkeypatch, capsys):
    source, out = tmp_path / "molecules.csv", tmp_path / "fragments.csv"
    source.write_text("\n".join(["smiles", *rows]) + "\n")
    command = ["graphxai", "fragments", str(source), "--out", str(out)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: no molecule of {source} can be explained: ")
    assert reason in told
    assert len(told.strip().splitlines()) == 1
    assert not out.exists()
