"""A racemate, or an undefined centre if that is wanted, gets the mean over its isomers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rdkit import Chem

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import structure_counts
from graphxai.datasets.molecules import molecule_graph
from graphxai.datasets.splits import Split
from graphxai.explanation.compute import explaining
from graphxai.learning.cleaning import clean_table
from graphxai.learning.predicting import SizeBuckets, encode_all, isomers_of, task_readings
from graphxai.learning.splitting import Source
from graphxai.models.graphormer import Graphormer
from graphxai.tables.batches import ExplainBatch, PredictBatch

DIASTEREOMERS = "C[C@H](N)[C@H](O)c1ccc(Cl)cc1"
ALL_FOUR = [f"C[C@{a}H](N)[C@{b}H](O)c1ccc(Cl)cc1" for a in ("", "@") for b in ("", "@")]
RACEMATES = {
    "CC[C@H](N)c1ccccc1 |&1:2|": ["CC[C@H](N)c1ccccc1", "CC[C@@H](N)c1ccccc1"],
    f"{DIASTEREOMERS} |&1:1,3|": [ALL_FOUR[0], ALL_FOUR[3]],
    f"{DIASTEREOMERS} |&1:1,o1:3|": ALL_FOUR,
    "C[C@H](O)CC[C@H](C)O |&1:1,&2:5|": [
        f"C[C@{a}H](O)CC[C@{b}H](C)O" for a in ("", "@") for b in ("", "@")
    ],
}


@pytest.mark.parametrize("racemate", RACEMATES)
@pytest.mark.parametrize("name", ["bace", "lipophilicity"])
@pytest.mark.parametrize("method", ["lrp", "occlusion"])
def test_every_number_of_a_racemate_is_the_mean_over_its_isomers(name, method, racemate):
    """A meso form is two of four choices of configurations, and counts twice."""
    model = gx.load(name)
    e, *isomers = gx.explain(model, [racemate, *RACEMATES[racemate]], method)
    np.testing.assert_allclose(e.relevance, np.mean([i.relevance for i in isomers], 0), atol=2e-6)
    assert e.output == pytest.approx(np.mean([i.output for i in isomers]), abs=2e-6)
    shown = next(iter(gx.predict(model, racemate).values()))
    if shown.value is not None:
        assert shown.value == pytest.approx(e.output, abs=2e-6)
    else:  # the probability is that of the mean of the log-odds, which the explanation adds up to
        share = shown.probabilities["active"]
        assert np.log(share / (1 - share)) == pytest.approx(e.output, abs=2e-6)
    assert shown.note == e.note
    assert e.smiles == racemate
    if e.additive:
        assert abs(e.ledger.unexplained) < 1e-5
        ledgers = [i.ledger for i in isomers]
        assert e.ledger.nodes == pytest.approx(np.mean([i.nodes for i in ledgers]), abs=2e-6)


def test_of_all_passes_of_a_molecule_one_explanation_is_made(monkeypatch):
    """The mean is taken over their numbers, as an explanation takes long to make."""
    made, explanation = [], explaining.Explanation
    monkeypatch.setattr(explaining, "Explanation", lambda **k: made.append(1) or explanation(**k))
    gx.explain("lipophilicity", ["C[C@H](F)Cl", *RACEMATES, "CCO"], progress=False)
    assert len(made) == 2 + len(RACEMATES)


def test_an_undefined_centre_is_a_racemate_if_that_is_wanted():
    plain, mean = gx.load("bace"), gx.load("bace", isomers="mean")
    undefined, racemate = "CC[CH](N)c1ccccc1", "CC[C@@H](N)c1ccccc1 |&1:2|"
    as_before, drawn = gx.explain(plain, [undefined, racemate])
    e = gx.explain(mean, undefined)
    np.testing.assert_allclose(e.relevance, drawn.relevance, atol=2e-6)
    assert abs(e.relevance - as_before.relevance).max() > 1e-4
    assert not as_before.note
    assert e.note == drawn.note
    assert e.note.startswith("the mean over its 2 isomers; they get ")
    assert "isomers" in e.provenance
    assert "isomers" not in as_before.provenance


def test_undefined_and_drawn_centres_are_told_apart():
    """The drawn one stays as it is; with the mean, the other has both configurations."""
    model = gx.load("bace", isomers="mean")
    e, *isomers = gx.explain(model, ["C[C@H](N)C(O)c1ccc(Cl)cc1", *ALL_FOUR[:2]])
    assert [len(prepare_for(model, s).passes) for s in (e.smiles, ALL_FOUR[0])] == [2, 1]
    np.testing.assert_allclose(e.relevance, np.mean([i.relevance for i in isomers], 0), atol=2e-6)


MANY = "C[C@H](F)[C@@H](O)[C@H](Cl)[C@H](N)[C@@H](C)Br |&1:1,&2:3,&3:5,&4:7,&5:9|"
INVERTED = "C[C@@H](F)[C@@H](O)[C@@H](Cl)[C@H](N)[C@@H](C)Br |&1:1,&2:3,&3:5,&4:7,&5:9|"
BACKWARDS = "C[C@H](Br)[C@@H](N)[C@@H](Cl)[C@H](O)[C@@H](F)C |&1:1,&2:3,&3:5,&4:7,&5:9|"


def test_a_sample_of_many_isomers_depends_on_no_drawing():
    """It has 16 of 32 isomers, and no other way of drawing the compound has others."""
    model = gx.load("bace")
    codes = [each.graph.x[:, 1].tolist() for each in prepare_for(model, MANY).passes]
    assert len(codes) == len({tuple(each) for each in codes}) == 16
    rows = [list(row.values()) for row in gx.predict(model, [MANY, INVERTED, BACKWARDS])]
    first, *others = ([row[0].probabilities["active"], row[1].value] for row in rows)
    for other in others:
        assert other == pytest.approx(first, abs=1e-5)


@pytest.mark.parametrize("racemate", list(RACEMATES)[:3])
def test_fragments_pairs_and_trust_are_those_of_the_mean(racemate):
    model = gx.load("lipophilicity")
    parts = gx.fragments(gx.explain(model, racemate), method="shapley")
    ledger = parts.explanation.ledger
    assert ledger.nodes + ledger.biases == pytest.approx(ledger.output, abs=1e-5)
    of_pairs, *isomers = gx.pairs(model, [racemate, *RACEMATES[racemate]])
    mean = np.mean([each.matrix for each in isomers], 0)
    np.testing.assert_allclose(of_pairs.matrix, mean, atol=2e-6)
    signs = gx.trust(model, racemate).signs
    (sign,) = [each for each in signs if each.name == "equivalent inputs"]
    assert sign.level == "good"


def test_every_table_has_the_mean():
    texts = [*RACEMATES, "CCO", "CC(N)c1ccccc1"]
    model = gx.load("bace")
    expected = [next(iter(row.values())) for row in gx.predict(model, texts)]
    for batch in (PredictBatch(model), ExplainBatch(model), PredictBatch((model, "lipophilicity"))):
        rows = batch(texts, range(len(texts)))
        column = next(
            name for name in rows[0] if name.endswith("active") and "inactive" not in name
        )
        shares = [float(row[column]) for row in rows]
        assert shares == pytest.approx([p.probabilities["active"] for p in expected], abs=1e-4)
        for row, prediction in zip(rows, expected, strict=True):
            assert prediction.note in row["note"]
    noted = PredictBatch(model, forms=True)(texts, range(len(texts)))
    assert [row["note"].count("isomers") for row in noted] == [1, 1, 1, 1, 0, 1]


def test_of_several_classes_the_one_that_the_mean_predicts_is_explained():
    """Each isomer alone is predicted to be of another class."""
    tasks = (Task("kind", "multiclass", classes=("a", "b", "c")),)
    torch.manual_seed(1)
    model = Graphormer(replace(gx.load("blood-brain-barrier").config, tasks=tasks)).eval()
    racemate, isomers = next(iter(RACEMATES.items()))
    inputs = [prepare_for(model, smiles).data for smiles in isomers]
    with torch.no_grad():
        outputs = model(model.collate(inputs)).double()  # (2, 3)
        half = (outputs[0] - outputs[1]).float() / 2
        last = [each for each in model.modules() if isinstance(each, torch.nn.Linear)][-1]
        last.bias -= outputs.mean(0).float() + half.abs().max() * torch.tensor([0.0, 0.0, -0.1])
        each = model(model.collate(inputs))
    assert len({*each.argmax(1).tolist(), int(each.mean(0).argmax())}) > 1
    e = gx.explain(model, racemate)
    assert e.prediction.label == "abc"[each.mean(0).argmax()]
    assert e.target.endswith(e.prediction.label)
    assert e.output == pytest.approx(float(each.mean(0).max()), abs=1e-5)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Racemates, and alkanes that have nothing to do with them, as training reads them."""
    path = tmp_path_factory.mktemp("racemates") / "table.csv"
    rows = [*RACEMATES, *("C" * n for n in range(2, 20))]
    lines = [f'"{text}",{k}' for k, text in enumerate(rows)]
    path.write_text("\n".join(["smiles,y", *lines]))
    return clean_table(path, "smiles", ["y"])


def test_training_learns_the_isomers_that_an_answer_is_the_mean_over(learned):
    config = gx.load("blood-brain-barrier").config
    graphs = encode_all(learned.graphs, config)
    for graph, text, label in zip(graphs, RACEMATES, range(len(RACEMATES)), strict=False):
        passes = prepare_for(gx.load("blood-brain-barrier"), text).passes
        each = isomers_of(graph)
        assert [g.x.tolist() for g in each] == [p.graph.x.tolist() for p in passes]
        for g, p in zip(each, passes, strict=True):
            for name in ("edge_attr", "bag_codes", "bag_sizes", "environments"):
                assert torch.equal(g[name], p.graph.get(name))
        assert {float(g.y) for g in each} == {float(label)}
    alkanes = graphs[len(RACEMATES) :]
    assert all(isomers_of(graph) == [graph] for graph in alkanes)


@pytest.mark.parametrize("name", ["bace", "solubility-ph68"])
def test_training_is_scored_by_the_answers_that_users_get(learned, name):
    model = gx.load(name)
    readings = task_readings(model, learned.graphs[: len(RACEMATES)])[0]
    answers = [next(iter(row.values())) for row in gx.predict(model, list(RACEMATES))]
    shown = [p.probabilities["active"] if p.value is None else p.value for p in answers]
    assert readings.tolist() == pytest.approx(shown, abs=1e-5)


def test_every_epoch_draws_one_isomer_and_other_batches_stay_as_they_are():
    sizes = [3, 5, 4, 5, 3, 6, 2, 4]
    single = [[k] for k in range(8)]
    several = [*single[:7], [7, 8, 9, 10]]

    def batches(epoch, isomers):
        sampler = SizeBuckets(sizes, 3, seed=4, isomers=isomers, epoch=lambda: epoch)
        return list(sampler)

    drawn = set()
    for epoch in range(40):
        plain = batches(epoch, ())
        assert batches(epoch, single) == plain
        (isomer,) = {k for batch in batches(epoch, several) for k in batch if k > 6}
        drawn.add(isomer)
        assert [[min(k, 7) for k in batch] for batch in batches(epoch, several)] == plain
    assert drawn == {7, 8, 9, 10}


@pytest.mark.parametrize("racemate", RACEMATES)
def test_a_process_counts_the_structures_of_a_racemate_in_one_way(racemate, learned):
    """However it is handed over, in training and in use, and whichever image is drawn."""
    model = gx.load("solubility-ph68")
    config, parts = gx.load("bace").config, Split((0, 1, 2, 3), (), ())
    part = Source(list(learned.graphs), learned.y, parts, config)
    position = list(RACEMATES).index(racemate)
    trained = np.concatenate([kind[position] for kind in structure_counts(part.train.smiles)])
    image = racemate.translate(str.maketrans("@", "\0"))
    image = image.replace("\0\0", "\1").replace("\0", "@@").replace("\1", "@")
    for given in (racemate, image, Chem.MolFromSmiles(racemate), Chem.MolFromSmiles(image)):
        item = prepare_for(model, given)
        counts = np.bincount(item.graph.count_columns, minlength=len(trained))
        np.testing.assert_array_equal(counts, trained)


def test_published_models_read_one_graph():
    graph = molecule_graph(f"{DIASTEREOMERS} |&1:1,o1:3|", canonical=True, standardise="parent")
    assert graph.get("isomers") is None
    assert not graph.x[:, 1].any()
    config = replace(gx.load("bace").config, ties="floyd")
    assert len(prepare_for(Graphormer(config).eval(), f"{DIASTEREOMERS} |&1:1|").passes) == 1
