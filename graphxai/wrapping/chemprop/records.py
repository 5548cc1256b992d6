"""Read a file that chemprop 2 or Lightning wrote, without running anything that it names.

Such a file is a pickle, which names classes and functions to be called. Here, every name that
PyTorch does not itself allow stands for an inert record, which keeps what the pickle says about it
and does nothing. `rebuilding` then decides which records it understands.
"""

import threading
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.serialization import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    get_unsafe_globals_in_checkpoint,
)

from graphxai.contract.checkpoint_files import CheckpointError

# PyTorch packs without compression, in a part for each of some 30 tensors of chemprop's networks.
# 4 GB are the weights of a network 30,000 wide, a hundred times chemprop's default.
MOST_MEMBERS = 10_000
MOST_BYTES = 4e9
MOST_RATIO = 4  # of the bytes unpacked to those of the file, for files that somebody compressed
MOST_NAMES = 1000  # a file of chemprop names some ten classes and functions
HYPERPARAMETERS = "lightning.fabric.utilities.data.AttributeDict"
HYPERPARAMETERS_BEFORE = "pytorch_lightning.utilities.parsing.AttributeDict"

_lock = threading.Lock()  # PyTorch has one list of allowed names for all threads


class StoredObject:
    """What a pickle says about an object: the name of its class, its arguments and its state.

    The class itself, where the pickle mentions it as a value, is a subclass of this one.
    """

    name: ClassVar[str] = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> "StoredObject":
        """Keep the arguments of the call."""
        record = super().__new__(cls)
        record.args, record.state = args, None
        return record

    def __setstate__(self, state: Any) -> None:
        self.state = state


@dataclass(frozen=True, eq=False)
class ChempropFile:
    """The contents of a file.

    Args:
        path: the file, for messages.
        hyperparameters: how the network was made, with records in place of objects.
        state: its weights by name.
        output_columns: the names of its tasks, if the file has them.
    """

    path: Path
    hyperparameters: Mapping[str, Any]
    state: Mapping[str, Tensor]
    output_columns: tuple[str, ...] | None


def read_file(path: Path) -> ChempropFile:
    """Read a file of `chemprop train`, `chemprop.models.save_model` or Lightning.

    Raises:
        CheckpointError: the file cannot be read, or is none of these.
    """
    _require_measure(path)
    content = _contents(path)
    hyperparameters = content.get("hyper_parameters") if isinstance(content, dict) else None
    state = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(hyperparameters, Mapping) or not isinstance(state, Mapping):
        raise CheckpointError(
            f"{path} is not a model of chemprop 2, which has 'hyper_parameters' and 'state_dict'."
            " For a model of chemprop 1, run `chemprop convert` first. Any other PyTorch model can"
            " be explained with graphxai.wrap."
        )
    weights = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    return ChempropFile(path, hyperparameters, weights, _column_names(content))


def _require_measure(path: Path) -> None:
    """Refuse a file by its directory, before anything in it is unpacked."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        raise CheckpointError(
            f"{path} is cut off, or not a file of PyTorch 1.6 or later, which is a zip archive:"
            " copy or download it again. For a model of chemprop 1, run `chemprop convert` first."
        ) from error
    packed, unpacked = path.stat().st_size, sum(member.file_size for member in members)
    if len(members) > MOST_MEMBERS:
        problem = f"has {len(members):,} parts, more than {MOST_MEMBERS:,}"
    elif unpacked > MOST_BYTES:
        problem = f"would take {unpacked / 1e9:.1f} GB, more than {MOST_BYTES / 1e9:g}"
    elif unpacked > MOST_RATIO * packed:
        problem = f"would take {unpacked / packed:.0f} times its size, more than {MOST_RATIO} times"
    else:
        return
    raise CheckpointError(
        f"{path} {problem}, so it is not opened: no model of chemprop is like that. Save the model"
        " again with chemprop.models.save_model."
    )


def _reason(error: Exception) -> str:
    """Return what PyTorch says is wrong, without its advice to let the file run code."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    advice = (
        "weights_only",
        "Weights only load failed",
        "Check the documentation",
        "file an issue",
    )
    text = " ".join(line for line in lines if not any(words in line for words in advice))
    return text.strip(" .")[:300] or type(error).__name__


def _contents(path: Path) -> Any:
    """Return what `torch.save` put into a file, with records in place of other objects."""
    with _lock:
        try:
            with _allowing_only({}):
                names = get_unsafe_globals_in_checkpoint(path)
            if len(names) > MOST_NAMES:
                raise ValueError(f"it names {len(names)} classes and functions")
            with _allowing_only({name: _stand_in(name) for name in names}):
                return torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # a damaged or hostile file may cause any error
            raise CheckpointError(
                f"{path} cannot be read without running code from it ({_reason(error)})."
                " If you trust the file, load it with chemprop (chemprop.models.load_model), and"
                " pass the model to graphxai.wrap."
            ) from error


@contextmanager
def _allowing_only(values: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, let PyTorch resolve these names to these values, and no others."""
    before = get_safe_globals()
    clear_safe_globals()
    try:
        add_safe_globals([(value, name) for name, value in values.items()])
        yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def _stand_in(name: str) -> Any:
    """Return the value that a name in a pickle stands for."""
    if name in (HYPERPARAMETERS, HYPERPARAMETERS_BEFORE):
        return OrderedDict  # Lightning's dictionary
    return type("StoredObject", (StoredObject,), {"name": name})


def _column_names(content: Mapping[str, Any]) -> tuple[str, ...] | None:
    columns = content.get("output_columns")
    if isinstance(columns, list | tuple) and all(isinstance(name, str) for name in columns):
        return tuple(columns) or None
    return None
