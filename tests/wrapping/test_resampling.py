"""The removal operator `resample` draws atoms from a model that learned an obvious rule."""

import json

import pytest
import torch

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.datasets.molecules import molecule_to_data
from graphxai.evaluation import MaskedAtoms, Refit, fit_masked_atoms
from graphxai.models.graphormer import (
    Ensemble,
    Graphormer,
    GraphormerConfig,
    collate,
    save_checkpoint,
)
from graphxai.wrapping.removal import Resampling, operators_for, outputs_of_many, outputs_of_parts
from other_models import GpsModel
from toy import random_graphormer

CHAINS = ["CS" * (k // 2) + "C" * (k % 2) for k in range(4, 10)]  # carbon and sulfur take turns
CHAINS += ["CO" * (k // 2) + "C" * (k % 2) for k in range(4, 10)]  # or carbon and oxygen


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1, hidden_dim=16, ffn_dim=16, num_heads=2)


@pytest.fixture(scope="module")
def atoms(model):
    return fit_masked_atoms(model, CHAINS * 8, epochs=40, held_out=0, data="chains")


def test_a_share_of_the_graphs_is_held_out_and_the_model_is_measured_on_them(model):
    """A tenth of 20 is 2; the accuracy counts atoms that the network has not seen."""
    graphs = (CHAINS * 2)[:20]
    card = fit_masked_atoms(model, graphs, epochs=1, held_out=0.1).card
    assert (card["graphs"], card["held_out"]["graphs"]) == (18, 2)
    assert len(card["held_out"]) > 1
    card = fit_masked_atoms(model, graphs, epochs=1, held_out=0).card
    assert (card["graphs"], card["held_out"]) == (20, {"graphs": 0})


@pytest.mark.parametrize("held_out", [-0.1, 1, 1.5])
def test_all_of_the_graphs_cannot_be_held_out(model, held_out):
    with pytest.raises(ValueError, match=r"held_out \(.*\) in \[0, 1\)"):
        fit_masked_atoms(model, CHAINS, epochs=1, held_out=held_out)


def test_too_few_graphs_to_learn_from_are_counted(model):
    with pytest.raises(ValueError, match="12 usable graphs are too few"):
        fit_masked_atoms(model, CHAINS, epochs=1, held_out=0)


def encoded(model, smiles):
    return prepare_for(model, smiles).data


def drawn(atoms, model, smiles, keep, draws=6, seed=0):
    """Return the elements (draws, N) after the atoms that do not stay were drawn."""
    data = encoded(model, smiles)
    batch = collate([data])
    sampler = atoms.sampler(batch, [data], draws, seed)
    redrawn, _, place = sampler(torch.zeros(1, dtype=torch.long), keep[None])
    return redrawn.x[place[:, 0], :, 0] + 1


def test_atoms_are_drawn_that_suit_those_that_stay(model, atoms):
    """Sulfur belongs between carbons that alternate with it, and oxygen next to oxygen."""
    keep = torch.ones(8, dtype=torch.bool)
    keep[4:6] = False
    for smiles, elements in (("CSCSCSCS", [6, 16]), ("COCOCOCO", [6, 8])):
        elements_drawn = drawn(atoms, model, smiles, keep)
        assert (elements_drawn[:, keep] == elements_drawn[0, keep]).all()
        share = (elements_drawn[:, 4:6] == torch.tensor(elements)).float().mean()
        assert share > 0.8


def test_one_seed_draws_the_same_and_another_does_not(model, atoms):
    nothing = torch.zeros(9, dtype=torch.bool)
    first = drawn(atoms, model, "CSCSCSCSC", nothing, draws=20)
    torch.rand(3)  # the caller's own random numbers play no part
    assert torch.equal(first, drawn(atoms, model, "CSCSCSCSC", nothing, draws=20))
    assert not torch.equal(first, drawn(atoms, model, "CSCSCSCSC", nothing, draws=20, seed=1))
    assert {8, 16} <= set(first.flatten().tolist())  # all is hidden, so both kinds of chain occur


def test_the_output_is_the_mean_over_the_molecules_drawn(model, atoms):
    data = encoded(model, "CSCSCSC")
    keep = torch.tensor([[True] * 7, [True] * 3 + [False] * 4])
    actual = outputs_of_parts(model, data, keep, "resample", Resampling(atoms, draws=5))
    torch.testing.assert_close(actual[:1], model(collate([data])).detach(), atol=1e-5, rtol=1e-5)
    sampler = atoms.sampler(collate([data]), [data], 5, 0)
    batch, _, place = sampler(torch.zeros(1, dtype=torch.long), keep[1:])
    outputs = []
    for row in place[:, 0]:
        other = data.clone()
        other.x = batch.x[row]
        outputs.append(model(collate([other])).detach())
    torch.testing.assert_close(actual[1:], torch.stack(outputs).mean(0), atol=1e-5, rtol=1e-5)


def test_a_graph_in_a_batch_is_measured_as_it_is_alone(model, atoms, monkeypatch):
    graphs = [encoded(model, smiles) for smiles in ("CSCSCSCSCS", "COC", "CSCOC")]
    generator = torch.Generator().manual_seed(1)
    keeps = [torch.rand(6, len(g.x), generator=generator) < 0.5 for g in graphs]
    how = Resampling(atoms, draws=3)
    together = outputs_of_many(model, graphs, keeps, "resample", how)
    monkeypatch.setattr("graphxai.contract.batching.CACHED_PAIRS", 1)
    for data, keep, outputs in zip(graphs, keeps, together, strict=True):
        alone = outputs_of_parts(model, data, keep, "resample", how)
        torch.testing.assert_close(outputs, alone, atol=1e-5, rtol=1e-4)
    both = Ensemble([model, model])
    of_both = outputs_of_many(both, graphs, keeps, "resample", how)
    torch.testing.assert_close(of_both[0], together[0], atol=1e-5, rtol=1e-4)


def test_molecules_drawn_share_passes_only_as_far_as_their_pairs_fit(model, atoms, monkeypatch):
    data, pairs = encoded(model, "CSCSCSC"), 8**2  # with the graph token
    keep = torch.zeros(1, 7, dtype=torch.bool)
    monkeypatch.setattr("graphxai.contract.batching.CACHED_PAIRS", 4 * pairs)
    rows, encode = [], type(model).encode

    def noted(self, tokens, *args, **options):
        rows.append(len(tokens))
        return encode(self, tokens, *args, **options)

    monkeypatch.setattr(type(model), "encode", noted)
    outputs_of_parts(model, data, keep, "resample", Resampling(atoms, draws=40))
    assert sum(rows) > 8
    assert max(rows) == 4


def test_a_benchmark_takes_the_operator_from_beside_the_checkpoint(model, atoms, tmp_path):
    folder = save_checkpoint(model, tmp_path / "toy")
    loaded = gx.load(folder)
    assert "resample" not in operators_for(loaded)
    with pytest.raises(ValueError, match="graphxai fit-masked-atoms --model FOLDER"):
        gx.evaluate(loaded, CHAINS[:2], ["lrp"], operators="resample", progress=False)
    atoms.save(folder)
    assert "resample" in operators_for(loaded)
    options = {"operators": "all", "progress": False, "steps": 4}
    options["target"] = gx.Target("active", "activity")
    report = gx.evaluate(loaded, CHAINS[:3], ["gradient_input"], **options)
    assert report.operators == ("mask", "zero", "delete", "resample")
    assert report.settings["resampling"]["atoms"] == atoms.digest[:12]
    masked = gx.evaluate(loaded, CHAINS[:3], ["gradient_input"], **options | {"operators": "mask"})
    assert report.values("srg", "mask")["gradient_input"].tolist() == pytest.approx(
        masked.values("srg")["gradient_input"].tolist(), abs=1e-6
    )
    again = gx.evaluate(loaded, CHAINS[:3][::-1], ["gradient_input"], **options)
    first, second = (run.values("auac", "resample")["gradient_input"] for run in (report, again))
    assert first.tolist() == pytest.approx(second[::-1].tolist(), abs=1e-6)


def test_the_files_are_read_back_and_others_are_refused(model, atoms, tmp_path):
    atoms.save(tmp_path)
    loaded = MaskedAtoms.load(tmp_path)
    assert loaded.card == atoms.card
    assert loaded.digest == atoms.digest
    nothing = torch.zeros(8, dtype=torch.bool)
    expected = drawn(atoms, model, "CSCSCSCS", nothing)
    assert torch.equal(expected, drawn(loaded, model, "CSCSCSCS", nothing))
    card = tmp_path / "masked_atoms.json"
    content = json.loads(card.read_text())
    for structure in ({}, content["structure"] | {"node_cardinalities": [10**9]}):
        card.write_text(json.dumps(content | {"structure": structure}))
        with pytest.raises(ValueError, match="cannot be read"):
            MaskedAtoms.load(tmp_path)
    for structure in (None, {}, {"hidden_dim": 8}):
        card.write_text(json.dumps(content | {"structure": structure}))
        with pytest.raises(ValueError, match="does not say what the structure is"):
            MaskedAtoms.load(tmp_path)
    card.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="cannot be read as masked atoms"):
        MaskedAtoms.load(tmp_path)
    card.write_text(json.dumps(content))
    (tmp_path / "masked_atoms.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(ValueError, match="it is not the network"):
        MaskedAtoms.load(tmp_path)
    with pytest.raises(ValueError, match="no such file"):
        MaskedAtoms.load(tmp_path / "nowhere")


def test_what_cannot_be_drawn_is_refused_with_a_way_out(model, atoms):
    data = molecule_to_data("CCO")
    data.x, data.edge_attr = data.x.float(), data.edge_attr.float()
    wrapped = gx.wrap(GpsModel().eval(), kind="regression")
    with pytest.raises(ValueError, match="use 'mask', 'zero' or 'delete'"):
        gx.evaluate(wrapped, [data], ["random"], operators="resample")
    with pytest.raises(TypeError, match="wrapped model"):
        fit_masked_atoms(wrapped, [data])
    digits = Graphormer(GraphormerConfig(tasks=model.config.tasks[:1], num_node_features=1))
    with pytest.raises(ValueError, match="continuous features"):
        Resampling(atoms).of(digits)
    with pytest.raises(ValueError, match="continuous features"):
        fit_masked_atoms(digits, [])
    with pytest.raises(ValueError, match="too few to learn from"):
        fit_masked_atoms(model, ["CCO"])
    other = random_graphormer(num_layers=1, max_distance=9)
    with pytest.raises(ValueError, match="another max_distance"):
        Resampling(atoms).of(other)
    with pytest.raises(ValueError, match="not by 'resample'"):
        gx.evaluate(
            model, ["CCO"], ["random"], operators="resample", resampling=Resampling(atoms),
            refit=Refit("roar", ["CCO"], [1]),
        )  # fmt: skip


def test_the_command_fits_to_a_table(model, tmp_path, run):
    folder = save_checkpoint(model, tmp_path / "toy")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["smiles", *CHAINS * 2]) + "\n")
    code, _, printed = run("fit-masked-atoms", table, "--model", folder, "--epochs", 1)
    assert code == 0
    assert "--operators resample" in printed
    assert MaskedAtoms.load(folder).card["data"] == "table.csv"
    code, _, error = run("fit-masked-atoms", "--model", folder)
    assert code
    assert "give a table of molecules" in error
