"""Write `requirements.lock`: each package that an installation brings, with its version and hash.

    python .ci/lock.py            # resolve anew and write the files
    python .ci/lock.py --install  # install what they name, and the project, into .venv-locked

pip resolves the project with its extras `images`, `train` and `app`, and the tools that build it,
against `constraints.txt`, for the Python and the system that run this, without installing anything.
What is served as source alone stands in `requirements-source.lock`: it is built last, by tools that
are locked as well. The files name no index: pip asks the one that it is set up with, and refuses
whatever has another hash.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS, SOURCES = "requirements.lock", "requirements-source.lock"
EXTRAS = "images,train,app"
BUILD_TOOLS = ("setuptools", "cffi", "pkgconfig")  # of the project and of pyvips
ENVIRONMENT = ROOT / ".venv-locked"
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
TRYING = (("--version",), ("explain", "CCO", "--out", str(ENVIRONMENT / "ethanol.png")))


def main() -> None:
    """Write the files, or install what they name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true")
    if parser.parse_args().install:
        install()
    else:
        write()


def write() -> None:
    """Resolve, and write both files."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        wanted = ["-c", "constraints.txt", *BUILD_TOOLS, f".[{EXTRAS}]"]
        resolving = ["--dry-run", "--ignore-installed", "--report", report, *wanted]
        subprocess.run([sys.executable, *PIP, *resolving], cwd=ROOT, check=True)
        packages = json.loads(report.read_text(encoding="utf-8"))["install"]
    python = ".".join(platform.python_version_tuple()[:2])
    system = f"{platform.system()} {platform.machine()}"
    pins: dict[str, list[str]] = {WHEELS: [], SOURCES: []}
    for package in packages:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        archive = package["download_info"].get("archive_info")
        if archive is None:
            continue  # the project, which is a folder
        wheel = package["download_info"]["url"].endswith(".whl")
        pin = f"{name}=={version} --hash=sha256:{archive['hashes']['sha256']}\n"
        pins[WHEELS if wheel else SOURCES].append(pin)
    for name, lines in pins.items():
        heading = f"# graphxai[{EXTRAS}] for Python {python} on {system}, by `make lock`\n"
        (ROOT / name).write_text(heading + "".join(sorted(lines, key=str.lower)), encoding="utf-8")
        print(f"{name}: {len(lines)} packages")


def install() -> None:
    """Install what the files name into an empty environment, then the project, and try it."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    venv.create(ENVIRONMENT, with_pip=True)
    python = ENVIRONMENT / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    hashed = ("--require-hashes", "--no-deps")
    for options in (
        (*hashed, "--only-binary", ":all:", "-r", WHEELS),
        (*hashed, "--no-build-isolation", "-r", SOURCES),
        ("--no-deps", "--no-build-isolation", "."),
    ):
        subprocess.run([python, *PIP, *options], cwd=ROOT, check=True)
    subprocess.run([python, "-m", "pip", "check"], cwd=ROOT, check=True)
    for arguments in TRYING:
        subprocess.run([python, "-I", "-m", "graphxai", *arguments], cwd=ENVIRONMENT, check=True)


if __name__ == "__main__":
    main()
