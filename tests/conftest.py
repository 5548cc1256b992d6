import gc
import lzma
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slow_tests import function_of

# torch and the package are imported where they are needed, because the process that only hands out
# tests to others reads this file too.

DATA = Path(__file__).parent / "data"

# `ogb`, which some tests import before our package does, asks the network for a newer release with
# this package.
sys.modules["outdated"] = None  # type: ignore[assignment]

# The imports below make many objects but no garbage, see `pytest_collection_finish`.
gc.disable()


# These files start processes or run whole pages. They run first, so that two processes can share
# the short tests at the end evenly.
FIRST = ("test_cluster.py", "test_run_workers.py")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what `-m` does not name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests. Run the longest tests first, and leave all others in order."""
    slow = frozenset((DATA / "slow_tests.txt").read_text().split())
    for item in items:
        if function_of(item.nodeid) in slow:
            item.add_marker("slow")
    items.sort(key=lambda item: item.path.name not in FIRST)


def pytest_collection_finish() -> None:
    """Hide what imports made from the garbage collector, which saves a tenth of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Collect garbage once, so that pytest's own five collections take no time."""
    gc.collect()
    gc.freeze()


MOLECULES = {
    "methane": "C",
    "sodium acetate": "CC(=O)[O-].[Na+]",
    "aspirin": "CC(=O)Oc1ccccc1C(=O)O",
    "TEMPO, a radical": "CC1(C)CCCC(C)(C)N1[O]",
    "ferrocene-like": "[CH-]1C=CC=C1.[CH-]1C=CC=C1.[Fe+2]",
    "heavy water": "[2H]O[2H]",
    "verubecestat": "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F",
}
PUBLISHED = ("moleculeace/published.csv", "molecules/lipo.csv")
WHOLE_MNIST = [
    f"{part}-{kind}-ubyte.gz"
    for part in ("t10k", "train10k")
    for kind in ("images-idx3", "labels-idx1")
]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Compute with one thread, because tests handle many small tensors."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _quick_processes() -> None:
    """Preload torch for the pools that tests start, so that their processes need not.

    Scripts, which know nothing of this, test what a process imports by itself.
    """
    multiprocessing.set_forkserver_preload(["torch", "rdkit.Chem", "graphxai.tables.run"])


@pytest.fixture(scope="session", autouse=True)
def _without_waiting_for_the_disk() -> None:
    """Leave files in the system's cache, since no test cuts the power.

    A training waits some hundred times, and a core would be idle meanwhile. Processes that tests
    start wait as a user's do.
    """
    os.fsync = lambda _: None


@pytest.fixture(scope="session", autouse=True)
def _heed_interrupts() -> None:
    """Heed Ctrl-C, which processes ignore that a shell starts in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _without_word_of_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep wrapped models from warning that they are recorded, which says nothing about results.

    Many tests treat warnings as errors, or count them.
    """
    from graphxai.engine.request import PassMemory

    monkeypatch.setattr(PassMemory, "warn_of_recording", lambda *_: None)


@pytest.fixture(scope="session")
def smiles() -> list[str]:
    return list(MOLECULES.values())


@pytest.fixture(scope="session")
def unlike(smiles: list[str]) -> list[str]:
    """Return four molecules that differ most: one atom, two parts, a radical, and a drug."""
    return [smiles[0], smiles[1], smiles[3], smiles[2]]


@pytest.fixture
def kept_registries() -> Iterator[None]:
    """Remove the methods and metrics that a test registers when the test is over."""
    from graphxai.evaluation.metrics import METRICS
    from graphxai.explainers import REGISTRY

    registries = [(registry, dict(registry)) for registry in (REGISTRY, METRICS)]
    yield
    for registry, before in registries:
        registry.clear()
        registry.update(before)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checks of `graphxai.evaluation.testing` give slow methods few steps.

    What they test holds for any number of steps. Of methods that differ only in the rules that are
    in force, they take one. One check takes all methods and all steps, for small molecules.
    """
    from graphxai.explainers.registry import methods_for
    from other_models import KINDS_OF_METHODS, quick_explainer

    monkeypatch.setattr("graphxai.evaluation.testing.get_explainer", quick_explainer)
    monkeypatch.setattr(
        "graphxai.evaluation.testing.methods_for",
        lambda model: [name for name in methods_for(model) if name in KINDS_OF_METHODS],
    )


@pytest.fixture
def only_relevance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the output of a graph with no nodes, which costs a pass of its own.

    This is for tests that explain many times and compare relevance. Others see that output.
    """
    monkeypatch.setattr(
        "graphxai.explanation.compute.explaining.outputs_without_nodes", lambda model, batch: None
    )


@pytest.fixture
def recorded_once() -> Iterator[None]:
    """Record a pass only once, however many methods look at it.

    This is for tests that compare what each of many methods says of the same graphs.
    """
    from graphxai.runtime.derived_values import cached_passes

    with cached_passes(most=16):
        yield


@pytest.fixture(scope="session")
def small_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small network with the tasks of the pre-trained weights."""
    import torch

    from graphxai.learning.fit import PRETRAINED, molecule_config
    from graphxai.models.graphormer import Graphormer, load_checkpoint, locate, save_checkpoint
    from toy import SMALL

    tasks = load_checkpoint(locate(PRETRAINED)).config.tasks
    torch.manual_seed(0)
    model = Graphormer(molecule_config(tasks, **SMALL)).eval()
    return save_checkpoint(model, tmp_path_factory.mktemp("weights"))


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch, small_weights: Path) -> None:
    """Train a small network on a table, from small weights instead of the pre-trained ones.

    This is for tests of all that happens around the network, whatever its size.
    """
    from functools import partial

    from graphxai.learning import fit, table
    from toy import SMALL

    config, locate = fit.molecule_config, fit.locate
    for module in (fit, table):
        monkeypatch.setattr(module, "molecule_config", partial(config, **SMALL))
        monkeypatch.setattr(
            module,
            "locate",
            lambda name: small_weights if name == fit.PRETRAINED else locate(name),
        )


@pytest.fixture
def small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the figures of a saved report small, because those of full size are tested once."""
    from pages import sketched

    monkeypatch.setattr("graphxai.evaluation.output._save", sketched)


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of one run of the tests share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for GRAPHXAI_DATA.

    It has all of BACE, a hundred of its compounds as OGB's data set, and the first 600 test images
    of MNIST.
    """
    from ogb_folders import write_molbace

    root = tmp_path_factory.mktemp("data")
    write_molbace(root)
    shutil.copytree(DATA / "mnist", root / "mnist")
    (root / "bace" / "raw").mkdir(parents=True)
    packed = (DATA / "bace" / "bace.csv.xz").read_bytes()
    (root / "bace" / "raw" / "bace.csv").write_bytes(lzma.decompress(packed))
    return root


@pytest.fixture(scope="session")
def mnist_digits() -> np.ndarray:
    """Return real digits of the MNIST test set, ten of each in order, uint8 (100, 28, 28)."""
    from graphxai.datasets.mnist import load_mnist

    images, labels = load_mnist(DATA, "test", download=False)
    return np.concatenate([images[labels == digit][:10] for digit in range(10)])


def folders_of_data() -> list[Path]:
    """Return where data too large for the repository may lie: GRAPHXAI_DATA, and shared folders."""
    from graphxai.runtime.download import data_root

    root = Path(__file__).resolve().parents[1]
    shared = (os.environ.get("GRAPHXAI_SHARED"), root / "shared", root.parent / "shared")
    return [data_root(), *(Path(folder) / "data" for folder in shared if folder)]


@pytest.fixture(scope="session")
def mnist_folder() -> Path:
    """Return a folder for GRAPHXAI_DATA with MNIST files too large for the repository."""
    for folder in folders_of_data():
        if all((folder / "mnist" / name).is_file() for name in WHOLE_MNIST):
            return folder
    pytest.skip(
        "needs more of MNIST than is bundled (3 MB): set GRAPHXAI_DATA to a folder that holds "
        "mnist/t10k-*.gz and mnist/train10k-*.gz, see tests/data/README.md"
    )


@pytest.fixture(scope="session")
def published_tables() -> Path:
    """Return a folder with tables of others: MoleculeACE's scores, and measured log D."""
    for folder in folders_of_data():
        if all((folder / name).is_file() for name in PUBLISHED):
            return folder
    pytest.skip(f"needs {' and '.join(PUBLISHED)} in the folder of GRAPHXAI_DATA")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs `graphxai` with arguments: exit status, output, errors."""
    from graphxai.cli import main as cli

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["graphxai", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
