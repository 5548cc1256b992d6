"""Record what makes a result reproducible: the model, its weights, the method and versions."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any


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
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect a result."""
    return {name: _version(name) for name in ("graphxai", "torch", "rdkit")}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
