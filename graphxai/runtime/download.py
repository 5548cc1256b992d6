"""Download from official sources. Digests are checked, and no file is left half-written."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

ROOT_ARGUMENT = "root=..."  # how messages name the argument for the folder of the data sets


class DownloadError(RuntimeError):
    """A file cannot be downloaded, or it is not the official one."""


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the data sets, which need not exist.

    It is the argument, or else ``$GRAPHXAI_DATA``, or else ``~/.cache/graphxai``.
    """
    chosen = root if root is not None else os.environ.get("GRAPHXAI_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "graphxai"


def fetch(
    url: str,
    path: str | os.PathLike[str],
    *,
    md5: str | None = None,
    sha256: str | None = None,
    timeout: float = 60.0,
) -> Path:
    """Return ``path``, downloaded from ``url`` unless it exists. The digest is always checked.

    The download goes to a temporary file beside ``path``. It is renamed only when its digest is
    right, so an interrupted download leaves nothing that could be mistaken for the file.

    Raises:
        DownloadError: no network, the server refused, or the digest differs. The message gives
            the URL and the path at which to put the file by hand.
    """
    target = Path(path)
    if target.exists():
        wrong = _mismatch(target, md5, sha256)
        if wrong:
            raise DownloadError(
                f"{target} is not the official file ({wrong}). Delete it to download it again from "
                f"{url}, or choose another folder."
            )
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    except OSError as error:
        raise DownloadError(
            f"cannot write to {target.parent} ({error.strerror}): choose another folder with "
            f"{ROOT_ARGUMENT} or the environment variable GRAPHXAI_DATA."
        ) from error
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as out, urllib.request.urlopen(url, timeout=timeout) as source:
            shutil.copyfileobj(source, out)
        wrong = _mismatch(part, md5, sha256)
        if wrong:
            raise DownloadError(
                f"{url} did not deliver the official file ({wrong}): a proxy page or a broken "
                f"transfer? Try again, or put the file at {target}."
            )
        part.chmod(0o644)
        part.replace(target)
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(
            f"could not download {url} ({reason}). Without a network, put the file at {target}, "
            f"or give the folder that contains it with {ROOT_ARGUMENT} or the environment variable "
            "GRAPHXAI_DATA."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def _mismatch(path: Path, md5: str | None, sha256: str | None) -> str:
    """Return the digest that differs, with the expected one, or "" if they agree."""
    for name, expected in (("md5", md5), ("sha256", sha256)):
        if expected is None:
            continue
        with path.open("rb") as file:
            made = partial(hashlib.new, name, usedforsecurity=False)
            digest = hashlib.file_digest(file, made).hexdigest()
        if digest != expected:
            return f"{name} {digest}, expected {expected}"
    return ""
