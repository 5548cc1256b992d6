"""Build with setuptools, and let type checkers and editors see what `pip install -e .` installs.

The editable installation of setuptools is a hook of Python's imports, because `models/` and
`datasets/` lie beside the package. Nothing that reads files without running them finds the package.
Here a file `.pth` names a folder with one link to the package, so that files that are added later
are found too. Where the checkout has no links, as on Windows, setuptools' own way is left as it is.
"""

import base64
import hashlib
import zipfile
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".editable"  # has nothing but the link: a folder on the path offers all it has


def build_editable(
    wheel_directory: str,
    config_settings: dict | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Make a wheel whose only content besides its metadata is a path (PEP 660)."""
    name = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    if (ROOT / "graphxai" / "models").is_dir() and _linked(FOLDER / "graphxai", ROOT / "graphxai"):
        _name_path(Path(wheel_directory) / name)
    return name


def _linked(link: Path, package: Path) -> bool:
    """Make a link to the package, and return whether there is one."""
    try:
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(Path("..", package.name), target_is_directory=True)
    except OSError:
        return False
    return True


def _name_path(wheel: Path) -> None:
    """Replace the hook in a wheel by a file that names the folder with the link."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files = {name: data for name, data in files.items() if not name.startswith("__editable__")}
    files["__editable__.graphxai.pth"] = f"{FOLDER}\n".encode()
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    del files[record]
    lines = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def _digest(data: bytes) -> str:
    """Return a hash as the list of a wheel writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
