"""The main job: load a model, predict, explain, compare."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphxai.adapters.engine.remembering import remembering
from graphxai.contract.batching import Key, batches_for, collated, in_chunks, in_pieces
from graphxai.contract.inputs import Input, as_list
from graphxai.contract.intervals import Conformal
from graphxai.contract.model import evaluating
from graphxai.contract.target import Target
from graphxai.datasets.training_set import UNKNOWN, Nearness, TrainingSet, training_set_of
from graphxai.explainers import REGISTRY, Attribution, Explainer, get_explainer
from graphxai.explainers.pairs import distances_of, pair_relevance, rules_of, walk_relevance
from graphxai.explainers.registry import Method
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.explanations import Explanations
from graphxai.explanation.grid import side_by_side
from graphxai.explanation.ledger import Ledger
from graphxai.explanation.pairs import Pairs
from graphxai.explanation.prediction import NotFiniteError, Prediction, read_outputs
from graphxai.explanation.provenance import provenance
from graphxai.explanation.result import Picture
from graphxai.models.graphormer import (
    Ensemble,
    Graphormer,
    LoadedModel,
    is_ensemble,
    is_published,
    load_checkpoint,
    load_ensemble,
    locate,
    pretrained_names,
    require_purpose,
)
from graphxai.runtime.device import on_device
from graphxai.runtime.progress import Progress, progress_bar
from graphxai.runtime.threads import one_thread, workers_for
from graphxai.runtime.workers import Lost, map_in_processes

if TYPE_CHECKING:
    from graphxai.adapters import WrappedModel

OnError = Literal["warn", "raise"]
Model: TypeAlias = "Graphormer | Ensemble | WrappedModel"
Chunk: TypeAlias = list[tuple[int, Input]]  # encoded inputs with their index
Arrays: TypeAlias = dict[str, NDArray[np.floating]]
Result = TypeVar("Result")
Refuse: TypeAlias = Callable[[Any, NotFiniteError], None]  # called with an input's key
COMPARED = ("lrp", "gradient_input", "gae")  # methods that `compare` takes by default


def load(name_or_folder: str | Path) -> LoadedModel:
    """A bundled model by name (see `pretrained_models()`), or one from a checkpoint folder.

    Returns a Graphormer, or an Ensemble of several.

    A folder with a published Graphormer (Hugging Face or Microsoft v1.0, as safetensors) is
    converted; for its options see `graphxai.models.graphormer.load_huggingface`. Raises
    CheckpointError, which names the file and the key, if a checkpoint cannot be read.
    """
    folder = locate(name_or_folder)
    with torch.inference_mode(False):  # weights made in inference mode could never be explained
        if is_ensemble(folder):
            return load_ensemble(folder)
        if not is_published(folder):
            return load_checkpoint(folder)
        from graphxai.models.graphormer.convert import load_huggingface  # needs the chemistry

        return load_huggingface(folder)


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
    on_error: OnError = "warn",
    progress: bool | None = None,
    workers: int | None = 1,
    device: torch.device | str | None = None,
    **options: Any,
) -> Any:
    """Explain one input, or every input in a list.

    model: from `load` or `wrap`, or a name. inputs: a SMILES, an RDKit molecule, a digit as a path
    or array, a PyG `Data` or `Batch`, a `DataLoader`, or a list of these. method: see `methods()`,
    or your own function `(model, batch, target) -> scores`; options go to the method's constructor.
    target: see `Target`; by default the predicted class, for two classes the second one, for a
    regression its value. wrt: the inputs of a wrapped model that get relevance, by the names of the
    graph's attributes, such as ("x", "edge_attr", "pe"); see `Explanation.relevance_of`. node: for
    wrapped models with one output per node, the number of the node to explain (for `HeteroData`
    its type and number), or a list with one for each input. progress: whether to show a bar on
    stderr; by default only on a terminal.
    workers: processes for a list of more than 512 inputs; None takes the free cores if that is
    faster (see `runtime.workers.map_in_processes`). Each computes with one thread, as this process
    does during the call, and the result is the same for any number of them. Model, method and
    inputs are sent to them, so your own must be defined in a module; ValueError if they cannot be
    sent. device: where to compute, such as "cuda"; the model is moved there and stays there.

    Returns an Explanation, or for a list Explanations of the same length. If one input of a list
    cannot be used, its place holds None and a warning names it; `on_error="raise"` raises the error
    instead. A single unusable input always raises ValueError.
    """
    model, explainer = on_device(_loaded(model), device), get_explainer(method, **options)
    wrt = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    inputs = inputs if node is None else _at_node(model, inputs, node)
    each = partial(_explained, explainer=explainer, target=target, wrt=wrt)
    found, several = _for_each(model, inputs, each, "explaining", on_error, progress, workers)
    training = training_set_of(model)
    for one in found:
        if one is not None:
            set_nearness(one, training)
    return Explanations(found) if several else found[0]


def _explained(
    model: "Model",
    chunk: Chunk,
    refuse: Refuse,
    *,
    explainer: Explainer,
    target: Any,
    wrt: tuple[str, ...],
) -> Iterator[tuple[int, Explanation]]:
    """Explanations that do not know yet how near their molecules are to the training set."""
    return explain_prepared(model, chunk, explainer, target=target, wrt=wrt, refuse=refuse)


def compare(
    model: "Model | str | Path",
    value: Any,
    methods: Sequence[Method] = COMPARED,
    *,
    target: Any = None,
    columns: int = 3,
    **options: Any,
) -> Picture:
    """Draw one input explained by several methods, each on its own colour scale.

    model, value, target: as for `explain`, but one input; methods: names, explainers or functions.
    Options as for `Explanation.svg`; molecules are drawn at 400 x 310 pixels by default. To draw
    explanations that you already have, see `grid`.
    """
    model = _loaded(model)
    (value, *others), _ = as_list(value)
    if others:
        raise ValueError("compare shows one input under several methods; use grid for several.")
    if isinstance(methods, str):
        methods = [methods]
    with remembering(most=3):  # a copy in double precision, its pass, and the model's own
        found = [explain(model, value, method, target=target) for method in methods]
    return side_by_side(found, columns=columns, **options)


def pairs(
    model: "Model | str | Path",
    inputs: Any,
    method: Method = "lrp",
    *,
    target: Any = None,
    num_layers: int | None = None,
    on_error: OnError = "warn",
    progress: bool | None = None,
) -> Any:
    """Compute the relevance of token pairs for one input, or for every input in a list.

    Arguments, errors and results as for `explain`, with `Pairs` instead of `Explanation`. method:
    one that holds attention constant (`lrp`, `lrp_ah`, `lrp_ah_ln`). With other methods relevance
    also flows through queries and keys, which is not a sum over pairs: ValueError. The model, from
    `load` or `wrap`, needs attention between nodes; ValueError if it has none.

    num_layers: instead of what was read in each layer, follow walks through this many layers of a
    Graphormer: relevance that began at one token and is then in another (GNN-LRP, Schnake 2021).
    Summed over the latter, it is the relevance of the former, exactly.
    """
    model, explainer = _loaded(model), get_explainer(method)
    rules, training = rules_of(explainer), training_set_of(model)

    def work(model: "Model", chunk: Chunk, refuse: Refuse) -> Iterator[tuple[int, Pairs]]:
        options: dict[str, Any] = {"target": target, "training": training, "refuse": refuse}
        explained = dict(explain_prepared(model, chunk, explainer, **options))
        for part in batches_for(model, [item for item in chunk if item[0] in explained]):
            batch = collated(model, part)
            if num_layers is None:
                relevance = pair_relevance(model, batch, target, rules).cpu()
            else:
                relevance = walk_relevance(model, batch, num_layers, target, rules)[:, None].cpu()
            relevance = relevance.to(torch.promote_types(relevance.dtype, torch.float32))
            distances = distances_of(batch, [item.graph for _, item in part])
            for row, (index, item) in enumerate(part):
                tokens = item.num_nodes + 1
                own = relevance[row, :, :tokens, :tokens].numpy().copy()
                token = getattr(batch, "has_graph_token", True)
                made = partial(Pairs, explained[index], own, distances[row], token, num_layers)
                yield from _unless_refused(index, made, refuse)

    found, several = _for_each(model, inputs, work, "explaining pairs", on_error, progress)
    return found if several else found[0]


def predict(
    model: "Model | str | Path",
    inputs: Any,
    *,
    on_error: OnError = "warn",
    progress: bool | None = None,
) -> Any:
    """Predict all tasks, {task: Prediction}, for one input or every input in a list.

    Inputs, errors and progress as for `explain`.
    """
    model = _loaded(model)
    training = training_set_of(model)

    def work(
        model: "Model", chunk: Chunk, refuse: Refuse
    ) -> Iterator[tuple[int, dict[str, Prediction]]]:
        predicted = predict_prepared(model, chunk, training=training, refuse=refuse)
        return ((index, {p.task: p for p in found}) for index, found in predicted)

    found, several = _for_each(model, inputs, work, "predicting", on_error, progress)
    return found if several else found[0]


def _at_node(model: "Model", inputs: Any, node: Any) -> Any:
    """The inputs with the node to explain of each. Raises ValueError for a Graphormer."""
    if isinstance(model, Graphormer):
        raise ValueError("a Graphormer has one output per graph: leave out node=.")
    from graphxai.adapters.calling import at_node  # needs PyG

    return at_node(inputs, node)


def _nodes_by_type(graph: Any) -> "dict[str, NDArray[np.integer]] | None":
    """The numbers of a heterogeneous graph's nodes by their type; None for other graphs."""
    if graph.get("schema") is None:
        return None
    from graphxai.adapters.heterogeneous import nodes_by_type  # needs PyG

    return nodes_by_type(graph)


def _loaded(model: "Model | str | Path") -> "Model":
    return require_purpose(load(model)) if isinstance(model, str | Path) else model


def conformal_of(model: "Model") -> Mapping[str, Conformal]:
    """A model's conformal scores by task; empty for wrapped models."""
    return model.conformal if isinstance(model, Graphormer | Ensemble) else {}


def _for_each(
    model: "Model",
    inputs: Any,
    each: "Callable[[Model, Chunk, Refuse], Iterator[tuple[int, Result]]]",
    title: str,
    on_error: OnError,
    progress: bool | None,
    workers: int | None = 1,
) -> tuple[list[Result | None], bool]:
    """The result of every input in order, None for one left out; whether there were several.

    each: takes the model, encoded inputs with their index, and a function for those whose results
    are not finite; yields each index with its result.
    """
    values, several = as_list(inputs)
    results: list[Result | None] = [None] * len(values)
    strict = on_error == "raise" or not several
    pieces = list(in_pieces(values))
    # A model that draws random numbers draws the same ones whichever process takes a piece.
    seed = int(torch.randint(2**62, ())) if len(pieces) > 1 else None
    done = shown = 0
    with progress_bar(title, len(values), show=progress) as advance, one_thread():

        def show(number: int) -> None:
            nonlocal shown
            shown += number
            advance(number)

        work = _Work(model, each, strict, seed, show)
        count = workers_for(model, workers)
        with closing(map_in_processes(work, pieces, count, len(values))) as parts:
            for part in chain.from_iterable(parts):
                found = part.found
                if isinstance(found, Lost):
                    found = [(part.items[0][0], RuntimeError(found.reason))]
                for index, result in found:
                    if not isinstance(result, Exception):
                        results[index] = result
                    elif strict:
                        raise result
                    else:
                        warnings.warn(f"input {index} was left out: {result}", stacklevel=3)
                done += len(part.items)
                show(done - shown)
    return results, several


@dataclass(frozen=True)
class _Work:
    """What is done with a piece of a list, here or in another process; see `_for_each`.

    show: called with the number of results as they come, in this process only.
    """

    model: Any
    each: Callable[..., Iterator[tuple[int, Any]]]
    strict: bool
    seed: int | None
    show: Progress

    def __call__(self, piece: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """Results by index; for an input that was left out, its error."""
        found: list[tuple[int, Any]] = []

        def refuse(index: int, error: Exception) -> None:
            if self.strict:
                raise error
            found.append((index, error))

        with one_thread(), _drawing(self.seed, piece[0][0]):
            for chunk in in_chunks(self.model, piece, self.strict, refuse):
                for one in self.each(self.model, chunk, refuse):
                    found.append(one)
                    self.show(1)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"show": _unseen}


def _unseen(number: int) -> None:
    """What another process shows of its progress."""


@contextmanager
def _drawing(seed: int | None, first: int) -> Iterator[None]:
    """Within the block, torch draws what follows from a seed and the first input of a piece."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed + first)
        yield


def explain_prepared(
    model: "Model",
    prepared: Sequence[tuple[Key, Input]],
    explainer: Explainer,
    *,
    target: Any = None,
    wrt: Sequence[str] = ("x",),
    training: TrainingSet | None = None,
    refuse: Refuse | None = None,
) -> Iterator[tuple[Key, Explanation]]:
    """Explain encoded inputs in batches of similar size; yields (key, explanation) pairs.

    wrt: the inputs explained, see `explain`; training: the model's training set, to tell how near
    each molecule is; None for "unknown".
    refuse: called with the key and the error of an input whose results are not finite; by default
    the error is raised.
    """
    wanted = Target.of(target)
    origin = provenance(model, explainer)
    nothing: Tensor | None = None
    for part in batches_for(model, prepared):
        with torch.inference_mode(False):  # inference tensors cannot carry gradients
            batch = collated(model, part)
            attribution = explainer.attribute(model, batch, wanted, wrt)
        if nothing is None or not isinstance(
            model, Graphormer
        ):  # a Graphormer's are always the same
            nothing = _outputs_without_nodes(model, batch)
        empty = _without_nodes(model, nothing, attribution.outputs, wanted)
        found = _in_numbers(attribution)
        for row, (key, item) in enumerate(part):
            near = _nearness_when_read(item, training)
            further = _further(wrt, item, attribution, found, row)
            described = (
                model, item, found, row, explainer, wanted, origin, empty[row], near, *further
            )  # fmt: skip
            yield from _unless_refused(key, partial(_explanation, *described), refuse)


def _unless_refused(
    key: Key, make: Callable[[], Result], refuse: Refuse | None
) -> Iterator[tuple[Key, Result]]:
    """The key with its result, or nothing if the result is not finite and `refuse` takes that."""
    try:
        found = make()
    except NotFiniteError as error:
        if refuse is None:
            raise
        refuse(key, error)
    else:
        yield key, found


def _outputs_without_nodes(model: "Model", batch: Any) -> Tensor | None:
    """Outputs with no nodes, (B, num_outputs), or (1, num_outputs) if all graphs have the same."""
    with evaluating(model), torch.no_grad():
        return model.outputs_without_nodes(batch)


def _without_nodes(
    model: "Model", nothing: Tensor | None, outputs: Tensor, target: Target
) -> list[float | None]:
    """f_c of each graph with no nodes, for the class explained; None where it is not finite.

    nothing: see `_outputs_without_nodes`; outputs (B, num_outputs): of the whole graphs, which
    decide the class if none is named.
    """
    if nothing is None:
        return [None] * len(outputs)
    values = target.resolve(model.config, outputs)(nothing).tolist()
    return [value if math.isfinite(value) else None for value in values]


def predict_prepared(
    model: "Model",
    prepared: Sequence[tuple[Key, Input]],
    *,
    training: TrainingSet | None = None,
    refuse: Refuse | None = None,
) -> Iterator[tuple[Key, tuple[Prediction, ...]]]:
    """Predict encoded inputs in batches of similar size; yields (key, predictions) pairs.

    training, refuse: as for `explain_prepared`.
    """
    for part in batches_for(model, prepared):
        batch = collated(model, part)
        with evaluating(model), torch.inference_mode():
            outputs = model(batch).double().tolist()
        for row, (key, item) in enumerate(part):
            near = _nearness_when_read(item, training)
            read = partial(read_outputs, model.config, outputs[row], near, conformal_of(model))
            yield from _unless_refused(key, read, refuse)


def set_nearness(found: Explanation, training: TrainingSet | None) -> None:
    """Let an explanation made without a training set know how near its molecule is to one."""
    molecule = found.mol if found.mol is not None else found.smiles
    if training is not None and molecule is not None:
        near = cache(partial(_nearness, training, molecule))  # for all tasks
        for prediction in found.predictions:
            prediction.set_nearness(near)


def nearness_of(item: Input, training: TrainingSet | None) -> Nearness | None:
    """How near a molecule is to the training set; None for a graph that is not a molecule."""
    found = _nearness_when_read(item, training)
    return found() if callable(found) else found


def _nearness_when_read(
    item: Input, training: TrainingSet | None
) -> Nearness | Callable[[], Nearness] | None:
    """How near a molecule is to the training set, found when first read: that takes a while."""
    if item.molecule is None and item.smiles is None:
        return None
    if training is None:
        return UNKNOWN
    return cache(partial(_nearness, training, item.molecule or item.smiles))  # for all tasks


def _nearness(training: TrainingSet, molecule: Any) -> Nearness:
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        return training.nearness(
            Chem.MolFromSmiles(molecule) if isinstance(molecule, str) else molecule
        )


@dataclass(frozen=True, eq=False)
class _Numbers:
    """An Attribution in plain numbers: arrays (B, N) and (B, N, F), and a list for each (B,)."""

    relevance: NDArray[np.floating]
    features: NDArray[np.floating] | None
    spread: NDArray[np.floating] | None
    members: NDArray[np.floating] | None
    outputs: list[list[float]]
    labels: tuple[str, ...]
    shares: list[dict[str, Any]]  # of each graph, as the ledger names them


def _in_numbers(found: Attribution) -> _Numbers:
    graphs = len(found.outputs)
    columns: dict[str, list[Any]] = {
        name: getattr(found, name).tolist()
        for name in ("graph_token", "biases", "output", "average_node")
        if getattr(found, name) is not None
    }
    columns["structure"] = _by_graph(found.structure, graphs)
    columns["remainders"] = _by_graph(found.remainders, graphs)
    columns["others"] = _by_graph(found.others, graphs)
    return _Numbers(
        relevance=found.relevance.float().cpu().numpy(),
        features=None if found.features is None else found.features.float().cpu().numpy(),
        spread=None if found.spread is None else found.spread.float().cpu().numpy(),
        members=None if found.members is None else found.members.float().cpu().numpy(),
        outputs=found.outputs.double().tolist(),
        labels=found.labels,
        shares=[
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ],
    )


def _by_graph(values: dict[str, Tensor] | None, graphs: int) -> list[dict[str, float]]:
    """Each graph's entry of each tensor (B,); empty if there are none."""
    if not values:
        return [{} for _ in range(graphs)]
    rows = zip(*(value.tolist() for value in values.values()), strict=True)
    return [dict(zip(values, row, strict=True)) for row in rows]


def _explanation(
    model: "Model",
    item: Input,
    found: _Numbers,
    row: int,
    explainer: Explainer,
    target: Target,
    origin: dict[str, Any],
    without_nodes: float | None,
    nearness: Nearness | Callable[[], Nearness] | None,
    relevance_of: Arrays,
    features_of: Arrays,
) -> Explanation:
    n = item.num_nodes
    relevance = found.relevance[row, :n].copy()
    features = None if found.features is None else found.features[row, :n].copy()
    predictions = read_outputs(model.config, found.outputs[row], nearness, conformal_of(model))
    task = target.task_in(model.config)
    return Explanation(
        relevance=relevance,
        target=found.labels[row],
        wanted=target.settled(model.config, found.outputs[row]),
        prediction=next(p for p in predictions if p.task == task.name),
        predictions=predictions,
        method=explainer.name,
        title=explainer.title,
        additive=explainer.additive,
        caveat=explainer.caveat,
        unsigned=explainer.unsigned,
        ledger=Ledger(
            nodes=float(relevance.sum(dtype=np.float64)),
            without_nodes=without_nodes,
            centrality=_share_of("centrality", model.feature_names, features),
            **found.shares[row],
        ),
        features=features,
        feature_names=model.feature_names if features is not None else (),
        spread=None if found.spread is None else found.spread[row, :n].copy(),
        members=None if found.members is None else found.members[:, row, :n].copy(),
        relevance_of=relevance_of,
        features_of=features_of,
        smiles=item.smiles,
        mol=item.molecule,
        image=item.image,
        segments=item.segments,
        provenance=origin,
    )


def _further(
    wrt: Sequence[str], item: Input, attribution: Attribution, found: _Numbers, row: int
) -> tuple[Arrays, Arrays]:
    """Relevance by input, if more than the nodes' features are explained, or by type of node."""
    relevance: Arrays = {}
    features: Arrays = {}
    own = found.relevance[row, : item.num_nodes]
    kinds = _nodes_by_type(item.graph)
    for kind, nodes in (kinds or {}).items():
        relevance[kind] = own[nodes].copy()
    if not attribution.inputs:
        return relevance, features
    if "x" in wrt and kinds is None:
        relevance["x"] = own.copy()
        if found.features is not None:
            features["x"] = found.features[row, : item.num_nodes].copy()
    for name, graphs in attribution.inputs.items():
        values = graphs[row].double().cpu().numpy()
        relevance[name] = values.reshape(len(values), -1).sum(-1)
        if values.ndim > 1:
            features[name] = values
    return relevance, features


def _share_of(
    name: str, names: Sequence[str], features: NDArray[np.floating] | None
) -> float | None:
    """The relevance through a feature, from parts (N, F); None if not separated."""
    if features is None or name not in names:
        return None
    return float(features[:, list(names).index(name)].sum(dtype=np.float64))
