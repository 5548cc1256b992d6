"""Several Graphormers are one model, which has means, their spread, and files."""

import copy
import json
import re

import numpy as np
import pytest
import torch

import graphxai as gx
from graphxai.contract.intervals import Conformal
from graphxai.contract.tasks import Task
from graphxai.datasets.samples import digit_paths
from graphxai.explainers import get_explainer
from graphxai.explanation.comparison import side_by_side
from graphxai.models.graphormer import (
    CheckpointError,
    Ensemble,
    checkpoint_digest,
    load_checkpoint,
    load_ensemble,
    save_checkpoint,
    save_ensemble,
)
from graphxai.tables.card import view_facts
from graphxai.visualization import Scale
from graphxai.visualization.color import signed
from graphxai.visualization.layout import averaged
from graphxai.wrapping.removal import outputs_of_parts
from toy import random_graphormer

DIGITS = (Task("digit", "multiclass", ("a", "b", "c")),)


def members(noise=0.03, **changes):
    """Return three models of one configuration, each with weights of its own."""
    graphormers = [random_graphormer(num_layers=2, **changes) for _ in range(3)]
    torch.manual_seed(0)
    with torch.no_grad():
        for model in graphormers:
            for parameter in model.parameters():
                parameter.add_(noise * torch.randn_like(parameter))
    return graphormers


@pytest.fixture
def model():
    return Ensemble(members()).eval()


def test_a_prediction_is_the_mean_of_the_outputs(model, smiles):
    alone = [[p["pIC50"].value for p in gx.predict(member, smiles)] for member in model.members]
    values = [p["pIC50"].value for p in gx.predict(model, smiles)]
    assert values == pytest.approx(np.mean(alone, axis=0).tolist(), rel=1e-5)


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "gae", "occlusion", "lrp_path"])
def test_relevance_is_the_mean_over_the_members_with_its_spread(model, smiles, method):
    alone = [gx.explain(member, smiles, method, target="active") for member in model.members]
    for k, e in enumerate(gx.explain(model, smiles, method, target="active")):
        each = np.stack([explanations[k].relevance for explanations in alone])
        np.testing.assert_allclose(e.members, each, atol=1e-6)
        np.testing.assert_allclose(e.relevance, each.mean(0), atol=1e-6)
        np.testing.assert_allclose(e.spread, each.std(0, ddof=1), atol=1e-6)
        mean = np.mean([explanations[k].output for explanations in alone])
        assert e.output == pytest.approx(mean, abs=1e-5)


def test_the_ledger_closes_and_says_what_no_nodes_give(model, smiles):
    for e in gx.explain(model, smiles):
        assert e.ledger.unexplained == pytest.approx(0, abs=1e-4)
        alone = [gx.explain(member, e.smiles).without_nodes for member in model.members]
        assert e.without_nodes == pytest.approx(np.mean(alone), abs=1e-5)


def test_all_members_are_explained_for_the_class_that_the_ensemble_predicts(smiles):
    model = Ensemble(members(0.3, tasks=DIGITS)).eval()
    explanations = gx.explain(model, smiles)
    for e in explanations:
        label = e.prediction.label
        each = [gx.explain(member, e.smiles, target=label).relevance for member in model.members]
        np.testing.assert_allclose(e.relevance, np.mean(each, axis=0), atol=1e-6)
    votes = {
        gx.predict(member, e.smiles)["digit"].label
        for member in model.members
        for e in explanations
    }
    assert len(votes) > 1


def test_nodes_of_either_sign_are_contested_and_pale(model):
    e = gx.explain(model, "CC(=O)Oc1ccccc1C(=O)O")
    signs = [len({np.sign(value) for value in column}) > 1 for column in e.members.T]
    assert e.contested.tolist() == signs
    assert 0 < sum(signs) < len(e)
    unsettled = f"{sum(signs)} of {len(e)} atoms"
    picture = e.svg()
    assert f"models disagree on the sign of {unsettled} (pale)" in picture
    disc = r'<circle data-atom="(\d+)"[^>]*?fill="(#\w+)"([^>]*)><title>\w+ \d+: (.*?)<'
    discs = re.findall(disc, picture)
    shown = averaged(e.relevance, e.equivalent)
    for (atom, color, edge, words), doubtful, value in zip(discs, signs, shown, strict=True):
        assert ("dasharray" in edge) == doubtful, atom
        assert color == e.scale().hex(value / 3 if doubtful else value)[0]
        assert words == signed(value)  # of the mean, however pale
    assert "dasharray" not in e.svg(pale=())
    assert "pale: models disagree on the sign" in gx.grid([e, e]).svg()
    assert view_facts(e)["pale"] == [k for k, doubtful in enumerate(signs) if doubtful]
    assert "pale" not in view_facts(gx.explain(model.members[0], e.smiles))
    of_fragments = gx.fragments(e, method="shapley", model=model, graph=e.smiles).explanation
    assert "disagree" not in of_fragments.svg()  # its scores are not those that models disagree on
    assert "disagree" not in gx.explain(model.members[0], e.smiles).svg()
    assert "standard deviation over 3 models" in e.spread_note
    assert e.to_frame()["contested"].tolist() == signs
    agreed = [
        np.mean([v * r > 0 for v in c]) for c, r in zip(e.members.T, e.relevance, strict=True)
    ]
    assert e.to_frame()["agreement"].tolist() == pytest.approx(agreed)
    assert e.agreement.min() >= 1 / 3
    assert (e.agreement[~e.contested] == 1).all()
    assert gx.explain(model.members[0], "CCO").agreement is None
    assert np.allclose(e.to_dict()["members"], e.members)


@pytest.mark.parametrize("operator", ["mask", "zero", "delete"])
def test_nodes_are_removed_from_every_member(model, operator):
    report = gx.evaluate(model, ["CCO", "CC(=O)O"], ["lrp"], operators=[operator])
    assert np.isfinite(report.values("auac", operator)["lrp"]).all()
    data = model.prepare("CC(=O)O").data
    keep = torch.tensor([[True, False, True, True], [False, False, False, True]])
    each = [outputs_of_parts(member, data, keep, operator) for member in model.members]
    torch.testing.assert_close(
        outputs_of_parts(model, data, keep, operator), torch.stack(each).mean(0)
    )


def test_tokens_side_by_side_give_the_same_outputs(model, smiles):
    batch = model.collate([model.prepare(s).data for s in smiles])
    keep = batch.mask & (torch.arange(batch.mask.shape[1]) % 3 > 0)
    with torch.no_grad():
        torch.testing.assert_close(model.encode(model.embed(batch), batch), model(batch))
        outputs = model.encode(model.embed(batch), batch, keep)
        each = [member.encode(member.embed(batch), batch, keep) for member in model.members]
    torch.testing.assert_close(outputs, torch.stack(each).mean(0))


def test_what_was_saved_is_loaded(model, tmp_path):
    model.conformal = {"pIC50": Conformal({"": [0.5] * 20}, 1.0)}
    folder = save_ensemble(model, tmp_path / "run" / "model", metadata={"summary": "toy"})
    loaded = gx.load(tmp_path / "run")
    assert isinstance(loaded, Ensemble)
    assert not loaded.training
    assert (loaded.origin.name, loaded.origin.metadata) == ("run", {"summary": "toy"})
    again = load_ensemble(folder)
    assert again.origin.sha256 == loaded.origin.sha256 != loaded.members[0].origin.sha256
    assert again.origin.sha256 == checkpoint_digest(folder)  # as read from the files alone
    assert loaded.conformal["pIC50"].scores == model.conformal["pIC50"].scores
    assert (
        gx.explain(loaded, "CCO").relevance.tolist() == gx.explain(model, "CCO").relevance.tolist()
    )
    assert gx.predict(loaded, "CCO")["pIC50"].interval is not None


@pytest.mark.parametrize("count", [0, -1, 51, "2", 2.0, None, True])
def test_a_wrong_number_of_members_is_named(model, tmp_path, count):
    save_ensemble(model, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text()) | {"members": count}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / "config.json"))):
        gx.load(tmp_path)


def test_missing_and_unlike_members_are_named(model, tmp_path):
    save_ensemble(model, tmp_path)
    (tmp_path / "members" / "2" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        gx.load(tmp_path)
    save_checkpoint(random_graphormer(), tmp_path / "members" / "2")
    with pytest.raises(CheckpointError, match="one configuration"):
        gx.load(tmp_path)


def test_what_starts_from_one_network_is_told_of_the_members(model, tmp_path):
    save_ensemble(model, tmp_path)
    with pytest.raises(CheckpointError, match="ensemble: name one of its members"):
        load_checkpoint(tmp_path)


def test_what_reads_one_networks_attention_names_the_members(model):
    with pytest.raises(TypeError, match="members/0"):
        gx.fit_explainer(model, ["CCO"] * 20)
    assert not get_explainer("learned").applies_to(model)


@pytest.mark.parametrize("num_layers", [None, 1])
def test_pairs_are_means_over_the_members(smiles, num_layers):
    model = Ensemble(members(0.3, tasks=DIGITS)).eval()
    for pairs in gx.pairs(model, smiles, num_layers=num_layers):
        e = pairs.explanation
        each = [
            gx.pairs(member, e.smiles, num_layers=num_layers, target=e.prediction.label).by_layer
            for member in model.members
        ]
        np.testing.assert_allclose(pairs.by_layer, np.mean(each, axis=0), atol=1e-6)


def test_contrasts_and_counterfactuals_are_pale_where_the_models_disagree(model):
    """A difference is pale where the models disagree on the sign of the difference."""
    contrast = gx.contrast(model, "CC(=O)Oc1ccccc1C(=O)O", "CC(=O)Nc1ccccc1C(=O)O")
    a, b = contrast.a, contrast.b
    doubtful = [a.contested, b.contested]
    for i, j in contrast.part.same.tolist():
        gaps = a.members[:, i] - b.members[:, j]
        doubtful[0][i] = doubtful[1][j] = len({*np.sign(gaps)}) > 1
    assert 0 < sum(map(sum, doubtful)) < len(a) + len(b)
    dashed = contrast.svg().count("dasharray")
    assert dashed == sum(map(sum, doubtful))
    of_each = contrast.svg(difference=False)
    assert of_each.count("dasharray") == a.contested.sum() + b.contested.sum()
    assert "pale: models disagree on the sign" in of_each
    alone = gx.contrast(model.members[0], a.smiles, b.smiles)
    assert "dasharray" not in alone.svg()
    assert "disagree" not in alone.svg()


def test_superpixels_side_by_side_are_pale_where_the_models_disagree():
    bundled = gx.load("mnist-superpixels")
    digits = [copy.deepcopy(bundled) for _ in range(2)]
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in digits[1].parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    e = gx.explain(Ensemble(digits).eval(), digit_paths()[3])
    assert 0 < e.contested.sum() < len(e)
    row = side_by_side([e]).svg()
    assert "pale: models disagree on the sign" in row
    scale = Scale.fit(e.relevance)
    for segment in (int(e.contested.argmax()), int(e.contested.argmin())):
        value = e.relevance[segment] / (3 if e.contested[segment] else 1)
        color = f'fill="{scale.hex(value)[0]}"'
        path = re.search(rf"<path ([^>]*)><title>superpixel {segment}: ", row)
        assert path is not None
        assert color in path[1]
