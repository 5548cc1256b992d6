"""A learned explainer: an order of the nodes from a small network, with the values of LRP.

The activation curve says how good an order is. From the curves of other graphs, a network can learn
which features of a node predict its place in a good order (see `train`).

`explainer.safetensors` holds the network. `explainer.json` says what the network was fitted to and
how, and has the SHA-256 of the network's file and of the model's weights. Both files lie beside the
model's checkpoint, if it has one. Nothing is unpickled.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.contract.batch import GraphBatch
from graphxai.contract.checkpoint_files import NetworkFiles, require_finite
from graphxai.contract.model import ExplainableModel, weights_hash
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.contract.tasks import Task, TaskSet
from graphxai.models.graphormer import Graphormer

from ..base import Attribution, Explainer, scored
from ..orders import in_order
from ..registry import register
from ..traits import Traits
from .passes import NodeFeatures, describe

NETWORK, CARD = "explainer.safetensors", "explainer.json"
FORMAT = "graphxai-explainer"
CLIPPED = 5.0  # inputs are clipped to this many standard deviations
FIT = "gx.fit_explainer(model, graphs).save(folder), or graphxai fit-explainer --model FOLDER"
FILES = NetworkFiles(NETWORK, CARD, FORMAT, "a fitted explainer", FIT)
OTHER_KIND = f"the explainer was fitted to a model of another kind; use {FIT}."


class OrderNetwork(nn.Module):
    """A network that scores each node from its features and their mean and maximum in the graph.

    The score begins as the given start, because the last map is zero until the network has learned.
    Buffers standardise the inputs and reduce the states to `components`, so that a file needs
    nothing but the network's state.
    """

    state_mean: Tensor  # (states,)
    components: Tensor  # (states, components)
    mean: Tensor  # (inputs,)
    deviation: Tensor  # (inputs,)

    def __init__(self, inputs: int, states: int, components: int, width: int) -> None:
        super().__init__()
        self.register_buffer("state_mean", torch.zeros(states))
        self.register_buffer("components", torch.zeros(states, components))
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("deviation", torch.ones(inputs))
        self.node = nn.Linear(inputs, width)
        self.joint = nn.Linear(3 * width, width)
        self.score = nn.Linear(width, 1)
        self.path = nn.Parameter(torch.ones(()))
        self.input_dropout, self.dropout = nn.Dropout(0.1), nn.Dropout(0.2)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def inputs(self, features: NodeFeatures, classes: Tensor) -> Tensor:
        """Standardise the inputs (B, N, inputs), given the explained classes (B,)."""
        count = len(self.mean) - self.components.shape[1] - features.values.shape[-1]
        joined = raw_inputs(features, classes, count, self.state_mean, self.components)
        return ((joined - self.mean) / self.deviation).clamp(-CLIPPED, CLIPPED)

    @torch.no_grad()
    def round(self) -> None:
        """Round matrices to half precision as in a file, so that the order stays the same."""
        for value in self.state_dict().values():
            value.copy_(_stored(value))

    def forward(self, inputs: Tensor, start: Tensor, mask: Tensor) -> Tensor:
        """Score the nodes (B, N), given inputs (B, N, inputs), start and mask (B, N)."""
        of_node = F.gelu(self.node(self.input_dropout(inputs)))  # (B, N, W)
        padding = ~mask[..., None]
        mean = of_node.masked_fill(padding, 0.0).sum(1) / mask.sum(-1, keepdim=True)
        largest = of_node.masked_fill(padding, -math.inf).amax(1)
        pooled = torch.cat([mean, largest], dim=-1)[:, None].expand(-1, of_node.shape[1], -1)
        joint = F.gelu(self.joint(torch.cat([of_node, pooled], dim=-1)))
        return self.path * start + self.score(self.dropout(joint))[..., 0]


def _stored(value: Tensor) -> Tensor:
    """Return a tensor as it is stored in a file, where only matrices have half precision."""
    return value.detach().half() if value.ndim > 1 else value.detach()


def raw_inputs(
    features: NodeFeatures, classes: Tensor, count: int, state_mean: Tensor, components: Tensor
) -> Tensor:
    """Join the values, the components of the states and the class of every node.

    The result is not standardised yet.

    Args:
        features: what the passes say about the nodes.
        classes: the number (B,) of each explained class among the classes of all tasks that the
            explainer is fitted to.
        count: the number of these classes.
    """
    reduced = (features.states - state_mean) @ components
    one_hot = F.one_hot(classes, count).to(reduced)[:, None].expand(-1, reduced.shape[1], -1)
    return torch.cat([features.values, reduced, one_hot], dim=-1)


@dataclass(frozen=True, eq=False)
class FittedExplainer:
    """A network fitted to tasks of a model by `fit_explainer`.

    Args:
        network: the network.
        tasks: the names of the tasks.
        sha256: the hash of the model's weights, or "" if they are of a Graphormer without a file.
        card: the data, number of graphs, seed, settings, processor time in seconds, and scores on
            held-out graphs.
    """

    network: OrderNetwork
    tasks: tuple[str, ...]
    sha256: str = ""
    card: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        stated = "; ".join(f"{name}: {value}" for name, value in self.card.items())
        return f"FittedExplainer({', '.join(self.tasks)}; {stated})"

    def save(self, folder: str | Path) -> Path:
        """Write both files to a folder, such as that of a checkpoint, and return the folder."""
        tensors = {name: _stored(value) for name, value in self.network.state_dict().items()}
        bound = {"tasks": self.tasks, "model_sha256": self.sha256}
        return FILES.write(folder, tensors, **bound, card=self.card)

    @classmethod
    def load(cls, folder: str | Path) -> "FittedExplainer":
        """Read both files of a folder, or raise a ValueError that says what is wrong with one."""
        kinds = {"tasks": list, "model_sha256": str, "card": dict}
        network, content = FILES.read(folder, kinds, _network_of)
        return cls(network, tuple(content["tasks"]), content["model_sha256"], content["card"])

    def tasks_in(self, model: ExplainableModel) -> list[tuple[Task, slice]]:
        """Return the model's tasks and their columns, or raise ValueError for another model."""
        config = model.config
        names = [task.name for task in config.tasks if task.classes]
        if not set(self.tasks) <= {*names}:
            raise ValueError(OTHER_KIND)
        if self.sha256 and self.sha256 != hash_of(model):
            raise ValueError(f"the explainer was fitted to other weights; fit again with {FIT}.")
        return [config.task_columns(name) for name in self.tasks]


def hash_of(model: Any) -> str:
    """Return the hash of the weights that an explainer is bound to.

    A Graphormer has that of its file, or "" without one. A wrapped model has that of its weights.
    """
    return model.origin.sha256 if isinstance(model, Graphormer) else weights_hash(model)


def with_classes(config: TaskSet) -> list[Task]:
    """Return the tasks that have classes, or raise ValueError if there are none."""
    tasks = [task for task in config.tasks if task.classes]
    if not tasks:
        raise ValueError(
            "a learned explainer follows the probability of a class, but this model has only"
            " regressions: use 'path_marginals'."
        )
    return tasks


def _network_of(tensors: dict[str, Tensor], content: dict[str, Any]) -> OrderNetwork:
    """Make a network from these tensors, after checking their names, shapes and values."""
    names = content["tasks"]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"'tasks' of {CARD} must hold names of tasks")
    (states, components), (width, inputs) = (
        tuple(tensors[name].shape) for name in ("components", "node.weight")
    )
    with torch.device("meta"):  # without memory, as a wrong file may have any shapes
        network = OrderNetwork(inputs, states, components, width)
    expected = {name: value.shape for name, value in network.state_dict().items()}
    if {name: value.shape for name, value in tensors.items()} != expected:
        raise ValueError("its tensors have other names or shapes than a fitted explainer's")
    require_finite(tensors)
    if not bool((tensors["deviation"] > 0).all()):
        raise ValueError("'deviation' holds values that are not above zero")
    network.to_empty(device="cpu").load_state_dict(tensors)
    return network.eval()


# -- the method ------------------------------------------------------------------------------------


@register
class Learned(Explainer):
    """The order of the nodes that a network learned on other graphs of the same model.

    The network reads what a few passes say about each node, and corrects an order. In a Graphormer
    four passes and their gradients are read by layer and head, and the order is that of `lrp_path`.
    In a wrapped model, with messages or attention, the order is that of the marginals with which
    `path_marginals` begins, and the network reads these, LRP, Gradient x Input and the embedding.
    That takes 9 forward and 7 backward passes.

    The network's numbers have neither a zero nor a unit, so only their order is used. The most
    relevant node gets the largest score of `lrp_path` in its graph, or of `lrp` in a wrapped model,
    the next node gets the second largest, and so on. Equivalent nodes share theirs. Scores are
    therefore in units of the output, but do not add up to it.

    The method explains the classes of the tasks that it was fitted to. Other targets raise
    ValueError, as does a model without a fitted explainer.

    Args:
        fitted: what `fit_explainer` returns, or a folder with its files. None takes the files
            beside the model's checkpoint.
    """

    name = "learned"
    title = "Learned order of the nodes"
    source = "this project; Ali 2022, section 5"
    traits = Traits(
        in_output_units=True,
        cost="4 forward, 4 backward",
        needs_fitting=True,
        trained_on_curve=True,
    )

    def __init__(self, fitted: FittedExplainer | str | Path | None = None) -> None:
        self.fitted = FittedExplainer.load(fitted) if isinstance(fitted, str | Path) else fitted

    def applies_to(self, model: Any) -> bool:
        """Return whether an explainer was given, or lies beside the checkpoint of this model."""
        return self.fitted is not None or _stored_in(model) is not None

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        fitted = self.fitted or stored_explainer(model)
        tasks = fitted.tasks_in(model)
        said = describe(model, batch, target)
        network = deepcopy(fitted.network).to(said.start)
        width, states = (part.shape[-1] for part in said.features)
        inputs = width + network.components.shape[1] + sum(len(task.classes) for task, _ in tasks)
        if (len(network.state_mean), len(network.mean)) != (states, inputs):
            raise ValueError(OTHER_KIND)
        classes = class_numbers(said.target, tasks)
        with torch.no_grad():
            order = network(network.inputs(said.features, classes), said.start, batch.mask)
        values = said.values
        nodes = in_order(values.relevance, order, batch.mask)
        scores = torch.cat([values.graph_token[:, None], nodes], dim=1)
        return scored(scores, batch, values.outputs, said.target)


def _stored_in(model: Any) -> Path | None:
    """Return the checkpoint's folder if it holds a fitted explainer, or None."""
    folder = getattr(getattr(model, "origin", None), "folder", None)
    return folder if folder is not None and (folder / CARD).exists() else None


def stored_explainer(model: Any) -> FittedExplainer:
    """Load the explainer beside the model's checkpoint, or raise a ValueError if there is none."""
    folder = _stored_in(model)
    if folder is not None:
        return FittedExplainer.load(folder)
    with_classes(model.config)
    if hasattr(model, "module"):
        raise ValueError(
            "no explainer was given for this wrapped model: make one by"
            " fitted = gx.fit_explainer(model, graphs), and pass fitted=fitted."
        )
    raise ValueError(f"no explainer is fitted to model {model.origin.name!r}: fit one with {FIT}.")


def class_numbers(target: ResolvedTarget, tasks: Sequence[tuple[Task, slice]]) -> Tensor:
    """Return the number (B,) of each graph's explained class among the classes of all tasks.

    Raises:
        ValueError: something other than a class is explained.
    """
    is_single = (target.weights != 0).sum(-1) == 1
    numbers = torch.full_like(is_single, -1, dtype=torch.long)
    first = 0
    for task, columns in tasks:
        weights = target.weights[:, columns]
        # a single logit is for the second class, its negative for the first
        binary = task.kind == "binary"
        number = (weights[:, 0] > 0).long() if binary else weights.argmax(-1)
        numbers = torch.where(is_single & (weights != 0).any(-1), first + number, numbers)
        first += len(task.classes)
    if (numbers < 0).any():
        names = ", ".join(repr(task.name) for task, _ in tasks)
        raise ValueError(
            f"'learned' was fitted to the classes of {names}, not to"
            f" {target.labels[int(numbers.argmin())]!r}: use 'path_marginals' or 'lrp_path'."
        )
    return numbers
