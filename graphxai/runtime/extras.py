"""Say how to install a package that only an extra brings.

graphxai is on no package index, so an extra is installed from a copy of the repository.
"""


def missing_extra(purpose: str, packages: str, extra: str, otherwise: str = "") -> ImportError:
    """Return the error of a package that is not installed, with the command that installs it.

    Args:
        purpose: what needs the package, with its verb, such as "training needs".
        extra: the extra in pyproject.toml that brings it.
        otherwise: what else the user can do, such as "save the table as CSV".
    """
    ending = f", or {otherwise}." if otherwise else "."
    return ImportError(f"{purpose} {packages}: {to_install(extra)}{ending}")


def to_install(extra: str) -> str:
    """Return what to do to install an extra."""
    command = f'pip install -c constraints.txt ".[{extra}]"'
    return f"in your copy of the repository, run `{command}`"
