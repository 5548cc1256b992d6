"""What a wrapped model predicts and reads."""

from dataclasses import dataclass
from typing import Literal

from graphxai.contract.tasks import TaskSet


@dataclass(frozen=True)
class WrappedConfig(TaskSet):
    """The tasks of a wrapped model, and what it reads.

    Args:
        reads: "molecules" if it takes SMILES and the nodes of a graph are the atoms, otherwise
            "graphs" or "tokens".
    """

    reads: Literal["molecules", "graphs", "tokens"] = "graphs"

    @property
    def reads_molecules(self) -> bool:
        """Whether the model takes SMILES."""
        return self.reads == "molecules"
