"""Checkpoints: a folder with `config.json`, `model.safetensors` and a model card.

Nothing is unpickled. Every error names the file, and the key if there is one.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor

from .config import GraphormerConfig
from .model import Graphormer, Origin

FORMAT = "graphxai-graphormer"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
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
    """Write model, metadata (JSON values) and model card (Markdown) to `folder`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": FORMAT})
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
    metadata = content.get("metadata")
    model.origin = Origin(
        name_of(folder), digest, metadata if isinstance(metadata, dict) else {}, folder
    )
    return model.eval()


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
