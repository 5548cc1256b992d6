"""The main job: load a model, predict, explain."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.capture import evaluating
from graphxai.explainers import Attribution, Explainer, get_explainer
from graphxai.explainers.base import Method
from graphxai.explanation import Explanation, Ledger, Prediction
from graphxai.explanations import Explanations
from graphxai.inputs import Input, as_list, prepare_for
from graphxai.models.graphormer import Graphormer, Task
from graphxai.models.graphormer.config import TaskSet
from graphxai.progress import Tick, progress_bar
from graphxai.target import Target

if TYPE_CHECKING:
    from graphxai.adapters import WrappedModel

# A batch holds at most so many graphs and token pairs (B * T * T): about 64 drug molecules, or
# one graph of 500 nodes; larger batches leave the cache and are no faster.
MAX_GRAPHS = 64
MAX_PAIRS = 250_000
CHUNK = 4096  # inputs encoded at a time: about 300 MB of molecules

OnError = Literal["warn", "raise"]
Model: TypeAlias = "Graphormer | WrappedModel"
Key = TypeVar("Key")  # what a caller knows an input by


def load(name_or_folder: str | Path) -> Graphormer:
    """A bundled model by name (see `pretrained_models()`), or one from a checkpoint folder.

    A folder with a published Graphormer (Hugging Face or Microsoft v1.0, as safetensors) is
    converted; for its options see `graphxai.models.graphormer.load_huggingface`. Raises
    CheckpointError, which names the file and the key, for what cannot be read.
    """
    from graphxai.models.graphormer.checkpoint import is_published, load_checkpoint, locate
    from graphxai.models.graphormer.convert import load_huggingface

    folder = locate(name_or_folder)
    with torch.inference_mode(False):  # weights made in inference mode could never be explained
        return load_huggingface(folder) if is_published(folder) else load_checkpoint(folder)


def pretrained_models() -> tuple[str, ...]:
    """Names of the bundled models."""
    from graphxai.models.graphormer import pretrained_names

    return pretrained_names()


def methods() -> dict[str, type[Explainer]]:
    """All explainers by name."""
    from graphxai.explainers import REGISTRY

    return dict(REGISTRY)


def explain(
    model: "Model | str | Path",
    inputs: Any,
    method: Method = "lrp",
    *,
    target: Any = None,
    on_error: OnError = "warn",
    progress: bool | None = None,
    **options: Any,
) -> Any:
    """Explain one input, or each of a list.

    model: from `load` or `wrap`, or a name. inputs: a SMILES, an RDKit molecule, a path or array
    of a digit, a PyG `Data` or `Batch`, or a list of these. method: see `methods()`, or a function
    `(model, batch, target) -> scores` of your own; options go to a method's constructor.
    target: see `Target`; by default the predicted class, for two classes the second one, for a
    regression its value. progress: a bar on stderr, by default on a terminal.

    Returns an Explanation, or Explanations, a list of the inputs' length. An input in a list that
    cannot be used gives None and a warning that names it (`on_error="raise"`: an error); a single
    one always raises ValueError.
    """
    model = load(model) if isinstance(model, str | Path) else model
    values, several = as_list(inputs)
    results = Explanations([None] * len(values))
    explainer = get_explainer(method, **options)
    strict = on_error == "raise" or not several
    with progress_bar("explaining", len(values), show=progress) as tick:
        for chunk in in_chunks(model, values, strict, tick):
            for index, explanation in explain_prepared(model, chunk, explainer, target=target):
                results[index] = explanation
                tick(1)
    return results if several else results[0]


def predict(
    model: "Model | str | Path",
    inputs: Any,
    *,
    on_error: OnError = "warn",
    progress: bool | None = None,
) -> Any:
    """Predictions of all tasks, {task: Prediction}, for one input or each of a list.

    Inputs, errors and progress as for `explain`.
    """
    model = load(model) if isinstance(model, str | Path) else model
    values, several = as_list(inputs)
    results: list[dict[str, Prediction] | None] = [None] * len(values)
    strict = on_error == "raise" or not several
    with progress_bar("predicting", len(values), show=progress) as tick:
        for chunk in in_chunks(model, values, strict, tick):
            for index, found in predict_prepared(model, chunk):
                results[index] = {p.task: p for p in found}
                tick(1)
    return results if several else results[0]


def in_chunks(
    model: "Model", values: Sequence[Any], strict: bool, tick: Tick
) -> Iterator[list[tuple[int, Input]]]:
    """Encode the inputs that can be used, with their index, so many at a time; warn of others."""
    for start in range(0, len(values), CHUNK):
        chunk = []
        for index, value in enumerate(values[start : start + CHUNK], start):
            try:
                chunk.append((index, prepare_for(model, value)))
            except (ValueError, OSError) as error:
                if strict:
                    raise
                warnings.warn(f"input {index} was left out: {error}", stacklevel=3)
                tick(1)
        yield chunk


def explain_prepared(
    model: "Model",
    prepared: Sequence[tuple[Key, Input]],
    explainer: Explainer,
    *,
    target: Any = None,
) -> Iterator[tuple[Key, Explanation]]:
    """Explain encoded inputs in batches of like size; yields (key, explanation) as they come."""
    wanted = Target.of(target)
    provenance = _provenance(model, explainer)
    device = next(model.parameters()).device
    for part in in_batches(prepared, *constraints(model)):
        with torch.inference_mode(False):  # what gradients pass through must not be made in it
            batch: Any = model.collate([_outside_inference(item.data) for _, item in part]).to(
                device
            )
            attribution = explainer.attribute(model, batch, wanted)
        for row, (key, item) in enumerate(part):
            yield key, _explanation(model, item, attribution, row, explainer, wanted, provenance)


def predict_prepared(
    model: "Model", prepared: Sequence[tuple[Key, Input]]
) -> Iterator[tuple[Key, tuple[Prediction, ...]]]:
    """Predictions of encoded inputs in batches of like size, with their keys."""
    device = next(model.parameters()).device
    for part in in_batches(prepared, *constraints(model)):
        with evaluating(model), torch.inference_mode():
            batch: Any = model.collate([item.data for _, item in part]).to(device)
            outputs = model(batch).cpu()
        for row, (key, _) in enumerate(part):
            yield key, read_outputs(model.config, outputs[row])


def constraints(model: "Model") -> tuple[bool, Callable[[Data], bool] | None]:
    """Which inputs of a model can share a batch, as `in_batches` asks for it."""
    return getattr(model, "same_size_only", False), getattr(model, "goes_alone", None)


def _outside_inference(data: Data) -> Data:
    """The graph itself, or a copy that gradients may pass through."""
    return data.clone() if data.x.is_inference() else data


def in_batches(
    prepared: Iterable[tuple[Key, Input]],
    same_size: bool = False,
    goes_alone: Callable[[Data], bool] | None = None,
) -> Iterator[list[tuple[Key, Input]]]:
    """Group inputs of like (or of the same) size, within MAX_GRAPHS and MAX_PAIRS.

    goes_alone: whether an input is by itself, as one with matrices over the pairs of its nodes.
    """
    part: list[tuple[Key, Input]] = []
    for item in sorted(prepared, key=lambda pair: int(pair[1].data.num_nodes)):
        tokens = int(item[1].data.num_nodes) + 1
        full = len(part) >= MAX_GRAPHS or (len(part) + 1) * tokens**2 > MAX_PAIRS
        other = bool(part) and same_size and int(part[0][1].data.num_nodes) + 1 != tokens
        other = other or (bool(part) and goes_alone is not None and goes_alone(item[1].data))
        if part and (full or other):
            yield part
            part = []
        part.append(item)
    if part:
        yield part


def read_outputs(config: TaskSet, outputs: Tensor) -> tuple[Prediction, ...]:
    """Predictions of every task from one graph's outputs (num_outputs,)."""
    start, found = 0, []
    for task in config.tasks:
        found.append(_read_task(task, outputs[start : start + task.num_outputs].double()))
        start += task.num_outputs
    return tuple(found)


def _read_task(task: Task, values: Tensor) -> Prediction:
    if task.kind == "regression":
        value = task.offset + task.scale * float(values[0])
        return Prediction(task.name, value=value, unit=task.unit)
    if task.kind == "binary":
        values = torch.stack([-values[0] / 2, values[0] / 2])  # two classes from one logit
    probabilities = values.softmax(-1).tolist()
    by_class = dict(zip(task.classes, probabilities, strict=True))
    return Prediction(task.name, max(by_class, key=by_class.__getitem__), by_class)


def _explanation(
    model: "Model",
    item: Input,
    attribution: Attribution,
    row: int,
    explainer: Explainer,
    target: Target,
    provenance: dict[str, Any],
) -> Explanation:
    n = int(item.data.num_nodes)
    relevance = attribution.relevance[row, :n].float().cpu()
    predictions = read_outputs(model.config, attribution.outputs[row].cpu())
    task = target.task_in(model.config)
    features = attribution.features
    return Explanation(
        relevance=relevance.numpy().copy(),
        target=attribution.labels[row],
        prediction=next(p for p in predictions if p.task == task.name),
        predictions=predictions,
        method=explainer.name,
        title=explainer.title,
        additive=explainer.additive,
        ledger=Ledger(
            nodes=float(relevance.double().sum()),
            graph_token=float(attribution.graph_token[row]),
            biases=float(attribution.biases[row]),
            output=float(attribution.output[row]),
            structure=_row_of(attribution.structure, row),
            remainders=_row_of(attribution.remainders, row),
            centrality=_share_of("centrality", model.feature_names, features, row),
        ),
        features=None if features is None else features[row, :n].float().cpu().numpy().copy(),
        feature_names=model.feature_names if features is not None else (),
        smiles=item.smiles,
        mol=item.molecule,
        image=item.image,
        segments=item.segments,
        provenance=provenance,
    )


def _share_of(name: str, names: Sequence[str], features: Tensor | None, row: int) -> float | None:
    """What a feature has of one graph's relevance, from parts (B, N, F); None if it is not told."""
    if features is None or name not in names:
        return None
    return float(features[row, :, list(names).index(name)].double().sum())


def _row_of(values: dict[str, Tensor] | None, row: int) -> dict[str, float]:
    """One graph's value of each of the tensors (B,); empty if there are none."""
    return {name: float(value[row]) for name, value in (values or {}).items()}


def _provenance(model: "Model", explainer: Explainer) -> dict[str, Any]:
    """What makes a result reproducible: model, weights, method and its options, versions."""
    options = {
        name: value
        for name, value in vars(explainer).items()
        if isinstance(value, str | int | float | bool | None)
    }
    return {
        "model": model.origin.name,
        "sha256": model.origin.sha256,
        "method": explainer.name,
        "options": options,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that a result depends on."""
    return {name: _version(name) for name in ("graphxai", "torch", "rdkit")}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
