"""The recipes of the page for platform engineers run as they stand, with the tools they are for."""

import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

import graphxai as gx
from graphxai.datasets.samples import example_files
from graphxai.tables.cluster import START_VARIABLES, _start
from pages import PLATFORM, ROOT

PAGE = (ROOT / PLATFORM).read_text(encoding="utf-8")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def recipe(heading: str) -> str:
    """Return the first block of code beneath a heading of the page."""
    section = PAGE.partition(f"### {heading}\n")[2]
    return re.search(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name in ("molecules.csv", "assay.csv"):
        shutil.copy(example_files()[name], tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", PATH)
    return tmp_path


def names_of_the_page() -> dict:
    names: dict = {"gx": gx, "pd": pd, "__name__": "service"}
    return names


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_nightly_run_that_its_scheduler_stops_goes_on_where_it_was(folder):
    """`timeout` sends SIGTERM after a moment, again and again, until the table is done."""
    if shutil.which("timeout") is None:
        pytest.skip("there is no `timeout`, which the coreutils bring")
    rows = pd.read_csv("assay.csv")["smiles"].tolist() * 4
    Path("molecules.csv").write_text("\n".join(["smiles", *rows]) + "\n")
    words = shlex.split(recipe("cron, Airflow, Slurm"))
    whole = [*words[words.index("graphxai") :]]
    undisturbed = ["undisturbed" if word == "night/" else word for word in whole]
    assert subprocess.run(undisturbed).returncode == 0
    stopped = 0
    for _ in range(30):
        process = subprocess.Popen(words)
        if stopped < 2:
            wait_for(Path("night/explanations.csv"), process, beyond=stopped)
            process.send_signal(signal.SIGTERM)  # `timeout` passes it on
        status = process.wait()
        if status == 0:
            break
        assert status == 143, Path("night.log").read_text()
        assert "terminated; continue" in Path("night.log").read_text().splitlines()[-1]
        stopped += 1
    assert (status, stopped > 0) == (0, True)
    files = [Path(name, "explanations.csv").read_bytes() for name in ("night", "undisturbed")]
    assert files[0] == files[1]


def wait_for(file: Path, process: subprocess.Popen, beyond: int) -> None:
    """Wait until a run has written rows, more than an earlier one."""
    before = file.stat().st_size if file.exists() else 0
    for _ in range(1200):
        if process.poll() is not None or (file.exists() and file.stat().st_size > before):
            return
        time.sleep(0.05)


def test_snakemake_makes_what_is_missing_and_nothing_twice(folder):
    program = shutil.which("snakemake", path=PATH)
    if program is None:
        pytest.skip("snakemake is not installed: pip install snakemake")
    Path("Snakefile").write_text(recipe("Snakemake"))
    command = [program, "--cores", "2", "--quiet", "all"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv("explained/molecules/explanations.csv")) == 12
    written = Path("predicted/molecules.csv").stat().st_mtime_ns
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert Path("predicted/molecules.csv").stat().st_mtime_ns == written
    with Path("molecules.csv").open("a") as file:
        file.write("broken,C1CC\n")
    one = [program, "--cores", "1", "--quiet", "all", "--", "predicted/molecules.csv"]
    failed = subprocess.run(one, capture_output=True, text=True)
    assert failed.returncode != 0  # by --fail-on-rejected
    assert not Path("predicted/molecules.csv").exists()


def test_a_service_answers_threads_from_one_model_and_refuses_bad_input_politely():
    pytest.importorskip("fastapi", reason="fastapi is not installed: pip install fastapi")
    from fastapi.testclient import TestClient

    names = names_of_the_page()
    exec(recipe("FastAPI"), names)
    client = TestClient(names["service"], raise_server_exceptions=False)
    molecules = ["CCO", "CCN", "c1ccccc1O", "CC(=O)Oc1ccccc1C(=O)O"] * 3
    methods = ["lrp", "gradient_input"] * 6  # each thread has its own rules

    def asked(smiles: str, method: str) -> list[float]:
        answer = client.get("/explain", params={"smiles": smiles, "method": method})
        assert answer.status_code == 200
        return answer.json()["relevance"]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(asked, molecules, methods))
    for smiles, method, relevance in zip(molecules, methods, answers, strict=True):
        expected = gx.explain(names["bace"], smiles, method).relevance.tolist()
        assert relevance == pytest.approx(expected, abs=1e-5)
    for params in (
        {"smiles": "C1CC"},
        {"smiles": ""},
        {"smiles": "C" * 2000},
        {"smiles": "CCO", "method": "lpr"},
        {},
    ):
        refused = client.get("/explain", params=params)
        assert refused.status_code == 422, params
        assert refused.json()["detail"]


def test_an_estimator_is_validated_by_scikit_learn(folder, small_networks):
    pytest.importorskip("lightning")
    names = names_of_the_page()
    exec(recipe("scikit-learn"), names)
    assert len(names["scores"]) == 2
    assert all(score < 1 for score in names["scores"])


def test_a_start_of_ray_that_takes_too_long_names_the_variables_of_the_page():
    class SlowRay:
        """Ray, as it fails on a busy machine (ray/_private/node.py)."""

        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**_: object) -> None:
            raise Exception("The current node timed out during startup.")

    with pytest.raises(RuntimeError, match="did not start in time") as caught:
        _start(SlowRay, None)
    for name in START_VARIABLES:
        assert f"{name}=120" in str(caught.value)
        assert f"{name}=120" in PAGE


def test_what_the_page_recommends_is_public():
    imported = re.findall(r"^(?:from|import) (graphxai[\w.]*)", PAGE, re.MULTILINE)
    assert set(imported) <= {"graphxai"}
    used = set(re.findall(r"gx\.(\w+)", PAGE))
    assert {"explain_rows", "RejectedRow", "ExplainFrame", "ExplainBatch"} < used
    assert used <= set(gx.__all__)


def test_a_service_finds_warnings_in_its_log(tmp_path):
    code = PAGE.partition("the logger `graphxai`")[2]
    block = re.search(r"^```python\n(.*?)^```$", code, re.MULTILINE | re.DOTALL)[1]
    script = f"{block}\nfrom graphxai.runtime.notices import warn\nwarn('a doubt')\n"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    assert "graphxai a doubt" in (tmp_path / "service.log").read_text()
    assert logging.getLogger("graphxai").level == logging.NOTSET
    assert json.dumps(gx.explain("bace", "CCO").to_dict())
