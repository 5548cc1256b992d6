"""`graphxai examples`: write the files that the documentation uses into a folder."""

from pathlib import Path
from typing import Annotated

import typer

from .terminal import echo


def examples(
    folder: Annotated[Path, typer.Argument(help="Where to write them.")] = Path("examples"),
) -> None:
    """Write example tables and a picture of a digit into a folder, to try the other commands.

    The pages of the documentation use these files. A file of yours is never overwritten.

    **Examples**

    `graphxai examples`

    `graphxai report examples/molecules.csv --name-column name --out report.html`
    """
    from graphxai.datasets.samples import example_files
    from graphxai.runtime.writing import write_whole

    contents = {name: path.read_bytes() for name, path in example_files().items()}
    different = [
        str(folder / name)
        for name, content in contents.items()
        if (folder / name).exists() and (folder / name).read_bytes() != content
    ]
    if different:
        raise ValueError(
            f"{', '.join(different)}: there is another file of this name. Choose another folder:"
            " graphxai examples FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_whole(folder / name, content)
        echo(f"written: {folder / name}")
