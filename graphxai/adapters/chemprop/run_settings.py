"""Read how `chemprop train` turned molecules into graphs, from `config.toml` in a run's folder.

The file of a model does not say this. chemprop writes its settings as lines `name = value`, with
lists in brackets and names without quotes, so this is not quite TOML.
"""

from dataclasses import dataclass
from pathlib import Path

from graphxai.contract.checkpoint_files import CheckpointError

FILE = "config.toml"
# Options that change the atoms, for which relevance would belong to other atoms than those given.
HYDROGENS = ("add-h", "keep-h")
LONGEST = 1_000_000  # characters; a usual file has a thousand


@dataclass(frozen=True)
class ChempropRunSettings:
    """How molecules became graphs in a run.

    Args:
        molecule_featurizers: chemprop's names of the features of whole molecules.
        ignore_stereo: whether the network sees no stereochemistry.
    """

    molecule_featurizers: tuple[str, ...] = ()
    ignore_stereo: bool = False


def run_settings(path: Path) -> ChempropRunSettings:
    """Return the settings of the run that a file or folder belongs to, or the usual ones.

    Raises:
        CheckpointError: the run made atoms of hydrogens.
    """
    folders = (path, *path.parents[:2]) if path.is_dir() else path.parents[:3]
    file = next((folder / FILE for folder in folders if (folder / FILE).is_file()), None)
    if file is None:
        return ChempropRunSettings()
    lines = file.read_text(encoding="utf-8", errors="replace")[:LONGEST].splitlines()
    pairs = (line.partition("=") for line in lines)
    values = {name.strip(): value.strip() for name, _, value in pairs}
    for option in HYDROGENS:
        if values.get(option) == "true":
            raise CheckpointError(
                f"{path} was trained with --{option} (see {file}), so hydrogens are atoms of its"
                " graphs. Relevance of the atoms of a SMILES needs a model without them."
            )
    names = values.get("molecule-featurizers", "").strip("[]").split(",")
    return ChempropRunSettings(
        tuple(name.strip(" '\"") for name in names if name.strip()),
        values.get("ignore-stereo") == "true",
    )
