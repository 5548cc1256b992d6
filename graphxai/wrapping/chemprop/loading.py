"""Load the models that `chemprop train` and Lightning write.

The file of a model does not say how `chemprop train` turned molecules into graphs: `config.toml` in
the run's folder does. chemprop writes its settings as lines `name = value`, with lists in brackets
and names without quotes, so this is not quite TOML.

Of the network, only the classes named here are made, and only with plain numbers and names. The
modules are first made without memory, and then get the weights of the file, so that no file can ask
for more memory than it has.
"""

import hashlib
import math
import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from graphxai.contract.checkpoint_files import CheckpointError
from graphxai.contract.intervals import LEVEL
from graphxai.contract.model import Origin

from .model import ChempropModel, ChempropOptions, chemprop_model
from .molecules import MoleculeFeaturizer, chemprop_nn
from .network import HEADS, ChempropNetwork, unknown_head
from .records import ChempropFile, StoredObject, read_file

MOST_NETWORKS = 50  # of an ensemble, as many as an ensemble of Graphormers may have


def load_chemprop(
    path: str | Path,
    molecule_features: "MoleculeFeaturizer | Sequence[MoleculeFeaturizer]" = (),
    extra_features: Any = None,
) -> ChempropModel:
    """Load a model of chemprop 2 from its file, or an ensemble from the folder of a run.

    Args:
        path: a file that `chemprop train`, `save_model` or Lightning wrote, or a folder with
            several such files, which are the members of an ensemble.
        molecule_features: as for `graphxai.load`. By default they are those in `config.toml` of
            the run.
        extra_features: as for `graphxai.load`.

    Raises:
        CheckpointError: a file cannot be read, or needs more than chemprop's own classes.
        ValueError: the members do not fit together, or features are missing.
        ImportError: chemprop is not installed.
    """
    path = Path(path)
    if not os.path.exists(path):  # text that cannot be a path is no file
        raise CheckpointError(f"{str(path)[:200]}: no such file.")
    files = [path] if path.is_file() else _files_in(path)
    contents = [read_file(file) for file in files]
    networks = [rebuilt(content) for content in contents]
    name = path.stem if path.is_file() else path.name
    run = run_settings(path)
    options = ChempropOptions(
        task_names=contents[0].output_columns or (),
        molecule_features=molecule_features or run.molecule_featurizers,
        extra_features=extra_features or {},
        ignore_stereo=run.ignore_stereo,
        name=name,
    )
    try:
        model = chemprop_model(networks, options)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    folder = path.parent if path.is_file() else path
    model.origin = replace(Origin(name), sha256=_digest(files), folder=folder.resolve())
    return model


def _files_in(folder: Path) -> list[Path]:
    """Return the files of an ensemble: all with the suffix `.pt`, as `chemprop predict` does."""
    files = sorted(folder.rglob("*.pt"))
    if len(files) > MOST_NETWORKS:
        raise CheckpointError(
            f"{folder} has {len(files)} files *.pt, more than {MOST_NETWORKS} models."
        )
    return files


def _digest(files: Sequence[Path]) -> str:
    """Return the SHA-256 of a file, or one for those of several."""
    digests = []
    for file in files:
        with file.open("rb") as content:
            digests.append(hashlib.file_digest(content, "sha256").hexdigest())
    return digests[0] if len(files) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


# -- how a run turned molecules into graphs --------------------------------------------------------


FILE = "config.toml"
# Options that change the atoms, for which relevance would belong to other atoms than those given.
HYDROGENS = ("add-h", "keep-h")
LONGEST = 1_000_000  # characters; a usual file has a thousand


@dataclass(frozen=True)
class ChempropRunSettings:
    """How molecules became graphs in a run.

    Args:
        molecule_featurizers: chemprop's names of the features of whole molecules.
        ignore_stereo: whether the network sees no stereochemistry.
    """

    molecule_featurizers: tuple[str, ...] = ()
    ignore_stereo: bool = False


def run_settings(path: Path) -> ChempropRunSettings:
    """Return the settings of the run that a file or folder belongs to, or the usual ones.

    Raises:
        CheckpointError: the run made atoms of hydrogens.
    """
    folders = (path, *path.parents[:2]) if path.is_dir() else path.parents[:3]
    file = next((folder / FILE for folder in folders if (folder / FILE).is_file()), None)
    if file is None:
        return ChempropRunSettings()
    lines = file.read_text(encoding="utf-8", errors="replace")[:LONGEST].splitlines()
    pairs = (line.partition("=") for line in lines)
    values = {name.strip(): value.strip() for name, _, value in pairs}
    for option in HYDROGENS:
        if values.get(option) == "true":
            raise CheckpointError(
                f"{path} was trained with --{option} (see {file}), so hydrogens are atoms of its"
                " graphs. Relevance of the atoms of a SMILES needs a model without them."
            )
    names = values.get("molecule-featurizers", "").strip("[]").split(",")
    return ChempropRunSettings(
        tuple(name.strip(" '\"") for name in names if name.strip()),
        values.get("ignore-stereo") == "true",
    )


# -- the network of a file, from what its records say ----------------------------------------------


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
    if "mol_predictor" in file.hyperparameters:
        raise CheckpointError(
            f"{file.path} is a chemprop model of single atoms and bonds; those of molecules can be"
            " explained."
        )
    names = {block: _class_name(file, block) for block in ("agg", "predictor")}
    if names["predictor"] not in HEADS:
        raise CheckpointError(f"{file.path}: {unknown_head(names['predictor'])}")
    agg, predictor = (
        getattr(nn_of_chemprop, name)(**_arguments(file, block)) for block, name in names.items()
    )
    message_passing = _message_passing(file, nn_of_chemprop)
    unscale, scale = nn_of_chemprop.UnscaleTransform, nn_of_chemprop.ScaleTransform
    has_norm = "bn.running_mean" in file.state
    weights = file.state.get("predictor.criterion.tau")  # of two quantiles; alpha / 2 comes first
    return ChempropNetwork(
        message_passing,
        agg,
        nn.BatchNorm1d(message_passing.output_dim) if has_norm else nn.Identity(),
        predictor.ffn,
        _scaling(file, "predictor.output_transform", unscale),
        _scaling(file, "X_d_transform", scale),
        names["predictor"],
        int(getattr(predictor, "n_classes", 0)),
        LEVEL if weights is None else 1 - 2 * float(weights.flatten()[0]),
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
    return nn_of_chemprop.GraphTransform(*parts)


def _scaling(file: ChempropFile, prefix: str, kind: Any) -> nn.Module:
    """Return a scaling of the right width, or the identity if the file has none of this name."""
    mean = file.state.get(f"{prefix}.mean")
    if mean is None:
        return nn.Identity()
    width = mean.shape[-1]
    if width > LARGEST:
        raise CheckpointError(f"{file.path}: {prefix}.mean has {width:,} values.")
    return kind([0.0] * width, [1.0] * width)


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
