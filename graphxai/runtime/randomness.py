"""Leave the random numbers of the user's process as they are.

All recorded passes of an explanation have the same random numbers, as where dropout is on. Once
such a pass has drawn some, all further ones of that explanation start from the same state of
PyTorch's generator, so that they all run the same network. Passes that only compare outputs, as
those of occlusion, are not recorded: each graph of a batch has other numbers there, and a warning
says so.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphxai.runtime.scope import Blocks, shared_block

ON_BY_DEFAULT = {"dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d"}
IN_TRAINING = ON_BY_DEFAULT | {
    "alpha_dropout", "alpha_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_",
    "feature_dropout", "feature_dropout_", "rrelu", "rrelu_",
}  # fmt: skip
ALWAYS = {
    "bernoulli", "bernoulli_", "multinomial", "normal", "normal_", "uniform_", "rand", "randn",
    "rand_like", "randn_like", "randint", "randint_like", "randperm", "exponential_", "poisson",
    "gumbel_softmax", "random_", "cauchy_", "log_normal_", "geometric_",
}  # fmt: skip
# The positions of the probability of dropout among the arguments.
ATTENTION = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
DRAWING = IN_TRAINING | ALWAYS | set(ATTENTION)


def _in_single_precision() -> Callable[[], None]:
    precision = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    return partial(torch.set_default_dtype, precision)


@contextmanager
def callers_state_kept() -> Iterator[None]:
    """Train within the block: weights are floats and have gradients, whatever the caller has set.

    Afterwards the random numbers of PyTorch, NumPy and Python go on as they did before, and so do
    the default precision and whether gradients are computed. That precision is one for all threads:
    it changes for the others too, and comes back when the last training has ended.
    """
    state, of_numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    try:
        with (
            shared_block("precision", _in_single_precision),
            torch.random.fork_rng(devices),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            yield
    finally:
        random.setstate(state)
        np.random.set_state(of_numpy)


@dataclass(eq=False)
class Draws:
    """The state of the generator at which the passes of an explanation start.

    Args:
        state: state of PyTorch's generator; None before the first pass.
        seen: whether a pass has drawn random numbers.
    """

    state: Tensor | None = None
    seen: bool = False

    def begin(self) -> None:
        """Put the generator into the state at which passes start."""
        if self.state is None:
            self.state = torch.get_rng_state()
        elif self.seen:
            torch.set_rng_state(self.state)


_draws: Blocks[Draws | None] = Blocks("graphxai_draws", None)


def current_draws() -> Draws | None:
    """Return the draws of the explanation that runs in this thread, or None outside of one."""
    return _draws.get()


@contextmanager
def one_draw() -> Iterator[Draws]:
    """Treat all passes within the block as those of one explanation."""
    with _draws.block(draws := Draws()):
        yield draws


def draws_numbers(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a call of one of the operations `DRAWING` gives a random result."""
    if name in ATTENTION:
        position = ATTENTION[name]
        p = args[position] if len(args) > position else kwargs.get("dropout_p", 0.0)
        return bool(p) and kwargs.get("training", True) is not False
    if name in ALWAYS:
        return True
    is_rrelu = name.startswith("rrelu")
    by_name = kwargs.get("training", kwargs.get("train", name in ON_BY_DEFAULT))
    position = 3 if is_rrelu else 2
    training = args[position] if len(args) > position else by_name
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    return bool(training) and (is_rrelu or bool(p))
