"""A model and a Gaussian process whose outputs are added: an adapted model, or the mean of two.

A process on the residuals of a model moves its values towards own measurements. A model times one
half and a process times one half are their mean. The outputs are a sum, and so are the shares of
the atoms: the ledger of both closes as theirs do.

A process and a sum are folders with `config.json`, `model.safetensors` and a model card.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphxai.contract.checkpoint_files import (
    CONFIG,
    INVALID,
    PROCESS,
    SUM,
    WEIGHTS,
    CheckpointError,
    as_numbers,
    read_config,
    read_shapes,
    read_weights,
    require_shapes,
    save_description,
    weights_digest,
    with_origin,
    write_weights,
)
from graphxai.contract.inputs import Input, InputError, prepare_each, prepare_for
from graphxai.contract.intervals import Conformal
from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.contract.model import Origin, ShownModel, weights_hash
from graphxai.datasets.as_given import AS_DRAWN
from graphxai.datasets.canonical_form import mirror_image
from graphxai.datasets.graph import Graph
from graphxai.runtime.writing import folder_at

from . import inputs
from .inputs import ProcessBatch
from .model import COLUMNS, CarriedCounts, KernelProcess, ProcessConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MOST_LEVELS = 10**8  # counts of all carriers together: 10,000 molecules have some 10 million
INTEGERS = ("starts", "columns", "counts")
SIZES = (torch.uint8, torch.int16, torch.int32, torch.int64)  # in which they are stored


def save_process(
    model: KernelProcess, folder: str | Path, *, card: str = "", metadata: Any = None
) -> Path:
    """Write model, metadata (JSON values), model card (Markdown) and conformal scores."""
    folder = folder_at(folder)
    tensors = dict(model.state_dict())
    for key in INTEGERS:
        counts = tensors[key]
        largest = int(counts.max()) if len(counts) else 0
        tensors[key] = counts.to(next(kind for kind in SIZES if largest <= torch.iinfo(kind).max))
    digest = write_weights(tensors, folder, PROCESS)
    content = {"format": PROCESS, "model": model.config.to_dict()}
    card = card or "# Gaussian process\n"
    return save_description(model, folder, digest, content, metadata, card)


def load_process(folder: str | Path, *, as_drawn: bool = False) -> KernelProcess:
    """Return the process in a checkpoint folder, on the CPU and in eval mode.

    Args:
        folder: the folder.
        as_drawn: whether it reads molecules as they are drawn, whatever it learned from.

    Raises:
        CheckpointError: a file is missing, corrupt or truncated, or does not fit the others.
    """
    folder = Path(folder)
    content, shapes, path = read_config(folder), read_shapes(folder), folder / WEIGHTS
    if content.get("format") != PROCESS:
        raise CheckpointError(f"{folder / CONFIG}: 'format' is not {PROCESS!r}.")
    try:
        config = ProcessConfig(**content["model"])
    except INVALID as error:
        raise CheckpointError(f"{folder / CONFIG}: invalid model configuration: {error}") from error
    carriers, entries = config.carriers, shapes.get("columns", (0,))
    expected = {
        "weights": (carriers, config.num_outputs),
        "means": (config.num_outputs,),
        "starts": (carriers + 1,),
        "columns": entries,
        "counts": entries,
    }
    require_shapes(expected, shapes, path)
    tensors, digest = read_weights(folder)
    for key in INTEGERS:
        if tensors[key].dtype not in SIZES or tensors[key].dim() != 1:
            raise CheckpointError(f"{path}: key {key!r} does not hold a row of integers.")
    starts, columns, counts = (tensors[key].long() for key in INTEGERS)
    problems = {
        "starts": starts[0] != 0 or starts[-1] != len(columns) or bool((starts.diff() < 0).any()),
        "columns": bool(((columns < 0) | (columns >= COLUMNS)).any()),
        "counts": bool((counts < 1).any()) or int(counts.sum()) > MOST_LEVELS,
    }
    if not any(problems.values()):
        rows = torch.arange(len(starts) - 1).repeat_interleave(starts.diff())
        problems["columns"] = bool((((rows * COLUMNS) + columns).diff() <= 0).any())
    for key, is_wrong in problems.items():
        if is_wrong:
            raise CheckpointError(f"{path}: key {key!r} does not hold counts of molecules.")
    carried = CarriedCounts(starts, columns.to(torch.int32), counts.to(torch.int32))
    numbers = [as_numbers(tensors[key], key, path, torch.float64) for key in ("weights", "means")]
    config = replace(config, standardise=AS_DRAWN) if as_drawn else config
    model = KernelProcess(config, carried, *numbers)
    return with_origin(model, folder, content, digest)


COUNTED = "counted"  # the attribute of a graph with the counts of its structures


@dataclass(frozen=True, eq=False)
class SumBatch:
    """A batch as the base collates it, and the same molecules for the process."""

    base: Any
    process: ProcessBatch

    def __len__(self) -> int:
        return len(self.process)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("base", "process"):
            raise AttributeError(name)
        return getattr(self.base, name)

    def to(self, device: torch.device | str) -> SumBatch:
        """Return the batch with every tensor on `device`."""
        return SumBatch(self.base.to(device), self.process.to(device))


class SummedModel(ShownModel, nn.Module):
    """The outputs of a model times a factor plus those of a process, (B, num_outputs).

    Args:
        base: any model of molecules that can be explained, with the tasks of the process.
        process: the process. Its atoms are those of the base.
        factor: what the outputs of the base are multiplied by.

    Explainers explain both and add the shares of the atoms. `embed` has the tokens of the base; the
    process sees an atom as long as its token is not hidden and not zero.
    """

    collates_plain_graphs = True
    feature_names = ("model", "process")  # the parts of an atom's share
    has_attention = has_subgraphs = False  # in the process

    def __init__(self, base: Any, process: KernelProcess, factor: float = 1.0) -> None:
        super().__init__()
        if [task.name for task in base.config.tasks] != [t.name for t in process.config.tasks]:
            raise ValueError("the two models of a sum must have the same tasks.")
        self.base, self.process, self.factor = base, process, factor
        self.origin = Origin()
        self.conformal: dict[str, Conformal] = {}

    @property
    def summands(self) -> tuple[tuple[Any, float], tuple[Any, float]]:
        """The two models, each with its factor."""
        return (self.base, self.factor), (self.process, 1.0)

    @property
    def config(self) -> ProcessConfig:
        """The tasks of both, and how molecules are read."""
        way = getattr(self.base.config, "standardise", self.process.config.standardise)
        return replace(self.process.config, standardise=way)

    @property
    def default_method(self) -> str:
        """The method that explains the base if none is named; for a process it is the same."""
        return getattr(self.base, "default_method", None) or DEFAULT_METHOD

    @property
    def explained_inputs(self) -> Sequence[str]:
        """The inputs of the base that get relevance."""
        return getattr(self.base, "explained_inputs", ("x",))

    def prepare(self, value: Any) -> Input:
        """Encode one molecule, or raise InputError if it cannot be used."""
        return prepare_for(self, value)

    def prepare_group(self, values: list[Any]) -> Iterator[Input | Exception]:
        """Encode molecules as the base does, and count their structures."""
        for item in prepare_each(self.base, values, Exception):
            try:
                yield item if isinstance(item, Exception) else with_counts(item)
            except InputError as error:
                yield error

    def encoded(self, graph: Any) -> list[Any]:
        """Return the graphs of a molecule as both models read it, one for each pass."""
        return [each.graph for each in self.prepare(graph.smiles).passes]

    def collate(self, graphs: Sequence[Any], pad_to: int | None = None) -> SumBatch:
        """Collate encoded molecules for both models."""
        counted = inputs.collate([graph.get(COUNTED) for graph in graphs], pad_to)
        bare = list(graphs)
        if not isinstance(self.base, SummedModel):  # which reads the counts, too
            bare = [copy(graph) for graph in graphs]
            for graph in bare:
                delattr(graph, COUNTED)
        more = () if pad_to is None else (pad_to,)
        return SumBatch(self.base.collate(bare, *more), counted)

    def embed(self, batch: SumBatch) -> Tensor:
        """Return the tokens of the base (B, T, D)."""
        return self.base.embed(batch.base)

    def encode(self, tokens: Tensor, batch: SumBatch, keep: Tensor | None = None) -> Tensor:
        """Return outputs for tokens (B, T, D). Atoms where `keep` (B, N) is False are hidden."""
        present = (tokens[:, 1:] != 0).any(-1)[:, : batch.process.mask.shape[1]]
        present = present & batch.process.mask
        if keep is not None:
            present = present & keep[:, : present.shape[1]]
        of_process = self.process.encode(self.process.embed(batch.process), batch.process, present)
        outputs = self.factor * self.base.encode(tokens, batch.base, keep)
        return outputs + of_process.to(outputs)

    def forward(self, batch: SumBatch) -> Tensor:
        """Return outputs (B, num_outputs)."""
        outputs = self.factor * self.base(batch.base)
        return outputs + self.process(batch.process).to(outputs)

    labelled_outputs = forward

    def outputs_without_nodes(self, batch: SumBatch) -> Tensor | None:
        """Return the outputs (1, num_outputs) without atoms, or None if the base has none."""
        empty = self.base.outputs_without_nodes(batch.base)
        return None if empty is None else self.factor * empty + self.process.means[None].to(empty)

    def split_by_feature(self, batch: SumBatch, gradient: Tensor) -> None:
        """Return None: explainers split the shares by model."""

    def node_parts(
        self, graph: Any, nodes: NDArray[np.floating], features: NDArray[np.floating] | None
    ) -> dict[str, float]:
        """Return the share of each model in that of all nodes, from features (N, 2)."""
        if features is None:
            return {}
        return dict(zip(self.feature_names, features.sum(0, dtype="float64").tolist(), strict=True))


def mean_of(base: Any, process: KernelProcess) -> SummedModel:
    """Return the mean of a model and a process with the same tasks: half of each."""
    half = [parameter.detach() / 2 for parameter in (process.weights, process.means)]
    return SummedModel(base, KernelProcess(process.config, process.carried, *half).eval(), 0.5)


def with_counts(item: Input, mol: Any = None) -> Input:
    """Return an encoded molecule with the counts of its structures, on the atoms it has.

    Args:
        item: the molecule.
        mol: the form in which its structures are counted, by default the one that it was read in.
            That of a mirror image is its own, and that of all isomers of a racemate the same.

    Raises:
        InputError: the input is no molecule, or has nodes beside its atoms.
    """
    if item.smiles is None and item.molecule is None:
        raise InputError("it is no molecule, which a process on structures needs.")
    mol = mol or item.read or inputs.read_again(item.molecule or item.smiles)
    if item.molecule is not None and mol.GetNumAtoms() != item.num_nodes:
        mol = item.molecule  # which has hydrogens that are nodes of another model
    if mol.GetNumAtoms() != item.num_nodes:
        raise InputError("its nodes are not the atoms of its molecule, whose structures count.")
    x = torch.zeros(item.num_nodes, 1)
    graph = copy(item.graph)
    counted = Graph(x=x, edge_index=x.new_zeros(2, 0), **inputs.counts_of(mol))
    setattr(graph, COUNTED, counted)
    mirrored = None
    if item.mirrored is not None:
        mirrored = with_counts(item.mirrored, mirror_image(mol))
    isomers = tuple(with_counts(each, mol) for each in item.isomers)
    return replace(item, graph=graph, mirrored=mirrored, isomers=isomers)


def save_sum(
    model: SummedModel, folder: str | Path, base: str, *, card: str = "", metadata: Any = None
) -> Path:
    """Write the process to `folder/process`, and where the base lies, with its SHA-256, beside it.

    Args:
        model: the model.
        folder: the folder.
        base: the name or path of the base, as `graphxai.load` takes it, or its place in the folder.
        card: the model card (Markdown).
        metadata: JSON values.
    """
    folder = folder_at(folder)
    save_process(model.process, folder / "process", card="# The process of a sum\n")
    of_base = {"path": base, "sha256": weights_hash(model.base)}
    content = {"format": SUM, "base": of_base, "factor": model.factor}
    digest = _digest(of_base["sha256"], folder, model.factor)
    card = card or "# A model and a Gaussian process\n"
    return save_description(model, folder, digest, content, metadata, card)


def load_sum(folder: str | Path, load: Callable[[str], Any]) -> SummedModel:
    """Return the sum in a folder, on the CPU and in eval mode.

    Args:
        folder: the folder.
        load: loads its base, by name or path.

    Raises:
        CheckpointError: a file is missing or damaged, or the base has other weights than before.
    """
    folder = Path(folder)
    content, place = read_config(folder), folder / CONFIG
    of_base: Any = content.get("base")
    factor = content.get("factor")
    is_named = isinstance(of_base, dict) and all(
        isinstance(of_base.get(key), str) for key in ("path", "sha256")
    )
    if not is_named or not isinstance(factor, float) or not 0 <= factor < 10:
        raise CheckpointError(f"{place}: 'base' or 'factor' does not say what is added.")
    path = str(of_base["path"])
    inside = folder / path  # a mean has its network in its folder
    try:
        base = load(str(inside) if inside.is_dir() else path)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{place}: the base {path!r}, which this model adds to, cannot be loaded: {error} Put"
            " it back, or write its new place as 'path' of 'base' in this file."
        ) from error
    if weights_hash(base) != of_base["sha256"]:
        raise CheckpointError(
            f"{place}: {path} has other weights than when this model was made from it: adapt it"
            " again, or put the old weights back."
        )
    try:
        model = SummedModel(base, load_process(folder / "process"), factor)
    except ValueError as error:
        raise CheckpointError(f"{place}: {error}") from error
    return with_origin(model, folder, content, _digest(of_base["sha256"], folder, factor))


def _digest(of_base: str, folder: Path, factor: float) -> str:
    """Return one SHA-256 for the weights of both models and the factor."""
    text = f"{of_base} {weights_digest(folder / 'process')} {factor}"
    return hashlib.sha256(text.encode()).hexdigest()
