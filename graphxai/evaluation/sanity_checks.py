"""Check that an explanation depends on what it should, by changing the model instead of the graph.

* `max_sensitivity`: small noise on the node embeddings should change the scores only a little
  (Yeh 2019).
* `model_randomisation`: a model with shuffled weights should get a different explanation
  (Adebayo 2018). Weights are shuffled in stages, from the output to the input.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphxai.contract.batch import GraphBatch
from graphxai.wrapping.eval_replica import copied

NOISE = 0.05  # standard deviation, as a share of the root mean square of a graph's embeddings
DRAWS = 4  # how often noise is drawn


class NoisyModel:
    """A model with seeded Gaussian noise on its node embeddings, and otherwise unchanged.

    The noise for a graph depends only on the seed and on its number of nodes, so it is the same for
    every method and in every batch.
    """

    def __init__(self, model: Any, seed: int, noise: float = NOISE) -> None:
        self._model = model
        self._seed = seed
        self._noise = noise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a copy looks these up before it has a model
            raise AttributeError(name)
        return getattr(self._model, name)

    def __call__(self, batch: GraphBatch) -> Tensor:
        """Return the outputs (B, num_outputs) with noise on the nodes."""
        return self.encode(self.embed(batch), batch)

    def embed(self, batch: GraphBatch) -> Tensor:
        """Return the tokens (B, T, D) of the model, with noise on the nodes."""
        tokens: Tensor = self._model.embed(batch)
        noisy = tokens.clone()
        for b, n in enumerate(batch.num_nodes.tolist()):
            nodes = tokens[b, 1 : n + 1]
            generator = torch.Generator().manual_seed(self._seed * 100_003 + n)
            draw = torch.randn(nodes.shape, generator=generator).to(nodes)
            size = nodes.detach().square().mean().sqrt()
            noisy[b, 1 : n + 1] = nodes + self._noise * size * draw
        return noisy

    def encode(self, tokens: Tensor, batch: GraphBatch, *args: Any, **options: Any) -> Tensor:
        """Return the outputs of the model."""
        outputs: Tensor = self._model.encode(tokens, batch, *args, **options)
        return outputs

    def split_by_feature(self, batch: GraphBatch, gradient: Tensor) -> Tensor | None:
        """Return None, because with noise an embedding is no longer the sum of its features."""
        return None


def relative_change(before: NDArray[np.floating], after: NDArray[np.floating]) -> float:
    """Return |after - before| / |before| in the Euclidean norm, or NaN if `before` is all zero."""
    size = float(np.linalg.norm(before))
    return float(np.linalg.norm(after - before)) / size if size else float("nan")


def shuffled_stages(model: Any, seed: int = 0) -> Iterator[tuple[str, Any]]:
    """Shuffle more and more weights in a copy of the model, from the output to the input.

    Yields the name of the block that was shuffled last, and the model. The entries of each
    parameter are permuted, so their distribution stays the same. All stages yield the same copy,
    and the original model does not change.
    """
    shuffled = copied(model)
    generator = torch.Generator().manual_seed(seed)
    for name, parameters in reversed(_blocks(getattr(shuffled, "module", shuffled)).items()):
        with torch.no_grad():
            for parameter in parameters:
                order = torch.randperm(parameter.numel(), generator=generator)
                parameter.copy_(parameter.flatten()[order.to(parameter.device)].view_as(parameter))
        yield name, shuffled


def _blocks(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the parameters by block in the model's order: `layers.0`, `layers.1`, ..., `head`."""
    blocks: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        first, *rest = name.split(".")
        block = f"{first}.{rest[0]}" if rest and rest[0].isdigit() else first
        blocks.setdefault(block, []).append(parameter)
    return blocks
