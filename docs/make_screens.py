"""Photograph the app and a card of a report for these pages: `python docs/make_screens.py`.

Needs Chromium, `pip install ".[app,images,test]"`, and no network.
"""

import io
import subprocess
import sys
import tempfile
from base64 import b64decode
from pathlib import Path

import pandas as pd
from PIL import Image

from graphxai.datasets.samples import MOLECULES

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from browser import Page, browsing  # noqa: E402

MODELS = ("bace", "lipophilicity", "solubility", "blood-brain-barrier")
MOLECULE = MOLECULES["verubecestat"]
GOAL = "pIC50 > 7, log D 1 to 3, solubility > -4.5"
ATOM = 18  # a CH of the pyridine ring, which is clicked
BACE = ROOT / "tests" / "data" / "bace" / "bace.csv.xz"
COMPOUND = "BACE_586"
GRAPHXAI = (sys.executable, "-m", "graphxai")


def photographed_app(page: Page) -> None:
    """Show a molecule to four models with a goal, and the changes at one of its atoms."""
    models = [part for name in MODELS for part in ("--model", name)]
    command = [*GRAPHXAI, "app", *models, "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            words = (word for line in serving.stdout for word in line.split())
            address = next(word for word in words if word.startswith("http://127.0.0.1"))
            page.size(1240, 1120)
            page.open(address)
            page.wait("about !== null")
            for field, text in (("goal", GOAL), ("smiles", MOLECULE)):
                page.click(f"#{field}")
                page.type(text)
                page.key("Enter")
            page.wait("!byId('outlook').hidden && byId('properties').children.length > 4")
            page.click(f'#picture circle.hit[data-place="{ATOM}"]')
            page.wait("byId('options').querySelectorAll('svg').length > 3")
            page.js("scrollTo(0, 0)")
            save(page, "app.png")
        finally:
            serving.terminate()


def photographed_card(page: Page, folder: Path) -> None:
    """Open the card of one compound, the first of a report."""
    columns = {"CID": "name", "mol": "smiles", "pIC50": "pIC50"}
    table = pd.read_csv(BACE)[list(columns)].rename(columns=columns).round(2)[::5]
    first = table.name == COMPOUND
    pd.concat([table[first], table[~first]]).head(40).to_csv(folder / "bace.csv", index=False)
    options = ["--name-column", "name", "--target", "pIC50"]
    report = folder / "report.html"
    command = [*GRAPHXAI, "report", folder / "bace.csv", *options, "--out", report]
    subprocess.run(command, check=True, capture_output=True)
    page.size(1040, 866)
    page.open(report)
    page.wait("document.querySelector('.line') !== null")
    page.click(".line")
    page.wait("byId('detail').open")
    page.js("document.activeElement.blur()")
    save(page, "card.png", "#detail", scale=2)


def save(page: Page, name: str, selector: str = "html", scale: int = 1) -> None:
    """Write what an element shows in the window as a PNG of 256 colours."""
    box = page.js(
        "(({ x, y, width, height }) =>"
        " ({ x, y, width, height: Math.min(height, innerHeight - y) }))"
        f"(document.querySelector('{selector}').getBoundingClientRect())"
    )
    shot = page.call("Page.captureScreenshot", clip=box | {"scale": scale})["data"]
    picture = Image.open(io.BytesIO(b64decode(shot))).convert("RGB")
    picture.quantize(256).save(IMAGES / name, optimize=True)
    print(IMAGES / name)


if __name__ == "__main__":
    with browsing() as window, tempfile.TemporaryDirectory() as temporary:
        photographed_card(window, Path(temporary))
        photographed_app(window)
