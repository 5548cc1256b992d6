"""The settings of a training run on graphs, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from graphxai.learning.run_settings import EnsembleSettings
from graphxai.learning.settings import TrainingSettings
from graphxai.runtime.options import documented, option

__all__ = ["GraphSettings"]

GRAPHS = ("graphs",)
EPOCHS, FEWEST_EPOCHS = 60, 8
STEPS = 300  # for learning labels of nodes, of which one batch has many
SEEN = 150_000  # training graphs in all epochs, above which there are fewer epochs
BATCH = 32  # graphs
PAIRS = 2_000_000  # pairs of nodes in a batch


@documented
@dataclass(frozen=True)
class GraphSettings(EnsembleSettings):
    """How to split graphs, which network to train on them, and on which hardware."""

    split: Any = field(
        default=None,
        metadata={
            "help": "The split: 'random' for 80/10/10 with the seed, a `Split`, or three lists with"
            " the positions of the training, validation and test graphs, or of nodes if a single"
            " graph has labels of nodes. None takes the split of the data set (masks of nodes, or"
            " the `split` of a folder), or else 'random'."
        },
    )
    layers: int = option(4, "Layers of the network.", applies_to=GRAPHS, minimum=1)
    width: int = option(64, "Width of the network, a multiple of 8.", applies_to=GRAPHS, minimum=8)
    learning_rate: float = option(2e-3, "Highest learning rate.", applies_to=GRAPHS, minimum=0)
    dropout: float = option(0.1, "Dropout, between layers and of attention.", applies_to=GRAPHS)
    patience: int = option(
        20,
        "Stop after so many epochs without a lower validation loss.",
        applies_to=GRAPHS,
        minimum=1,
    )
    baselines: bool = option(
        True, "Do not train a GIN and a forest for comparison.", applies_to=GRAPHS
    )

    def training(self, graphs: int, largest: int, *, of_nodes: bool = False) -> TrainingSettings:
        """Return the settings for fitting a network.

        Args:
            graphs: number of training graphs; the more there are, the fewer times each is seen.
            largest: nodes of the largest graph, on which the batch size depends.
            of_nodes: whether nodes have the labels. If there are few graphs, there are more epochs,
                and training is as much more patient.
        """
        epochs = min(EPOCHS, max(FEWEST_EPOCHS, SEEN // max(graphs, 1)))
        batch = max(1, min(BATCH, PAIRS // max(largest, 1) ** 2))
        patience = self.patience
        if of_nodes and (more := STEPS // (epochs * -(-graphs // batch))) > 1:
            epochs, patience = more * epochs, more * patience
        return TrainingSettings(
            epochs=epochs,
            batch_size=batch,
            learning_rate=self.learning_rate,
            ema_decay=0.99,
            monitor="loss",
            patience=patience,
        ).for_run(self)
