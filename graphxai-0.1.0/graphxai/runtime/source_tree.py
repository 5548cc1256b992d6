"""Find the folders of the package that lie elsewhere in a checkout without symbolic links."""

from pathlib import Path

__all__ = ["folders_beside"]


def folders_beside(package: str) -> list[str]:
    """Return the root of a checkout whose links git could not make, and otherwise no folder.

    In the repository, `graphxai/models` and `graphxai/datasets` are symbolic links to the folders
    of these names at its root. Without the links, as on Windows by default, git writes small text
    files in their place, and Python has to look for the folders at the root. An installed package
    contains both folders, so Python never looks beside it.

    Args:
        package: the file `__init__.py` of the package.
    """
    folder = Path(package).parent
    root = folder.parent
    is_complete = (folder / "models").is_dir() and (folder / "datasets").is_dir()
    is_checkout = (root / "models" / "graphormer").is_dir() and (root / "datasets").is_dir()
    return [str(root)] if is_checkout and not is_complete else []
