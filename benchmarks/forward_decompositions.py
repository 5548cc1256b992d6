"""Do forward decompositions order the nodes better than `lrp`? ALTI and DecompX, on Graphormers.

    python benchmarks/forward_decompositions.py

Both follow what each token contributed to the state of every other one, layer by layer, which costs
a forward pass per token. ALTI (Ferrando 2022, equations 8 to 11) compares contributions within a
layer by their L1 norms and multiplies the layers. DecompX (Modarressi 2023) carries them to the
output; biases are a part of their own ("kept apart"), or go to the tokens in proportion to
|contribution . bias| or to the norm of the contribution. Prints the table of
`forward_decompositions.md`, for validation graphs of the bundled models.
"""

from typing import Any, Literal

import torch
from learned_explainer import SEED, part_of
from torch import Tensor

import graphxai as gx
from graphxai.contract.batch import GraphBatch
from graphxai.contract.target import Target
from graphxai.evaluation.statistics import bootstrap
from graphxai.models.graphormer import Graphormer
from graphxai.rules.conservative import Tape, record

MODELS = {"bace": 60, "mnist-superpixels": 24}
MEASURES = ("auac", "au_mse", "srg")
Biases = Literal["kept apart", "by product", "by norm"]


def states(model: Graphormer, batch: GraphBatch) -> tuple[Tape, Tensor]:
    """The states that enter each layer and the attention of a pre-LN model, and the outputs."""
    if not model.config.pre_layernorm:
        raise NotImplementedError("written for pre-LN, as the bundled models are.")
    with torch.no_grad(), record(all_queries=True) as tape:
        outputs = model.encode(model.embed(batch), batch)
    return tape, outputs


def apart(x: Tensor) -> Tensor:
    """Each token's own part of x (B, T, D): (B, T, S, D), of token s at token t."""
    return torch.diag_embed(x.transpose(1, 2)).permute(0, 2, 3, 1)


def alti(model: Graphormer, batch: GraphBatch, target: Target) -> Tensor:
    """Share of each node in the graph token's last state, (B, N)."""
    tape, _ = states(model, batch)
    row: Tensor | None = None
    with torch.no_grad():
        layers = list(zip(model.layers, tape.hidden, tape.attention, strict=False))
        for layer, x, weights in reversed(layers):
            attention: Any = layer.attention
            values = attention._split(attention.value(layer.attention_norm(x)))  # (B, H, T, d)
            out = attention.output.weight.unflatten(1, (attention.heads, -1))  # (D, H, d)
            moved = torch.einsum("bhtd,ohd->bhto", values, out)
            parts = torch.einsum("bhqt,bhto->bqto", weights, moved) + apart(x)
            mixed = parts.sum(2) + attention.output.bias  # (B, T, D)
            near = mixed.abs().sum(-1)[..., None] - (mixed[:, :, None] - parts).abs().sum(-1)
            seen = (weights.sum(1) > 0) | torch.eye(near.shape[-1], dtype=torch.bool)
            near = near.clamp(min=0).masked_fill(~seen, 0.0)
            share = near / near.sum(-1, keepdim=True).clamp(min=1e-12)
            row = share[:, :1] if row is None else row @ share
    assert row is not None
    return row[:, 0, 1:]


@torch.no_grad()
def decomposed(
    model: Graphormer, batch: GraphBatch, target: Target, biases: Biases = "kept apart"
) -> Tensor:
    """Contribution of each node to the target, (B, N)."""
    tape, outputs = states(model, batch)
    parts = apart(tape.hidden[0])  # (B, T, S, D)

    def shared(parts: Tensor, bias: Tensor) -> Tensor:
        if biases == "kept apart":
            return parts
        size = (parts * bias).sum(-1).abs() if biases == "by product" else parts.norm(dim=-1)
        share = size / size.sum(-1, keepdim=True).clamp(min=1e-20)
        return parts + share[..., None] * bias

    def norm(parts: Tensor, x: Tensor, layer: Any) -> Tensor:
        scale = (x.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt()[:, :, None]
        centred = parts - parts.mean(-1, keepdim=True)
        return shared(centred / scale * layer.weight, layer.bias)

    def affine(parts: Tensor, layer: Any) -> Tensor:
        return shared(parts @ layer.weight.T, layer.bias)

    for each, x, weights in zip(model.layers, tape.hidden, tape.attention, strict=False):
        layer: Any = each
        values = affine(norm(parts, x, layer.attention_norm), layer.attention.value)
        values = values.unflatten(-1, (layer.attention.heads, -1))
        mixed = torch.einsum("bhqt,btshd->bqshd", weights, values).flatten(-2)
        parts = parts + affine(mixed, layer.attention.output)
        after = x + layer.attention(layer.attention_norm(x), model.bias(batch), None)
        wide = layer.ffn.expand(layer.ffn_norm(after))  # (B, T, F)
        ratio = 0.5 * (1 + torch.erf(wide / 2**0.5))
        inner = affine(norm(parts, after, layer.ffn_norm), layer.ffn.expand)
        parts = parts + affine(inner * ratio[:, :, None], layer.ffn.contract)
    parts = parts[:, :1]
    if model.final_norm is not None:
        parts = norm(parts, tape.hidden[-1][:, :1], model.final_norm)
    logits = affine(parts, model.head)[:, 0]  # (B, S, C)
    resolved = target.resolve(model.config, outputs)
    return torch.einsum("bsc,bc->bs", logits, resolved.weights)[:, 1:]


def decompx_by_product(model: Graphormer, batch: GraphBatch, target: Target) -> Tensor:
    return decomposed(model, batch, target, "by product")


def decompx_by_norm(model: Graphormer, batch: GraphBatch, target: Target) -> Tensor:
    return decomposed(model, batch, target, "by norm")


def decompx_apart(model: Graphormer, batch: GraphBatch, target: Target) -> Tensor:
    return decomposed(model, batch, target)


def main() -> None:
    torch.set_num_threads(1)
    forward = [alti, decompx_apart, decompx_by_product, decompx_by_norm]
    for name, limit in MODELS.items():
        model, source = gx.load(name), part_of(name, "valid").sample(limit, seed=SEED)
        methods = [*forward, "lrp", "lrp_path", "rollout", "random"]
        report = gx.evaluate(
            model, source.inputs, methods, labels=source.labels, target="true", metrics=MEASURES
        )
        values = {metric: report.values(metric, "mask") for metric in MEASURES}
        print(f"\n## {source.title}, {limit} graphs\n")
        print(f"| method | {' | '.join(MEASURES)} | AUAC minus that of `lrp` |")
        print("|---" * (len(MEASURES) + 2) + "|")
        for method in values["auac"]:
            means = " | ".join(f"{bootstrap(values[m][method]).mean:.3f}" for m in MEASURES)
            gap = bootstrap(values["auac"][method] - values["auac"]["lrp"])
            print(f"| {method} | {means} | {gap.mean:+.3f} [{gap.low:.3f}, {gap.high:.3f}] |")


if __name__ == "__main__":
    main()
