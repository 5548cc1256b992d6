"""The slope at an entry's presence is the difference that the entry makes, by taking it away.

Each function is computed with the entry and without it, by loops over its groups.
"""

import math

import pytest
import torch

from graphxai.engine.presence.functions import of_groups, softmax

GROUPS = 4  # of which the last has no entry
PICK = {"amax": max, "amin": min, "last": lambda values: values[-1]}


def entries(width):
    """Return entries, their presence, their groups, and what groups without entries have."""
    generator = torch.Generator().manual_seed(width)
    shape = (9, *([width] if width else []))
    x = torch.randn(shape, generator=generator, dtype=torch.double)
    # group 0 has one present entry, group 1 none, and group 2 several
    index = torch.tensor([0, 0, 1, 1, 2, 2, 2, 2, 2])
    there = torch.tensor([1, 0, 0, 0, 1, 0, 1, 1, 0], dtype=torch.double)
    base = torch.randn((GROUPS, *shape[1:]), generator=generator, dtype=torch.double)
    return x, there.view(-1, *[1] * (x.dim() - 1)), index, base


def by_loops(way, x, there, index, base, with_base):
    """Take the entry of each group and column that is wanted, among those that are present."""
    x, base = x.view(len(x), -1), base.view(GROUPS, -1)
    out = base.clone()
    for group in range(GROUPS):
        for column in range(x.shape[1]):
            values = [
                x[k, column].item()
                for k in range(len(x))
                if index[k] == group and there[k].item() > 0
            ]
            values = ([base[group, column].item()] if with_base else []) + values
            if values:
                out[group, column] = PICK[way](values)
    return out


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("way", PICK)
def test_the_slope_of_what_a_group_takes_is_what_an_entry_changes(way, width, with_base):
    x, there, index, base = entries(width)
    presence = there.clone().requires_grad_()
    out = of_groups(way, x, presence.expand(x.shape), index, base, with_base)
    expected = by_loops(way, x, there, index, base, with_base)
    torch.testing.assert_close(out.detach().view_as(expected), expected)
    weights = torch.linspace(1, 2, out.numel(), dtype=torch.double).view_as(out)
    (slope,) = torch.autograd.grad((out * weights).sum(), presence)
    for entry in range(len(x)):
        present, absent = there.clone(), there.clone()
        present[entry], absent[entry] = 1, 0
        gained = by_loops(way, x, present, index, base, with_base) - by_loops(
            way, x, absent, index, base, with_base
        )
        wanted = (gained * weights.view_as(gained)).sum().item()
        assert slope[entry].item() == pytest.approx(wanted, abs=1e-12), entry


def test_the_slope_of_a_softmax_is_what_an_entry_changes():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 4, generator=generator, dtype=torch.double)
    there = torch.tensor([[1.0, 0, 1, 1], [0, 1, 1, 0]], dtype=torch.double)
    weights = torch.randn(2, 4, generator=generator, dtype=torch.double)

    def weighed(shown):
        e = scores.exp() * shown
        return (e / e.sum(-1, keepdim=True) * weights).sum().item()

    presence = there.clone().requires_grad_()
    out = softmax(scores, presence, -1)
    assert (out * weights).sum().item() == pytest.approx(weighed(there))
    (slope,) = torch.autograd.grad((out * weights).sum(), presence)
    for row in range(2):
        for entry in range(4):
            present, absent = there.clone(), there.clone()
            present[row, entry], absent[row, entry] = 1, 0
            gained = weighed(present) - weighed(absent)
            assert slope[row, entry].item() == pytest.approx(gained, abs=1e-12)
    assert math.isfinite(slope.sum().item())


@pytest.mark.parametrize("way", ["amax", "amin"])
def test_entries_that_are_equal_up_to_rounding_share_what_arrives(way):
    sign = 1 if way == "amax" else -1
    values = [2.0, 2.0 + 4e-7, 1.9, 3.0, 0.5, 0.5]  # the fourth is absent
    x = (sign * torch.tensor(values)).requires_grad_()
    there = torch.tensor([1.0, 1, 1, 0, 1, 1], requires_grad=True)
    index = torch.tensor([0, 0, 0, 0, 1, 1])
    out = of_groups(way, x, there, index, torch.zeros(2), False)
    arriving, slope = torch.autograd.grad((out * torch.tensor([1.0, 10.0])).sum(), (x, there))
    assert arriving.tolist() == [0.5, 0.5, 0, 0, 5, 5]
    # without one of two equals nothing changes; the absent one would change 2 to 3
    torch.testing.assert_close(slope, sign * torch.tensor([0.0, 0, 0, 1, 0, 0]), atol=1e-6, rtol=0)
