"""The demonstration runs as `make demo` runs it."""

from PIL import Image

from graphxai.cli.demo import run


def test_demonstration_draws_molecules_and_digits(tmp_path):
    text = []
    written = run(tmp_path, text.append)
    assert {p.name for p in written} >= {
        "verubecestat.png",
        "molecules.png",
        "elenbecestat-methods.png",
        "digits.png",
        "digit-methods.png",
    }
    for path in written:
        with Image.open(path) as picture:
            colors = picture.convert("RGB").resize((64, 64)).getcolors(4096)
        assert len(colors) > 20, f"{path} is nearly blank"
    assert any(line.startswith("verubecestat") and "atoms" in line for line in text)
    assert sum(line.startswith("digit") for line in text) == 10
