"""Rules that users add for a whole module: how modules of one class pass relevance back.

An `OperationRule` is about one operation of PyTorch. A `ModuleRule` is about a class of modules,
such as a gate that a model writes out in several operations. It computes what the module computes,
and what it detaches is a constant on the way back. Within a pass it takes the module's place, so
that the operations of the rule are explained.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeAlias

import torch
from torch import nn

from graphxai.runtime.modules import all_modules
from graphxai.runtime.scope import Blocks, shared_block

from .operation_rule import BoundOperation, OperationRule


@dataclass(frozen=True, eq=False)
class BoundModule(BoundOperation):
    """A module as a function of its first argument. Its other arguments are the model's.

    Args:
        function: the module's `forward`, which may return several values.
        settings: the further arguments of the call.
        options: the arguments that are given by name.
        module: the module, whose weights a rule may use.
    """

    module: nn.Module | None = None


ComputeModule: TypeAlias = Callable[[Any, BoundModule], Any]


@dataclass(frozen=True)
class ModuleRule:
    """A rule for the modules of one class, which keeps their values but changes their gradient.

    The operations that the rule runs are explained like those of a model: the other rules act on
    them, and their biases get a share of the ledger.

    Args:
        module_class: the class of the modules. Subclasses count, too, unless they have a rule of
            their own.
        compute: takes the first argument of a call and the module as a function of this argument,
            and returns what the module returns. Whatever it detaches is a constant in the backward
            pass. If it adds something detached, the ledger lists that as "cut off".

    Raises:
        ValueError: `module_class` is no class of modules.
    """

    module_class: type[nn.Module]
    compute: ComputeModule

    def __post_init__(self) -> None:
        is_class = isinstance(self.module_class, type)
        if not is_class or not issubclass(self.module_class, nn.Module):
            raise ValueError(
                f"a rule for modules names a class of torch.nn.Module, not {self.module_class!r}."
            )

    @property
    def acts_on(self) -> str:
        """What the rule acts on: the full name of the class."""
        return f"{self.module_class.__module__}.{self.module_class.__qualname__}"


CustomRule: TypeAlias = OperationRule | ModuleRule


# by module a rule, and the set to which it is added when the module computes by it
_in_force: Blocks[Mapping[nn.Module, tuple[ModuleRule, set[ModuleRule]]]] = Blocks(
    "graphxai_module_rules", {}
)


@contextmanager
def computing_by_rules(model: nn.Module, rules: Sequence[ModuleRule]) -> Iterator[set[ModuleRule]]:
    """Let modules of a model compute by these rules in passes of this thread within the block.

    Yields the set of the rules by which a module has computed so far. Scripted modules cannot
    compute by rules.
    """
    acted = set[ModuleRule]()
    parts = [part for part in all_modules(model) if not isinstance(part, torch.jit.ScriptModule)]
    ruled = {part: rule for part in parts if (rule := rule_of_class(type(part), rules)) is not None}
    with ExitStack() as blocks:
        for part in ruled:
            blocks.enter_context(shared_block(("forward", id(part)), partial(_asking_first, part)))
        in_force = {part: (rule, acted) for part, rule in ruled.items()}
        blocks.enter_context(_in_force.block({**_in_force.get(), **in_force}))
        yield acted


def rule_of_class(module_class: type, rules: Sequence[ModuleRule]) -> ModuleRule | None:
    """Return the rule for a class, or for the nearest class that it derives from."""
    by_class = {rule.module_class: rule for rule in rules}
    return next((by_class[base] for base in module_class.__mro__ if base in by_class), None)


def _asking_first(module: nn.Module) -> Callable[[], None]:
    """Let each call of a module ask whether a rule is in force, and return what undoes this.

    Other threads may call the module in the meantime, and have no rule in force.
    """
    forward, of_class = module.forward, "forward" not in vars(module)

    @wraps(forward)
    def ruled_forward(*args: Any, **kwargs: Any) -> Any:
        others = dict(_in_force.get())
        if (in_force := others.pop(module, None)) is None:
            return forward(*args, **kwargs)
        rule, acted = in_force
        acted.add(rule)
        with _in_force.block(others):  # the rule may call the module
            return _call_by_rule(rule, module, forward, args, kwargs)

    def undo() -> None:
        if of_class:
            del module.forward
        else:
            module.forward = forward

    module.forward = ruled_forward
    return undo


def _call_by_rule(
    rule: ModuleRule,
    module: nn.Module,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Compute a call of a module by a rule. The first argument may have been given by name."""
    if args:
        x, *settings = args
        return rule.compute(x, BoundModule(forward, tuple(settings), kwargs, module))
    (name, x), *options = kwargs.items()

    def of_first(x: Any, **options: Any) -> Any:
        return forward(**{name: x}, **options)

    return rule.compute(x, BoundModule(of_first, (), dict(options), module))
