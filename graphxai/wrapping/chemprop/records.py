"""Read a file that chemprop 2 or Lightning wrote, without running anything that it names.

Such a file is a zip archive of a pickle and the numbers of each tensor. A pickle is a list of
instructions, which name classes and functions to be called. Here the few instructions that
`torch.save` writes are followed, no class or function is looked up, and every object becomes an
inert record of what the pickle says about it. `loading` then decides which records it
understands. PyTorch's own reader and Python's are not used.
"""

import io
import math
import pickletools
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from graphxai.contract.checkpoint_files import CheckpointError

# PyTorch packs without compression, in a part for each of some 30 tensors of chemprop's networks.
# 4 GB are the weights of a network 30,000 wide, a hundred times chemprop's default.
MOST_MEMBERS = 10_000
MOST_BYTES = 4e9
MOST_RATIO = 4  # of the bytes unpacked to those of the file, for files that somebody compressed
MOST_NAMES = 1000  # a file of chemprop names some ten classes and functions
MOST_PICKLED = 500_000  # bytes of instructions, each of which may make an object; usual are 5,000
AT_ONCE = 2**21  # bytes read in one go, and so of the directory: 100 for each part are usual
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# What the instructions without an operand put on the stack, and those that put their operand there.
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
OPERANDS = {"BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "LONG1"}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
DICTIONARIES = {
    "collections.OrderedDict",
    "lightning.fabric.utilities.data.AttributeDict",
    "pytorch_lightning.utilities.parsing.AttributeDict",  # before
}
TENSOR = "torch._utils._rebuild_tensor_v2"
DTYPES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
}


class StoredObject:
    """What a pickle says about an object: the name of its class, its arguments and its state.

    The class itself, where the pickle mentions it as a value, is a subclass of this one.
    """

    name: ClassVar[str] = ""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args
        self.state: Any = None


@dataclass(frozen=True, eq=False)
class ChempropFile:
    """The contents of a file.

    Args:
        path: the file, for messages.
        hyperparameters: how the network was made, with records in place of objects.
        output_columns: the names of its tasks, if the file has them.
    """

    path: Path
    hyperparameters: Mapping[str, Any]
    state: Mapping[str, Tensor]
    output_columns: tuple[str, ...] | None


class _InPieces(io.FileIO):
    """A file that is never read in one go, so that a directory of any size fills no memory."""

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(AT_ONCE + 1 if size is None or size < 0 else size)
        if len(content) > AT_ONCE:
            raise zipfile.BadZipFile("its directory is too long")
        return content


def read_file(path: Path) -> ChempropFile:
    """Read a file of `chemprop train`, `chemprop.models.save_model` or Lightning.

    Raises:
        CheckpointError: the file cannot be read, or is none of these.
    """
    with _InPieces(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _read(path, archive)
        except CheckpointError:
            raise
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError) as error:
            raise CheckpointError(
                f"{path} is cut off, or not a file of PyTorch 1.6 or later, which is a zip archive:"
                " copy or download it again. For a model of chemprop 1, run `chemprop convert`"
                " first."
            ) from error
        except Exception as error:  # a damaged or hostile file may cause any error
            raise CheckpointError(
                f"{path} cannot be read without running code from it"
                f" ({str(error)[:300] or type(error).__name__})."
                " If you trust the file, load it with chemprop (chemprop.models.load_model), and"
                " pass the model to graphxai.wrap."
            ) from error


def _read(path: Path, archive: zipfile.ZipFile) -> ChempropFile:
    """Read an open file: first its directory, then the pickle, then the weights."""
    _require_measure(path, archive)
    parts = {name.partition("/")[2]: name for name in archive.namelist()}
    if "data.pkl" not in parts or len(parts) < len(archive.infolist()):
        raise ValueError("its parts are not named as torch.save names them")
    if any(part.compress_type not in COMPRESSIONS for part in archive.infolist()):
        raise ValueError("it is compressed in a way that PyTorch does not read")
    if archive.getinfo(parts["data.pkl"]).file_size > MOST_PICKLED:
        raise ValueError(f"its pickle is longer than {MOST_PICKLED:,} bytes")
    if "byteorder" in parts and _part(archive, parts["byteorder"]) != sys.byteorder.encode():
        raise ValueError("its numbers have the bytes in another order than those of this machine")
    content = _followed(bytes(_part(archive, parts["data.pkl"])))
    hyperparameters = content.get("hyper_parameters") if isinstance(content, dict) else None
    state = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(hyperparameters, Mapping) or not isinstance(state, Mapping):
        raise CheckpointError(
            f"{path} is not a model of chemprop 2, which has 'hyper_parameters' and 'state_dict'."
            " For a model of chemprop 1, run `chemprop convert` first. Any other PyTorch model can"
            " be explained with graphxai.wrap."
        )
    storage = cache(lambda number: _part(archive, parts[f"data/{number}"]))
    weights = {
        key: _tensor(value, storage)
        for key, value in state.items()
        if isinstance(value, StoredObject) and value.name == TENSOR
    }
    return ChempropFile(path, hyperparameters, weights, _column_names(content))


def _require_measure(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse a file by its directory, before anything in it is unpacked."""
    members = archive.infolist()
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


def _part(archive: zipfile.ZipFile, name: str) -> bytearray:
    """Return a part of an archive, which is as long as the directory says."""
    content = bytearray(archive.getinfo(name).file_size)
    with archive.open(name) as part:
        for start in range(0, len(content), AT_ONCE):
            piece = part.read(min(AT_ONCE, len(content) - start))
            content[start : start + AT_ONCE] = piece
        part.read(1)  # at the end the checksum is compared
    return content


def _followed(pickled: bytes) -> Any:
    """Follow the instructions that `torch.save` writes, with records in place of objects."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    classes: dict[Any, type[StoredObject]] = {}

    def taken(start: int) -> list[Any]:
        values = stack[start:]
        del stack[start:]
        return values

    for opcode, operand, _ in pickletools.genops(pickled):
        name = opcode.name
        if name in EMPTY:
            stack.append(EMPTY[name]())
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in OPERANDS:
            stack.append(operand)
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[operand] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[operand])
        elif name in TUPLES or name == "TUPLE":
            start = len(stack) - TUPLES[name] if name in TUPLES else marks.pop()
            stack.append(tuple(taken(start)))
        elif name in ("APPEND", "APPENDS"):
            values = taken(marks.pop() if name == "APPENDS" else -1)
            stack[-1].extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = taken(marks.pop() if name == "SETITEMS" else -2)
            # the hash of other keys may take any time
            if not all(type(key) in (str, int) for key in values[::2]):
                raise ValueError("it has keys that are neither texts nor integers")
            stack[-1].update(zip(values[::2], values[1::2], strict=True))
        elif name == "GLOBAL":
            if operand not in classes:
                attributes = {"name": str(operand).replace(" ", ".")[:200]}
                classes[operand] = type("StoredObject", (StoredObject,), attributes)
            if len(classes) > MOST_NAMES:
                raise ValueError(f"it names more than {MOST_NAMES:,} classes and functions")
            stack.append(classes[operand])
        elif name in ("REDUCE", "NEWOBJ"):
            kind, args = taken(-2)
            stack.append({} if kind.name in DICTIONARIES else kind(args))
        elif name == "BUILD":
            (state,) = taken(-1)
            if isinstance(stack[-1], StoredObject):
                stack[-1].state = state
        elif name == "BINPERSID":
            stack[-1] = StoredObject(stack[-1])  # the numbers of a tensor
        elif name == "STOP":
            return stack.pop()
        elif name != "PROTO":
            raise ValueError(
                f"its pickle has the instruction {name}, which torch.save never writes"
            )
    raise ValueError("its pickle has no end")


def _tensor(record: StoredObject, storage: Callable[[int], bytearray]) -> Tensor:
    """Return the tensor of a record, which is a view of a storage and shows no number twice."""
    (_, kind, number, *_), offset, size, stride = record.args[0].args, *record.args[1:4]
    # other types could be of any size, also where they are only compared, printed or multiplied
    if not all(type(n) is int and n >= 0 for n in (offset, *size, *stride)):
        raise ValueError("the size of a tensor is not given in integers")
    content, dtype = storage(int(number)), DTYPES[kind.name]
    length, count = len(content) // dtype.itemsize, math.prod(size)
    if not count:
        return torch.empty(size, dtype=dtype)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if max(count, last + 1) > length:
        raise ValueError("a tensor is larger than the numbers stored for it")
    return torch.frombuffer(content, dtype=dtype, count=length).as_strided(size, stride, offset)


def _column_names(content: Mapping[str, Any]) -> tuple[str, ...] | None:
    columns = content.get("output_columns")
    if isinstance(columns, list | tuple) and all(isinstance(name, str) for name in columns):
        return tuple(columns) or None
    return None
