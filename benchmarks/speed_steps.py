"""Time every step from a SMILES to its explanation, here, in OGB and in the published pipeline."""

import warnings
from collections.abc import Callable
from copy import copy

import torch
from rdkit import Chem
from speed_models import BATCH, DIM, HEADS, LAYERS, prebuilt, small_graphormer
from speed_timing import in_turns_of_32, taking_turns

import graphxai as gx
from graphxai.datasets.molecules import molecule_to_data, molecules_to_data
from graphxai.explainers import get_explainer
from graphxai.models.graphormer import StructureEncoding


def measure_steps(smiles: list[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return milliseconds per molecule of each step here, and in the published pipeline."""
    published = {f"published/{name}": run for name, run in published_steps(smiles).items()}
    times = taking_turns(steps_of_graphxai(smiles) | published, len(smiles))
    theirs = {name.removeprefix("published/"): times.pop(name) for name in published}
    return featurising(smiles) | times, theirs


def featurising(smiles: list[str]) -> dict[str, float]:
    """Return milliseconds per molecule for parsing and features, here and in OGB."""
    from ogb.utils import smiles2graph

    runs: dict[str, Callable[[list[str]], object]] = {
        "parse SMILES (RDKit)": lambda part: [Chem.MolFromSmiles(s) for s in part],
        "SMILES to features": lambda part: list(molecules_to_data(part)),
        "SMILES to features, one by one": lambda part: [molecule_to_data(s) for s in part],
        "SMILES to features, OGB": lambda part: [smiles2graph(s) for s in part],
    }
    return in_turns_of_32(runs, smiles)


def steps_of_graphxai(smiles: list[str]) -> dict[str, Callable[[], object]]:
    """Return the steps after the features as functions without arguments."""
    model = small_graphormer()
    encode = StructureEncoding.from_config(model.config)
    graphs = list(molecules_to_data(smiles))
    batches = prebuilt(model, smiles)

    def run_all(method: str) -> None:
        explainer = get_explainer(method)
        for batch in batches:
            explainer.attribute(model, batch)

    @torch.inference_mode()
    def forward() -> None:
        for batch in batches:
            model(batch)

    return {
        "structure": lambda: [encode(copy(g)) for g in graphs],
        "forward": forward,
        "Gradient x Input": lambda: run_all("gradient_input"),
        "LRP": lambda: run_all("lrp"),
        "GAE": lambda: run_all("gae"),
        "SMILES to explanation": lambda: gx.explain(model, smiles),
    }


def published_steps(smiles: list[str]) -> dict[str, Callable[[], object]]:
    """Return the published pipeline's steps with its collator, or {} if it is not installed."""
    try:
        warnings.simplefilter("ignore")
        from transformers.models.deprecated.graphormer import (  # type: ignore[import-not-found]
            collating_graphormer,
            configuration_graphormer,
            modeling_graphormer,
        )
    except ImportError:
        return {}
    from ogb.utils import smiles2graph

    count = len(smiles)
    config = configuration_graphormer.GraphormerConfig(
        num_classes=2,
        num_hidden_layers=LAYERS,
        embedding_dim=DIM,
        ffn_embedding_dim=DIM,
        num_attention_heads=HEADS,
        edge_type="multi_hop",
    )
    model = modeling_graphormer.GraphormerForGraphClassification(config).eval()
    collator = collating_graphormer.GraphormerDataCollator(on_the_fly_processing=False)

    def features() -> list[dict]:
        items = []
        for text in smiles:
            graph = smiles2graph(text)
            graph["edge_attr"] = graph.pop("edge_feat")
            items.append(graph | {"labels": [0]})
        return items

    raw = features()
    sizes = sorted(range(count), key=lambda i: raw[i]["num_nodes"])

    def structure() -> list[dict]:
        return [collating_graphormer.preprocess_item(dict(raw[i])) for i in sizes]

    encoded = structure()

    def batches(items: list[dict]) -> list[dict]:
        parts = [items[i : i + BATCH] for i in range(0, len(items), BATCH)]
        return [collator([dict(item) for item in part]) for part in parts]

    ready = batches(encoded)
    for batch in ready:
        batch.pop("labels")

    @torch.inference_mode()
    def forward() -> None:
        for batch in ready:
            model(**batch)

    def gradient_input(parts: list[dict]) -> None:
        embedded: list[torch.Tensor] = []

        def keep(_: object, __: object, output: torch.Tensor) -> None:
            output.retain_grad()
            embedded.append(output)

        hook = model.encoder.graph_encoder.graph_node_feature.register_forward_hook(keep)
        for batch in parts:
            logits = model(**{k: v for k, v in batch.items() if k != "labels"}).logits
            logits.max(-1).values.sum().backward()
            (embedded[-1] * embedded[-1].grad).sum(-1)
            embedded.clear()
            model.zero_grad()
        hook.remove()

    def pipeline() -> None:
        items = sorted(features(), key=lambda item: item["num_nodes"])
        gradient_input(batches([collating_graphormer.preprocess_item(i) for i in items]))

    return {
        "structure": structure,
        "forward": forward,
        "Gradient x Input": lambda: gradient_input(ready),
        "SMILES to explanation": pipeline,
    }


def report_steps(times: dict[str, float], published: dict[str, float], count: int) -> str:
    """Return the first section of the page, with its title."""
    lines = [
        "# Speed",
        "",
        f"{count} molecules, one thread, batches of {BATCH}, a Graphormer with {LAYERS} layers of"
        f" width {DIM}. The figures are milliseconds of processor time per molecule, each the least"
        " of seven repetitions in which all steps take turns, from one run on one machine. Look at"
        " the ratios.",
        "",
        "| step | graphxai | published | ratio |",
        "|---|---|---|---|",
    ]
    ogb = times["SMILES to features, OGB"]
    other = published | {"SMILES to features": ogb, "SMILES to features, one by one": ogb}
    for name, value in times.items():
        if name.endswith("OGB"):
            continue
        theirs = other.get(name)
        cells = f"{theirs:.2f} | {theirs / value:.1f}" if theirs else " | "
        lines.append(f"| {name} | {value:.2f} | {cells} |")
    parse = times["parse SMILES (RDKit)"]
    ours, theirs = times["SMILES to features"] - parse, ogb - parse
    lines.append(f"| features without parsing | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f} |")
    lines += [
        "",
        f"LRP takes {times['LRP'] / times['Gradient x Input']:.2f} of the time of Gradient x Input,"
        " whose ledger also computes the shares of the structure and what each operation creates or"
        " loses.",
        "",
        'The rows for parsing and features take turns of 32 molecules. "SMILES to features" is'
        ' `molecules_to_data`; "one by one" is `molecule_to_data`. The structure is encoded in'
        " compiled code (extra `fast`), as it is once enough graphs were encoded.",
        "",
        "\"Published\" is OGB's `smiles2graph` for the features. For the rest it is Hugging Face's"
        " port of Graphormer (`transformers` 4.57.6), batched and sorted by size in the same way,"
        " and explained by Gradient x Input. Salts are left out, because one of them makes the"
        " published collator pad its whole batch to 510 hops.",
        "",
    ]
    return "\n".join(lines)
