"""How much relevance there is in all and at every layer, and where a method creates or loses some.

Over a data set the sum of relevance is compared with the output (Ali 2022, Fig. 3).

A stage begins where a layer receives its state h, and ends where the next one does. With
`R = sum h dh` and `dh = d f_c / d h` under a method's rules,

    created = R(next) - R(this) - biases - further inputs,

where the state before the first stage are the rows of the nodes, and `R` after the last is f_c.
Where the rules conserve relevance, nothing is created. Over all stages the figures sum to what the
ledger leaves unexplained. A state that goes around a layer and joins later than at the next one
counts as created where it joins.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphxai.contract.inputs import prepare_all
from graphxai.contract.model import explaining
from graphxai.contract.target import Target
from graphxai.explainers import get_explainer
from graphxai.explainers.gradient import GradientInput
from graphxai.explainers.registry import Method, each_of, told_apart
from graphxai.explanation.api import explain
from graphxai.explanation.compute.models import Model
from graphxai.models.graphormer import Ensemble, Graphormer
from graphxai.rules.conservative import conservative, record
from graphxai.runtime.modules import requiring_gradients

METHODS = ("gradient_input", "lrp_ah", "lrp_ln", "lrp_ah_ln", "lrp")
COLUMNS = ("graph", "method", "stage", "relevance", "biases", "inputs", "created", "output")


def layer_sums(
    model: Any,
    inputs: Sequence[Any],
    methods: Sequence[str] = METHODS,
    *,
    layers: Sequence[str] | None = None,
    target: Any = None,
) -> pd.DataFrame:
    """Sum the relevance that enters every layer, and what is created or lost between two.

    Args:
        model: from `load` or `wrap`.
        inputs: inputs as for `explain`.
        methods: Gradient x Input or variants of LRP, whose rules hold factors constant.
        layers: the modules that are the layers, by their names in `named_modules`, each called once
            in a pass. By default they are the items of the `ModuleList` or `Sequential` with the
            most parameters.
        target: the explained output, as for `explain`.

    Returns:
        A table with a row for each graph, method and stage: "before" the first layer, the name of
        each layer, which includes what follows until the next, and last the stage "output", with
        f_c alone. Its columns are `relevance` (what enters the stage), `biases`, `inputs` (further
        inputs of the layer, such as the structural bias or features of edges), `created` (what is
        left over, negative if relevance was lost) and `output` (f_c).

    Raises:
        ValueError: the model has no such layers, a method has no rules, or the passes of a wrapped
            model are recorded.
    """
    if isinstance(model, Ensemble):
        raise ValueError("an ensemble has no layers of its own; give one of its members.")
    module: nn.Module = getattr(model, "module", model)
    names = _layers_in(module) if layers is None else list(layers)
    modules = dict(module.named_modules())
    if not names or not set(names) <= set(modules):
        raise ValueError(
            f"layers={layers}: name modules of the model, such as those of a ModuleList."
        )
    rows = []
    for number, item in enumerate(prepare_all(model, list(inputs))):
        batch = model.collate([item.data])
        for name in methods:
            explainer = get_explainer(name)
            if not isinstance(explainer, GradientInput):
                raise ValueError(f"{name} has no rules; choose from {', '.join(METHODS)}.")
            sums = _sums(model, batch, explainer, [modules[n] for n in names], Target.of(target))
            for stage, figures in zip(["before", *names, "output"], sums, strict=True):
                rows.append((number, name, stage, *figures))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _layers_in(module: nn.Module) -> list[str]:
    """Return the names of the layers: the items of the list of modules with most parameters."""
    lists = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential) and name and len(part)
    }
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in lists.items()}
    largest = max(sizes, key=lambda name: sizes[name], default="")
    return [f"{largest}.{item}" for item, _ in lists[largest].named_children()] if largest else []


@dataclass(eq=False)
class _Stages:
    """What enters each stage of a pass: states, further inputs of layers, and biases."""

    states: dict[int, Tensor] = field(default_factory=dict)
    inputs: list[tuple[int, Tensor]] = field(default_factory=list)
    biases: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)  # and their values
    current: int = 0

    def enter(
        self, number: int, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Note the state that enters a layer, and views of what else it takes."""
        self.current = number

        def noted(value: Any) -> Any:
            if not (isinstance(value, Tensor) and value.requires_grad):
                return value
            if number not in self.states:
                return self.states.setdefault(number, value)
            self.inputs.append((number, value.view_as(value)))
            return self.inputs[-1][1]

        return tuple(map(noted, args)), {name: noted(value) for name, value in named.items()}

    def call(self, part: nn.Module) -> None:
        """Note the biases of a module that is called."""
        for name, bias in part.named_parameters(recurse=False):
            if "bias" in name:
                value = bias.detach()
                if isinstance(part, nn.modules.batchnorm._BatchNorm) and (
                    (mean := part.running_mean) is not None and part.running_var is not None
                ):  # what it subtracts from its scaled input, (C,)
                    scale = (part.running_var + part.eps).rsqrt() * part.weight.detach()
                    value = value - mean * scale
                self.biases.append((self.current, bias, value))


def _sums(
    model: Any, batch: Any, explainer: GradientInput, layers: Sequence[nn.Module], target: Target
) -> list[tuple[float, ...]]:
    """Return relevance, biases, inputs, created and f_c of each stage."""
    is_graphormer = isinstance(model, Graphormer)  # which copies its biases for a tape
    module: nn.Module = getattr(model, "module", model)
    weights = requiring_gradients(p for p in module.parameters() if p.is_floating_point())
    with explaining(model), weights, conservative(**vars(explainer.rules)):
        tape = nullcontext() if is_graphormer else record(biases=True)
        with tape:
            tokens = model.embed(batch).detach().requires_grad_()
            if not is_graphormer:
                model.encode(tokens, batch)  # the first pass of a model is compared with another
            stages = _Stages({0: tokens})
            with _noting(module, layers, stages):
                outputs = model.encode(tokens, batch)
        f = target.resolve(model.config, outputs.detach())(outputs)
        if len(stages.states) <= len(layers):
            raise ValueError("a layer is not called, or takes no state that depends on the nodes.")
        states = [stages.states[k] for k in range(len(layers) + 1)]
        wanted = [*states, *(t for _, t in stages.inputs), *(b for _, b, _ in stages.biases)]
        gradients = list(torch.autograd.grad(f.sum(), wanted, allow_unused=True, retain_graph=True))
        # what enters before the first layer counts as far as it is in the state of that layer
        first = len(wanted) - len(stages.biases)
        early = [first + k for k, (number, *_) in enumerate(stages.biases) if number == 0]
        if early and gradients[1] is not None:
            ends = [wanted[k] for k in early]
            kept = torch.autograd.grad(states[1], ends, gradients[1], allow_unused=True)
            for k, gradient in zip(early, kept, strict=True):
                gradients[k] = gradient
    if any(gradient is None for gradient in gradients[: len(states)]):
        reason = getattr(model, "why_recorded", None) or "its output does not follow from them"
        raise ValueError(f"the states between layers cannot be read from this model: {reason}.")
    values = [*states, *(t for _, t in stages.inputs), *(v for _, _, v in stages.biases)]
    numbers = [*range(len(states)), *(k for k, _ in stages.inputs), *(k for k, *_ in stages.biases)]
    shares = [_share(value, gradient) for value, gradient in zip(values, gradients, strict=True)]
    seen, per_stage = set(), [[0.0, 0.0, 0.0] for _ in range(len(states) + 1)]
    for place, (number, share) in enumerate(zip(numbers, shares, strict=True)):
        kind = 0 if place < len(states) else 2 if place < len(states) + len(stages.inputs) else 1
        if kind == 1 and id(wanted[place]) in seen:  # of a module that is called twice
            continue
        seen.add(id(wanted[place]))
        per_stage[number][kind] += share
    output = float(f.detach().sum())
    per_stage[-1][0] = output
    after = [*per_stage[1:], [output, 0.0, 0.0]]
    return [
        (relevance, biases, further, later[0] - relevance - biases - further, output)
        for (relevance, biases, further), later in zip(per_stage, after, strict=True)
    ]


def _share(value: Any, gradient: Tensor | None) -> float:
    """Return `sum value gradient`, where a mask of minus infinity counts as zero."""
    if gradient is None:
        return 0.0
    product = value.detach().double() * gradient.double()
    return float(product.nan_to_num(0.0, 0.0, 0.0).sum())


@contextmanager
def _noting(module: nn.Module, layers: Sequence[nn.Module], stages: _Stages) -> Iterator[None]:
    """Note in a pass what enters each stage."""
    with ExitStack() as hooks:
        for number, layer in enumerate(layers, start=1):
            handle = layer.register_forward_pre_hook(
                lambda _, args, named, number=number: stages.enter(number, args, named),
                with_kwargs=True,
            )
            hooks.callback(handle.remove)
        for part in module.modules():
            hooks.callback(part.register_forward_pre_hook(lambda p, _: stages.call(p)).remove)
        yield


@dataclass(frozen=True, eq=False)
class Conservation:
    """The summed relevance and the output of n graphs for one method.

    Args:
        method: the name of the method.
        outputs: the explained outputs f_c (n,).
        tokens: the summed relevance of nodes and graph token (n,).
        biases: the share of additive parameters (n,). If the method separates it, the share of the
            structural bias is included.
    """

    method: str
    outputs: NDArray[np.float64]
    tokens: NDArray[np.float64]
    biases: NDArray[np.float64]

    @property
    def slope(self) -> float:
        """The least-squares slope of summed relevance on output. It is 1 if they agree."""
        centred = self.outputs - self.outputs.mean()
        spread = float((centred**2).sum())
        return float((centred * self.tokens).sum()) / spread if spread else float("nan")

    @property
    def correlation(self) -> float:
        """Pearson's correlation of summed relevance and output, NaN if either is constant."""
        if len(self.outputs) < 2 or not self.outputs.std() or not self.tokens.std():
            return float("nan")
        return float(np.corrcoef(self.outputs, self.tokens)[0, 1])

    @property
    def gap(self) -> float:
        """The mean absolute difference between output and summed relevance."""
        return float(np.abs(self.outputs - self.tokens).mean())

    @property
    def unexplained(self) -> float:
        """The mean absolute difference between output and summed relevance with biases."""
        return float(np.abs(self.outputs - self.tokens - self.biases).mean())

    @classmethod
    def of(cls, method: str, ledgers: Sequence[Mapping[str, float]]) -> "Conservation":
        """Compare the figures of the graphs' ledgers, see `Ledger.to_dict`."""
        names = ("output", "nodes", "graph_token", "total")
        output, nodes, token, total = (np.array([of[name] for of in ledgers]) for name in names)
        return cls(method, output, tokens=nodes + token, biases=total - nodes - token)


def conservation(
    model: Model,
    inputs: Iterable[Any],
    methods: Sequence[Method] = ("gradient_input", "lrp_ah_ln", "lrp"),
    *,
    target: Any = None,
) -> dict[str, Conservation]:
    """Compare summed relevance with outputs for each method.

    Inputs and target are as for `explain`. Inputs that cannot be used are skipped with a warning.

    Raises:
        ValueError: no input remains, or the scores of a method are no shares of the output.
    """
    measured = {}
    values = list(inputs)
    for method in told_apart(map(get_explainer, each_of(methods))):
        explained = [e for e in explain(model, values, method, target=target) if e is not None]
        if not explained:
            raise ValueError("there is no graph to measure.")
        name = explained[0].method
        if explained[0].ledger is None:
            raise ValueError(
                f"{name} gives scores that are no shares of the output, so they conserve nothing:"
                " leave it out."
            )
        measured[name] = Conservation.of(name, [e.ledger.to_dict() for e in explained])
    return measured
