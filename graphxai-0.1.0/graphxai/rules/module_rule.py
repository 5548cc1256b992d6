"""Rules that users add for a whole module: how modules of one class pass relevance back.

An `OperationRule` is about one operation of PyTorch. A `ModuleRule` is about a class of modules,
such as a gate that a model writes out in several operations. It computes what the module computes,
and what it detaches is a constant on the way back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import nn

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
