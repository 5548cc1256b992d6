"""Rebuild the network of a file from what its records say, with chemprop's own classes.

Only the classes named here are made, and only with plain numbers and names. The modules are first
made without memory, and then get the weights of the file, so that no file can ask for more memory
than it has.
"""

import math
import reprlib
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from graphxai.contract.checkpoint_files import CheckpointError
from graphxai.contract.intervals import LEVEL

from .molecules import chemprop_nn
from .network import HEADS, ChempropNetwork, unknown_head
from .records import ChempropFile, StoredObject

MESSAGE_PASSING = {"BondMessagePassing", "AtomMessagePassing"}
AGGREGATIONS = {"MeanAggregation", "SumAggregation", "NormAggregation", "AttentiveAggregation"}
# Parameters that are plain numbers, names, or activations. The others are rebuilt from the weights.
ARGUMENTS = {
    "message_passing": {
        "d_v", "d_e", "d_h", "d_vd", "bias", "depth", "dropout", "activation", "undirected",
    },
    "agg": {"dim", "norm", "output_size"},
    "predictor": {
        "n_tasks", "n_classes", "input_dim", "hidden_dim", "n_layers", "dropout", "activation",
    },
}  # fmt: skip
ACTIVATIONS = {
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
    "LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus",
    "Softshrink", "Softsign", "Tanh", "Tanhshrink",
}  # fmt: skip
MOST_COMPONENTS = 10
MOST = {"depth": 100, "n_layers": 100}  # a network of chemprop has three to six
LARGEST = 1_000_000  # of any other number; the weights must fit it


def rebuilt(file: ChempropFile) -> ChempropNetwork:
    """Return the network of a file, in eval mode on the CPU.

    Raises:
        CheckpointError: the file needs a class that is not rebuilt, or its weights do not fit.
        ImportError: chemprop is not installed.
    """
    nn_of_chemprop = chemprop_nn()
    try:
        with torch.inference_mode(False), torch.device("meta"):
            network = _without_weights(file, nn_of_chemprop)
        network.load_state_dict(_weights(file), assign=True)
    except CheckpointError:
        raise
    except Exception as error:  # chemprop's classes may refuse the arguments in any way
        reason = " ".join(str(error).split())[:500] or type(error).__name__
        raise CheckpointError(f"{file.path}: its parts do not fit together ({reason}).") from error
    for name, value in network.state_dict().items():
        if not value.is_floating_point() or not value.numel():
            continue
        if not all(map(math.isfinite, value.aminmax())):  # isfinite would make copies
            raise CheckpointError(f"{file.path}: {name} has values that are not finite.")
    return network.eval()


def _without_weights(file: ChempropFile, nn_of_chemprop: Any) -> ChempropNetwork:
    """Make the modules that a file names."""
    _refuse_other_kinds(file)
    names = {block: _class_name(file, block) for block in ("agg", "predictor")}
    if names["predictor"] not in HEADS:
        raise CheckpointError(f"{file.path}: {unknown_head(names['predictor'])}")
    agg, predictor = (
        getattr(nn_of_chemprop, name)(**_arguments(file, block)) for block, name in names.items()
    )
    message_passing = _message_passing(file, nn_of_chemprop)
    unscale, scale = nn_of_chemprop.UnscaleTransform, nn_of_chemprop.ScaleTransform
    has_norm = "bn.running_mean" in file.state
    return ChempropNetwork(
        message_passing,
        agg,
        nn.BatchNorm1d(message_passing.output_dim) if has_norm else nn.Identity(),
        predictor.ffn,
        _scaling(file, "predictor.output_transform", unscale),
        _scaling(file, "X_d_transform", scale),
        names["predictor"],
        int(getattr(predictor, "n_classes", 0)),
        _level(file),
    )


def _message_passing(file: ChempropFile, nn_of_chemprop: Any) -> Any:
    """Make the message passing, or one for each of several molecules."""
    given = file.hyperparameters.get("message_passing")
    if not isinstance(given, Mapping) or "blocks" not in given:
        return _block(file, "message_passing", given, nn_of_chemprop)
    each = given["blocks"]
    count, shared = _argument(file, "n_components", given.get("n_components")), given.get("shared")
    few = isinstance(each, list) and 0 < len(each) <= MOST_COMPONENTS
    if not few or type(count) is not int or not 1 < count <= MOST_COMPONENTS:
        raise CheckpointError(f"{file.path}: n_components is {reprlib.repr(count)}.")
    blocks = [
        _block(file, f"message_passing.blocks.{k}", of, nn_of_chemprop)
        for k, of in enumerate(each[:1] if shared is True else each)
    ]
    if len({(block.W_i.in_features, block.W_o.in_features) for block in blocks}) > 1:
        raise CheckpointError(
            f"{file.path} reads other features of one of its {count} molecules than of the rest;"
            " models that read the same of all can be explained."
        )
    return nn_of_chemprop.MulticomponentMessagePassing(blocks, count, shared is True)


def _block(file: ChempropFile, prefix: str, given: Any, nn_of_chemprop: Any) -> Any:
    """Make the message passing of one molecule, whose weights have names with this prefix."""
    made = getattr(nn_of_chemprop, _class_name(file, "message_passing", given))(
        **_arguments(file, "message_passing", given)
    )
    made.graph_transform = _graph_transform(file, prefix, nn_of_chemprop)
    made.V_d_transform = _scaling(file, f"{prefix}.V_d_transform", nn_of_chemprop.ScaleTransform)
    return made


def _level(file: ChempropFile) -> float:
    """Return how often values should lie between two quantiles, as they were trained."""
    weights = file.state.get("predictor.criterion.tau")  # alpha / 2 comes first
    return LEVEL if weights is None else 1 - 2 * float(weights.flatten()[0])


def _refuse_other_kinds(file: ChempropFile) -> None:
    """Raise for models of atoms and bonds."""
    if "mol_predictor" in file.hyperparameters:
        raise CheckpointError(
            f"{file.path} is a chemprop model of single atoms and bonds; those of molecules can be"
            " explained."
        )


def _class_name(file: ChempropFile, block: str, given: Any = None) -> str:
    """Return the name of the class of a block, which must be one that is rebuilt.

    What the file says about the block is `given`, or stands under its name.
    """
    hyperparameters = file.hyperparameters.get(block) if given is None else given
    kind = hyperparameters.get("cls") if isinstance(hyperparameters, Mapping) else None
    if not (isinstance(kind, type) and issubclass(kind, StoredObject)):
        raise CheckpointError(f"{file.path}: 'hyper_parameters' lack the class of {block!r}.")
    package, _, name = kind.name.rpartition(".")
    rebuilt = {"message_passing": MESSAGE_PASSING, "agg": AGGREGATIONS}.get(block)
    if not package.startswith("chemprop.") or (rebuilt is not None and name not in rebuilt):
        _refuse(file, kind.name)
    return name


def _refuse(file: ChempropFile, name: str) -> NoReturn:
    """Raise for a class that is not rebuilt, and say what to do."""
    raise CheckpointError(
        f"{file.path} needs {name}, and only chemprop's own layers and PyTorch's activations are"
        " read from a file, so that no foreign code runs. If you trust the file, load it with"
        " chemprop (chemprop.models.load_model), and pass the model to graphxai.wrap."
    )


def _arguments(file: ChempropFile, block: str, given: Any = None) -> dict[str, Any]:
    """Return the arguments with which the module of a block is made, as for `_class_name`."""
    given = file.hyperparameters[block] if given is None else given
    arguments = {
        name: _argument(file, name, value)
        for name, value in given.items()
        if name in ARGUMENTS[block] and value is not None
    }
    widths = arguments.get("hidden_dim")
    if isinstance(widths, list | tuple) and len(set(widths)) == 1:
        # the same as a number for versions of chemprop that take no list
        arguments |= {"hidden_dim": widths[0], "n_layers": len(widths)}
    return arguments


def _argument(file: ChempropFile, name: str, value: Any) -> Any:
    """Return a number, a list of numbers or an activation, after checking it."""
    if name == "activation":
        return _activation(file, value)
    numbers = value if isinstance(value, list | tuple) else [value]
    limit = MOST.get(name, LARGEST)
    for number in numbers:
        plain = type(number) in (bool, int, float) and math.isfinite(number)
        if not plain or not 0 <= number <= limit or len(numbers) > MOST["n_layers"]:
            raise CheckpointError(f"{file.path}: {name} is {reprlib.repr(value)}.")
    return value


def _activation(file: ChempropFile, value: Any) -> Any:
    """Return the name of one of chemprop's activations, or one of PyTorch's as a module."""
    if isinstance(value, str):
        return value
    if not isinstance(value, StoredObject):
        raise CheckpointError(f"{file.path}: activation is {reprlib.repr(value)}.")
    if value.name == "chemprop.nn.utils.Activation" and isinstance(value.args[0], str):
        return value.args[0]
    package, _, kind = value.name.rpartition(".")
    if package != "torch.nn.modules.activation" or kind not in ACTIVATIONS:
        _refuse(file, value.name)
    state = value.state if isinstance(value.state, Mapping) else {}
    settings = {
        key: setting
        for key, setting in state.items()
        if not key.startswith("_")
        and key not in ("training", "device", "dtype")
        and type(setting) in (bool, int, float, str)
    }
    return getattr(nn, kind)(**settings)


def _graph_transform(file: ChempropFile, prefix: str, nn_of_chemprop: Any) -> nn.Module:
    """Return the scaling of extra features of atoms and bonds, if the file has it."""
    parts = [
        _scaling(file, f"{prefix}.graph_transform.{name}", nn_of_chemprop.ScaleTransform)
        for name in ("V_transform", "E_transform")
    ]
    if all(isinstance(part, nn.Identity) for part in parts):
        return nn.Identity()
    made: nn.Module = nn_of_chemprop.GraphTransform(*parts)
    return made


def _scaling(file: ChempropFile, prefix: str, kind: Any) -> nn.Module:
    """Return a scaling of the right width, or the identity if the file has none of this name."""
    mean = file.state.get(f"{prefix}.mean")
    if mean is None:
        return nn.Identity()
    width = mean.shape[-1]
    if width > LARGEST:
        raise CheckpointError(f"{file.path}: {prefix}.mean has {width:,} values.")
    made: nn.Module = kind([0.0] * width, [1.0] * width)
    return made


def _weights(file: ChempropFile) -> dict[str, Tensor]:
    """Return the weights under the names that they have in `ChempropNetwork`."""
    integers = sum(v.numel() for v in file.state.values() if not v.is_floating_point())
    if integers > LARGEST:
        raise CheckpointError(f"{file.path}: its weights have {integers:,} integers.")
    weights = {}
    for key, value in file.state.items():
        if key.startswith(("metrics.", "predictor.criterion.")):
            continue  # of training
        name = key.removeprefix("predictor.")
        floats = value.is_floating_point() or name.startswith("bn.")
        weights[name] = value if floats else value.float()
    return weights
