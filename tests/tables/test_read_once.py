"""A panel of models reads each molecule once, and predicts what each model predicts alone."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.contract.intervals import ALIKE, VALUES, Conformal
from graphxai.datasets import fingerprints, molecules, training_set
from graphxai.explanation import prediction
from graphxai.explanation.compute import models as loading
from graphxai.explanation.ledger import Ledger
from graphxai.models.graphormer import StructureEncoding
from graphxai.tables.batches import ExplainBatch, PredictBatch

MODELS = ("bace", "solubility", "lipophilicity", "tox21")
PROCESSES = ("mdr1-efflux", "hlm-clearance")
SMILES = [
    *("CCO", "C[C@H](N)C(=O)O", "CC(=O)[O-].[Na+]", "C1CC", "[2H]OC", "CCO"),
    "CC(C)(C)NC[C@H](O)c1ccc(O)c(CO)c1",
]
SIZES = (  # of 11, 22, 34 and 70 atoms
    *("NCCc1ccc(O)cc1O", "COc1ccc(CCNC(=O)c2ccccc2Cl)c(F)c1O"),
    *("CCOC(=O)" + "CC(=O)N" * 7 + "C", "CC(=O)N" * 17 + "CC"),
)
NUMBERS = list(range(len(SMILES)))
LIBRARY = f"{Path(gx.__file__).parent}/"


@pytest.fixture
def featurised(monkeypatch) -> list[str]:
    """Return a list that gets every molecule whose features are computed."""
    given: list[str] = []
    featurise = molecules.featurise

    def counted(smiles, **reading):
        given.extend(smiles := list(smiles))
        return featurise(smiles, **reading)

    monkeypatch.setattr(molecules, "featurise", counted)
    return given


@pytest.fixture
def calls(monkeypatch) -> Counter[str]:
    """Return how often what several models could share is computed, by its name."""
    described = (training_set, "_described"), (fingerprints, "structure_occurrences")
    return _counted(
        monkeypatch, (StructureEncoding, "_add_structure"), *described, (loading, "load")
    )


def _counted(monkeypatch, *places) -> Counter[str]:
    """Return how often each function, given with its owner, is called from now on."""
    made: Counter[str] = Counter()

    def count(place, name):
        function = getattr(place, name)

        def counted(*args, **keywords):
            made[name] += 1
            return function(*args, **keywords)

        monkeypatch.setattr(place, name, counted)

    for place, name in places:
        count(place, name)
    return made


def test_each_molecule_is_read_once_for_all_models(featurised):
    PredictBatch((*MODELS, *PROCESSES))(SMILES, NUMBERS)
    assert sorted(featurised) == sorted(set(SMILES))


@pytest.mark.filterwarnings("ignore")  # which tell of the SMILES that cannot be read
def test_predict_reads_each_molecule_once_for_all_models(featurised):
    gx.predict([*MODELS, *PROCESSES], SMILES)
    assert sorted(featurised) == sorted(set(SMILES))


def test_structures_and_fingerprints_are_computed_once_and_models_are_kept(calls):
    plain = ["CCO", "C[C@H](N)C(=O)O", "CC(C)(C)NCC(O)c1ccc(O)c(CO)c1"]
    encodings = {StructureEncoding.from_config(gx.load(name).config).settings for name in MODELS}
    PredictBatch((*MODELS, *PROCESSES))(plain, [0, 1, 2])  # reads the training sets
    calls.clear()
    PredictBatch((*MODELS, *PROCESSES))(plain, [0, 1, 2])
    assert calls == {
        "_add_structure": len(encodings) * len(plain),
        "_described": len(plain),
        "structure_occurrences": len(plain),
    }


@pytest.mark.parametrize("model", ["bace", "lipophilicity", "tox21"])
@pytest.mark.parametrize("batch", [PredictBatch, ExplainBatch])
def test_a_row_is_parsed_once_and_computes_nothing_that_all_rows_share(batch, model, monkeypatch):
    batch(model)(SIZES, range(4))
    training_set._canonical.cache_clear()  # the nearest compounds, of which no row shows one
    of_all = (StructureEncoding, "__post_init__"), (prediction, "property_columns")
    made = _counted(monkeypatch, (Chem, "MolFromSmiles"), *of_all, (Ledger, "to_dict"))
    batch(model)(SIZES[:1], [0])
    of_one = dict(made)
    assert of_one.pop("MolFromSmiles") == 1
    made.clear()
    batch(model)(SIZES, range(4))
    assert made.pop("MolFromSmiles") == 4
    assert made == of_one


CALLS_OF_ROWS = (  # the most calls of our own functions that a row may take
    *((PredictBatch, "bace", 205), (PredictBatch, "lipophilicity", 190)),
    *((PredictBatch, "tox21", 500), (ExplainBatch, "bace", 300)),
    *((ExplainBatch, "lipophilicity", 285), (ExplainBatch, "tox21", 570)),
)


@pytest.mark.parametrize(("batch", "model", "most"), CALLS_OF_ROWS)
def test_a_row_takes_few_calls(batch, model, most):
    work = batch(model)
    smiles = _spellings(8)
    work(smiles, range(32))
    of_one = _own_calls(lambda: work(smiles[:1], [0]))
    of_all = _own_calls(lambda: work(smiles, range(32)))
    assert of_all - of_one < 31 * most


@pytest.mark.parametrize(("batch", "most"), [(PredictBatch, 30), (ExplainBatch, 30)])
def test_a_row_keeps_few_objects(batch, most):
    work = batch("bace")
    smiles = _spellings(8)
    for _ in range(2):
        work(smiles, range(32))
    gc.collect()
    before = sys.getallocatedblocks()
    rows = work(smiles, range(32))
    gc.collect()
    assert sys.getallocatedblocks() - before < 32 * most
    assert len(rows) == 32


@pytest.mark.parametrize(("function", "most"), [(gx.predict, 750), (gx.explain, 985)])
def test_one_molecule_takes_few_calls(function, most):
    model = gx.load("bace")
    for _ in range(2):
        function(model, SIZES[1])
    assert _own_calls(lambda: function(model, SIZES[1])) < most


def _spellings(count: int) -> list[str]:
    """Return molecules of four sizes, each in this many spellings."""
    mols = [Chem.MolFromSmiles(smiles) for smiles in SIZES]
    return [
        spelling
        for mol in mols
        for spelling in Chem.MolToRandomSmilesVect(mol, count, randomSeed=1)
    ]


def _own_calls(run: Callable[[], object]) -> int:
    """Return how many functions of the library are called in a run."""
    made = 0

    def count(frame, event, _):
        nonlocal made
        if event == "call" and frame.f_code.co_filename.startswith(LIBRARY):
            made += 1

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return made


def test_no_smiles_is_written_to_know_a_training_compound_by_its_own(monkeypatch):
    training = training_set.training_set_of(gx.load("bace"))
    smiles = training.written[0]
    mol = Chem.MolFromSmiles(smiles)
    assert training.nearness(mol) == training.nearness(mol, smiles=smiles)
    made = _counted(monkeypatch, (Chem, "MolToSmiles"))
    assert training.nearness(mol, smiles=smiles).word == "training compound"
    assert not made


def test_the_score_of_a_class_is_looked_up_once_for_all_rows():
    conformal = Conformal({"a": [0.1, 0.3, 0.2], "b": [0.5]})
    sets = [conformal.classes({"a": share, "b": 1 - share}, 0.5, 0.5) for share in (0.5, 0.6, 0.9)]
    assert sets == [("a", "b"), ("a", "b"), ("a",)]
    assert conformal._quantiles == {("a", 0.5, None): 0.2, ("b", 0.5, None): 0.5}


def test_rows_that_are_equally_near_look_up_their_score_once(monkeypatch):
    errors = [k / 1000 for k in range(2 * ALIKE)]
    conformal = Conformal({VALUES: errors}, similarity=errors)
    made = _counted(monkeypatch, (Conformal, "_alike"))
    ends = [conformal.interval(0.0, near)[1] for near in (0.0, 0.3, 0.0, 0.3)]
    assert ends[:2] == ends[2:]
    assert ends[0] < ends[1]
    assert made["_alike"] == 2


def test_models_that_read_in_different_ways_read_for_themselves(featurised):
    PredictBatch((gx.load("bace"), gx.load("solubility", as_drawn=True)))(SMILES, NUMBERS)
    assert sorted(featurised) == sorted([*set(SMILES)] * 2)


def test_a_panel_predicts_what_each_model_predicts_alone():
    panel = PredictBatch((*MODELS, *PROCESSES))(SMILES, NUMBERS)
    for name in (*MODELS, *PROCESSES):
        for together, alone in zip(panel, PredictBatch(name)(SMILES, NUMBERS), strict=True):
            assert together["smiles"] == alone["smiles"]
            predicted = alone.keys() & together.keys() - {"note"}
            assert {key: together[key] for key in predicted} == {
                key: alone[key] for key in predicted
            }
