"""Patches of an image are drawn on their grid, and upsampled to its pixels."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import graphxai as gx
from graphxai.visualization import upsampled


class Vit(nn.Module):
    """Patches of a picture, their mean read."""

    def __init__(self):
        super().__init__()
        self.patch, self.head = nn.Linear(16, 8), nn.Linear(8, 3)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, patches):
        return self.head(self.encoder(self.patch(patches)).mean(1))


@pytest.fixture(scope="module")
def picture():
    return torch.rand(16, 16, generator=torch.Generator().manual_seed(0))


def explained(patches):
    torch.manual_seed(0)
    model = gx.wrap(Vit(), kind="multiclass", classes=("a", "b", "c"), inputs="tokens")
    return gx.explain(model, patches, "lrp")


def test_a_square_number_of_patches_is_saved_on_its_grid(tmp_path, picture):
    e = explained(picture.unfold(0, 4, 4).unfold(1, 4, 4).reshape(16, 16))
    path = e.save(tmp_path / "x.svg")
    svg = path.read_text()
    assert sorted(map(int, re.findall(r'data-segment="(\d+)"', svg))) == list(range(16))
    assert 'data-segment="5" d="M1 1h1v1h-1z"' in svg  # the second patch of the second row
    upon = e.svg(image=picture.numpy())
    assert re.search(r'data-segment="5" d="M4 4h4v1h-4z', upon)  # four pixels on a side


def test_other_grids_are_named():
    e = explained(torch.rand(12, 16))
    with pytest.raises(ValueError, match=r"grid=\(rows, columns\)"):
        e.svg()
    assert 'data-segment="11" d="M3 2h1v1h-1z"' in e.svg(grid=(3, 4))
    with pytest.raises(ValueError, match="a grid of 3 x 3 does not fit 12 patches"):
        e.svg(grid=(3, 3))


def test_upsampling_is_bilinear():
    values = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    expected = F.interpolate(values[None, None], size=(12, 20), mode="bilinear")[0, 0]
    np.testing.assert_allclose(upsampled(values.flatten(), (3, 4), (12, 20)), expected, atol=1e-12)
