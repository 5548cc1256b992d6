"""The demo: real molecules and digits explained with the bundled models, saved as pictures."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from graphxai.datasets.samples import MOLECULES, digit_paths
from graphxai.explanation.api import compare, explain, load, predict, pretrained_models
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.explanations import grid
from graphxai.explanation.prediction import Prediction
from graphxai.models.graphormer import only_starts
from graphxai.runtime.extras import to_install
from graphxai.runtime.writing import folder_at
from graphxai.visualization.render import save_picture

# pictures to look at first, by their file names
FIRST = ("molecules", "elenbecestat-methods", "every-model", "digits", "digit-methods")
EVERY_MODEL = "verubecestat"  # the molecule that every model explains
FEW = 3  # tasks of a model; if it has more, only the likeliest is shown
COMPARED = ("lrp", "lrp_ah_ln", "gradient_input", "gae", "rollout", "attention_last")


def run(folder: str | Path, log: Callable[[str], None] = print) -> list[Path]:
    """Explain the bundled samples, write pictures into `folder` and return their paths."""
    folder = folder_at(folder)
    pictures = chain(_molecules(log), _every_model(log), _digits(log))
    return [save_picture([picture], folder / f"{name}.png") for name, picture in pictures]


def _molecules(log: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    model = load("bace")
    names = list(MOLECULES)
    explained: list[Explanation] = [
        e for e in explain(model, list(MOLECULES.values())) if e is not None
    ]
    for name, explanation in zip(names, explained, strict=True):
        yield name.replace(" ", "-"), explanation.svg()
        log(f"{name:17s} {explanation.prediction!s:15s} {explanation.caption.splitlines()[0]}")
    titles = [f"{name}: {e.prediction}" for name, e in zip(names, explained, strict=True)]
    panels = grid(explained, title="BACE-1 inhibition, LRP", titles=titles, width=420, height=320)
    yield "molecules", panels
    first = MOLECULES["elenbecestat"]
    yield "elenbecestat-methods", compare(model, first, COMPARED, width=420, height=360)


def _every_model(log: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    smiles = MOLECULES[EVERY_MODEL]
    explained: list[Explanation] = []
    titles: list[str] = []
    for name in pretrained_models():
        model = load(name)
        if only_starts(model) or not model.config.reads_molecules:
            continue
        predictions = predict(model, smiles)
        for task in _shown_tasks(predictions):
            explained.append(explain(model, smiles, target=task))
            titles.append(f"{task}: {explained[-1].prediction}")
            log(f"{name:20s} {titles[-1]}")
    panels = grid(
        explained,
        title=f"What each model sees in {EVERY_MODEL}",
        titles=titles,
        shared_scale=False,  # each model has an output of its own, in a unit of its own
        width=420,
        height=320,
    )
    yield "every-model", panels


def _shown_tasks(predictions: dict[str, Prediction]) -> list[str]:
    """Choose the tasks to show: all, or if there are many, that of the likeliest second class."""
    if len(predictions) <= FEW:
        return list(predictions)
    with_classes = [task for task, prediction in predictions.items() if prediction.probabilities]
    return [max(with_classes, key=lambda task: list(predictions[task].probabilities.values())[1])]


def _digits(log: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    if find_spec("skimage") is None:
        log(f"no digits: they need scikit-image: {to_install('images')}")
        return
    model = load("mnist-superpixels")
    explained: list[Explanation] = [e for e in explain(model, list(digit_paths())) if e is not None]
    for digit, explanation in enumerate(explained):
        log(f"digit {digit}: {explanation.prediction}, {explanation.caption.splitlines()[0]}")
    titles = [f"{digit}: read as {e.prediction}" for digit, e in enumerate(explained)]
    panels = grid(
        explained,
        columns=5,
        title="MNIST superpixels, LRP",
        titles=titles,
        shared_scale=False,  # each digit is explained for another class, and logits differ in size
        legend=("against", "for"),
        size=150,
    )
    yield "digits", panels
    yield "digit-methods", compare(model, digit_paths()[3])
