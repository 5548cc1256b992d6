"""Run the notebooks and store their outputs: `python notebooks/execute.py [NOTEBOOK ...]`.

Needs `pip install ".[notebook,train]"`. Files that a notebook writes go to a temporary
folder. Apart from the numbers, the stored outputs do not depend on the machine.
"""

import base64
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(
    notebook: NotebookNode,
    folder: Path,
    timeout: int = 120,
    kernel: AsyncKernelManager | None = None,
) -> NotebookNode:
    """Run a copy of a notebook in a folder, and return it.

    Args:
        notebook: the notebook.
        folder: the folder.
        timeout: seconds for each cell.
        kernel: the kernel, by default a new one. It is started if it is not running yet, and left
            running.

    Raises:
        CellExecutionError: a cell fails.
    """
    notebook = nbformat.from_dict(notebook)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # many small tensors: threads only cost time
    client = NotebookClient(
        notebook,
        km=kernel,
        timeout=timeout,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute()


def tidied(notebook: NotebookNode) -> NotebookNode:
    """Prepare the notebook for storage: plain metadata, numbered cells, one form per picture."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata = NotebookNode()
        for output in cell.get("outputs", ()):
            _keep_one_form(output.get("data", {}))
            if "text" in output:  # a warning names the file that gives it
                output.text = output.text.replace(f"{FOLDER.resolve().parent}/", "")
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not _is_empty(output)]
    return notebook


def _is_empty(output: NotebookNode) -> bool:
    """Return whether nothing is shown, as where a bar of progress was."""
    return "data" in output and not any(output.data.values())


def _keep_one_form(data: dict[str, Any]) -> None:
    """Leave one form of a picture: PNG, which web sites and LaTeX show as well as notebooks do."""
    if "image/svg+xml" in data:
        data.pop("text/html", None)
    if "image/png" in data:
        data.pop("image/svg+xml", None)
        data["image/png"] = _packed(data["image/png"])
    data.pop("application/vnd.jupyter.widget-view+json", None)  # no kernel answers a stored view


def _packed(picture: str) -> str:
    """Return a PNG in base64 with the same pixels in as few bytes as Pillow finds."""
    packed = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(picture))).save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def main(names: list[str]) -> None:
    """Run the given notebooks, by default all, and write them back."""
    for path in map(Path, names or sorted(FOLDER.glob("*.ipynb"))):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            notebook = tidied(executed(notebook, Path(folder)))
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
