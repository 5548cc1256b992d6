"""Random numbers in a model during an explanation, such as dropout that is on.

Once a pass has drawn random numbers, all further passes of that explanation start from the same
state of PyTorch's generator, so that they all run the same network.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphxai.runtime.scope import Blocks

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
ATTENTION = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
DRAWING = IN_TRAINING | ALWAYS | set(ATTENTION)


@dataclass(eq=False)
class Draws:
    """Generator state at which an explanation's passes start; seen: whether any drew numbers."""

    state: Tensor | None = None
    seen: bool = False

    def begin(self) -> None:
        """Start a pass."""
        if self.state is None:
            self.state = torch.get_rng_state()
        elif self.seen:
            torch.set_rng_state(self.state)


_draws: Blocks[Draws | None] = Blocks("graphxai_draws", None)


def current_draws() -> Draws | None:
    """The draws of the explanation running in this thread, or None."""
    return _draws.get()


@contextmanager
def one_draw() -> Iterator[Draws]:
    """Treat all passes within the block as one explanation's."""
    with _draws.block(Draws()) as draws:
        assert draws is not None
        yield draws


def draws_numbers(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a call of one of the operations `DRAWING` gives a random result."""
    if name in ATTENTION:
        place = ATTENTION[name]
        p = args[place] if len(args) > place else kwargs.get("dropout_p", 0.0)
        return bool(p) and kwargs.get("training", True) is not False
    if name in ALWAYS:
        return True
    rrelu = name.startswith("rrelu")
    on = name in ON_BY_DEFAULT
    place = 3 if rrelu else 2
    training = args[place] if len(args) > place else kwargs.get("training", kwargs.get("train", on))
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    return bool(training) and (rrelu or bool(p))
