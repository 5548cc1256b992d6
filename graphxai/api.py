"""The main job: load a model, predict, explain, compare.

The road behind these functions is `explanation.compute`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from graphxai.adapters.engine.pass_cache import cached_passes
from graphxai.contract.inputs import as_list
from graphxai.datasets.training_set import training_set_of
from graphxai.explainers import REGISTRY, Explainer, get_explainer
from graphxai.explainers.pairs import rules_of
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.explaining import ExplanationComputation
from graphxai.explanation.compute.lists import OnError, map_inputs
from graphxai.explanation.compute.models import LoadedModel, Model, loaded
from graphxai.explanation.compute.nearness import set_nearness
from graphxai.explanation.compute.pairing import PairsComputation
from graphxai.explanation.compute.predicting import PredictionComputation
from graphxai.explanation.explanations import Explanations
from graphxai.explanation.grid import side_by_side
from graphxai.explanation.result import Picture
from graphxai.models.graphormer import Graphormer, load_model, pretrained_names
from graphxai.runtime.device import on_device

COMPARED = ("lrp", "gradient_input", "gae")  # methods that `compare` takes by default


def load(name_or_folder: str | Path) -> LoadedModel:
    """A bundled model by name (see `pretrained_models()`), or one from a checkpoint folder.

    Returns a Graphormer, or an Ensemble of several.

    A folder with a published Graphormer (Hugging Face or Microsoft v1.0, as safetensors) is
    converted; for its options see `graphxai.models.graphormer.load_huggingface`. Raises
    CheckpointError, which names the file and the key, if a checkpoint cannot be read.
    """
    return load_model(name_or_folder)


def pretrained_models() -> tuple[str, ...]:
    """Names of the bundled models."""
    return pretrained_names()


def methods() -> dict[str, type[Explainer]]:
    """All explainers by name."""
    return dict(REGISTRY)


def explain(
    model: "Model | str | Path",
    inputs: Any,
    method: Method = "lrp",
    *,
    target: Any = None,
    wrt: str | Sequence[str] = ("x",),
    node: Any = None,
    pair: Any = None,
    on_error: OnError = "warn",
    progress: bool | None = None,
    workers: int | None = 1,
    device: torch.device | str | None = None,
    **options: Any,
) -> Any:
    """Explain one input, or every input in a list.

    Returns an Explanation, or for a list Explanations of the same length. If one input of a list
    cannot be used, its place holds None and a warning names it; `on_error="raise"` raises the error
    instead. A single unusable input always raises ValueError.

    Args:
        model: from `load` or `wrap`, or a name.
        inputs: a SMILES, an RDKit molecule, a digit as a path or array, a PyG `Data` or
            `Batch`, a `DataLoader`, or a list of these.
        method: see `methods()`, or your own function `(model, batch, target) -> scores`;
            options go to the method's constructor.
        target: see `Target`; by default the predicted class, for two classes the second one,
            for a regression its value.
        wrt: the inputs of a wrapped model that get relevance, by the names of the graph's
            attributes, such as ("x", "edge_attr", "pe"); see `Explanation.relevance_of`.
        node: for wrapped models with one output per node, the number of the node to explain
            (for `HeteroData` its type and number), or a list with one for each input, or with
            several of a single graph.
        pair: likewise the two nodes of a link, for models that read `edge_label_index` or score
            all pairs of nodes, (N, N).
        progress: whether to show a bar on stderr; by default only on a terminal.
        workers: processes for a list of more than 512 inputs; None takes the free cores if that
            is faster (see `runtime.workers.map_in_processes`). Each computes with one thread,
            as this process does during the call, and the result is the same for any number of
            them. Model, method and inputs are sent to them, so your own must be defined in a
            module; ValueError if they cannot be sent.
        device: where to compute, such as "cuda"; the model is moved there and stays there.
    """
    model = on_device(loaded(model), device)
    wrt = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    computation = ExplanationComputation(get_explainer(method, **options), target, wrt)
    values, several = as_list(_at_choice(model, inputs, node, pair))
    explanations = map_inputs(
        model,
        values,
        computation,
        "explaining",
        strict=on_error == "raise" or not several,
        progress=progress,
        workers=workers,
    )
    training = training_set_of(model)
    for explanation in explanations:
        if explanation is not None:
            set_nearness(explanation, training)
    return Explanations(explanations) if several else explanations[0]


def predict(
    model: "Model | str | Path",
    inputs: Any,
    *,
    node: Any = None,
    pair: Any = None,
    on_error: OnError = "warn",
    progress: bool | None = None,
) -> Any:
    """Predict all tasks, {task: Prediction}, for one input or every input in a list.

    Inputs, node, pair, errors and progress as for `explain`.
    """
    model = loaded(model)
    values, several = as_list(_at_choice(model, inputs, node, pair))
    predictions = map_inputs(
        model,
        values,
        PredictionComputation(training_set_of(model)),
        "predicting",
        strict=on_error == "raise" or not several,
        progress=progress,
    )
    return predictions if several else predictions[0]


def pairs(
    model: "Model | str | Path",
    inputs: Any,
    method: Method = "lrp",
    *,
    target: Any = None,
    num_layers: int | None = None,
    node: Any = None,
    pair: Any = None,
    on_error: OnError = "warn",
    progress: bool | None = None,
) -> Any:
    """Compute the relevance of token pairs for one input, or for every input in a list.

    Arguments, errors and results as for `explain`, with `Pairs` instead of `Explanation`.

    Args:
        method: one that holds attention constant (`lrp`, `lrp_ah`, `lrp_ah_ln`). With other
            methods relevance also flows through queries and keys, which is not a sum over
            pairs: ValueError. The model, from `load` or `wrap`, needs attention between nodes;
            ValueError if it has none.
        num_layers: instead of what was read in each layer, follow walks through this many
            layers of a Graphormer: relevance that began at one token and is then in another
            (GNN-LRP, Schnake 2021). Summed over the latter, it is the relevance of the former,
            exactly.
    """
    model, explainer = loaded(model), get_explainer(method)
    rules_of(explainer)  # refuse a method without a sum over pairs before anything is encoded
    values, several = as_list(_at_choice(model, inputs, node, pair))
    matrices = map_inputs(
        model,
        values,
        PairsComputation(explainer, target, num_layers, training_set_of(model)),
        "explaining pairs",
        strict=on_error == "raise" or not several,
        progress=progress,
    )
    return matrices if several else matrices[0]


def compare(
    model: "Model | str | Path",
    value: Any,
    methods: Sequence[Method] = COMPARED,
    *,
    target: Any = None,
    node: Any = None,
    pair: Any = None,
    columns: int = 3,
    **options: Any,
) -> Picture:
    """Draw one input explained by several methods, each on its own colour scale.

    Args:
        model, value, target, node, pair: as for `explain`, but one input.
        methods: names, explainers or functions. Options as for `Explanation.svg`; molecules are
            drawn at 400 x 310 pixels by default. To draw explanations that you already have,
            see `grid`.
    """
    model = loaded(model)
    (value, *others), _ = as_list(_at_choice(model, value, node, pair))
    if others:
        raise ValueError("compare shows one input under several methods; use grid for several.")
    if isinstance(methods, str):
        methods = [methods]
    with cached_passes(most=3):  # a copy in double precision, its pass, and the model's own
        explanations = [explain(model, value, method, target=target) for method in methods]
    return side_by_side(explanations, columns=columns, **options)


def _at_choice(model: Model, inputs: Any, node: Any, pair: Any) -> Any:
    """Return the inputs, each with the node or pair to explain; ValueError for a Graphormer."""
    if node is None and pair is None:
        return inputs
    if isinstance(model, Graphormer):
        raise ValueError("a Graphormer has one output per graph: leave out node= and pair=.")
    from graphxai.adapters.chosen import at_choice  # needs PyG

    return at_choice(inputs, node, pair)
