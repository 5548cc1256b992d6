"""Continuous features and relative positions agree with their formulas."""

import pytest
import torch

from graphxai.models.graphormer.position import (
    ContinuousEmbedding,
    RelativePositionBias,
    frequencies,
)


@pytest.fixture
def pos() -> torch.Tensor:
    return torch.rand(2, 7, 2, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def bias() -> RelativePositionBias:
    torch.manual_seed(0)
    module = RelativePositionBias(bands=3, num_heads=8)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module.double()


def test_wave_vectors_cover_half_the_plane() -> None:
    waves = frequencies(3)
    both = torch.cat([waves, -waves]).div(torch.pi).round().int().tolist()
    assert len({tuple(w) for w in both}) == len(both) == 7 * 7 - 1


def test_relative_position_bias_is_its_formula(
    bias: RelativePositionBias, pos: torch.Tensor
) -> None:
    pos = pos.double()
    d = pos[:, None] - pos[:, :, None]  # (B, i, j, 2) = p_j - p_i
    s = bias.sharpness * bias.log_sharpness.exp()
    c = bias.radius * bias.centre
    near = s * c.square().sum(-1) - s * (d[..., None, :] - c).square().sum(-1)
    angle = 2 * d @ bias.waves.T
    waves = angle.cos() @ bias.cosine.T + angle.sin() @ bias.sine.T
    assert torch.allclose(bias(pos), (near + waves).permute(0, 3, 1, 2))


def test_relative_position_bias_does_not_change_under_a_shift(
    bias: RelativePositionBias, pos: torch.Tensor
) -> None:
    pos = pos.double()
    assert torch.allclose(bias(pos), bias(pos + torch.tensor([0.3, -0.2]).double()))


def test_heads_first_look_at_neighbours_all_around() -> None:
    module = RelativePositionBias(bands=3, num_heads=8)
    angle = torch.arange(8) * (torch.pi / 4)
    around = 0.5 + module.radius * torch.stack([angle.cos(), angle.sin()], dim=1)
    nodes = torch.cat([torch.full((1, 2), 0.5), around])  # one in the middle, eight around it
    favourites = module(nodes[None])[0, :, 0].argmax(-1)
    assert favourites.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_embedding_is_a_sum_of_one_term_per_feature(pos: torch.Tensor) -> None:
    embedding = ContinuousEmbedding(("intensity",), bands=2, has_position=True, dim=6)
    x = torch.rand(2, 7, 1, generator=torch.Generator().manual_seed(1))
    columns = embedding.features(x, pos)
    assert columns.shape[-1] == len(embedding.groups)
    assert set(embedding.groups) == {"intensity", "position", "intensity x position"}
    total = sum(columns[..., [k]] * embedding.weight[:, k] for k in range(len(embedding.groups)))
    assert torch.allclose(embedding(x, pos), total, atol=1e-5)
    dark = embedding.features(torch.zeros_like(x), pos)
    for k, group in enumerate(embedding.groups):
        if group.startswith("intensity"):
            assert torch.equal(dark[..., k], torch.zeros_like(dark[..., k]))


def test_missing_positions_are_an_error() -> None:
    embedding = ContinuousEmbedding(("intensity",), bands=2, has_position=True, dim=6)
    with pytest.raises(ValueError, match="pos"):
        embedding(torch.zeros(1, 3, 1), None)
