"""A fitted explainer: a small network over the nodes of a graph, and its files.

`explainer.safetensors` holds the network. `explainer.json` says what the network was fitted to and
how, and has the SHA-256 of the network's file and of the model's weights. Both files lie beside the
model's checkpoint, if it has one. Nothing is unpickled.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.contract.checkpoint_files import NetworkFiles, require_finite
from graphxai.contract.model import ExplainableModel, weights_hash
from graphxai.contract.tasks import Task, TaskSet
from graphxai.explainers.learned.description import NodeFeatures
from graphxai.models.graphormer import Graphormer

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
        state_mean: the mean state.
        components: the principal components of the states.
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


def require_same_kind(
    network: OrderNetwork, features: NodeFeatures, tasks: Sequence[tuple[Task, slice]]
) -> None:
    """Raise ValueError if a network was fitted to other features or numbers of classes."""
    classes = sum(len(task.classes) for task, _ in tasks)
    inputs = features.values.shape[-1] + network.components.shape[1] + classes
    if (len(network.state_mean), len(network.mean)) != (features.states.shape[-1], inputs):
        raise ValueError(OTHER_KIND)


def hash_of(model: Any) -> str:
    """Return the hash of the weights that an explainer is bound to.

    A Graphormer has that of its file, or "" without one. A wrapped model has that of its weights.
    """
    digest: str = model.origin.sha256 if isinstance(model, Graphormer) else weights_hash(model)
    return digest


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
