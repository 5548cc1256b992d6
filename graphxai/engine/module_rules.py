"""Let the modules of a class compute by a rule from outside instead of by their own `forward`.

The rule takes the module's place within a pass. So both tiers of `engine` see the operations of the
rule, whether they read the autograd graph or record the pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
from torch import nn

from graphxai.rules.module_rule import BoundModule, ModuleRule
from graphxai.runtime.scope import Blocks

from .eval_replica import all_modules, shared_block


class _RuleInForce(NamedTuple):
    """A rule, and the set to which it is added when a module computes by it."""

    rule: ModuleRule
    acted: set[ModuleRule]


_in_force: Blocks[Mapping[nn.Module, _RuleInForce]] = Blocks("graphxai_module_rules", {})


@contextmanager
def computing_by_rules(model: nn.Module, rules: Sequence[ModuleRule]) -> Iterator[set[ModuleRule]]:
    """Let modules of a model compute by these rules in passes of this thread within the block.

    Yields the set of the rules by which a module has computed so far. Scripted modules cannot
    compute by rules.
    """
    acted = set[ModuleRule]()
    parts = [part for part in all_modules(model) if not isinstance(part, torch.jit.ScriptModule)]
    ruled = {part: rule for part in parts if (rule := _rule_of(type(part), rules)) is not None}
    with ExitStack() as blocks:
        for part in ruled:
            blocks.enter_context(shared_block(("forward", id(part)), partial(_asking_first, part)))
        in_force = {part: _RuleInForce(rule, acted) for part, rule in ruled.items()}
        blocks.enter_context(_in_force.block({**_in_force.get(), **in_force}))
        yield acted


def paths_under_rules(model: nn.Module, rules: Sequence[ModuleRule]) -> set[str]:
    """Return the paths of the modules that compute by these rules."""
    return {path for path, part in model.named_modules() if _rule_of(type(part), rules) is not None}


def _rule_of(module_class: type, rules: Sequence[ModuleRule]) -> ModuleRule | None:
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
        in_force = _in_force.get().get(module)
        if in_force is None:
            return forward(*args, **kwargs)
        in_force.acted.add(in_force.rule)
        others = {part: rule for part, rule in _in_force.get().items() if part is not module}
        with _in_force.block(others):  # the rule may call the module
            return _by_rule(in_force.rule, module, forward, args, kwargs)

    def undo() -> None:
        if of_class:
            del module.forward
        else:
            module.forward = forward

    module.forward = ruled_forward
    return undo


def _by_rule(
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
