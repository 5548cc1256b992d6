"""Read the data of a report from its page, and make a page of other molecules."""

import json
import re
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

from graphxai.tables.report.build import page_parts

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
BLOCK = re.compile(r'<script type="text/plain" class="details">(.*?)</script>', re.DOTALL)


def read_report(page: str | Path) -> dict[str, Any]:
    """Return the data of a page, with its molecules as dictionaries under `molecules`."""
    text = page if isinstance(page, str) else page.read_text(encoding="utf-8")
    data = json.loads(DATA.search(text)[1])
    records = [
        dict(zip(data["records"], values, strict=True))
        for values in zip(*data["records"].values(), strict=True)
    ]
    blocks = [json.loads(zlib.decompress(b64decode(b), -15)) for b in BLOCK.findall(text)]
    details = [molecule for block in blocks for molecule in block]
    for record in records:
        for name in ("full", "near"):
            if record[name] is None:
                del record[name]
    return data | {"molecules": [{**a, **b} for a, b in zip(records, details, strict=True)]}


def page_of(data: dict[str, Any], title: str) -> str:
    """Return a page of the molecules in data of `read_report`."""
    molecules, names = data["molecules"], list(data["records"])
    records = {name: [molecule.get(name) for molecule in molecules] for name in names}
    details = ({k: v for k, v in m.items() if k not in names} for m in molecules)
    rest = {name: value for name, value in data.items() if name != "molecules"}
    return "".join(page_parts(rest | {"records": records}, details, title, "# Card"))
