"""What a few passes show about a wrapped model, for the methods that do not see it themselves.

Mixing: in a batch of several graphs, half of them get other rows. If the outputs of the
others change, too, the model mixes graphs: attention without the batch vector, a norm over the
batch. Then every method runs its graphs one at a time.

Cuts: one recorded pass shows where values of the nodes are used without their gradient.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from graphxai.contract.randomness import one_draw
from graphxai.rules.conservative import as_it_is, unrecorded

from .batches import WrappedBatch, as_rows
from .engine.marks import marked
from .engine.passing import NODES, places_of_cuts, recorded
from .engine.relevance import ALL_CONSTANT
from .engine.replay import plan

Run = Callable[[Tensor], Tensor]
SAME = 10  # machine epsilons of the largest value: less is rounding


class Survey:
    """What is known about a model in one form; a replaced part begins another survey.

    mixing: the module in which it mixes the graphs of a batch, "" if that is unclear, or None.
    """

    def __init__(self, form: tuple[int, ...]) -> None:
        self.mixing: str | None = None
        self._form = form
        self._looked = False
        self._cuts: set[str] | None = None
        self._told: set[str] = set()

    @classmethod
    def of(cls, module: nn.Module) -> "Survey":
        """The beginning of a survey."""
        return cls(_form(module))

    def is_of(self, module: nn.Module) -> bool:
        """Whether the module still consists of the same parts."""
        return self._form == _form(module)

    def look_for_mixing(self, model: Any, batch: WrappedBatch) -> None:
        """Find out, once, whether the model mixes the graphs of a batch of several."""
        if self._looked:
            return
        self._looked = True
        with _apart(), suppress(RuntimeError, ValueError, IndexError):
            rows = as_rows(model.embed(batch), batch)
            self.mixing = mixed_in(model.running, model.rows_to_outputs(batch), rows, batch)

    def warn_of_mixing(self, name: str, method: str) -> None:
        """Say once for each method that the model mixes graphs, and what follows."""
        if self.mixing is None or method in self._told:
            return
        self._told.add(method)
        warnings.warn(
            f"{name} mixes the graphs of a batch in {self.mixing or name}: what it returns for one"
            f" graph depends on the others. {method!r} runs its graphs one at a time, as every"
            " method does. Let that module keep the graphs apart (give it the batch vector, or a"
            " mask) to run them together.",
            stacklevel=5,
        )

    def cuts(self, model: Any, batch: WrappedBatch) -> set[str]:
        """Modules in which values of the nodes are used without their gradient."""
        if self._cuts is None:
            with _apart():
                rows = as_rows(model.embed(batch), batch)
                run = model.rows_to_outputs(batch)
                trace = recorded(model.running, lambda leaf, _: run(leaf), rows, {})
                self._cuts = places_of_cuts(plan(trace, marked(trace), ALL_CONSTANT, NODES))
        return self._cuts


def _form(module: nn.Module) -> tuple[int, ...]:
    return tuple(map(id, module.modules()))


@contextmanager
def _apart() -> Iterator[None]:
    """Passes that leave no trace in rules, recordings, random numbers or warnings."""
    with (
        as_it_is(),
        unrecorded(),
        one_draw(),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        torch.enable_grad(),
    ):
        warnings.simplefilter("ignore")
        yield


@torch.no_grad()
def mixed_in(module: nn.Module, run: Run, rows: Tensor, batch: WrappedBatch) -> str | None:
    """The first module to end with one graph's entries changed by another's; None: there is none.

    run: node rows (n, D), or (B, S, D), to outputs (B, C). "" if no module shows it, only the
    outputs. A model that draws random numbers is not examined.
    """
    graph = batch.layout.graph if rows.dim() == 2 else torch.arange(len(batch)).to(rows.device)
    for moved in (graph >= len(batch) // 2, graph < len(batch) // 2):
        other = rows.clone()
        other[moved] = rows[moved][:1]  # values that the model knows
        if torch.equal(other, rows):
            other[moved] = rows[moved] / 2
        apart = _Entries(batch, graph[~moved].unique())
        seen = [_watched(module, run, given, False) for given in (rows, other, rows)]
        if not apart.differ(seen[0][-1], seen[1][-1]) or apart.differ(seen[0][-1], seen[2][-1]):
            continue
        first, second = (_watched(module, run, given, True) for given in (rows, other))
        for (path, a), (_, b) in zip(first[:-1], second[:-1], strict=False):
            if apart.differ(("", a), ("", b)):
                return path
        return ""
    return None


Output = tuple[str, Tensor]


def _watched(module: nn.Module, run: Run, rows: Tensor, inside: bool) -> list[Output]:
    """The outputs of a pass, last; inside: before that those of every module, as they end."""
    torch.default_generator.manual_seed(0)
    found: list[Output] = []

    def keep(path: str) -> Callable[..., None]:
        def hook(part: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, tuple | list) and output:
                output = output[0]  # as multi-head attention returns
            if isinstance(output, Tensor) and output.is_floating_point():
                found.append((path, output.clone()))

        return hook

    parts = list(module.named_modules())[1:] if inside else []
    hooks = [part.register_forward_hook(keep(path)) for path, part in parts]
    try:
        found.append(("", run(rows)))
    finally:
        for hook in hooks:
            hook.remove()
    return found


class _Entries:
    """The entries of some graphs in tensors that have an axis of nodes or of graphs."""

    def __init__(self, batch: WrappedBatch, graphs: Tensor) -> None:
        self.graphs, self.size = graphs, len(batch)
        self.nodes = torch.isin(batch.layout.graph, graphs)

    def differ(self, a: Output, b: Output) -> bool:
        """Whether entries of these graphs differ by more than rounding."""
        (_, one), (_, two) = a, b
        axis = next((k for k in (0, 1) if one.dim() > k and one.shape[k] == len(self.nodes)), None)
        chosen = self.nodes.nonzero()[:, 0]
        if axis is None or len(self.nodes) == self.size:
            sized = (k for k in (0, 1) if one.dim() > k and one.shape[k] == self.size)
            axis, chosen = next(sized, None), self.graphs
        if axis is None or one.shape != two.shape:
            return False
        one, two = one.index_select(axis, chosen).float(), two.index_select(axis, chosen).float()
        if not one.numel():
            return False
        size = float(one[one.isfinite()].abs().max()) if bool(one.isfinite().any()) else 0.0
        eps = SAME * torch.finfo(a[1].dtype).eps
        return not torch.allclose(one, two, rtol=eps, atol=eps * max(size, 1e-6), equal_nan=True)
