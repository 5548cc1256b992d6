"""Readouts of a dense model that count the tokens of its padding mask, without some of them."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import graphxai as gx
from graphxai.contract.target import Target
from graphxai.wrapping.presence import presence_pass

DIM = 5
READOUTS = {
    "sum over count": lambda h, m: (h * m).sum(1) / m.sum(1),
    "clamped": lambda h, m: (h * m).sum(1) / m.sum(1).clamp(min=1),
    "constant weights": lambda h, m: (h * (m / m.sum(1, keepdim=True))).sum(1),
    "filled": lambda h, m: h.masked_fill(m == 0, 0.0).sum(1) / m[..., 0].sum(1)[:, None],
    "chosen": lambda h, m: torch.where(m > 0, h, 0.0).sum(1) / m.sum(1),
    "einsum": lambda h, m: torch.einsum("bnd,bn->bd", h, m[..., 0]) / m.sum(1),
    "product": lambda h, m: (m.mT @ h).squeeze(1) / m.sum(1),
    "product of weights": lambda h, m: ((m / m.sum(1, keepdim=True)).mT @ h).squeeze(1),
    "whole numbers": lambda h, m: h.masked_fill(m == 0, 0.0).sum(1) / (m != 0).sum(1),
    "gates": lambda h, m: (h * h.sigmoid() * m).sum(1) / (h.sigmoid() * m).sum(1),
}


class Readout(nn.Module):
    """Reads the mean over the tokens that the mask shows, after attention if there are layers."""

    def __init__(self, readout: str, layers: int = 0) -> None:
        super().__init__()
        self.readout, self.inner = readout, nn.Linear(DIM, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        h = self.inner(x).tanh()
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=src_key_padding_mask)
        shown = (~src_key_padding_mask).to(h.dtype).unsqueeze(-1)
        return self.head(READOUTS[self.readout](h, shown) if self.readout else h.mean(1))


def wrapped(readout: str, layers: int = 0):
    torch.manual_seed(3)
    return gx.wrap(Readout(readout, layers).eval().double(), kind="regression", inputs="tokens")


ROWS = [torch.randn(n, DIM, generator=torch.Generator().manual_seed(n)) for n in (4, 6)]


@pytest.mark.parametrize("rows", [ROWS[:1], ROWS], ids=["alone", "padded"])
@pytest.mark.parametrize("readout", READOUTS)
def test_the_marginal_in_a_masked_mean_is_what_hiding_the_token_changes(readout, rows):
    model = wrapped(readout)
    batch = model.collate([model.prepare(value).data for value in rows])
    tokens = model.embed(batch)
    run = presence_pass(model, batch, tokens)
    target = Target.of(None).resolve(model.config, run.whole)
    present = batch.mask.clone()
    present[:, 1::2] = False

    def value(shown: Tensor) -> Tensor:
        with torch.no_grad():
            return target(model.encode(tokens, batch, shown))

    marginals = run.marginals(present, target)
    for node in range(present.shape[1]):
        with_it, without = present.clone(), present.clone()
        with_it[:, node], without[:, node] = batch.mask[:, node], False
        change = value(with_it) - value(without)
        torch.testing.assert_close(marginals[:, node], change)


@pytest.mark.parametrize("method", ["path_marginals", "shares"])
@pytest.mark.parametrize("readout", ["sum over count", "whole numbers", "product"])
def test_a_transformer_with_a_masked_mean_leaves_out_tokens_alone_and_in_a_list(readout, method):
    model = wrapped(readout, layers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_a_list = gx.explain(model, ROWS, method)
        alone = [gx.explain(model, rows, method) for rows in ROWS]
    for one, other in zip(alone, in_a_list, strict=True):
        torch.testing.assert_close(torch.tensor(one.relevance), torch.tensor(other.relevance))


@pytest.mark.parametrize("method", ["path_marginals", "shares"])
def test_a_readout_that_counts_hidden_tokens_is_named_with_what_to_write(method):
    with pytest.warns(UserWarning, match=r"\(the model: mean\): write it as a sum, mean, .* mask"):
        gx.explain(wrapped("", layers=1), ROWS[1], method)
