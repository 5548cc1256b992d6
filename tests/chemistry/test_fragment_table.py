"""Fragments of many molecules agree with NumPy, in little memory, also in empty tables."""

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from graphxai.chemistry.fragment_table import WAYS, Tally
from graphxai.cli import main as cli


def tally_of(molecules: list[list[float]]) -> Tally:
    tally = Tally()
    for place, relevance in enumerate(molecules):
        tally.add([(value, 1) for value in relevance], place, f"molecule {place}")
    return tally


@pytest.fixture(scope="module")
def skewed():
    rng = np.random.default_rng(0)
    return [rng.exponential(size=rng.integers(1, 4)).tolist() for _ in range(5000)]


def test_running_figures_are_those_of_all_values_at_once(skewed):
    tally = tally_of(skewed)
    means = np.array([np.mean(relevance) for relevance in skewed])
    assert tally.molecules == len(means)
    assert tally.count == sum(map(len, skewed))
    assert tally.sums.mean == pytest.approx(means.mean(), rel=1e-12)
    assert tally.sums.sd == pytest.approx(means.std(ddof=1), rel=1e-12)
    strongest = np.argsort(-np.abs(means))[:3]
    assert [text for *_, text in tally.examples] == [f"molecule {k}" for k in strongest]


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30, 5000])
def test_the_interval_is_students(n, skewed):
    means = [np.mean(relevance) for relevance in skewed[:n]]
    expected = stats.t.interval(0.95, df=n - 1, loc=np.mean(means), scale=stats.sem(means))
    assert tally_of(skewed[:n]).sums.interval == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_the_interval_of_few_molecules_covers_the_mean_as_often_as_it_says(n):
    rng = np.random.default_rng(n)
    intervals = [
        tally_of([[v] for v in rng.normal(1.0, size=n)]).sums.interval for _ in range(2000)
    ]
    covered = np.mean([low <= 1.0 <= high for low, high in intervals])
    assert stats.binomtest(round(2000 * covered), 2000, 0.95).pvalue > 0.01


def test_one_molecule_has_no_interval():
    assert np.isnan(tally_of([[1.0, 2.0]]).sums.interval).all()


def test_a_long_chain_does_not_count_for_more_per_atom_than_its_atoms_do():
    butyl, hexyl = Tally(), Tally()
    for place in range(3):
        butyl.add([(0.4, 4), (0.8, 4)], place, "")
        hexyl.add([(0.6 + place, 6)], place, "")
    assert butyl.sums.mean < hexyl.sums.mean == pytest.approx(1.6)
    assert butyl.per_atom.mean == pytest.approx(0.15)
    assert hexyl.per_atom.mean == pytest.approx(np.mean([0.1, 1.6 / 6, 2.6 / 6]))
    assert hexyl.per_atom.interval == pytest.approx(np.divide(hexyl.sums.interval, 6))


def test_memory_does_not_grow_with_the_number_of_molecules():
    tally = Tally()
    this_file = tracemalloc.Filter(True, "*fragment_table.py")  # other threads may be at work
    tracemalloc.start()
    try:
        sizes = []
        for round_ in range(2):
            for place in range(10_000):
                tally.add([(1.0, 6)], place + round_ * 10_000, "c1ccccc1")
                tally.written(("rest", f"*{place}"))
            kept = tracemalloc.take_snapshot().filter_traces([this_file])
            sizes.append(sum(trace.size for trace in kept.traces))
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
    [([], "the table has no rows"), (["C1CC", "not a molecule"], "row 1: 'C1CC' cannot be read")],
)
def test_a_table_without_a_usable_molecule_is_an_error(rows, reason, tmp_path, monkeypatch, capsys):
    source, out = tmp_path / "molecules.csv", tmp_path / "fragments.csv"
    source.write_text("\n".join(["smiles", *rows]) + "\n")
    command = ["graphxai", "fragments", str(source), "--out", str(out)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    text = capsys.readouterr().err
    assert text.startswith(f"error: no molecule in {source} can be explained: ")
    assert reason in text
    assert len(text.strip().splitlines()) == 1
    assert not out.exists()
