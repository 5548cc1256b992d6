"""Register explainers by name, and look them up."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.method_names import DEFAULT_METHOD, MethodName, unknown_method
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target
from graphxai.runtime.options import listed

from .base import Attribution, Explainer, scored
from .traits import Traits

REGISTRY: dict[str, type[Explainer]] = {}
BEST = "learned"  # highest AUAC for the passes it takes, see benchmarks/learned_explainer.md
BEST_UNFITTED = "path_marginals"  # of the methods that need no fitting, see benchmarks/hybrids.md
_Class = TypeVar("_Class", bound=type[Explainer])


def register(cls: _Class) -> _Class:
    """Register an explainer under its `name`, as a decorator of its class."""
    if REGISTRY.get(cls.name, cls) is not cls:
        raise ValueError(f"an explainer called {cls.name!r} already exists.")
    REGISTRY[cls.name] = cls
    return cls


# A type checker refuses a misspelt name of a `KnownMethod`. Of a method that you registered, pass
# the class.
KnownMethod = MethodName | Explainer | type[Explainer] | Callable[..., Any]
Method = KnownMethod | str


def get_explainer(method: Method | None, *, model: Any = None, **options: Any) -> Explainer:
    """Return the explainer for a name, a class, an instance or a user's function.

    None means the method that explains the `model` where nobody chose one. So does "lrp" for one
    without gradients, such as a forest; results name the method. "best" means that too if the
    model has a method of its own. Otherwise it means `BEST`, or `BEST_UNFITTED` for a `model`
    to which `BEST` is not fitted.
    Options go to the constructor. For a function `(model, batch, target) -> scores`, see `custom`.
    """
    if method is None or (method == DEFAULT_METHOD and not has_gradients(model)):
        method = default_method(model)
    if not isinstance(method, str | type):
        if options:
            text = sorted(options)
            raise ValueError(f"options {text} need a method name or class, not {method!r}.")
        if isinstance(method, Explainer):
            return method
        if not callable(method):
            raise TypeError(f"a method is a name, an explainer or a function, not {method!r}.")
        return CustomMethod(method)
    if isinstance(method, str):
        name = method
        if name == "best" and (name := default_method(model)) == DEFAULT_METHOD:
            fits = model is None or REGISTRY[BEST]().applies_to(model)
            name = BEST if fits else BEST_UNFITTED
        if name not in REGISTRY:
            raise unknown_method(method, [*REGISTRY])
        return _made(REGISTRY[name], options)
    if not issubclass(method, Explainer):
        raise TypeError(f"a method is a name, an explainer or a function, not {method!r}.")
    return _made(method, options)


def default_method(model: Any) -> str:
    """Return the name of the method that explains a model where nobody chose one."""
    return getattr(model, "default_method", None) or DEFAULT_METHOD


def has_gradients(model: Any) -> bool:
    """Return whether a model is a network. A wrapped estimator or function has no gradients."""
    return bool(getattr(getattr(model, "settings", None), "has_gradients", True))


def seeded_explainer(method: Method, seed: int, *, model: Any = None) -> Explainer:
    """Return the explainer, which draws from this seed if it has one and is made here."""
    explainer = get_explainer(method, model=model)
    if isinstance(method, str | type) and "seed" in explainer.options():
        return _made(type(explainer), {"seed": seed})
    return explainer


def each_of(methods: Method | Iterable[Method]) -> list[Method]:
    """Return a list of methods, of which a single one may be given as it is."""
    if isinstance(methods, Explainer) or callable(methods):
        return [methods]
    return list(listed(methods, "methods"))


def told_apart(explainers: Iterable[Explainer]) -> list[Explainer]:
    """Return explainers with different names, by which tables can list them.

    Where two share a name, the options that differ from the defaults are added, as in
    "path_marginals (ends='both')".

    Raises:
        ValueError: two are the same method with the same options.
    """
    given = list(explainers)
    counts = Counter(explainer.name for explainer in given)
    apart = [_with_options_in_name(e) if counts[e.name] > 1 else e for e in given]
    for name, count in Counter(explainer.name for explainer in apart).items():
        if count > 1:
            raise ValueError(
                f"method {name!r} is given twice: leave one out, or give it a name of its own,"
                " which is `name` of an explainer and `__name__` of a function."
            )
    return apart


def _with_options_in_name(explainer: Explainer) -> Explainer:
    """Return a copy whose name lists the options that are not the defaults."""
    defaults = {name: each.default for name, each in signature(type(explainer)).parameters.items()}
    chosen = [
        f"{name}={value!r}"
        for name, value in explainer.get_params().items()
        if isinstance(value, str | int | float | bool | None) and value != defaults[name]
    ]
    copied = copy(explainer)
    if chosen:
        copied.name = f"{explainer.name} ({', '.join(chosen)})"  # type: ignore[misc]
    return copied


def methods_for(model: Any) -> list[str]:
    """List the methods that can explain this model with their default options."""
    return [
        name
        for name, cls in REGISTRY.items()
        if (has_gradients(model) or not cls.traits.needs_gradients)
        and get_explainer(name).applies_to(model)
    ]


def _made(cls: type[Explainer], options: dict[str, Any]) -> Explainer:
    """Make an explainer of this class, or raise ValueError for an unknown option."""
    factory: Callable[..., Explainer] = cls
    if not options:
        return factory()
    available = cls.options()
    for option in options:
        if option not in available:
            text = ", ".join(available) or "none"
            hint = " The output is chosen by target=." if option in ("task", "output") else ""
            raise ValueError(f"method {cls.name!r} has no option {option!r}; it has {text}.{hint}")
    try:
        return factory(**options)
    except TypeError as error:  # a value of another type
        raise TypeError(f"method {cls.name!r} cannot take {options}: {error}.") from error


# -- methods that are functions --------------------------------------------------------------------


Scores = Tensor | Sequence[Any]


class CustomMethod(Explainer):
    """A method that gets its scores from a function `(model, batch, target) -> scores`.

    The function gets a `Target`. It returns a tensor (B, N), where padding is ignored, or a
    sequence with the node scores of each graph. If the number of scores is wrong, a ValueError
    names their shape.
    """

    source = "the user's"
    traits = Traits(cost="the function's")

    def __init__(self, function: Callable[..., Scores]) -> None:
        self.function = function
        self.name = self.title = name_of(function)  # type: ignore[misc]

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        scores_of_graphs = self.function(model, batch, target)
        with torch.no_grad():
            outputs = model.encode(model.embed(batch), batch)
        scores = outputs.new_zeros(len(batch), batch.mask.shape[1] + 1)
        scores[:, 1:] = self._padded(scores_of_graphs, batch, scores[:, 1:])
        return scored(scores, batch, outputs, target.resolve(model.config, outputs))

    def _padded(self, scores_of_graphs: Scores, batch: GraphBatch, like: Tensor) -> Tensor:
        """Pad the function's scores to (B, N), on the model's device."""
        if len(scores_of_graphs) != len(batch):
            raise ValueError(
                f"{self.name} returned scores for {len(scores_of_graphs)} graphs instead of"
                f" {len(batch)}."
            )
        padded = torch.zeros_like(like)
        for b, n in enumerate(batch.num_nodes.tolist()):
            row = torch.as_tensor(scores_of_graphs[b]).detach().to(like)
            whole_row = isinstance(scores_of_graphs, Tensor) and row.shape == like.shape[1:]
            if row.dim() != 1 or not (len(row) == n or whole_row):
                raise ValueError(
                    f"{self.name} returned scores of shape {tuple(row.shape)} for a graph of {n}"
                    f" nodes; return (B, N) = {tuple(like.shape)}, or {n} scores."
                )
            padded[b, :n] = row[:n]
        return padded


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which results refer to a function."""
    return str(getattr(function, "__name__", type(function).__name__))
