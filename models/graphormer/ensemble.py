"""Several Graphormers trained in the same way from different seeds, as one model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from graphxai.contract.batch import GraphBatch
from graphxai.contract.checkpoint_files import (
    CONFIG,
    read_config,
    save_description,
    weights_digest,
    with_origin,
)
from graphxai.contract.inputs import Input
from graphxai.contract.intervals import Conformal
from graphxai.contract.model import Origin, ShownModel
from graphxai.datasets.as_given import AS_DRAWN, Isomers, Standardisation
from graphxai.runtime.writing import folder_at

from .checkpoint import (
    ENSEMBLE,
    CheckpointError,
    is_published,
    load_checkpoint,
    save_checkpoint,
)
from .config import GraphormerConfig
from .encoding import collate
from .locating import locate
from .model import Graphormer

MEMBERS = "members"
MOST = 50


class Ensemble(ShownModel, nn.Module):
    """The mean of its members' outputs, (B, num_outputs).

    Args:
        members: Graphormers of one configuration.

    Explainers explain each member and take the mean, so that every score has a spread over the
    members. `embed` and `encode` have the members' tokens side by side.
    """

    collate = staticmethod(collate)
    collates_plain_graphs = True  # graphs need not be PyG's `Data`
    fewest_nodes = Graphormer.fewest_nodes

    def __init__(self, members: Sequence[Graphormer]) -> None:
        super().__init__()
        if not members:
            raise ValueError("an ensemble needs at least one member.")
        kinds = [member.config.to_dict() for member in members]
        if any(kind != kinds[0] for kind in kinds):
            raise ValueError("the members of an ensemble must have one configuration.")
        self._members = nn.ModuleList(members)
        self.origin = Origin()
        self.conformal: dict[str, Conformal] = {}

    @property
    def members(self) -> list[Graphormer]:
        """The members."""
        return [cast(Graphormer, member) for member in self._members]

    @property
    def config(self) -> GraphormerConfig:
        """The configuration of its members."""
        return self.members[0].config

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the parts that `split_by_feature` returns."""
        return self.members[0].feature_names

    def prepare(self, value: Any) -> Input:
        """Encode one input as its members do."""
        return self.members[0].prepare(value)

    def prepare_group(self, values: list[Any]) -> Iterator[Input | Exception]:
        """Encode inputs as its members do, featurising all molecules together."""
        return self.members[0].prepare_group(values)

    def embed(self, batch: GraphBatch) -> Tensor:
        """Return the members' tokens side by side, (B, T, members D), the graph token first."""
        return torch.cat([member.embed(batch) for member in self.members], dim=-1)

    def encode(self, tokens: Tensor, batch: GraphBatch, keep: Tensor | None = None) -> Tensor:
        """Return outputs (B, num_outputs) for tokens (B, T, members D); see `Graphormer`."""
        each = zip(self.members, tokens.chunk(len(self._members), dim=-1), strict=True)
        return torch.stack([member.encode(part, batch, keep) for member, part in each]).mean(0)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Return outputs (B, num_outputs)."""
        return torch.stack([member(batch) for member in self.members]).mean(0)

    def labelled_outputs(self, batch: GraphBatch) -> Tensor:
        """Return the outputs to which labels belong, those of graphs or of nodes."""
        return torch.stack([member.labelled_outputs(batch) for member in self.members]).mean(0)

    def outputs_without_nodes(self, batch: GraphBatch) -> Tensor:
        """Return the outputs (1, num_outputs) of a graph with no nodes."""
        outputs = [member.outputs_without_nodes(batch) for member in self.members]
        return torch.stack(outputs).mean(0)

    def split_by_feature(self, batch: GraphBatch, gradient: Tensor) -> Tensor | None:
        """Split `embedding . gradient` by feature, (B, N, features), see `Graphormer`."""
        each = zip(self.members, gradient.chunk(len(self._members), dim=-1), strict=True)
        parts = [member.split_by_feature(batch, part) for member, part in each]
        split = [part for part in parts if part is not None]
        return torch.stack(split).sum(0) if len(split) == len(parts) else None


#: A model with weights: a Graphormer, or an ensemble of several.
LoadedModel = Graphormer | Ensemble


def members_of(model: LoadedModel) -> list[Graphormer]:
    """Return the members of an ensemble. A single model is its own only member."""
    return model.members if isinstance(model, Ensemble) else [model]


def set_standardisation(
    model: LoadedModel, standardise: Standardisation, isomers: Isomers | None = None
) -> None:
    """Change how a model brings molecules to their parents, and isomers, in all its members."""
    for member in members_of(model):
        kept = isomers or member.config.isomers
        member.config = replace(member.config, standardise=standardise, isomers=kept)


def save_ensemble(
    model: Ensemble, folder: str | Path, *, card: str = "", metadata: dict[str, Any] | None = None
) -> Path:
    """Write the members to `folder/members/0` and so on, and what belongs to all to `folder`."""
    folder = folder_at(folder)
    places = [folder / MEMBERS / str(k) for k in range(len(model.members))]
    for member, place in zip(model.members, places, strict=True):
        save_checkpoint(member, place, card=f"# Member {place.name} of an ensemble\n")
    content = {"format": ENSEMBLE, MEMBERS: len(model.members)}
    digest, card = _joined(map(weights_digest, places)), card or "# Ensemble of Graphormers\n"
    return save_description(model, folder, digest, content, metadata, card)


def checkpoint_digest(folder: Path) -> str:
    """Return the SHA-256 of the weights of a network, or of all members of an ensemble."""
    if not is_ensemble(folder):
        return weights_digest(folder)
    count = read_config(folder)[MEMBERS]
    return _joined(weights_digest(folder / MEMBERS / str(k)) for k in range(count))


def is_ensemble(folder: Path) -> bool:
    """Return whether a checkpoint folder holds an ensemble."""
    return read_config(folder).get("format") == ENSEMBLE


def load_ensemble(folder: str | Path) -> Ensemble:
    """Return the ensemble in a folder, on the CPU and in eval mode.

    Raises:
        CheckpointError: see `load_checkpoint`.
    """
    folder = Path(folder)
    content = read_config(folder)
    count = content.get(MEMBERS)
    if content.get("format") != ENSEMBLE or type(count) is not int or not 1 <= count <= MOST:
        raise CheckpointError(
            f"{folder / CONFIG}: not an ensemble of 1 to {MOST} members ('format', 'members')."
        )
    members = [load_checkpoint(folder / MEMBERS / str(k)) for k in range(count)]
    try:
        model = Ensemble(members)
    except ValueError as error:
        raise CheckpointError(f"{folder / MEMBERS}: {error}") from error
    return with_origin(model, folder, content, _joined(m.origin.sha256 for m in members))


def _joined(digests: Iterable[str]) -> str:
    """Return one SHA-256 for those of all members."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def load_model(
    name_or_folder: str | Path, *, as_drawn: bool = False, isomers: Isomers = "groups"
) -> LoadedModel:
    """Return a bundled model by name, or the model in a checkpoint folder.

    A folder holds a Graphormer, an ensemble of several, or a published Graphormer, which is
    converted.

    Args:
        name_or_folder: the model.
        as_drawn: whether it reads molecules as they are drawn, and not their parents, whatever it
            learned from.
        isomers: over which isomers results are the mean, see `GraphormerConfig`.

    Raises:
        CheckpointError: the folder holds anything else; the message names the file and the key.
    """
    model = _load(locate(name_or_folder))
    way = AS_DRAWN if as_drawn else members_of(model)[0].config.standardise
    set_standardisation(model, way, None if isomers == "groups" else isomers)
    return model


def _load(folder: Path) -> LoadedModel:
    with torch.inference_mode(False):  # weights made in inference mode could never be explained
        if is_ensemble(folder):
            return load_ensemble(folder)
        if not is_published(folder):
            return load_checkpoint(folder)
        from .convert import load_huggingface  # needs the chemistry

        return load_huggingface(folder)
