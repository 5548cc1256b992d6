"""A chemprop network, or several of them, that takes SMILES and meets the contract."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from rdkit import Chem
from torch import Tensor, nn

from graphxai.contract.intervals import OwnSpread
from graphxai.contract.tasks import Task
from graphxai.runtime.modules import unwrapped
from graphxai.wrapping.batches import WrappedBatch
from graphxai.wrapping.calling import CallSettings, WrappedConfig
from graphxai.wrapping.wrapped import WrappedModel

from .molecules import (
    ATOM_WISE,
    MOLECULE_FEATURES,
    ChempropFeaturizer,
    MoleculeFeaturizer,
    as_featurizers,
    extra_columns,
    feature_set_of,
    require_extra_features,
)
from .network import HEADS, ChempropNetwork, MeanOfNetworks

BONDS = "edge_attr"
BINARY = ("inactive", "active")


class ChempropModel(WrappedModel):
    """Networks of chemprop 2 that take SMILES and RDKit molecules, made by `load` or `wrap`.

    Several networks predict the mean of their outputs, and their scores have a spread. Relevance is
    given to atoms and, where the method can, to bonds.
    """

    module: "ChempropNetwork | MeanOfNetworks"

    def __init__(
        self,
        networks: Sequence[ChempropNetwork],
        config: WrappedConfig,
        settings: CallSettings,
        name: str,
        blocks: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Make a model of networks that read the same features.

        Args:
            blocks: the names of the features of an atom, and how many columns of `x` each has.
        """
        module = networks[0] if len(networks) == 1 else MeanOfNetworks(networks)
        super().__init__(module, config, settings, name)
        self._blocks = tuple(blocks)

    @cached_property
    def members(self) -> "list[ChempropModel]":
        """The networks as models of their own, or none if there is only one."""
        if isinstance(self.module, ChempropNetwork):
            return []
        alike = (self.config, self.settings, self.origin.name, self._blocks)
        members = [ChempropModel([network], *alike) for network in self._networks]
        for member in members:
            member.origin = self.origin
        return members

    @property
    def tasks_with_own_spread(self) -> tuple[str, ...]:
        """The tasks for which the networks themselves say how sure they are."""
        has_spread = HEADS[self._networks[0].head].spread is not None
        return tuple(task.name for task in self.config.tasks) if has_spread else ()

    @property
    def _networks(self) -> "list[ChempropNetwork]":
        if isinstance(self.module, ChempropNetwork):
            return [self.module]
        return cast(list[ChempropNetwork], list(self.module.members))

    def own_spreads(self, batch: WrappedBatch) -> list[dict[str, OwnSpread]]:
        """Return how sure the networks say that they are, for each molecule by task.

        Several networks have the mean of their variances, quantiles or evidence, as with `chemprop
        predict`. How far they differ from each other is not in it.
        """
        raw: list[Tensor] = []
        hooks = [
            network.ffn.register_forward_hook(lambda module, inputs, output: raw.append(output))
            for network in self._networks
        ]
        try:
            self(batch)
        finally:
            for hook in hooks:
                hook.remove()
        spreads = [net.spreads(out) for net, out in zip(self._networks, raw, strict=True)]
        names = self.tasks_with_own_spread
        return [
            {name: _mean_spread(each) for name, *each in zip(names, *rows, strict=True)}
            for rows in zip(*spreads, strict=True)
        ]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the parts that `split_by_feature` returns."""
        return tuple(name for name, _ in self._blocks)

    def node_parts(
        self, graph: Mapping[str, Any], nodes: NDArray[np.floating], features: Any
    ) -> dict[str, float]:
        """Return the parts of the atoms' relevance: by molecule, and of features from a user.

        Args:
            nodes: the relevance of the atoms (N,).
            features: its split by feature (N, F), or None.
        """
        parts: dict[str, float] = {}
        if (component := graph.get("node_component")) is not None:
            sums = np.bincount(component.numpy(), weights=nodes)
            parts |= {f"molecule {k + 1}": value for k, value in enumerate(sums.tolist())}
        for name in (kind.replace("_", " ") for kind in ATOM_WISE):
            if features is not None and name in self.feature_names:
                column = features[:, self.feature_names.index(name)]
                parts[name] = float(column.sum(dtype=np.float64))
        return parts

    def split_by_feature(self, batch: WrappedBatch, gradient: Tensor) -> Tensor | None:
        """Split each atom's `x . gradient` by feature (B, N, F), such as element and charge."""
        if not self._blocks:
            return None
        columns = batch.x.to(gradient) * gradient
        return torch.stack(
            [part.sum(-1) for part in columns.split([width for _, width in self._blocks], -1)], -1
        )


def _mean_spread(spreads: Sequence[OwnSpread]) -> OwnSpread:
    """Return the mean of variances or of evidence."""
    if len(spreads) == 1:
        return spreads[0]
    if spreads[0].evidence is not None:
        return OwnSpread(evidence=fmean(each.evidence or 0.0 for each in spreads))
    return OwnSpread(sd=math.sqrt(fmean(each.variance or 0.0 for each in spreads)))


@dataclass(frozen=True)
class ChempropOptions:
    """What a user says about a chemprop network beyond the network itself.

    Args:
        tasks: what the outputs mean, or None to take them from the network.
        task_names: the names of the tasks, if `tasks` are not given.
        classes: the names of the classes of every task, if `tasks` are not given.
        featurize: chemprop's featurizer of molecules to graphs, if it is not one of its own sets.
        molecule_features: how features of whole molecules are computed, if the network reads any.
        extra_features: functions of an RDKit molecule that return further features, by
            `EXTRA_FEATURES`.
        ignore_stereo: whether the network sees no stereochemistry.
    """

    tasks: tuple[Task, ...] = ()
    task_names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    featurize: Callable[[Chem.Mol], Any] | None = None
    molecule_features: "MoleculeFeaturizer | Sequence[MoleculeFeaturizer]" = ()
    extra_features: Mapping[str, Callable[[Chem.Mol], Any]] = field(default_factory=dict)
    ignore_stereo: bool = False
    name: str = "chemprop"


def chemprop_model(networks: Sequence[ChempropNetwork], options: ChempropOptions) -> ChempropModel:
    """Make a model of chemprop networks that were trained on the same table.

    Raises:
        ValueError: the networks differ in their tasks or features, or features are missing.
        ImportError: chemprop is not installed.
    """
    first = networks[0]
    for other in networks[1:]:
        if _shape_of(other) != _shape_of(first):
            raise ValueError(
                "the networks of an ensemble must have the same tasks and read the same features."
            )
    tasks = options.tasks or _tasks_of(first, options)
    if sum(task.num_outputs for task in tasks) != first.num_tasks * max(first.num_classes, 1):
        raise ValueError(
            f"the network has {first.num_tasks} tasks of kind {HEADS[first.head].kind!r}; the tasks"
            " given need another number of outputs."
        )
    read, blocks = _reader(first, options)
    reads_molecule_features = (MOLECULE_FEATURES,) if read.molecule_features else ()
    settings = CallSettings(featurize=read, wrt=("x", BONDS, *reads_molecule_features))
    config = WrappedConfig(tuple(tasks), reads="molecules")
    return ChempropModel(networks, config, settings, options.name, blocks)


def _shape_of(network: ChempropNetwork) -> tuple[Any, ...]:
    """Return what the networks of an ensemble have in common."""
    return (
        network.head, network.num_tasks, network.num_classes, network.num_molecule_features,
        len(network.blocks), *map(network.width, ("d_v", "d_e", "d_vd")),
    )  # fmt: skip


def _tasks_of(network: ChempropNetwork, options: ChempropOptions) -> tuple[Task, ...]:
    """Return the tasks that the head of a network has."""
    kind, count = HEADS[network.head].kind, network.num_tasks
    names = options.task_names or (
        ("output",) if count == 1 else tuple(f"output {k + 1}" for k in range(count))
    )
    if len(names) != count:
        raise ValueError(f"the network has {count} tasks, but there are {len(names)} names.")
    classes = (
        options.classes
        or {
            "binary": BINARY,
            "multiclass": tuple(str(c) for c in range(network.num_classes)),
            "regression": (),
        }[kind]
    )
    return tuple(Task(name, kind, classes) for name in names)


def _reader(
    network: ChempropNetwork, options: ChempropOptions
) -> tuple[ChempropFeaturizer, Sequence[tuple[str, int]]]:
    """Return how molecules become graphs, and the blocks of an atom's features, if known."""
    extra = require_extra_features(options.extra_features)
    columns = extra_columns(extra)  # by kind
    if columns["atom_descriptors"] != (needed := network.width("d_vd")):
        raise ValueError(
            f"the network reads {needed} descriptors of every atom beside its features, and"
            f" extra_features computes {columns['atom_descriptors']}: give a function of an RDKit"
            " molecule that returns them (atoms, descriptors), as in"
            " extra_features={'atom_descriptors': function}."
        )
    blocks: Sequence[tuple[str, int]] = ()
    mode: Any = options.featurize
    if mode is None:
        widths = [
            network.width(name) - columns[kind]
            for name, kind in (("d_v", "atom_features"), ("d_e", "bond_features"))
        ]
        feature_set = feature_set_of(widths[0], widths[1])
        mode, blocks = feature_set.mode, feature_set.blocks
        blocks = (*blocks, *((kind.replace("_", " "), columns[kind]) for kind in ATOM_WISE))
    read = ChempropFeaturizer(
        mode,
        as_featurizers(options.molecule_features),
        options.ignore_stereo,
        extra,
        len(network.blocks),
    )
    _require_features(network, read)
    return read, tuple((name, width) for name, width in blocks if width)


def _require_features(network: ChempropNetwork, read: ChempropFeaturizer) -> None:
    """Raise ValueError if a molecule does not have the features that a network reads."""
    given = read(Chem.MolFromSmiles(".".join(["CC"] * len(network.blocks)))).get(MOLECULE_FEATURES)
    computed, needed = 0 if given is None else given.shape[1], network.num_molecule_features
    if computed != needed:
        raise ValueError(
            f"the network reads {needed} features of whole molecules beside the graph, and"
            f" molecule_features computes {computed}: name those that it was trained with, such as"
            " molecule_features='morgan_binary', or give a function of an RDKit molecule."
        )


# -- models of chemprop in memory, for `graphxai.wrap` ---------------------------------------------


def is_chemprop(model: object) -> TypeGuard["nn.Module | Sequence[nn.Module]"]:
    """Return whether this is a `chemprop.models.MPNN`, perhaps compiled, or a list of some."""
    if isinstance(model, list | tuple):
        return bool(model) and all(isinstance(m, nn.Module) and is_chemprop(m) for m in model)
    kinds = type(unwrapped(model)).__mro__ if isinstance(model, nn.Module) else ()
    return any(base.__name__ == "MPNN" and _is_of_chemprop(base) for base in kinds)


def _is_of_chemprop(kind: type) -> bool:
    return kind.__module__.startswith("chemprop.models.")


def wrap_chemprop(
    model: "nn.Module | Sequence[nn.Module]", options: ChempropOptions
) -> ChempropModel:
    """Return a model that shares the weights of an MPNN, or of several as an ensemble.

    Raises:
        ValueError: a model computes something else than chemprop's own, or features are missing.
    """
    given = [model] if isinstance(model, nn.Module) else model
    members = [unwrapped(member) for member in given]
    for member in members:
        _require_usual_pass(member)
    return chemprop_model([ChempropNetwork.of(member) for member in members], options)


def _require_usual_pass(model: Any) -> None:
    """Raise ValueError if an MPNN runs its modules in another way, by its class or by a hook."""
    for method in ("forward", "fingerprint"):
        defined_in = next(base for base in type(model).__mro__ if method in vars(base))
        if not _is_of_chemprop(defined_in):
            raise ValueError(
                f"{type(model).__name__} has a `{method}` of its own, so what it computes is"
                " unknown here: wrap a torch.nn.Module around it that takes x, edge_index,"
                " edge_attr and batch, with graphxai.wrap(module, inputs='molecules',"
                " featurize=...)."
            )
    for part in (model, model.predictor):  # their own call is left out here
        if part._forward_hooks or part._forward_pre_hooks:
            raise ValueError(
                f"{type(part).__name__} has forward hooks, which would not run here and may change"
                " what it computes: remove them first, or register them on its layers."
            )
