"""Say whether the matrix products of this machine give a row the same bits in any company."""

import pytest
import torch

from graphxai.rules import conservative
from graphxai.runtime.device import one_thread


def rows_stand_alone() -> bool:
    """Return whether rows of a linear map have the same bits alone and beside others."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 80, generator=generator)
    for outputs in (1, 3, 24):
        weight = torch.randn(outputs, 80, generator=generator)
        with torch.no_grad(), one_thread():  # as in every explanation
            together = conservative.linear(rows, weight, None)
            alone = [conservative.linear(rows[:k], weight, None) for k in range(1, len(rows))]
        if not all(torch.equal(part, together[: len(part)]) for part in alone):
            return False
    return True


needs_rows_that_stand_alone = pytest.mark.skipif(
    not rows_stand_alone(),
    reason="the last bits of a row depend on the others here, as with MKL's kernels for AVX2",
)
