"""Blocks of a guide that a reader types into a file, as the sentence above each says."""

import re
from dataclasses import dataclass
from pathlib import Path

from pages import ROOT

PASTED = re.compile(
    r"(?P<how>new file,|end of)\s`(?P<path>[^`]+)`:\n\n```python\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True)
class PastedBlock:
    """Code, the file that it goes into, and whether the file is there already."""

    path: str
    text: str
    appended: bool

    def paste(self, root: Path) -> None:
        """Type the block into a file of the repository at `root`."""
        file = root / self.path
        assert file.is_file() == self.appended, f"{self.path}: is it a new file?"
        before = file.read_text(encoding="utf-8") + "\n\n" if self.appended else ""
        file.write_text(before + self.text, encoding="utf-8")


def pasted_blocks(page: str) -> list[PastedBlock]:
    """Return the blocks of a page that go into files."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        PastedBlock(match["path"], match["text"], match["how"].lower() == "end of")
        for match in PASTED.finditer(text)
    ]
