"""What a wrapped model shares with `torch.nn.Module`: its mode, weights and device."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from graphxai.runtime.modules import all_modules
from graphxai.wrapping.eval_replica import eval_replica_of, in_eval_mode


class ModuleView:
    """A user's module, `module`, with weights that are neither copied nor changed."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @property
    def training(self) -> bool:
        """Whether any part of the module is in training mode."""
        return any(m.training for m in self.module.modules())

    def train(self, mode: bool = True) -> Self:
        """Put every part of the module into training mode, or into eval mode.

        Explanations do not depend on this, because they run in eval mode (see `eval_replica`).
        """
        self.module.train(mode)
        return self

    def eval(self) -> Self:
        """Put every part of the module into eval mode."""
        return self.train(False)

    def evaluating(self) -> AbstractContextManager[None]:
        """Run passes within the block in eval mode, whatever the mode of the module is."""
        return in_eval_mode(self.module)

    @property
    def running(self) -> nn.Module:
        """The module that a pass runs, which within `evaluating` is its replica in eval mode."""
        return eval_replica_of(self.module)

    def parameters(self) -> Iterator[Tensor]:
        """Yield the parameters and buffers of the module, or a constant if it has none."""
        has_weights = False
        for value in chain(self.module.parameters(), self.module.buffers()):
            has_weights = True
            yield value
        if not has_weights:
            yield torch.zeros(())

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def float_dtype(self) -> torch.dtype:
        """The type of the first weights that are floats, or PyTorch's default."""
        floats = (p.dtype for p in self.parameters() if p.is_floating_point())
        return next(floats, torch.get_default_dtype())

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or convert the module's weights, as `torch.nn.Module.to` does."""
        self.module.to(*args, **kwargs)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the module's weights by name, as `torch.nn.Module.state_dict` does."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights into the module, as `torch.nn.Module.load_state_dict` does."""
        return self.module.load_state_dict(*args, **kwargs)

    @property
    def quantised_layer(self) -> str | None:
        """The path of the first layer with weights as packed integers, which pass no gradient."""
        kind, parts = torch.ScriptObject, all_modules(self.module)
        packed = [part for part in parts if any(type(v) is kind for v in vars(part).values())]
        for path, layer in self.module.named_modules() if packed else ():
            if layer is packed[0]:
                return path.removesuffix("._packed_params") or type(self.module).__name__
        return None
