"""What earlier passes of a wrapped model have shown: in which tier they ran, and why."""

import re
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias

from graphxai.rules.conservative import Rules
from graphxai.runtime.scope import Blocks

from .autograd_graph import Opaque
from .trace import Trace

Tier: TypeAlias = Literal["hooks", "recording"]
TRIES = 3  # passes that may fail under the same rules before all are recorded
NAMED = 3  # modules that a reason names at most

_hooks_allowed: Blocks[bool] = Blocks("graphxai_hooks", True)


def recorded_only() -> AbstractContextManager[bool]:
    """Record all passes within the block, as for methods that the first tier does not serve."""
    return _hooks_allowed.block(False)


class PassMemory:
    """What passes of one wrapped model, and of its copies in this process, have shown.

    Args:
        tier: the tier of the last pass under conservative rules, or None before it.
        plans: the hooked plans of earlier passes, by the structure of the pass and the rules.
        beside_empty: whether passes may run beside a graph without nodes, as none has failed so.
    """

    def __init__(self) -> None:
        self.tier: Tier | None = None
        self._unchanged: set[bool] = set()
        self.plans: dict[object, Any] = {}
        self._failures: dict[Rules, list[Opaque]] = {}
        self._warned = False
        self.beside_empty = True

    def __deepcopy__(self, _: Any) -> "PassMemory":
        return self

    def __reduce__(self) -> tuple[type["PassMemory"], tuple[()]]:
        return PassMemory, ()

    @property
    def why_recorded(self) -> str | None:
        """The reason why a pass had to be recorded, under the rules for which one last had to."""
        return str(list(self._failures.values())[-1][-1]) if self._failures else None

    def note_pass(self, tier: Tier, unchanged: bool = False) -> None:
        """Remember the tier of a pass, and whether it was one of the model as it is."""
        self.tier = tier
        self._unchanged.add(unchanged)

    def noted_passes(self) -> set[bool]:
        """Return for the passes since this was last asked if they were of the model as it is."""
        unchanged, self._unchanged = self._unchanged, set()
        return unchanged

    def allows_hooks(self, rules: Rules) -> bool:
        """Whether a pass by hooks under these rules is worth a try."""
        return _hooks_allowed.get() and len(self._failures.get(rules, ())) < TRIES

    def note_failure(self, rules: Rules, why: Opaque, times: int = 1) -> None:
        """Remember why a pass under these rules had to be recorded."""
        self._failures[rules] = [*self._failures.pop(rules, ()), *[why] * times]

    def give_up(self, rules: Rules, reason: Opaque) -> None:
        """Record all further passes under these rules."""
        self.note_failure(rules, reason, TRIES)

    def run_alone(self, _: Exception) -> None:
        """Run no more passes beside a graph without nodes, since one has failed so."""
        self.beside_empty = False

    def explain_failure(self, name: str, rules: Rules, trace: Trace, unseen: Iterable[str]) -> None:
        """Name the modules to which the last failure is due, and warn of the first one.

        Args:
            name: that of the model.
            trace: the recorded list of the pass.
            unseen: the constants that autograd does not know, in words.
        """
        failures = self._failures.get(rules)
        if not failures:
            return
        why = failures[-1]
        if why.operation is not None:
            ops = (op for op in trace.ops if _plain(op.name) == _plain(why.operation))
            places = sorted({op.path or name for op in ops})
            form = "{} in {}"
        else:
            places = sorted(set(unseen)) if why.lacks_constants else []
            form = "{} ({})"
        if places:
            shown = [*places[:NAMED], "..."] if len(places) > NAMED else places
            failures[-1] = Opaque(form.format(why, ", ".join(shown)))
        if not self._warned and _hooks_allowed.get():
            self._warned = True
            self.warn_of_recording(name, str(failures[-1]))

    def warn_of_recording(self, name: str, reason: str) -> None:
        """Warn that passes of a model are recorded, which costs time but changes no result."""
        warnings.warn(
            f"{name} is explained by recorded passes, which take two to four times as long as hooks"
            f" on PyTorch's autograd graph: {reason}. The results are the same.",
            stacklevel=10,
        )


def _plain(operation: str) -> str:
    """Return the name of an operation, or of its node in autograd's graph, in the same spelling."""
    return re.sub(r"Backward\d*$", "", operation).replace("_", "").lower()
