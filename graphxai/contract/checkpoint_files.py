"""Read and write the files of a checkpoint folder: `config.json`, the weights and the like.

Nothing is unpickled. Every error names the file, and the key if there is one.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor

from graphxai.runtime.reading import CONFIG as CONFIG
from graphxai.runtime.reading import CheckpointError as CheckpointError
from graphxai.runtime.reading import regular_file, small_file
from graphxai.runtime.writing import folder_at, json_text, synced_together, write_whole

from .intervals import Conformal, from_json, to_json
from .model import Origin
from .tasks import TaskSet

WEIGHTS, CARD = "model.safetensors", "README.md"
CONFORMAL = "conformal.json"
LISTS = ("training.csv", "held_out.csv")  # of structures, which may be deleted but not changed
PROCESS = "graphxai-process"  # the format of a folder with a Gaussian process
SUM = "graphxai-sum"  # that of a folder with a process beside another model
# The types of tensors that a file of weights may hold.
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INVALID = (  # what a configuration that makes no sense can raise
    AttributeError, KeyError, MemoryError, OverflowError, RuntimeError, TypeError, ValueError
)  # fmt: skip


Network = TypeVar("Network")


def name_of(folder: Path) -> str:
    """Return the name of a folder. The folder `model` of a run has the name of the run."""
    path = folder.resolve()
    return path.parent.name or path.name if path.name == "model" else path.name


def read_config(folder: Path) -> dict[str, Any]:
    """Read the JSON object in `config.json`."""
    path = folder / CONFIG
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder.")
    if not path.exists():
        raise CheckpointError(f"{path}: no such file; every checkpoint folder has one.")
    return read_object(path)


def stored_format(folder: Path) -> Any:
    """Return what the configuration in a folder calls its format, None if it has none."""
    return read_config(folder).get("format") if (folder / CONFIG).is_file() else None


def read_object(path: Path) -> dict[str, Any]:
    """Read a file with a JSON object."""
    try:
        content = json.loads(small_file(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object.")
    return content


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of the weights in a folder."""
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


def packed(tensors: Mapping[str, Tensor], format: str) -> bytes:
    """Return the content of a file of tensors, from any device."""
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return save(on_cpu, metadata={"format": format})


def write_weights(tensors: Mapping[str, Tensor], folder: Path, format: str) -> str:
    """Write the weights to a folder, and return their SHA-256."""
    raw = packed(tensors, format)
    write_whole(folder / WEIGHTS, raw)
    return hashlib.sha256(raw).hexdigest()


def corrupt(path: Path, error: Exception) -> CheckpointError:
    """Return the error of weights that cannot be read."""
    return CheckpointError(f"{path}: corrupt or truncated ({error}); copy or download it again.")


def weights_in(folder: Path) -> Path:
    """Return the file of the weights, or raise a CheckpointError if it cannot be opened."""
    path = folder / WEIGHTS
    if not path.exists():
        others = [file for kind in ("*.bin", "*.pt*") for file in sorted(folder.glob(kind))]
        hint = " is a pickle, which can run arbitrary code: convert it to safetensors in an"
        hint = f" {others[0].name}{hint} environment you trust." if others else ""
        raise CheckpointError(f"{path}: no such file.{hint}")
    try:
        return regular_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def read_weights(folder: Path) -> tuple[dict[str, Tensor], str]:
    """Return all tensors of `model.safetensors`, and the file's SHA-256."""
    path = weights_in(folder)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    try:
        return load_tensors(raw), hashlib.sha256(raw).hexdigest()
    except (SafetensorError, *INVALID) as error:
        raise corrupt(path, error) from error


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of all tensors from the header of `model.safetensors`."""
    path = weights_in(folder)
    try:
        with safe_open(path, framework="pt") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, *INVALID, OSError) as error:
        raise corrupt(path, error) from error


def read_conformal(config: TaskSet, folder: Path, digest: str) -> dict[str, Conformal]:
    """Read the scores that were measured with the weights of this SHA-256, if there are any."""
    path = folder / CONFORMAL
    if not path.exists():
        return {}
    content = read_object(path)
    try:
        scores = from_json(content.get("tasks"), config)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; delete or replace it.") from error
    return scores if content.get("sha256") == digest else {}


def save_conformal(scores: Mapping[str, Conformal], folder: Path, digest: str) -> Path | None:
    """Write conformal scores by task, if there are any, with the SHA-256 of their weights."""
    path = folder / CONFORMAL
    if not scores:
        path.unlink(missing_ok=True)
        return None
    content = {"sha256": digest, "tasks": to_json(dict(scores))}
    return write_whole(path, json.dumps(content) + "\n")


def list_digests(files: Mapping[str, bytes | str]) -> dict[str, str]:
    """Return the SHA-256 of the `LISTS` among files, by name, whatever ends their lines."""
    lists = {name: content for name, content in files.items() if name in LISTS}
    raw = {k: v if isinstance(v, bytes) else v.encode() for k, v in lists.items()}
    return {k: hashlib.sha256(b"\n".join(v.splitlines())).hexdigest() for k, v in raw.items()}


def lists_as_written(origin: Origin) -> dict[str, bool]:
    """Return which of the `LISTS` beside a model are as they were written, where that is known."""
    stored, folder = origin.metadata.get("lists"), origin.folder
    if not isinstance(stored, dict) or folder is None:
        return {}
    paths = [path for name in stored if name in LISTS and (path := folder / name).is_file()]
    now = list_digests({path.name: path.read_bytes() for path in paths})
    return {name: digest == stored[name] for name, digest in now.items()}


def with_origin(model: Any, folder: Path, content: Mapping[str, Any], digest: str) -> Any:
    """Give a loaded model what its folder says of it, and return it in eval mode.

    Args:
        content: the configuration in the folder, with the metadata.
        digest: the SHA-256 of the weights, with which the conformal scores were measured.
    """
    model.conformal = read_conformal(model.config, folder, digest)
    metadata = content.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    model.origin = Origin(name_of(folder), digest, metadata, folder)
    return model.eval()


def save_description(
    model: Any, folder: Path, digest: str, content: Mapping[str, Any], metadata: Any, card: str
) -> Path:
    """Write what a folder says of a model beside its weights, and return the folder.

    Args:
        digest: the SHA-256 of the weights, with which the conformal scores were measured.
        content: what the configuration holds besides the metadata (JSON values).
    """
    save_conformal(model.conformal, folder, digest)
    write_whole(folder / CONFIG, json_text({**content, "metadata": metadata or {}}))
    write_whole(folder / CARD, card)
    return folder


def as_numbers(value: Tensor, key: str, path: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor as `dtype`, or raise a CheckpointError if a value is not a finite number."""
    if value.dtype not in FLOAT_DTYPES:
        raise CheckpointError(
            f"{path}: key {key!r} holds {value.dtype}, not floating-point numbers of 16, 32 or 64"
            " bits."
        )
    if not torch.isfinite(value).all():
        raise CheckpointError(f"{path}: key {key!r} holds values that are not finite.")
    converted = value.to(dtype)
    if dtype != value.dtype and not torch.isfinite(converted).all():
        raise CheckpointError(f"{path}: key {key!r} holds values that are too large for {dtype}.")
    return converted


def require_shapes(
    expected: dict[str, tuple[int, ...]], stored: dict[str, tuple[int, ...]], path: Path
) -> None:
    """Raise CheckpointError unless a model and its checkpoint have the same names and shapes."""
    missing = sorted(set(expected) - set(stored))
    surplus = sorted(set(stored) - set(expected))
    if missing or surplus:
        text = [f"missing key {missing[0]!r}"] if missing else []
        text += [f"unexpected key {surplus[0]!r}"] if surplus else []
        more = len(missing) + len(surplus) - len(text)
        raise CheckpointError(
            f"{path}: does not fit {CONFIG}: {', '.join(text)}"
            + (f" and {more} more." if more else ".")
        )
    for key, shape in stored.items():
        if shape != expected[key]:
            raise CheckpointError(
                f"{path}: key {key!r} has shape {shape}, but {CONFIG} asks for {expected[key]}."
            )


@dataclass(frozen=True)
class NetworkFiles:
    """The files of tensors and JSON of a small network fitted to a model, and words for errors."""

    network: str
    card: str
    format: str
    content: str
    fit: str

    def raw(self, tensors: dict[str, Tensor]) -> bytes:
        """Return the content of the file of tensors."""
        return packed(tensors, self.format)

    def write(self, folder: str | Path, tensors: dict[str, Tensor], **fields: Any) -> Path:
        """Write both files to a folder, with these fields in the card, and return the folder."""
        folder, raw = folder_at(folder), self.raw(tensors)
        digest = hashlib.sha256(raw).hexdigest()
        content = {"format": self.format, "network_sha256": digest} | fields
        with synced_together():
            write_whole(folder / self.network, raw)
            write_whole(folder / self.card, json.dumps(content, indent=1) + "\n")
        return folder

    def read(
        self,
        folder: str | Path,
        kinds: Mapping[str, type],
        build: Callable[[dict[str, Tensor], dict[str, Any]], Network],
    ) -> tuple[Network, dict[str, Any]]:
        """Return the network that `build` makes from tensors and card, and the card.

        `kinds` has the types of the card's fields. A ValueError says what is wrong with a file.
        """
        card, path = Path(folder) / self.card, Path(folder) / self.network
        try:
            content = read_fields(card, self.format, {"network_sha256": str, **kinds})
        except FileNotFoundError:
            raise ValueError(f"{card}: no such file; make it with {self.fit}.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{card}: cannot be read as {self.content}: {error}.") from error
        try:
            raw = small_file(path)
            if hashlib.sha256(raw).hexdigest() != content["network_sha256"]:
                raise ValueError(f"it is not the network that {self.card} describes")
            return build(load_tensors(raw), content), content
        except (OSError, SafetensorError, *INVALID, IndexError) as error:
            raise ValueError(
                f"{path}: cannot be read: {error}; fit it again with {self.fit}."
            ) from error


def read_fields(path: Path, format: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Read a file with a JSON object of this format, whose fields have these types.

    A ValueError or an OSError says what is wrong with it.
    """
    content = json.loads(small_file(path).decode("utf-8"))
    if not isinstance(content, dict) or content.get("format") != format:
        raise ValueError(f"it is not a JSON object with 'format' {format!r}")
    for key, kind in kinds.items():
        value = content.get(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"{key!r} is missing or of the wrong kind")
    return content


def require_finite(tensors: dict[str, Tensor]) -> None:
    """Raise ValueError unless all values are finite floating-point numbers."""
    for name, value in tensors.items():
        if value.dtype not in FLOAT_DTYPES or not bool(value.float().isfinite().all()):
            raise ValueError(f"{name!r} holds values that are not finite numbers")
