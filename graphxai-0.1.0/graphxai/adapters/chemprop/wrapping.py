"""Make models of chemprop that are in memory explainable, for `graphxai.wrap`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from torch import nn

from graphxai.contract.tasks import Task

from .model import ChempropModel, ChempropOptions, chemprop_model
from .network import ChempropNetwork


def is_chemprop(model: object) -> TypeGuard["nn.Module | Sequence[nn.Module]"]:
    """Return whether this is a `chemprop.models.MPNN` of one molecule, or a list of some."""
    if isinstance(model, list | tuple):
        return bool(model) and all(isinstance(m, nn.Module) and is_chemprop(m) for m in model)
    bases = {base.__name__ for base in type(model).__mro__ if _is_of_chemprop(base)}
    return "MPNN" in bases and "MulticomponentMPNN" not in bases


def _is_of_chemprop(kind: type) -> bool:
    return kind.__module__.startswith("chemprop.models.")


def wrap_chemprop(
    model: "nn.Module | Sequence[nn.Module]",
    tasks: tuple[Task, ...],
    task: str | None,
    classes: tuple[str, ...],
    featurize: Callable[[Any], Any] | None,
    molecule_features: Any,
    name: str | None,
) -> ChempropModel:
    """Return a model that shares the weights of an MPNN, or of several as an ensemble.

    Raises:
        ValueError: a model computes something else than chemprop's own, or features are missing.
    """
    members = model if isinstance(model, list | tuple) else [model]
    for member in members:
        _require_usual_pass(member)
    networks = [ChempropNetwork.of(member) for member in members]
    options = ChempropOptions(
        tasks,
        () if task is None else (task,),
        classes,
        featurize,
        molecule_features,
        name=name or "chemprop",
    )
    return chemprop_model(networks, options)


def _require_usual_pass(model: Any) -> None:
    """Raise ValueError if a subclass of MPNN runs its modules in another way."""
    for method in ("forward", "fingerprint"):
        defined_in = next(base for base in type(model).__mro__ if method in vars(base))
        if not _is_of_chemprop(defined_in):
            raise ValueError(
                f"{type(model).__name__} has a `{method}` of its own, so what it computes is"
                " unknown here: wrap a torch.nn.Module around it that takes x, edge_index,"
                " edge_attr and batch, with graphxai.wrap(module, inputs='molecules',"
                " featurize=...)."
            )
