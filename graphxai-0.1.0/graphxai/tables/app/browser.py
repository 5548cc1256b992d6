"""Open the page in the browser without showing its key to the other users of the machine.

Everybody can read the command lines of all processes. So everybody could read an address that a
browser is started with. Instead, the browser opens a file that leads on to the address and that
only its owner can read.
"""

from __future__ import annotations

import html
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["opened_in_browser"]


@contextmanager
def opened_in_browser(address: str) -> Iterator[None]:
    """Open an address in the browser. The file that leads to it lasts as long as the block."""
    link = html.escape(address)
    # the folder is closed to others from the start
    with tempfile.TemporaryDirectory(prefix="graphxai-", ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "open.html"
        page.write_text(
            f'<!doctype html>\n<meta charset="utf-8">\n<title>graphxai</title>\n'
            f'<meta http-equiv="refresh" content="0; url={link}">\n<a href="{link}">graphxai</a>\n',
            encoding="utf-8",
        )
        webbrowser.open(page.as_uri())
        yield
