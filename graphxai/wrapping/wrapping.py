"""Make a user's PyTorch module explainable by `wrap`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data

from graphxai.contract.tasks import Task, TaskKind
from graphxai.rules.module_rule import ComputeModule, CustomRule, ModuleRule
from graphxai.rules.operation_rule import Compute, OperationRule
from graphxai.runtime.modules import unwrapped
from graphxai.runtime.options import listed, with_keywords
from graphxai.wrapping.chemprop.model import ChempropOptions, is_chemprop, wrap_chemprop

from .calling import CallSettings, Forward, WrappedConfig, module_named
from .estimators import is_estimator, wrap_estimator, wrap_function
from .wrapped import WrappedModel

MOST_CLASSES = 1 << 20  # limited because each class gets a name


class ReadingOptions(TypedDict, total=False):
    """How a wrapped model reads inputs other than its graphs. `wrap` says what each does."""

    featurize: Callable[[Any], Any] | None
    transform: Callable[[Data], Data] | None
    features: Sequence[str]
    molecule_features: Any
    extra_features: Any
    one_at_a_time: bool
    empty: Literal["no nodes", "zeros"]


@with_keywords
def wrap(
    model: Any,
    tasks: Sequence[Task] | Task | None = None,
    *,
    kind: TaskKind | None = None,
    classes: Sequence[str] | int | None = None,
    task: str | None = None,
    embedding: str | Sequence[str] | None = None,
    forward: Forward | None = None,
    inputs: Literal["graphs", "molecules", "tokens"] = "graphs",
    graph_token: bool = False,
    rules: Mapping[Any, Compute | ComputeModule] | None = None,
    name: str | None = None,
    **reading: Unpack[ReadingOptions],
) -> WrappedModel:
    """Make a PyTorch model explainable by every method of the toolkit.

    A model of chemprop 2 (`chemprop.models.MPNN`) says itself what its outputs are and what it
    reads. It takes SMILES, and a list of such models is an ensemble. Of the arguments it takes
    `tasks` or `task` and `classes`, `featurize` for a `MolGraph` featurizer other than chemprop's
    own sets, `molecule_features`, `extra_features` and `name`.

    A fitted estimator with scikit-learn's methods, such as a forest on fingerprints, takes SMILES.
    `featurize` computes the features of an RDKit molecule, and may be left out if the estimator
    takes molecules itself. Methods that hide atoms explain it: an atom is hidden as a dummy atom,
    and the features are computed again. It takes `tasks` or `task` and `classes`, and `name`. Its
    own classes keep their columns in whatever order they are given; other names replace them in
    order. A classifier without probabilities is explained by its `decision_function`, and what is
    then shown as a probability is not calibrated.

    A function of a SMILES is explained likewise, where `*` is a hidden atom. It returns a value, or
    with `kind="binary"` the probability of the second class. `learned_from` tells a model its
    training set and its errors.

    Without a graph token, column 0 of tokens and relevance is zero, and methods that follow
    attention start from the mean over nodes. If `node=` or `pair=` chooses what to explain, they
    start from this node, or from the mean over both of the pair.

    When a node is hidden (`keep`), it is removed from the graph with its edges, and from other
    indices and matrices over pairs (see `wrapping.subgraphs`). So it enters no message, attention
    or pooling, while the features of other nodes stay the same. A hidden token is added to the
    padding mask. If no token would be left, all are set to zero instead. If `model.forward` takes
    no batch vector, graphs cannot share a pass and go one at a time.

    Args:
        model: the PyTorch module, which should return logits, or one of the above.
        tasks: what the output columns mean.
        kind: for a single task, "binary", "multiclass" or "regression" instead of `tasks`.
        classes: for a single task, the names of the classes, or how many there are.
        task: the name of a single task, such as "logP". It is "output" by default.
        embedding: for a model that begins with an embedding, the name of the module that returns
            it. This output then gets the relevance. It has a row per node, or is padded (B, N,
            ...), after a class token or not. If there are several names, their relevance is added
            up. By default, `x` itself gets the relevance. If `x` holds codes, all look-ups
            (`nn.Embedding`) of nodes get it, also those of other codes, such as degrees, which
            then count as features.
        forward: a function `forward(model, batch) -> outputs (B, C)`, for a model with arguments
            that are not attributes of the graph. `batch` is a PyG batch, or `Tokens` (x, mask).
        inputs: "graphs" for PyG `Data` (or `Batch`), "molecules" if `featurize` makes such a graph
            of a SMILES, with a node for each atom in its order, or "tokens" for tensors (N, D).
            Only models of molecules work in reports, in tables and in the app.
        graph_token: whether the first token is a class token.
        featurize: turns any other input, such as a SMILES, into a graph (or tensor).
        transform: recomputes the structure of a graph after the operator `delete` has removed
            nodes.
        features: the names of the columns of `x`.
        one_at_a_time: whether `forward` takes one graph and returns its outputs (C,) or (1, C).
            Otherwise graphs share a pass.
        empty: what a graph is where all its nodes are hidden: a graph with "no nodes", or one
            whose nodes are "zeros". It is the latter anyway if the model has no finite output for
            a graph without nodes. The ledger says which.
        rules: rules of your own for LRP and its variants, which precede those built in. A key is
            an operation, such as `torch.ops.aten.softplus`, or a class of modules. A rule is a
            function `rule(x, operation) -> y`. It computes what the operation or module computes
            from its first argument, and detaches what is constant on the way back (see
            `rules.operation_rule` and `rules.module_rule`).
        molecule_features: for a chemprop model that reads features of whole molecules, how they
            are computed: the name of a featurizer of chemprop such as "morgan_binary", a function
            of an RDKit molecule, or several of these.
        extra_features: for a chemprop model that reads further features of atoms or bonds, as for
            `load`.
        name: the name of the model in results, by default that of its class.

    Raises:
        ValueError: there is no module named `embedding`, no tasks are given, or a rule cannot act
            on an operation.
        TypeError: a key of `rules` is neither an operation nor a class of modules.
    """
    own_tasks = (tasks,) if isinstance(tasks, Task) else listed(tasks or (), "tasks")
    if wrong := next((each for each in own_tasks if not isinstance(each, Task)), None):
        raise TypeError(f"tasks= takes gx.Task(name, kind), not {wrong!r}.")
    featurize, transform = reading.get("featurize"), reading.get("transform")
    features, molecule_features = reading.get("features", ()), reading.get("molecule_features", ())
    extra = reading.get("extra_features")
    only_for_chemprop = {"molecule_features": molecule_features, "extra_features": extra}
    if (empty := reading.get("empty", "no nodes")) not in ("no nodes", "zeros"):
        raise ValueError(f"empty must be 'no nodes' or 'zeros', not {empty!r}.")
    only_for_networks = {
        "kind": kind, "embedding": embedding, "forward": forward, "graph_token": graph_token,
        "transform": transform, "features": features, "rules": rules,
        "one_at_a_time": reading.get("one_at_a_time"), "empty": empty == "zeros",
    }  # fmt: skip
    if is_chemprop(model):
        _refuse(only_for_networks, "a chemprop model")
        of_task = () if task is None else (task,)
        options = ChempropOptions(
            own_tasks, of_task, _class_names(classes), featurize, molecule_features, extra or {},
            name=name or "chemprop",
        )  # fmt: skip
        return wrap_chemprop(model, options)
    if is_estimator(model):
        _refuse(only_for_networks | only_for_chemprop, "an estimator")
        return wrap_estimator(model, own_tasks, task, _class_names(classes), featurize, name)
    if callable(model) and not isinstance(model, nn.Module):
        _refuse(only_for_networks | only_for_chemprop | {"kind": None}, "a function")
        own_tasks = own_tasks or _tasks_from((), kind, classes, task)
        return wrap_function(model, own_tasks, featurize, name)
    if molecule_features or extra:
        raise ValueError(
            "molecule_features and extra_features are for models of chemprop: leave them out."
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"wrap takes a torch.nn.Module, not {type(model).__name__}.")
    _check_inputs(inputs, featurize, graph_token)
    if not isinstance(rules := rules or {}, Mapping):
        raise TypeError(f"rules= takes a dict of operations and their rules, not {rules!r}.")
    functions: dict[str, Any] = {"forward": forward, "featurize": featurize, "transform": transform}
    functions |= {f"the rule for {key}": rule for key, rule in rules.items()}
    for what, given in functions.items():
        if given is not None and not callable(given):
            raise TypeError(f"{what} is a function, not {given!r}.")
    config = WrappedConfig(_tasks_from(own_tasks, kind, classes, task), reads=inputs)
    weights = (*model.parameters(), *model.buffers())
    if any(value.is_meta for value in weights):
        raise ValueError(
            f"{type(model).__name__} has weights on the device 'meta', which have no values: load"
            " them first."
        )
    if any(map(is_lazy, weights)):
        raise ValueError(
            f"{type(model).__name__} has lazy layers without weights: run it on a graph, or load"
            " its weights, and wrap it then."
        )
    module = unwrapped(model)
    names = listed(embedding or (), "embedding")
    for path in names:
        module_named(module, path)
    settings = CallSettings(
        names, forward, inputs == "tokens", graph_token, featurize, transform,
        listed(features, "features"),
        tuple(_rule_for(key, compute) for key, compute in rules.items()),
        one_at_a_time=reading.get("one_at_a_time", False), zeroes_nodes=empty == "zeros",
    )  # fmt: skip
    return WrappedModel(module, config, settings, name or type(module).__name__)


def _check_inputs(inputs: str, featurize: Any, graph_token: bool) -> None:
    """Raise ValueError if a model cannot read such inputs."""
    if inputs not in ("graphs", "molecules", "tokens"):
        raise ValueError(f"inputs must be 'graphs', 'molecules' or 'tokens', not {inputs!r}.")
    if inputs == "molecules" and featurize is None:
        raise ValueError("inputs='molecules' needs featurize=, which makes the graph of a SMILES.")
    if graph_token and inputs != "tokens":
        raise ValueError("graph_token=True needs inputs='tokens', where it is the first row.")


def _refuse(options: Mapping[str, Any], kind: str) -> None:
    """Raise ValueError for options that a kind of model does not take."""
    if given := [option for option, value in options.items() if value]:
        raise ValueError(f"{kind} takes no {', '.join(given)}: leave it out.")


def _rule_for(key: Any, compute: Any) -> CustomRule:
    """Return the rule for an operation such as `torch.ops.aten.softplus`, or for a module class."""
    if isinstance(key, type) and issubclass(key, nn.Module):
        return ModuleRule(key, compute)
    operation = key.overloadpacket if isinstance(key, torch._ops.OpOverload) else key
    if not isinstance(operation, torch._ops.OpOverloadPacket):
        raise TypeError(
            "rules= names operations such as torch.ops.aten.softplus, or classes of modules, not"
            f" {key!r}."
        )
    return OperationRule(operation._qualified_op_name.removeprefix("aten::"), compute)


def _tasks_from(
    tasks: tuple[Task, ...],
    kind: TaskKind | None,
    classes: Sequence[str] | int | None,
    task: str | None,
) -> tuple[Task, ...]:
    """Return the given tasks, or one task of this kind. Raise ValueError without either."""
    if tasks and task is not None:
        raise ValueError(f"tasks already have names: task={task!r} belongs to `kind`.")
    if tasks:
        return tasks
    if kind is None:
        raise ValueError("say what the outputs are: kind='binary', 'multiclass' or 'regression'.")
    names = _class_names(classes)
    if not names and kind == "binary":
        names = ("negative", "positive")
    return (Task("output" if task is None else task, kind, names),)


def _class_names(classes: Sequence[str] | int | None) -> tuple[str, ...]:
    """Return the names of classes, which are numbers if only their count is given."""
    if not isinstance(classes, int):
        return listed(classes or (), "classes")
    if classes > MOST_CLASSES:
        raise ValueError(f"classes is {classes}, more than the limit of {MOST_CLASSES:,}.")
    return tuple(str(c) for c in range(classes))
