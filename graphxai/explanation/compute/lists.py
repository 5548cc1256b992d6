"""Compute a result for every input of a list, in pieces, by one process or by several.

`map_inputs` numbers an input and puts it into a piece. `_PieceWorker` lets the model encode the
inputs of the piece and gives them to a computation (`explaining`, `predicting` or `pairs`). The
result comes back with the input's number, or an error comes back in its place.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    overload,
)  # fmt: skip

import torch

from graphxai.contract.batching import in_chunks, in_pieces
from graphxai.contract.inputs import Input
from graphxai.runtime.device import one_thread, workers_for
from graphxai.runtime.interrupts import Interrupted
from graphxai.runtime.notices import warn
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.workers import LostItem, map_in_processes

OnError = Literal["warn", "raise"]
Encoded: TypeAlias = list[tuple[int, Input]]  # encoded inputs with their numbers in the list
Result = TypeVar("Result")
P = ParamSpec("P")
M = TypeVar("M", contravariant=True)
One = TypeVar("One", covariant=True)
Several = TypeVar("Several", covariant=True)
# Of a model and encoded inputs, yields each input's number with its result or error. It can be sent
# to other processes.
Computation: TypeAlias = Callable[[Any, Encoded], Iterator[tuple[int, Result | Exception]]]


def map_inputs(
    model: Any,
    values: Sequence[Any],
    computation: Computation[Result],
    title: str,
    collect: Callable[[list[Result | None]], Any],
    *,
    strict: bool,
    progress: bool | None,
    workers: int | None = 1,
    quick: bool = True,
    by: str = "",
) -> list[Result | None]:
    """Return the result of every input in order, or None for one that was left out.

    Args:
        collect: makes of the results what the caller returns.
        strict: whether to raise the first error. Otherwise a warning names the input.
        progress: whether to show a bar, see `runtime.progress.progress_bar`.
        workers: the number of processes, see `runtime.workers.map_in_processes`.
        quick: whether an input takes a moment, so that many are computed together.
        by: the model that warnings name, if several models have the same inputs.

    Raises:
        Interrupted: Ctrl-C was pressed. Its `results` are collected, with None for the inputs that
            were not finished.
    """
    results: list[Result | None] = [None] * len(values)
    pieces = list(in_pieces(values, quick))
    # If the model draws random numbers, they must not depend on which process takes a piece.
    seed = int(torch.randint(2**62, ())) if len(pieces) > 1 else None
    shown = done = 0
    with progress_bar(title, len(values), show=progress) as advance, one_thread():

        def arrived(number: int, result: Result | Exception) -> None:
            """Keep the result of an input of this process, which an interrupt must not lose."""
            nonlocal shown
            if not isinstance(result, Exception):
                results[number] = result
            advance(1)
            shown += 1

        work = _PieceWorker(model, computation, strict, seed, arrived)
        count = workers_for(model, workers)
        try:
            with closing(map_in_processes(work, pieces, count, len(values))) as parts:
                for part in chain.from_iterable(parts):
                    numbered = part.result
                    if isinstance(numbered, LostItem):
                        first, _ = part.items[0]
                        numbered = [(first, RuntimeError(numbered.reason))]
                    _raise_if_nothing_runs(numbered, results)
                    for number, result in numbered:
                        if not isinstance(result, Exception):
                            results[number] = result
                        elif strict:
                            raise result
                        else:
                            whose = f" by {by}" if by else ""
                            words = f"input {number} was left out{whose}: {_reason(result)}"
                            warnings.warn(words, stacklevel=4)
                    done += len(part.items)
                    advance(done - shown)  # what other processes did
                    shown = done
        except KeyboardInterrupt:
            if len(values) < 2:
                raise
            how_far = f"after {shown} of {len(values)} inputs"
            raise Interrupted(how_far, collect(results)) from None
    return results


def is_strict(on_error: OnError, several: bool) -> bool:
    """Return whether the first error is raised, as it always is for a single input."""
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error is 'warn' or 'raise', not {on_error!r}.")
    return on_error == "raise" or not several


class ModelFailed(Exception):
    """The model or the method failed on one input. The message is that of the error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _raise_if_nothing_runs(
    numbered: Sequence[tuple[int, Any]], results: Sequence[Any | None]
) -> None:
    """Raise the first error of a piece if the model has failed on every input so far.

    The cause is then not a single input, but for example the target.
    """
    failed = [result.error for _, result in numbered if isinstance(result, ModelFailed)]
    worked = any(not isinstance(result, Exception) for _, result in numbered)
    if failed and not worked and all(result is None for result in results):
        raise failed[0]


def _reason(error: Exception) -> str:
    """Say why an input was left out. If the error is not ours, add its type."""
    if isinstance(error, ModelFailed):
        error = error.error
        if not isinstance(error, ValueError):
            return f"{type(error).__name__}: {error}"
    return str(error)


@dataclass(frozen=True)
class _PieceWorker(Generic[Result]):
    """The work on one piece of a list, in this process or another.

    Args:
        seed: see `_seeded`.
        arrived: is called with each input's number and its result or error. Another process, which
            sends its results a piece at a time, has None.
    """

    model: Any
    computation: Computation[Result]
    strict: bool
    seed: int | None
    arrived: Callable[[int, Any], None] | None

    def __call__(self, piece: Sequence[tuple[int, Any]]) -> list[tuple[int, Result | Exception]]:
        """Return each input's number with its result or error."""
        numbered: list[tuple[int, Result | Exception]] = []
        with one_thread(), _seeded(self.seed, piece[0][0]):
            for chunk in in_chunks(self.model, piece):
                usable = [(k, item) for k, item in chunk if not isinstance(item, Exception)]
                unusable = ((k, item) for k, item in chunk if isinstance(item, Exception))
                for number, result in chain(unusable, self._computed(usable)):
                    if self.strict and isinstance(result, Exception):
                        raise result
                    numbered.append((number, result))
                    if self.arrived is not None:
                        self.arrived(number, result)
        return numbered

    def _computed(self, usable: Encoded) -> Iterator[tuple[int, Result | Exception]]:
        """Compute encoded inputs together, and one by one after the model fails on some."""
        finished: set[int] = set()
        try:
            for number, result in self.computation(self.model, usable):
                finished.add(number)
                yield number, result
            return
        except Exception as error:
            if self.strict:
                raise
            if len(usable) == 1:
                yield usable[0][0], ModelFailed(error)
                return
            failed = _reason(ModelFailed(error))
        rest = [(number, item) for number, item in usable if number not in finished]
        for number, item in rest:
            try:
                results = list(self.computation(self.model, [(number, item)]))
            except Exception as error:
                yield number, ModelFailed(error)
            else:
                if failed and len(rest) > 1:
                    warn(
                        f"{len(rest)} inputs take {len(rest)} passes instead of a few: together"
                        f" they failed ({failed})."
                    )
                failed = ""
                yield from results

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"arrived": None}


@contextmanager
def _seeded(seed: int | None, first: int) -> Iterator[None]:
    """Seed torch within the block, from a seed and a piece's first number."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed + first)
        yield


class _ByInputs(Protocol[M, P, One, Several]):
    """How type checkers see a function whose result depends on whether one input is given."""

    @overload
    def __call__(self, model: M, inputs: str, *args: P.args, **kwargs: P.kwargs) -> One: ...
    @overload
    def __call__(
        self, model: M, inputs: list[Any] | tuple[Any, ...], *args: P.args, **kwargs: P.kwargs
    ) -> Several: ...
    @overload
    def __call__(self, model: M, inputs: Any, *args: P.args, **kwargs: P.kwargs) -> Any: ...


def typed_by_inputs(
    one: type[One], several: type[Several]
) -> Callable[[Callable[Concatenate[M, Any, P], Any]], _ByInputs[M, P, One, Several]]:
    """Tell type checkers what a function returns for a SMILES, and what for a list of inputs."""
    return lambda function: cast(Any, function)
