"""What the stages of a table's training return, together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphxai.learning.calibration import Calibration
from graphxai.learning.splitting import SplitTable
from graphxai.learning.table_scores import TableScores
from graphxai.learning.training import TaughtModel

__all__ = ["TrainedTable"]


@dataclass(frozen=True, eq=False)
class TrainedTable:
    """The result of training on a table.

    Attributes:
        split: the table in its parts.
        taught: the calibrated model, and its teacher.
        calibration: how the model was calibrated, and what it says about the molecules held out.
        scores: the model's scores on the test part.
    """

    split: SplitTable
    taught: TaughtModel
    calibration: Calibration
    scores: TableScores

    @property
    def point(self) -> dict[str, Any]:
        """The model's point on a learning curve, as JSON values."""
        size = len(self.split.parts.train)
        return {"share": self.split.share, "n": size, "targets": self.scores.by_target}
