"""Make the pictures of the gallery from the bundled models: `python docs/make_images.py`."""

from pathlib import Path

import graphxai as gx
from graphxai.datasets.samples import MOLECULES, digit_paths

FOLDER = Path(__file__).parent / "images" / "gallery"
ZOOM = 1.5  # pixels per SVG unit


def molecules() -> dict[str, bytes]:
    """Draw one molecule: atoms, fragments, pairs of atoms, and the contrast with another one."""
    model = gx.load("bace")
    first, second = MOLECULES["elenbecestat"], MOLECULES["atabecestat"]
    explanation = gx.explain(model, first)
    return {
        "molecule": explanation.png(zoom=ZOOM),
        "fragments": gx.fragments(explanation, "brics").png(zoom=ZOOM),
        "pairs": gx.pairs(model, first).png(zoom=ZOOM),
        "contrast": gx.contrast(model, first, second).png(zoom=ZOOM),
    }


def digits() -> dict[str, bytes]:
    """Draw one digit: its class, its class against another, and several methods."""
    model = gx.load("mnist-superpixels")
    three = digit_paths()[3]
    return {
        "digit": gx.explain(model, three).png(zoom=ZOOM),
        "digit-against": gx.explain(model, three, target=("3", "8")).png(zoom=ZOOM),
        "digit-methods": gx.compare(model, three).png(zoom=ZOOM),
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, picture in (molecules() | digits()).items():
        (FOLDER / f"{name}.png").write_bytes(picture)
        print(FOLDER / f"{name}.png")
