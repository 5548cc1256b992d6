"""The main functions: load a model, predict, explain, compare.

They do their work through `explanation.compute`.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, SupportsIndex, TypeAlias, cast

import torch

from graphxai.contract.inputs import as_list, row_index
from graphxai.contract.method_names import DEFAULT_METHOD, MethodName
from graphxai.contract.target import Target
from graphxai.datasets.training_set import training_set_of
from graphxai.explainers import REGISTRY, Explainer, get_explainer
from graphxai.explainers.pairs import rules_of
from graphxai.explainers.registry import KnownMethod, Method, each_of
from graphxai.explanation.comparison import side_by_side
from graphxai.explanation.compute.explaining import explanations_or_errors
from graphxai.explanation.compute.lists import OnError, is_strict, map_inputs, typed_by_inputs
from graphxai.explanation.compute.models import (
    Model,
    ModelPanel,
    is_several,
    loaded,
    mark_explained_for,
)
from graphxai.explanation.compute.models import load as load
from graphxai.explanation.compute.predicting import predictions_by_task, set_nearness
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.explanations import Explanations
from graphxai.explanation.labelled import Drawings, MethodTable, Predictions
from graphxai.explanation.pairs import pairs_or_errors
from graphxai.explanation.prediction import Prediction
from graphxai.explanation.result import Picture
from graphxai.models.graphormer import ModelName, TargetName, pretrained_names
from graphxai.runtime.derived_values import cached_passes
from graphxai.runtime.device import on_cpu_by_default, on_device
from graphxai.runtime.options import listed

# A target by name, a class by number, or a pair of these, see `Target`.
KnownTarget: TypeAlias = (
    TargetName | str | SupportsIndex | Target | tuple[Any, Any] | list[Any] | None
)
AnyModel: TypeAlias = "Model | ModelName | str | Path"
OneOrMoreModels: TypeAlias = "Model | ModelName | str | Path | Sequence[Model | str | Path]"
COMPARED = (DEFAULT_METHOD, "gradient_input", "gae")  # methods that `compare` takes by default
COMPARED_OF_PROCESSES: Final = ("gradient_input", "occlusion")  # after their default method


def pretrained_models() -> tuple[str, ...]:
    """Return the names of the bundled models."""
    return pretrained_names()


def methods() -> dict[MethodName, type[Explainer]]:
    """Return all explainers by name."""
    return MethodTable(cast(dict[MethodName, type[Explainer]], REGISTRY))


@typed_by_inputs(Explanation, Explanations)
@on_cpu_by_default
def explain(
    model: AnyModel,
    inputs: Any,
    method: KnownMethod | None = None,
    *,
    target: KnownTarget = None,
    wrt: str | Sequence[str] | None = None,
    node: Any = None,
    pair: Any = None,
    on_error: OnError = "warn",
    progress: bool | None = None,
    workers: int | None = 1,
    device: torch.device | str | None = None,
    **options: Any,
) -> Any:
    """Explain one input, or every input in a list.

    If one input of a list cannot be used, its place holds None and a warning names it. With
    `on_error="raise"` the error is raised instead. A single input that cannot be used always raises
    ValueError.

    Args:
        model: a model from `load` or `wrap`, or its name.
        inputs: a SMILES, an RDKit molecule, a digit as a path or array, a PyG `Data` or
            `Batch`, a `DataLoader`, or a list of these. A pandas frame or column counts as its
            structures, and the results keep its index, see `Explanations.to_frame`.
        method: the name of a method (see `methods()`), or your own function
            `(model, batch, target) -> scores`. Options go to the method's constructor. None means
            "lrp", and for a Gaussian process "kernel", which is the same there.
        target: the output to explain, see `Target`. By default it is the predicted class, the
            second of two classes, or the value of a regression.
        wrt: the inputs of a wrapped model that get relevance, by the names of the graph's
            attributes, such as ("x", "edge_attr", "pe"). See `Explanation.relevance_of`. By default
            these are the nodes' features `x`, and for a chemprop model also its bonds `edge_attr`
            if the method can explain them. With "edge_index" each edge gets what its messages carry
            in layers of PyG's `MessagePassing`, a mean over the layers (see `wrapping.messages`).
        node: for models with one output per node, the number of the node to explain. For
            `HeteroData` it is a type and a number. A list has a node for each input, or several
            nodes of a single graph.
        pair: for models that read `edge_label_index` or score all pairs of nodes (N, N), the two
            nodes of the link to explain, or a list as for `node`.
        on_error: "warn" or "raise", see above.
        progress: whether to show a bar on stderr. By default it is shown only on a terminal.
        workers: the number of processes for a list of more than 512 inputs. None takes the free
            cores if that is faster (see `runtime.workers.map_in_processes`). Each process computes
            with one thread, as this process does during the call, and the result is the same for
            any number of processes. Model, method and inputs are sent to them, so your own must be
            defined in a module.
        device: where to compute, such as "cuda". The model is moved there and stays there.
        options: of the method's constructor, such as `samples=32` of `shapley_sampling`.

    Returns:
        An Explanation, or for a list Explanations of the same length.

    Raises:
        KeyboardInterrupt: a list was interrupted. The `results` of the exception are those that
            were finished, with None for the others.
        ValueError: an input cannot be used, the model does not have the target, or something cannot
            be sent to the processes.
    """
    model = on_device(loaded(model), device)
    wrt = None if wrt is None else listed(wrt, "wrt")
    explainer = get_explainer(method, model=model, **options)
    computation = partial(explanations_or_errors, explainer=explainer, target=target, wrt=wrt)
    values, several = as_list(mark_explained_for(model, inputs, node, pair))

    def collect(explanations: list[Explanation | None]) -> Explanations:
        training = training_set_of(model)
        for explanation in explanations:
            if explanation is not None:
                set_nearness(explanation, training)
        return Explanations(explanations, labels=row_index(inputs))

    strict = is_strict(on_error, several)
    how: dict[str, Any] = {"progress": progress, "workers": workers}
    how["quick"] = explainer.traits.is_quick
    collected = collect(
        map_inputs(model, values, computation, "explaining", collect, strict=strict, **how)
    )
    return collected if several else collected[0]


@typed_by_inputs(dict[str, Prediction], Predictions)
@on_cpu_by_default
def predict(
    model: OneOrMoreModels,
    inputs: Any,
    *,
    node: Any = None,
    pair: Any = None,
    on_error: OnError = "warn",
    progress: bool | None = None,
) -> Any:
    """Predict all tasks for one input, or for every input in a list.

    Several models predict all their tasks for each input. If several of them have a task of the
    same name, the model's name follows it in brackets. An input of a list that only some of the
    models can use has the predictions of these.

    Args:
        model: a model from `load` or `wrap`, or its name, or a list of these.
        inputs: one input or a list, as for `explain`.
        node: the node that is predicted, for models with one output per node.
        pair: the two nodes of the link that is predicted, for models of links.
        on_error: "warn" leaves None in place of an input of a list that cannot be used, and names
            it in a warning. "raise" raises the error.
        progress: whether to show a bar on stderr. By default it is shown only on a terminal.

    Returns:
        A Prediction by the name of each task, or for a list Predictions, which are a list of these.
    """
    panel = ModelPanel.of(model)
    values, several = as_list(mark_explained_for(panel.models[0], inputs, node, pair))
    of_models: list[list[dict[str, Prediction] | None]] = []

    def collect(of_last: list[dict[str, Prediction] | None]) -> Predictions:
        to_come = len(panel.models) - len(of_models) - 1  # after an interrupt
        nothing: list[None] = [None] * len(values)
        every = zip(*of_models, of_last, *[nothing] * to_come, strict=True)
        return Predictions(
            [panel.merged(of_input) for of_input in every],
            labels=row_index(inputs),
            smiles=values if all(isinstance(value, str) for value in values) else None,
            several_models=is_several(model),
        )

    together, strict = len(panel.models) > 1, is_strict(on_error, several)
    from graphxai.datasets.molecules import read_once  # which loads RDKit

    with read_once() if together else nullcontext():
        for member, name in zip(panel.models, panel.names, strict=True):
            computation = partial(predictions_by_task, training=training_set_of(member))
            how: dict[str, Any] = {"progress": progress, "by": name if together else ""}
            of_models.append(
                map_inputs(member, values, computation, "predicting", collect, strict=strict, **how)
            )
    collected = collect(of_models.pop())
    return collected if several else collected[0]


@on_cpu_by_default
def pairs(
    model: AnyModel,
    inputs: Any,
    method: Method = DEFAULT_METHOD,
    *,
    target: KnownTarget = None,
    num_layers: int | None = None,
    node: Any = None,
    pair: Any = None,
    on_error: OnError = "warn",
    progress: bool | None = None,
) -> Any:
    """Compute the relevance of token pairs for one input, or for every input in a list.

    Arguments, errors and results are as for `explain`, with `Pairs` instead of `Explanation`. The
    model needs attention between nodes.

    Args:
        model, inputs, target, node, pair, on_error, progress: as for `explain`.
        method: a method that holds attention constant (`lrp`, `lrp_ah`, `lrp_ah_ln`). With other
            methods, relevance also flows through queries and keys, so it is no sum over pairs.
        num_layers: None for what was read in each layer. A number follows walks through this many
            layers of a Graphormer (GNN-LRP, Schnake 2021). The result is then the relevance that
            began at one token and is in another after these layers. Its sum over the second token
            is exactly the relevance of the first.

    Raises:
        ValueError: the model has no attention between nodes, or the method does not hold attention
            constant.
    """
    model = loaded(model)
    explainer = get_explainer(method, model=model)
    rules_of(explainer)  # refuses a method without a sum over pairs before anything is encoded
    values, several = as_list(mark_explained_for(model, inputs, node, pair))
    collect = partial(Drawings, labels=row_index(inputs))
    computation = partial(
        pairs_or_errors,
        explainer=explainer,
        target=target,
        num_layers=num_layers,
        training=training_set_of(model),
    )
    strict = is_strict(on_error, several)
    matrices = map_inputs(
        model, values, computation, "explaining pairs", collect, strict=strict, progress=progress
    )
    return collect(matrices) if several else matrices[0]


@on_cpu_by_default
def compare(
    model: OneOrMoreModels,
    value: Any,
    methods: Sequence[Method] | None = None,
    *,
    target: KnownTarget = None,
    targets: Sequence[KnownTarget] | None = None,
    difference: bool = False,
    node: Any = None,
    pair: Any = None,
    columns: int | None = None,
    **options: Any,
) -> Picture:
    """Draw one input explained by several methods or models, or for several targets.

    Each explanation has a separate colour scale. To draw explanations that you already have, see
    `grid`.

    Args:
        model, value, target, node, pair: as for `explain`, but with one input. Several models, such
            as those of several seeds, are given in a list.
        methods: names of methods, explainers (such as two with different seeds) or functions. None
            takes "lrp", "gradient_input" and "gae", and for a Gaussian process "kernel",
            "gradient_input" and "occlusion"; for a difference it takes the first two of these, and
            for several models or targets each model's default method.
        targets: the outputs to explain, each as a `target`, such as two classes.
        difference: whether to draw the difference of two methods, models or targets beside both
            (Song 2024, figures 6 to 13). Each is divided by its sum of |relevance|, and all panels
            have one scale. If a method has no sign, the difference is that of |relevance|. Two
            targets get a further panel with the relevance that speaks for either, in a colour for
            each (compare Chefer 2021, figure 3).
        columns: the number of panels in a row, by default 3, or 2 for four panels.
        options: options of `Explanation.svg`. By default, molecules are drawn at 400 x 310 pixels.

    Raises:
        ValueError: there are several inputs, the models read the input as different graphs, both
            `target` and `targets` are given, or a difference is not one of two explanations.
    """
    panel = ModelPanel.of(model)
    if target is not None and targets is not None:
        raise ValueError("give target= for one output, or targets= for several, but not both.")
    if methods is None and targets is None and len(panel.models) == 1:
        (only,) = panel.models
        without = (getattr(only, "default_method", None) or DEFAULT_METHOD, *COMPARED_OF_PROCESSES)
        attends = getattr(only, "has_attention", True)
        methods = (COMPARED if attends else without)[: 2 if difference else None]
    explanations = []
    with cached_passes(most=3):  # a copy in double precision, its pass, and the model's pass
        for member in panel.models:
            (marked, *others), _ = as_list(mark_explained_for(member, value, node, pair))
            if others:
                raise ValueError("compare shows one input: use grid for several.")
            for method in [None] if methods is None else each_of(methods):
                explainer = get_explainer(method, model=member)
                for output in [target] if targets is None else targets:
                    explanations.append(explain(member, marked, explainer, target=output))
    return side_by_side(explanations, columns=columns, difference=difference, **options)
