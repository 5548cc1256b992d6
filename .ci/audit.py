"""Compare the versions that the project admits and pins with advisories on its packages.

    python .ci/audit.py

The advisories are listed in `.ci/advisories.json`, by hand, before a release. Each names a package,
the version that mends it, and, if older ones are not affected, the first that is. Nobody on the
network is asked. The exit status is 1 if an affected version is admitted or pinned.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
ADVISORIES = Path(__file__).with_name("advisories.json")


def main() -> None:
    """Print what is affected, and end with 1 if anything is."""
    problems = list(affected())
    print("\n".join(problems) or "audit: no admitted or pinned version has a listed advisory")
    sys.exit(bool(problems))


def affected() -> Iterator[str]:
    """Yield a sentence for each version that an advisory speaks of."""
    advisories = json.loads(ADVISORIES.read_text(encoding="utf-8"))
    for where, name, version in versions():
        for advisory in advisories:
            since, fixed = Version(advisory.get("since", "0")), Version(advisory["fixed"])
            if advisory["package"] == name and since <= version < fixed:
                yield f"audit: {where} has {name} {version}: {advisory['id']}, mended in {fixed}"


def versions() -> Iterator[tuple[str, str, Version]]:
    """Yield where a version is named, the package, and the version: floors, then pins and locks."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, building = settings["project"], settings["build-system"]["requires"]
    groups = {"dependencies": project["dependencies"], "build-system": building}
    groups |= project["optional-dependencies"]
    for group, lines in groups.items():
        for requirement in map(Requirement, lines):
            for specifier in requirement.specifier:
                version = Version(specifier.version)
                yield f"pyproject.toml ({group})", canonicalize_name(requirement.name), version
    for file in ("constraints.txt", "requirements.lock", "requirements-source.lock"):
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
            name, pinned, version = line.partition("#")[0].partition("==")
            if pinned:
                version = re.split(r"[;\s]", version)[0]
                yield file, canonicalize_name(name.strip()), Version(version)


if __name__ == "__main__":
    main()
