"""Checkpoints: a folder with `config.json`, `model.safetensors` and a model card.

Nothing is unpickled. Every error names the file, and the key if there is one.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor

from .config import GraphormerConfig
from .model import Graphormer, Origin

FORMAT = "graphxai-graphormer"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
MEAN_NODE = "mean_node.safetensors"
PRETRAINED = Path(__file__).parent / "pretrained"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file, the key and the remedy."""


def save_checkpoint(
    model: Graphormer,
    folder: str | Path,
    *,
    card: str = "",
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write model, metadata (JSON values) and model card (Markdown) to `folder`.

    If the model has a mean node, it is written to a file of its own.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": FORMAT})
    save_mean_node(model, folder)
    content = {"format": FORMAT, "model": model.config.to_dict(), "metadata": metadata or {}}
    (folder / CONFIG).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card or "# Graphormer\n", encoding="utf-8")
    return folder


def load_checkpoint(folder: str | Path) -> Graphormer:
    """Read a checkpoint folder; return the model on the CPU, in eval mode.

    `model.origin` says where it came from. Raises CheckpointError for a missing, corrupt,
    truncated or mismatching file.
    """
    folder = Path(folder)
    content = read_config(folder)
    if content.get("format") != FORMAT:
        published = " Read a published Graphormer with load_huggingface(folder)."
        hint = published if is_published(folder) else ""
        raise CheckpointError(f"{folder / CONFIG}: 'format' is not {FORMAT!r}.{hint}")
    try:
        config = GraphormerConfig.from_dict(content["model"])
        model = Graphormer(config)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder / CONFIG}: invalid model configuration: {error}") from error
    tensors, digest = read_weights(folder)
    fill(model, tensors, folder / WEIGHTS)
    model.mean_node = _read_mean_node(model, folder, digest)
    metadata = content.get("metadata")
    model.origin = Origin(
        name_of(folder), digest, metadata if isinstance(metadata, dict) else {}, folder
    )
    return model.eval()


def save_mean_node(model: Graphormer, folder: Path) -> Path | None:
    """Write the model's mean node, if it has one, beside its weights, with their SHA-256."""
    path = folder / MEAN_NODE
    if model.mean_node is None:
        path.unlink(missing_ok=True)
        return None
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    mean = {"mean_node": model.mean_node.detach().cpu().contiguous()}
    save_file(mean, path, metadata={"format": FORMAT, "sha256": digest})
    return path


def _read_mean_node(model: Graphormer, folder: Path, digest: str) -> Tensor | None:
    """Read the mean node (F, D) measured on the weights with this SHA-256; None without one."""
    path = folder / MEAN_NODE
    if not path.exists():
        return None
    rows = 1 if model.embedding_norm is not None else len(model.feature_names)
    shape = (rows, model.config.hidden_dim)
    try:
        with safe_open(path, framework="pt") as file:
            stored = file.get_slice("mean_node").get_shape()
            if tuple(stored) != shape:
                raise ValueError(f"its shape is {tuple(stored)}, not {shape}")
            mean: Tensor = file.get_tensor("mean_node")
            measured_on = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; delete or replace it.") from error
    if not mean.is_floating_point() or not torch.isfinite(mean).all():
        raise CheckpointError(f"{path}: holds values that are not finite numbers.")
    return mean.to(model.graph_token) if measured_on == digest else None


def name_of(folder: Path) -> str:
    """Return the folder's name; for the folder `model` of a run, the run's name."""
    path = folder.resolve()
    return path.parent.name or path.name if path.name == "model" else path.name


def is_published(folder: Path) -> bool:
    """Whether `config.json` belongs to a published Graphormer (Hugging Face or v1.0)."""
    content = read_config(folder)
    return content.get("model_type") == "graphormer" or "n_layers" in content


def read_config(folder: Path) -> dict[str, Any]:
    """Read the JSON object in `config.json`."""
    path = folder / CONFIG
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; every checkpoint folder has one.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object.")
    return content


def read_weights(folder: Path) -> tuple[dict[str, Tensor], str]:
    """Read all tensors of `model.safetensors`; return them and the file's SHA-256."""
    path = folder / WEIGHTS
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        others = sorted(p.name for p in folder.glob("*.bin")) + sorted(
            p.name for p in folder.glob("*.pt*")
        )
        hint = (
            f" {others[0]} is a pickle, which can run arbitrary code: convert it to safetensors"
            " in an environment you trust."
            if others
            else ""
        )
        raise CheckpointError(f"{path}: no such file.{hint}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    try:
        return load_tensors(raw), hashlib.sha256(raw).hexdigest()
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path}: corrupt or truncated ({error}); copy or download it again."
        ) from error


def fill(model: Graphormer, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy tensors into the model's parameters; names, shapes and values must match."""
    own = model.state_dict()
    missing = sorted(set(own) - set(tensors))
    surplus = sorted(set(tensors) - set(own))
    if missing or surplus:
        text = [f"missing key {missing[0]!r}"] if missing else []
        text += [f"unexpected key {surplus[0]!r}"] if surplus else []
        more = len(missing) + len(surplus) - len(text)
        raise CheckpointError(
            f"{path}: does not fit {CONFIG}: {', '.join(text)}"
            + (f" and {more} more." if more else ".")
        )
    for key, value in tensors.items():
        if value.shape != own[key].shape:
            raise CheckpointError(
                f"{path}: key {key!r} has shape {tuple(value.shape)}, but {CONFIG} asks for"
                f" {tuple(own[key].shape)}."
            )
        if not value.is_floating_point():
            raise CheckpointError(
                f"{path}: key {key!r} holds {value.dtype}, not floating-point numbers."
            )
        if not torch.isfinite(value).all():
            raise CheckpointError(f"{path}: key {key!r} holds values that are not finite.")
    model.load_state_dict(tensors)


def pretrained_names() -> tuple[str, ...]:
    """Names of the bundled checkpoints."""
    return tuple(sorted(p.parent.name for p in PRETRAINED.glob(f"*/{CONFIG}")))


def locate(name_or_folder: str | Path) -> Path:
    """Return the folder of a bundled checkpoint, a given folder, or its `model` if it is a run."""
    text = str(name_or_folder)
    if text in pretrained_names():
        return PRETRAINED / text
    path = Path(name_or_folder)
    if path.is_dir():
        in_run = path / "model"
        return in_run if not (path / CONFIG).exists() and (in_run / CONFIG).exists() else path
    names = ", ".join(pretrained_names()) or "none"
    raise CheckpointError(
        f"{text!r} is neither a folder nor the name of a bundled model (these are: {names})."
    )
