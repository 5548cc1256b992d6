"""`graphxai train` says at once that the hardware it is asked for is not there."""

import sys

import pytest

from graphxai.cli import main as cli


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--accelerator", "abacus"], "accelerator 'abacus'"),
        (["--accelerator", "cpu", "--devices", "0"], "devices 0"),
        (["--accelerator", "cpu", "--precision", "7-true"], "precision '7-true'"),
    ],
)
def test_missing_hardware_is_one_line_before_the_table_is_read(
    options, words, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("lightning")
    (tmp_path / "t.csv").write_text("smiles,y\nCCO,1\n")
    command = ["graphxai", "train", str(tmp_path / "t.csv"), "--target-column", "y"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "run"), *options])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    error = " ".join(capsys.readouterr().err.split())
    assert error.startswith("error: cannot train with")
    assert words in error
    assert not (tmp_path / "run").exists()
