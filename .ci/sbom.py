"""Add to an SBOM what a wheel carries that others made, or that learned from it.

    python .ci/sbom.py dist/graphxai-0.1.0-py3-none-any.whl dist/graphxai.cdx.json

`cyclonedx-py` lists Python packages alone. This adds the JavaScript of others, the weights and the
tables and pictures in the wheel, each with its SHA-256 and its licence, if one is known, and the
version of the wheel.
`docs/about.md` has the reasons.
"""

import argparse
import hashlib
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

UNKNOWN = {"license": {"name": "not stated by the source, see docs/about.md"}}
# Of data and weights, the licences that are known; the first pattern that fits is taken.
LICENCES = (
    (r"pretrained/lipophilicity/.*\.csv", {"license": {"id": "CC-BY-SA-3.0"}}),
    (r"pretrained/(?:\w+-(?:clearance|efflux|ph68|binding))/.*\.csv", {"license": {"id": "MIT"}}),
    (
        r"pretrained/(?:blood-brain-barrier|solubility)/.*\.csv",
        {"license": {"id": "CC0-1.0"}},
    ),
    (r"chemistry/common_fragments\.csv", {"license": {"id": "MIT"}}),
    (r"sample_digits/", {"license": {"id": "CC-BY-SA-3.0"}}),
    (r"examples/(?:molecules|assay)\.csv", {"license": {"id": "MIT"}}),
    (r"\.safetensors", {"license": {"id": "MIT"}}),
    (r"\.(csv|png)", UNKNOWN),
)


def main() -> None:
    """Add to the file that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("sbom", type=Path)
    options = parser.parse_args()
    sbom = json.loads(options.sbom.read_text(encoding="utf-8"))
    components = carried(options.wheel)
    sbom["components"] = sorted(sbom.get("components", []) + components, key=lambda c: c["bom-ref"])
    root = sbom["metadata"]["component"]
    root["version"] = str(parse_wheel_filename(options.wheel.name)[1])
    (dependencies,) = [each for each in sbom["dependencies"] if each["ref"] == root["bom-ref"]]
    named = {*dependencies.get("dependsOn", ()), *(each["bom-ref"] for each in components)}
    dependencies["dependsOn"] = sorted(named)
    sbom["dependencies"] += [{"ref": each["bom-ref"]} for each in components]
    options.sbom.write_text(json.dumps(sbom, indent=2) + "\n", encoding="utf-8")
    print(f"{options.sbom}: {len(components)} of {len(sbom['components'])} are parts of the wheel")


def carried(wheel: Path) -> list[dict[str, Any]]:
    """Return a component for each file of a wheel that is no code of the project."""
    components = []
    with zipfile.ZipFile(wheel) as archive:
        (notice,) = [name for name in archive.namelist() if name.endswith("licenses/NOTICE")]
        text = " ".join(archive.read(notice).decode("utf-8").split())
        version = re.search(r"is version (\S+) of the package openchemlib", text)
        assert version, "NOTICE names no version of openchemlib"
        for name in sorted(archive.namelist()):
            digest = hashlib.sha256(archive.read(name)).hexdigest()
            common = {"bom-ref": f"file:{name}", "hashes": [{"alg": "SHA-256", "content": digest}]}
            if name.endswith("openchemlib.js"):
                library = {"type": "library", "name": "openchemlib", "version": version[1]}
                purl = f"pkg:npm/openchemlib@{version[1]}"
                licence = {"license": {"id": "BSD-3-Clause"}}
                components.append(library | {"purl": purl, "licenses": [licence]} | common)
            elif terms := [each for pattern, each in LICENCES if re.search(pattern, name)]:
                kind = "machine-learning-model" if name.endswith(".safetensors") else "data"
                components.append({"type": kind, "name": name, "licenses": terms[:1]} | common)
    return components


if __name__ == "__main__":
    main()
