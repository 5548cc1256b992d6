"""The types of models that results are computed for, how they are loaded, and several as one."""

import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from graphxai.contract.checkpoint_files import PROCESS, SUM, lists_as_written, stored_format
from graphxai.contract.intervals import Conformal
from graphxai.contract.model import require_contract
from graphxai.contract.tasks import Task
from graphxai.datasets.as_given import AS_DRAWN, Isomers, Standardisation
from graphxai.datasets.graph import is_data
from graphxai.explanation.labelled import numbered
from graphxai.explanation.prediction import Prediction
from graphxai.models.graphormer import ModelName, load_model, locate, require_purpose
from graphxai.runtime.notices import warn
from graphxai.wrapping.chemprop.paths import is_chemprop_path

if TYPE_CHECKING:
    from graphxai.models.graphormer import Ensemble, Graphormer
    from graphxai.models.process import KernelProcess, SummedModel
    from graphxai.wrapping import WrappedModel


_IN_MODULE = re.compile(r"(.+\.py):(\w+)")  # such as my.py:model
Model: TypeAlias = "Graphormer | Ensemble | KernelProcess | SummedModel | WrappedModel"


def load(
    name_or_folder: ModelName | str | Path,
    *,
    as_drawn: bool = False,
    isomers: Isomers = "groups",
    molecule_features: Any = (),
    extra_features: Mapping[str, Callable[[Any], Any]] | None = None,
) -> "Model":
    """Load a model by name (see `pretrained_models()`), from a folder, or from a chemprop file.

    "my.py:model" is the variable `model` of your file `my.py`, which is run.

    Models of molecules that were trained here bring each molecule to its parent, without
    counter-ions and solvents and neutral where it can be, and say what they changed.
    `as_drawn=True` turns that off.

    A folder with a published Graphormer (Hugging Face or Microsoft v1.0, as safetensors) is
    converted. `graphxai.models.graphormer.load_huggingface` has options for this.

    A model of chemprop 2 is a file that `chemprop train` or Lightning wrote (`best.pt`, `.ckpt`),
    or the folder of a run with several, which are an ensemble. No code from the file is run. It
    takes molecules as they are drawn.

    Args:
        name_or_folder: the model.
        as_drawn: see above.
        isomers: "groups" answers for a racemate, written with groups & or o, by the mean over its
            isomers, at most 16. "mean" does the same for centres without a configuration, which
            are otherwise read as undefined. A process sees no configuration.
        molecule_features: for a chemprop model that reads features of whole molecules, how they
            are computed: the name of a featurizer of chemprop such as "morgan_binary", a function
            of an RDKit molecule, or several of these. By default they are read from `config.toml`
            in the folder of the run.
        extra_features: for a chemprop model that reads further features of atoms or bonds, the
            functions of an RDKit molecule that return them, by kind: "atom_features" (atoms, k),
            "bond_features" (bonds, k) and "atom_descriptors" (atoms, k), which enter after the
            messages. These are what `chemprop train` read from files.

    Returns:
        A Graphormer, an Ensemble of several, or a wrapped chemprop model.

    Raises:
        CheckpointError: a checkpoint cannot be read. The message names the file and the key.
        ImportError: a model of chemprop is to be loaded, but chemprop is not installed.
    """
    if not isinstance(name_or_folder, str | Path):
        raise TypeError(
            f"load takes the name or path of a model, not {type(name_or_folder).__name__}:"
            " wrap(...) takes PyTorch models, and several names are loaded one by one."
        )
    if match := _IN_MODULE.fullmatch(str(name_or_folder)):
        return _from_module(Path(match[1]), match[2])
    if is_chemprop_path(name_or_folder):
        if isomers != "groups":
            raise ValueError("a model of chemprop reads isomers as drawn: leave out isomers.")
        from graphxai.wrapping.chemprop.loading import load_chemprop  # imports PyG

        return load_chemprop(name_or_folder, molecule_features, extra_features)
    if molecule_features or extra_features:
        raise ValueError(
            "molecule_features and extra_features are for models of chemprop: leave them out."
        )
    if (stored := stored_format(folder := locate(name_or_folder))) in (PROCESS, SUM):
        from graphxai.models.process import load_process, load_sum  # bring RDKit

        model: Model = (
            load_process(folder, as_drawn=as_drawn)
            if stored == PROCESS
            else load_sum(folder, lambda base: load(base, as_drawn=as_drawn, isomers=isomers))
        )
    else:
        model = load_model(name_or_folder, as_drawn=as_drawn, isomers=isomers)
    for name in [name for name, same in lists_as_written(model.origin).items() if not same]:
        warn(
            f"{folder / name} was changed since the model was written: how near molecules are to"
            " its training set, and the intervals and trust that follow from it, may be wrong."
            " Put the old file back, or delete it.",
            stacklevel=2,
        )
    return model


def _from_module(path: Path, name: str) -> "Model":
    """Return a model that a Python file of the user defines, which is run."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}.")
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)  # so that further processes find the module, too
    module = import_module(path.stem)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise ValueError(f"{path} has the name of the module {path.stem}: rename the file.")
    model: Any = getattr(module, name, None)
    if not hasattr(model, "origin"):
        raise ValueError(f"{path} has no model {name!r}: make it with graphxai.load or wrap.")
    return cast("Model", model)


def loaded(model: "Model | str | Path") -> "Model":
    """Return a model, after loading it if it is given by name or path.

    Raises ValueError for weights that only serve as a start for training, and TypeError for what is
    no model.
    """
    if isinstance(model, str | Path):
        return require_purpose(load(model))
    require_contract(model)
    return model


def loaded_once(model: "Model | str | Path") -> "Model":
    """Return a model as `loaded` does, once per process if it is given by name or folder."""
    if not isinstance(model, str | Path) or _IN_MODULE.fullmatch(str(model)):
        return loaded(model)
    return _load_once(*last_written(model))


@lru_cache(maxsize=16)
def _load_once(place: Path, written: int) -> "Model":
    return loaded(place)


def last_written(name_or_path: str | Path) -> tuple[Path, int]:
    """Return where a model is stored, and when a file of it was last changed, in nanoseconds."""
    if is_chemprop_path(name_or_path):
        place = Path(name_or_path)
        files = [place] if place.is_file() else list(place.rglob("*.pt"))
    else:
        place = locate(name_or_path)
        files = list(place.iterdir())
    return place, max((file.stat().st_mtime_ns for file in files), default=0)


def conformal_of(model: "Model") -> Mapping[str, Conformal]:
    """Return a model's conformal scores by task. Wrapped models have those of `learned_from`."""
    return getattr(model, "conformal", {})


def tasks_with_range(model: "Model") -> Collection[str]:
    """Return the tasks whose predictions have an interval or a set of classes."""
    return getattr(model, "tasks_with_own_spread", ()) or conformal_of(model)


def standardisation_of(model: "Model") -> Standardisation:
    """Return how a model brings molecules to their parents. Wrapped models leave them as drawn."""
    return getattr(model.config, "standardise", AS_DRAWN)


def isomers_meant(model: "Model") -> Isomers:
    """Return over which isomers a model's results are the mean: "one" where it sees none apart."""
    config: Any = getattr(model, "base", model).config  # a process sees no configuration
    meant: Isomers = getattr(config, "isomers", "one")
    return meant if getattr(config, "ties", "") == "average" else "one"


def takes_several_passes(models: "Sequence[Model]", smiles: Iterable[str]) -> int:
    """Return for how many molecules one of the models answers by the mean over several passes."""
    ways = {isomers_meant(model) for model in models} - {"one"}
    networks: list[Any] = [getattr(model, "base", model) for model in models]
    is_symmetric = any(getattr(network.config, "symmetric", False) for network in networks)
    if not ways and not is_symmetric:
        return 0
    from graphxai.datasets.isomers import has_undrawn_centres

    return sum(
        ("@" in text and (is_symmetric or "|" in text))
        or ("mean" in ways and has_undrawn_centres(text))
        for text in smiles
    )


def mark_explained_for(model: Model, inputs: Any, node: Any, pair: Any) -> Any:
    """Note in each input which node or pair is explained, if the model answers for these.

    A mapping keeps its keys. A Graphormer's only graph is encoded here, once for all its nodes.

    Raises:
        ValueError: the model does not answer for nodes or pairs, or a mapping of inputs comes
            with another number of these.
    """
    if node is None and pair is None:
        return inputs
    if isinstance(inputs, Mapping):
        graphs = mark_explained_for(model, list(inputs.values()), node, pair)
        if len(graphs) != len(inputs):
            raise ValueError("node= or pair= must name one for each graph with a key.")
        return dict(zip(inputs, graphs, strict=True))
    level = getattr(model.config, "level", None)  # wrapped models have none
    if level == "graph":
        raise ValueError("this model has one output per graph: leave out node= and pair=.")
    if level == "node" and pair is not None:
        raise ValueError("this model answers for nodes: give node= instead of pair=.")
    if level == "node" and is_data(inputs):
        inputs = model.prepare(inputs).data
    from graphxai.wrapping.chosen import mark_explained  # needs PyG

    return mark_explained(inputs, node, pair)


def provenance(model: Any, explainer: Any) -> dict[str, Any]:
    """Return the provenance that all explanations of a model by one explainer share."""
    options = {
        name: value
        for name, value in vars(explainer).items()
        if isinstance(value, str | int | float | bool | None)
    }
    standardise = getattr(model.config, "standardise", "")
    return {
        "model": model.origin.name,
        "sha256": model.origin.sha256,
        "method": explainer.name,
        "options": options,
        "versions": versions(),
        **({"standardise": standardise} if standardise else {}),
        **({"isomers": "mean"} if isomers_meant(model) == "mean" else {}),
    }


def versions() -> dict[str, str]:
    """Return the versions of what decides the numbers of a result."""
    import torch  # its own version tells builds for CPUs and GPUs apart

    packages = {name: _version(name) for name in ("graphxai", "torch", "rdkit", "numpy")}
    return packages | {"torch": str(torch.__version__), "python": platform.python_version()}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


ModelOrName: TypeAlias = "Model | str | Path"


@dataclass(frozen=True)
class PredictedProperty:
    """A property that one of several models predicts.

    Attributes:
        name: the name of the task. If several models have it, the model's name follows in brackets.
        place: the position of its model.
        model: the name of its model.
        task: the task.
    """

    name: str
    place: int
    model: str
    task: Task


@dataclass(frozen=True, eq=False)
class ModelPanel:
    """Several models, and the properties that they predict together.

    Attributes:
        names: the name of each model. Models of the same name are numbered.
    """

    models: tuple[Model, ...]
    names: tuple[str, ...]
    properties: tuple[PredictedProperty, ...]

    @classmethod
    def of(
        cls, models: "ModelOrName | Sequence[ModelOrName]", names: Sequence[str] | None = None
    ) -> "ModelPanel":
        """Load the models that are given by name or folder.

        Args:
            names: what each model is called, by default by its own name.

        Raises:
            ValueError: there is no model, or one only serves as a start for training.
        """
        given: Sequence[Any] = models if isinstance(models, list | tuple) else [models]
        if not given:
            raise ValueError("give at least one model.")
        members = tuple(map(loaded_once, given))
        names = numbered(names or [model.origin.name for model in members])
        owners = Counter(task.name for model in members for task in model.config.tasks)
        properties = tuple(
            PredictedProperty(
                task.name if owners[task.name] == 1 else f"{task.name} ({name})", place, name, task
            )
            for place, (name, model) in enumerate(zip(names, members, strict=True))
            for task in model.config.tasks
        )
        return cls(members, names, properties)

    def merged(
        self, of_models: Sequence[Mapping[str, Prediction] | None]
    ) -> dict[str, Prediction] | None:
        """Join the predictions of all models for one input, by the names of the properties.

        Properties of a model that left the input out are missing. Without any, return None.
        """
        predictions: dict[str, Prediction] = {}
        for each in self.properties:
            of_model = of_models[each.place]
            if of_model is not None:
                predictions[each.name] = of_model[each.task.name].renamed(each.name)
        return predictions or None


def is_several(models: Any) -> bool:
    """Return whether these are several models. A list with a single one counts, too."""
    return isinstance(models, list | tuple)
