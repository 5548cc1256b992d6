"""The script for the papers' text and images runs on tiny models and files like the published."""

import json
from pathlib import Path

import numpy as np
import pytest

import papers
from graphxai.contract.method_names import CONTROLS

TINY = """
import torch
from torch import nn

import graphxai as gx

class Tiny(nn.Module):
    def __init__(self, first, classes):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = first, nn.Linear(8, classes)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids, padding_mask=None):
        x = self.encoder(self.embed(ids), src_key_padding_mask=padding_mask)
        return self.head(x[:, 0])

def wrapped(module, classes):
    names = tuple(map(str, range(classes)))
    return gx.wrap(module.eval(), kind="multiclass", classes=names, inputs="tokens",
                   graph_token=True, embedding="embed")

def words():
    def encode(words):
        ids = [1 + sum(map(ord, word)) % 30 for word in words]
        return torch.tensor([0, *ids]), list(range(len(words)))
    return wrapped(Tiny(nn.Embedding(31, 8), 2), 2), encode

def pictures():
    def encode(pixels):
        grey = torch.as_tensor(pixels).float().mean(-1)
        tiles = grey.unfold(0, 4, 4).unfold(1, 4, 4).reshape(-1, 16)
        return torch.cat([tiles[:1] * 0, tiles])
    return wrapped(Tiny(nn.Linear(16, 8), 2), 2), encode
"""
REVIEW = "this film is not very good but the music is a joy and the end is fine"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.py"
    file.write_text(TINY)
    return file


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    papers.main(list(map(str, arguments)))
    return capsys.readouterr().out.splitlines()


def test_text_has_the_columns_of_ali_and_song(tmp_path, tiny, capsys):
    table = tmp_path / "dev.tsv"
    table.write_text(f"sentence\tlabel\n{REVIEW}\t1\nnot a joy at all\t0\n")
    head, _, *rows = printed(capsys, "text", f"{tiny}:words", table)
    assert head == "| method | auac | au_mse | aopc | lodds | ms | passes |"
    assert {row.split("`")[1] for row in rows} == {*papers.METHODS, *CONTROLS}
    assert any("1 forward, 1 backward" in row for row in rows)


def test_rationales_have_the_token_f1_of_the_top_words(tmp_path, tiny, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.txt").write_text(REVIEW)
    evidence = {"docid": "one.txt", "start_token": 3, "end_token": 6, "text": "not very good"}
    document = {"annotation_id": "one.txt", "classification": "NEG", "evidences": [[evidence]]}
    (tmp_path / "test.jsonl").write_text(json.dumps(document) + "\n")
    ((words, label, true),) = papers.rationales(tmp_path, 5)
    assert [w for w, t in zip(words, true, strict=True) if t] == ["not", "very", "good"]
    assert label == "NEG"
    head, _, *rows = printed(capsys, "rationales", f"{tiny}:words", tmp_path)
    assert head.startswith("| method | token_f1_10 | token_f1_20 |")
    assert "token_f1_80 | ms | passes |" in head
    lrp = next(row for row in rows if "`lrp`" in row)
    assert "0.300" in lrp.split("|")[-4]  # all 17 words and 3 true ones: 2 * 3 / (17 + 3)


def test_images_have_positive_and_negative_perturbation(tmp_path, tiny, capsys):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        folder = tmp_path / "val" / name
        folder.mkdir(parents=True)
        pixels = np.random.default_rng(len(name)).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        image.fromarray(pixels).save(folder / "one.png")
    head, _, *rows = printed(capsys, "images", f"{tiny}:pictures", tmp_path / "val")
    assert head == "| method | positive_perturbation | negative_perturbation | ms | passes |"
    assert len(rows) == len(papers.METHODS) + len(CONTROLS)


def test_a_model_that_is_not_named_is_an_error(tiny, tmp_path):
    with pytest.raises(SystemExit, match=r"write FILE\.py:NAME"):
        papers.main(["text", str(tiny), str(tmp_path)])
