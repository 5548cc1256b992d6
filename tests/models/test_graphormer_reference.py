"""Published Graphormer code and ours give the same numbers, from the same weights."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save_file
from torch_geometric.data import Data

from graphxai.explainers import get_explainer
from graphxai.models.graphormer import StructureEncoding, collate, load_huggingface
from graphxai.rules.conservative import record

VARIANTS = ("postln", "preln", "ms_v1")
MOLECULES = (
    "methane",
    "ethanol",
    "aspirin",
    "caffeine",
    "verubecestat",
    "sodium_acetate",
    "tempo",
)
METHODS = {
    "gradient_input": "gi",
    "lrp_ah": "lrp_ah",
    "lrp_ln": "lrp_ln",
    "lrp_ah_ln": "lrp_ahln",
    "rollout": "rollout",
    "attention_last": "attn_last",
    "gae": "gae",
}
REFERENCE = Path(__file__).parents[1] / "data" / "reference"


def encoded(model, inputs):
    data = Data(
        x=torch.from_numpy(inputs["node_feat"]),
        edge_index=torch.from_numpy(inputs["edge_index"]),
        edge_attr=torch.from_numpy(inputs["edge_feat"]),
        num_nodes=len(inputs["node_feat"]),
    )
    return StructureEncoding.from_config(model.config)(data)


def token_scores(attribution):
    tokens = torch.cat([attribution.graph_token[:, None], attribution.relevance], dim=1)
    return tokens[0].numpy()


def weights(variant):
    return load(gzip.decompress((REFERENCE / variant / "model.safetensors.gz").read_bytes()))


def published_model(folder, variant, tensors):
    """Load the model that a folder with these tensors holds, in which all pairs attend."""
    (folder / "config.json").write_bytes((REFERENCE / variant / "config.json").read_bytes())
    save_file(tensors, folder / "model.safetensors")
    return load_huggingface(folder, spatial_pos_max=1024)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return {
        variant: published_model(tmp_path_factory.mktemp(variant), variant, weights(variant))
        for variant in VARIANTS
    }


@pytest.mark.parametrize("molecule", MOLECULES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_network_equals_published_code(published, variant, molecule):
    model = published[variant]
    expected = np.load(REFERENCE / variant / "outputs" / f"{molecule}.npz")
    batch = collate([encoded(model, np.load(REFERENCE / "inputs" / f"{molecule}.npz"))])
    with torch.no_grad(), record(all_queries=True) as tape:
        tokens = model.embed(batch)
        logits = model.encode(tokens, batch)
        bias = model.bias(batch)
    by_name = {
        "node_embedding": tokens[0],
        "attn_bias_full": bias[0],
        "hidden_states": torch.stack(tape.hidden)[:, 0],
        "attn": torch.stack(tape.attention)[:, 0],
        "logits": logits[0],
    }
    for name, value in by_name.items():
        np.testing.assert_allclose(value.numpy(), expected[name], atol=1e-5, err_msg=name)
    with torch.no_grad():  # the read-out alone, as in every forward pass
        np.testing.assert_allclose(model(batch)[0].numpy(), expected["logits"], atol=1e-5)


@pytest.mark.parametrize("molecule", MOLECULES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_relevance_equals_published_code(published, variant, molecule):
    model = published[variant]
    expected = np.load(REFERENCE / variant / "outputs" / f"{molecule}.npz")
    batch = collate([encoded(model, np.load(REFERENCE / "inputs" / f"{molecule}.npz"))])
    target = int(expected["target"])
    for method, name in METHODS.items():
        relevance = token_scores(get_explainer(method).attribute(model, batch, target))
        np.testing.assert_allclose(relevance, expected[name], atol=1e-5, err_msg=method)


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_molecules_in_one_batch_equal_published_code(published, variant):
    model = published[variant]
    batch = collate(
        [encoded(model, np.load(REFERENCE / "inputs" / f"{name}.npz")) for name in MOLECULES]
    )
    for class_index in (0, 1):
        attribution = get_explainer("lrp_ah_ln").attribute(model, batch, class_index)
        for row, name in enumerate(MOLECULES):
            expected = np.load(REFERENCE / variant / "outputs" / f"{name}.npz")
            scores = expected["lrp_ahln_all"][class_index]
            relevance = attribution.relevance[row, : len(scores) - 1]
            np.testing.assert_allclose(relevance.numpy(), scores[1:], atol=1e-5)
            np.testing.assert_allclose(attribution.graph_token[row].item(), scores[0], atol=1e-5)


def small_cases():
    return json.loads((REFERENCE / "expected.json").read_text())


@pytest.mark.parametrize("case", small_cases(), ids=lambda case: case["name"])
def test_small_published_model_gives_the_recorded_numbers(case, tmp_path):
    """This also holds with a LayerNorm after the embedding."""
    tensors = weights(case["variant"])
    for kind, values in case.get("embedding_layernorm", {}).items():
        tensors[f"encoder.graph_encoder.emb_layer_norm.{kind}"] = torch.tensor(values)
    model = published_model(tmp_path, case["variant"], tensors)
    inputs = {name: np.array(value, dtype=np.int64) for name, value in case["inputs"].items()}
    inputs["edge_index"] = inputs["edge_index"].reshape(2, -1)
    inputs["edge_feat"] = inputs["edge_feat"].reshape(-1, 3)
    batch = collate([encoded(model, inputs)])
    with torch.no_grad():
        np.testing.assert_allclose(model(batch)[0].numpy(), case["logits"], atol=1e-5)
    for method, expected in case["relevance"].items():
        relevance = token_scores(get_explainer(method).attribute(model, batch, case["target"]))
        np.testing.assert_allclose(relevance, expected, atol=1e-5, err_msg=method)
