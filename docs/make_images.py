"""Make pictures and the report of these pages: `python docs/make_images.py`.

`make pictures` also photographs the app and a report. The picture of interactions is drawn only
where shapiq is installed.

With the folder of a benchmark of `bace`, `python docs/make_images.py bench/bace` draws its curves.
"""

import json
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GINConv, GPSConv

import graphxai as gx
from graphxai.cli import demo
from graphxai.datasets.samples import MOLECULES, digit_paths
from graphxai.evaluation import bootstrap
from graphxai.tables.report import build, contents
from graphxai.visualization.curves import curves_figure

IMAGES = Path(__file__).parent / "images"
BACE = Path(__file__).parents[1] / "tests" / "data" / "bace" / "bace.csv.xz"
FOLDER = IMAGES / "gallery"
COMPARED = ("path_marginals", "learned", "lrp", "gae", "gradient_input", "random")
STRONG = 0.5  # the least interaction that is drawn


class KarateGps(nn.Module):
    """Messages along friendships beside attention between all members, a group for each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(34, 16), nn.Linear(16, 4)
        self.layer = GPSConv(16, GINConv(nn.Linear(16, 16)), heads=2, act="gelu", norm=None)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits of the groups, (N, 4)."""
        return self.head(self.layer(self.embed(x), edge_index))


def molecules() -> dict[str, str]:
    """Draw one molecule: atoms, fragments, pairs, methods, changes, and a contrast."""
    model = gx.load("bace")
    first, second = MOLECULES["elenbecestat"], MOLECULES["atabecestat"]
    explanation = gx.explain(model, first)
    changes = gx.counterfactuals(model, first, "inactive", n=3, predictions=200)
    return {
        "molecule": explanation.svg(),
        "fragments": gx.fragments(explanation, "brics").svg(),
        "pairs": gx.pairs(model, first).svg(),
        "contrast": gx.contrast(model, first, second).svg(),
        "methods": gx.compare(model, first, methods=("lrp", "path_marginals", "gae")).svg(),
        "counterfactuals": changes.svg(),
    }


def interactions() -> dict[str, str]:
    """Draw the strongest interactions of a molecule's fragments, which shapiq computes exactly."""
    if find_spec("shapiq") is None:
        return {}
    import shapiq

    model, molecule = gx.load("bace"), MOLECULES["elenbecestat"]
    parts = gx.fragments(gx.explain(model, molecule), method="shapley")
    game = gx.game(model, molecule, [part.atoms for part in parts])
    indices = shapiq.ExactComputer(game, game.n_players)("k-SII", order=2)
    pairs = {who: value for who, value in indices.dict_values.items() if len(who) == 2}
    strong = {pair: value for pair, value in pairs.items() if abs(value) > STRONG}
    return {"interactions": parts.svg(interactions=strong)}


def digits() -> dict[str, str]:
    """Draw one digit: its class, its class against another, methods, and what decides."""
    model = gx.load("mnist-superpixels")
    three = digit_paths()[3]
    return {
        "digit": gx.explain(model, three).svg(),
        "digit-against": gx.explain(model, three, target=("3", "8")).svg(),
        "digit-methods": gx.compare(model, three).svg(),
        "digit-set": gx.counterfactual_set(model, three).svg(),
    }


def graphs() -> dict[str, str]:
    """Draw why a GPS puts a member of Zachary's karate club into a group."""
    torch.manual_seed(0)
    club, network = KarateClub()[0], KarateGps()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(200):
        optimiser.zero_grad()
        outputs = network(club.x, club.edge_index)[club.train_mask]
        nn.functional.cross_entropy(outputs, club.y[club.train_mask]).backward()
        optimiser.step()
    model = gx.wrap(network.eval(), kind="multiclass", classes=4, task="group")
    return {"graph": gx.explain(model, club, "path_marginals", node=9).svg()}


def live_report() -> Path:
    """Write a report on the compound of the card, and on pairs with exchanges suggested for it.

    Only the compound of the card gets a full card, which keeps the page small. The page says so.
    """
    table = pd.read_csv(BACE).rename(columns={"CID": "name", "mol": "smiles"})
    table = table[["name", "smiles", "pIC50"]].round(2)
    series = table[table.name.isin({f"BACE_{number}" for number in (485, 586, 838, 1489, 1530)})]
    place = list(series.name).index("BACE_586")
    sentence = "One compound has a full card: BACE_586. The others are pairs that were measured."
    out = Path(__file__).parent / "static" / "report.html"
    options = {
        "name_column": "name",
        "target": "pIC50",
        "title": "bace: BACE_586 and measured pairs",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(build, "in_full", lambda *_: {place: "the compound of the first page"}),
        patch.object(contents, "sentence_about", lambda *_: sentence),
    ):
        file = Path(folder) / "series.csv"
        series.to_csv(file, index=False)
        gx.report("bace", file, out, counterfactuals=6, towards=">7.55", **options)
    return out


def draw_curves(benchmark: Path) -> None:
    """Draw the activation curves of some methods that a benchmark measured."""
    lines = (benchmark / "units.jsonl").read_text(encoding="utf-8").splitlines()
    units = [json.loads(line) for line in lines]
    curves = {}
    for method in COMPARED:
        of_method = [u["curves"]["mask"]["activation"] for u in units if u["method"] == method]
        points = [bootstrap(np.array(values)) for values in zip(*of_method, strict=True)]
        curves[method] = tuple(np.array([(p.mean, p.low, p.high) for p in points]).T)
    figure = curves_figure(
        np.linspace(0, 1, len(curves["random"][0])),
        curves,
        title=f"bace, {len(of_method)} test compounds: mean and 95 % interval",
        x_label="share of the atoms shown, most relevant first",
        y_label="probability of the true class",
    )
    figure.savefig(IMAGES / "activation-bace.svg", metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw_curves(Path(sys.argv[1]))
        raise SystemExit
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, picture in (molecules() | interactions() | digits() | graphs()).items():
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")
        print(FOLDER / f"{name}.svg")
    print(live_report())
    with tempfile.TemporaryDirectory() as folder:
        for path in demo.run(folder):
            if (IMAGES / path.name).exists():
                print(shutil.copy(path, IMAGES))
