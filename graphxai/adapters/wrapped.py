"""A user's model under the contract of `contract.model`, without changes to its code."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from graphxai.contract.inputs import Input, InputError
from graphxai.contract.model import NoAttentionError, Origin, evaluating
from graphxai.contract.tasks import Task, TaskKind, TaskSet
from graphxai.rules.conservative import Rules, current_rules, current_tape

from .batches import (
    Tokens,
    WrappedBatch,
    as_rows,
    as_tokens,
    collate_graphs,
    collate_tokens,
    read_graph,
    read_tokens,
)
from .calling import (
    Forward,
    as_outputs,
    attributes_read,
    call_with_graphs,
    call_with_tokens,
    module_named,
    takes_batch_vector,
    takes_padding_mask,
    without_fused_attention,
)
from .engine.attention import GraphsNeedOwnPass
from .engine.positive_pass import current_relevance
from .engine.session import PassRequest, pass_by_conservative_rules, pass_by_positive_rules
from .eval_replica import (
    all_modules,
    eval_replica_of,
    in_eval_mode,
    restoring_attributes,
    uncompiled,
    unwrapped,
)
from .heterogeneous import OF_TYPES, SCHEMA, as_one_graph, as_typed
from .layout import OneGraphAtATime
from .model_checks import ModelChecks, PaddingCheck
from .one_at_a_time import (
    one_by_one,
    outputs_without_any_nodes,
    tokens_one_by_one,
    warn_of_undefined_empty,
    warn_of_zeroed_nodes,
)
from .subgraphs import (
    disjoint_copies,
    has_matrices,
    matrices_in,
    reordered,
    restricted,
    roles_and_doubts,
)

NO_INPUTS = {"x", "num_nodes", "y", *OF_TYPES}  # or no inputs of their own


def wrap(
    model: nn.Module,
    tasks: Sequence[Task] | Task | None = None,
    *,
    kind: TaskKind | None = None,
    classes: Sequence[str] | int | None = None,
    task: str | None = None,
    at: str | None = None,
    forward: Forward | None = None,
    inputs: Literal["graphs", "tokens"] = "graphs",
    graph_token: bool = False,
    read: Callable[[Any], Any] | None = None,
    transform: Callable[[Data], Data] | None = None,
    features: Sequence[str] = (),
    name: str | None = None,
) -> "WrappedModel":
    """Make a PyTorch model explainable by every method of the toolkit.

    tasks: what the output columns are; for a single task, `kind` ("binary", "multiclass",
    "regression") with `classes` (names, or how many) and `task` (its name, such as "logP"; default
    "output"). The model should return logits.
    inputs: "graphs" for PyG `Data` (or `Batch`), "tokens" for tensors (N, D); `graph_token`: the
    first token is a class token. at: for models that begin with an embedding, the name of the
    module whose output, one row per node, gets the relevance; by default that is `x` itself.
    forward: `forward(model, batch) -> outputs (B, C)` for models whose arguments are not attributes
    of the graph; `batch` is a PyG batch, or `Tokens` (x, mask). read: turns other inputs, such as a
    SMILES, into a graph (or tensor). transform: recomputes the structure of a graph after the
    operator `delete` has removed nodes. features: names of the columns of `x`.

    Without a graph token, column 0 of tokens and relevance is zero, and methods that follow
    attention start from the mean over nodes. Hiding a node (`keep`) removes it from a graph with
    its edges, and from other indices and matrices over pairs (`adapters.subgraphs`), so that it
    enters no message, attention or pooling; the features of other nodes stay the same. For tokens
    it is added to the padding mask (if no token would be left, all are set to zero instead). Graphs
    that cannot share a pass, because `model.forward` takes no batch vector, go one at a time.
    Raises ValueError if the module `at` does not exist or no tasks are given.
    """
    config = TaskSet(_tasks_from(tasks, kind, classes, task))
    if inputs not in ("graphs", "tokens"):
        raise ValueError(f"inputs must be 'graphs' or 'tokens', not {inputs!r}.")
    if graph_token and inputs == "graphs":
        raise ValueError("graph_token=True needs inputs='tokens', whose first row it is.")
    if not isinstance(model, nn.Module):
        raise TypeError(f"wrap takes a torch.nn.Module, not {type(model).__name__}.")
    if any(value.is_meta for value in (*model.parameters(), *model.buffers())):
        raise ValueError(
            f"{type(model).__name__} has weights on the device 'meta', which have no values: load"
            " them first."
        )
    inner = unwrapped(model)
    if at is not None:
        module_named(inner, at)
    how = CallSettings(
        at, forward, inputs == "tokens", graph_token, read, transform, tuple(features)
    )
    return WrappedModel(inner, config, how, name or type(inner).__name__)


def _tasks_from(
    tasks: Sequence[Task] | Task | None,
    kind: TaskKind | None,
    classes: Sequence[str] | int | None,
    task: str | None,
) -> tuple[Task, ...]:
    """The tasks given, or a single one of this kind. Raises ValueError if neither is given."""
    if tasks and task is not None:
        raise ValueError(f"tasks already have names: task={task!r} goes with `kind`.")
    if isinstance(tasks, Task):
        return (tasks,)
    if tasks:
        return tuple(tasks)
    if kind is None:
        raise ValueError("say what the outputs are: kind='binary', 'multiclass' or 'regression'.")
    if isinstance(classes, int):
        classes = [str(c) for c in range(classes)]
    if classes is None and kind == "binary":
        classes = ("negative", "positive")
    return (Task("output" if task is None else task, kind, tuple(classes or ())),)


def _has_packed_weights(part: nn.Module) -> bool:
    return any(type(value) is torch.ScriptObject for value in vars(part).values())


@dataclass(frozen=True, eq=False)
class CallSettings:
    """How a module is called, and what becomes of its inputs; see `wrap`."""

    at: str | None = None
    forward: Forward | None = None
    dense: bool = False
    graph_token: bool = False
    read: Callable[[Any], Any] | None = None
    transform: Callable[[Data], Data] | None = None
    features: tuple[str, ...] = ()

    def transformed(self, graph: Data) -> Data:
        """A graph without some of its parts, with its structure recomputed."""
        return graph if self.transform is None else self.transform(graph)


class WrappedModel:
    """A module that meets the contract `contract.model.ExplainableModel`; made by `wrap`.

    The module itself is `module`; its weights are neither copied nor changed.
    """

    def __init__(self, module: nn.Module, config: TaskSet, how: CallSettings, name: str) -> None:
        self.module, self.config, self.how = module, config, how
        self.origin = Origin(name)
        self.padding = PaddingCheck()
        self._survey = ModelChecks(module)
        told = how.forward is not None or not how.dense
        self._masks_padding = told or takes_padding_mask(module)

    # -- as a module ---------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        """Whether any part of the module is in training mode."""
        return any(m.training for m in self.module.modules())

    def train(self, mode: bool = True) -> "WrappedModel":
        """Training mode, or eval mode, for every part of the module.

        Explanations do not depend on it: they run the module in eval mode (see `replica`).
        """
        self.module.train(mode)
        return self

    def eval(self) -> "WrappedModel":
        """Eval mode for every part of the module."""
        return self.train(False)

    def evaluating(self) -> AbstractContextManager[None]:
        """Within the block passes are in eval mode, whatever the module's own mode."""
        return in_eval_mode(self.module)

    def parameters(self) -> Iterator[Tensor]:
        """Parameters and buffers of the module; a constant if it has none."""
        found = False
        for value in chain(self.module.parameters(), self.module.buffers()):
            found = True
            yield value
        if not found:
            yield torch.zeros(())

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def to(self, *args: Any, **kwargs: Any) -> "WrappedModel":
        """Move or convert the module's weights, as `torch.nn.Module.to`."""
        self.module.to(*args, **kwargs)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The module's weights by name, as `torch.nn.Module.state_dict`."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights into the module, as `torch.nn.Module.load_state_dict`."""
        return self.module.load_state_dict(*args, **kwargs)

    @property
    def quantised_layer(self) -> str | None:
        """The first layer with weights packed as integers, which pass no gradient on."""
        packed = [part for part in all_modules(self.module) if _has_packed_weights(part)]
        for path, layer in self.module.named_modules() if packed else ():
            if layer is packed[0]:
                return path.removesuffix("._packed_params") or type(self.module).__name__
        return None

    @property
    def running(self) -> nn.Module:
        """What runs in a pass: the module, or within `evaluating` its replica in eval mode."""
        return eval_replica_of(self.module)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of `x`."""
        return self.how.features

    @property
    def same_size_only(self) -> bool:
        """Whether inputs of different lengths cannot share a batch."""
        return not self._masks_padding

    def goes_alone(self, data: Data) -> bool:
        """Whether an input cannot share a batch with others."""
        if self._survey.mixing is not None or self.how.dense:
            return self._survey.mixing is not None
        text = self.how.forward is not None or takes_batch_vector(self.module)
        return not text or has_matrices(data)

    def passes(self, batch: WrappedBatch) -> list[WrappedBatch]:
        """The batch, or each of its inputs by itself if they cannot share a pass.

        The first batch of several shows whether the model mixes its graphs (see `survey`).
        """
        if len(batch) == 1 or self.shares_passes(batch):
            return [batch]
        return [batch.of_rows(row) for row in range(len(batch))]

    def shares_passes(self, batch: WrappedBatch) -> bool:
        """Whether several inputs like those of a batch can go through the model together."""
        survey = self.survey
        if self.goes_alone(batch.data_of(0)):
            return False
        survey.look_for_mixing(self, batch)
        return survey.mixing is None and not self.padding.counts(self, batch)

    def cuts(self, batch: WrappedBatch) -> set[str]:
        """Modules in which values of the nodes are used without their gradient; see `survey`."""
        return self.survey.cuts(self, batch)

    @property
    def survey(self) -> ModelChecks:
        """What earlier passes have shown about the module as it is now."""
        if not self._survey.is_of(self.module):
            self._survey = ModelChecks(self.module)
        return self._survey

    # -- inputs --------------------------------------------------------------------------------

    def prepare(self, value: Any) -> Input:
        """Prepare one input of `explain`. Raises InputError if it cannot be used."""
        smiles = value if isinstance(value, str) else None
        if self.how.read is not None and not isinstance(value, Data | HeteroData):
            value = self.how.read(value)
        if not self.how.dense:
            if isinstance(value, HeteroData):
                value = as_one_graph(value)
            found = read_graph(value, categorical=self.how.at is not None)
            return Input(found.data, smiles or found.smiles)
        if isinstance(value, Data):
            value = value.get("dense", value.x)
        x = read_tokens(value, categorical=self.how.at is not None)
        nodes = len(x) - int(self.how.graph_token)
        if self.how.at is not None:
            one = Data(dense=x, num_nodes=nodes)
            with evaluating(self), torch.no_grad():
                tokens = self._embedded(self.collate([one]).to(self.device))
            nodes = tokens.shape[1] - int(self.how.graph_token)
        if nodes < 1:
            raise InputError("there are no tokens besides the graph token.")
        return Input(Data(x=x, dense=x, num_nodes=nodes))

    def collate(self, graphs: list[Data], pad_to: int | None = None) -> WrappedBatch:
        """One batch of prepared inputs; `pad_to`: nodes to pad to."""
        if not graphs:
            raise ValueError("cannot make a batch of no graphs.")
        if self.how.dense:
            return collate_tokens(graphs, pad_to, self.how.graph_token)
        return collate_graphs(graphs, pad_to)

    def induced(self, data: Data, choice: Tensor) -> Data:
        """The subgraph on the chosen nodes (N,), with its structure recomputed."""
        if self.how.dense:
            raise ValueError("rows of tokens have no subgraphs: use the operator 'mask'.")
        return self.how.transformed(restricted(data, choice))

    def thinned(self, data: Data, choice: Tensor) -> Data:
        """The graph with the chosen edges (E,), with its structure recomputed."""
        roles, _ = roles_and_doubts([data])
        read = self.read_of_graphs()
        matrices = [key for key in matrices_in(roles) if read is None or key in read]
        if matrices and self.how.transform is None:
            raise ValueError(
                f"{', '.join(matrices)} may hold edges, too, and would keep them: give wrap(...,"
                " transform=...) that computes it from edge_index."
            )
        every = torch.ones(int(data.num_nodes or 0), dtype=torch.bool)
        return self.how.transformed(restricted(data, every, roles, edges=choice))

    def renumbered(self, graphs: Sequence[Data], orders: Sequence[Tensor]) -> list[Data]:
        """The same graphs, whose node k is node `order[k]`, with their structure recomputed."""
        roles, _ = roles_and_doubts(graphs)
        pairs = zip(graphs, orders, strict=True)
        return [self.how.transformed(reordered(graph, order, roles)) for graph, order in pairs]

    def repeated(self, data: Data, times: int) -> Data:
        """Several copies as one graph, with its structure recomputed."""
        return self.how.transformed(disjoint_copies(data, times))

    # -- the contract --------------------------------------------------------------------------

    def embed(self, batch: WrappedBatch) -> Tensor:
        """Tokens (B, T, D) that get the relevance, with a graph token or zeros first."""
        if self.how.at is not None:
            rows = self._embedded(batch)
        elif batch.graphs is not None:
            rows = batch.graphs.x
        else:
            assert batch.dense is not None
            rows = batch.dense
        return as_tokens(rows.to(self._dtype), batch, self.how.at)

    def encode(
        self,
        tokens: Tensor,
        batch: WrappedBatch,
        keep: Tensor | None = None,
    ) -> Tensor:
        """Outputs (B, C) of tokens (B, T, D); keep (B, N) hides nodes where it is False.

        Tokens and keep may contain the batch several times, (K * B, ...).
        """
        times, rest = divmod(len(tokens), len(batch))
        if rest or not times:
            raise ValueError(f"{len(tokens)} rows of tokens do not fit a batch of {len(batch)}.")
        several = len(tokens) > 1 or (keep is not None and batch.graphs is not None)
        if several and not self.shares_passes(batch):
            recorded = current_tape() is not None or current_relevance() is not None
            if recorded and len(batch) > 1:
                raise OneGraphAtATime(self, batch)
            apart = tokens_one_by_one if batch.graphs is None else one_by_one
            return apart(self, tokens, batch, keep)
        batch = batch.repeated(times)
        if batch.graphs is not None and (keep is not None or not bool(batch.num_nodes.all())):
            return self._outputs_of_rest(tokens, batch, batch.mask if keep is None else keep)
        shown = batch.mask if keep is None else batch.mask & keep
        if not self._masks_padding and not bool(shown.all()):
            raise ValueError(
                f"{type(self.module).__name__}.forward takes no padding mask: nodes cannot be"
                " hidden, and inputs of different lengths cannot share a batch. Pass a wrap(...,"
                " forward=...) that uses `batch.mask`, or remove nodes with the operator 'zero'."
            )
        if batch.graphs is None and not self.how.graph_token:
            nothing = ~shown.any(-1)
            tokens = tokens.masked_fill(nothing[:, None, None], 0.0)
            shown = shown | (nothing[:, None] & batch.mask)
        return self._pass(as_rows(tokens, batch), batch, shown)

    def outputs_without_nodes(self, batch: WrappedBatch) -> Tensor | None:
        """Outputs (B, C) of these graphs with no nodes, NaN where they are not finite.

        None if the model cannot run on them, or hides nodes by setting them to zero.
        """
        try:
            with restoring_attributes(self.running):
                tokens, nothing = self.embed(batch), torch.zeros_like(batch.mask)
                if batch.graphs is None:
                    hides = self.how.graph_token and self._masks_padding
                    return self.encode(tokens, batch, nothing) if hides else None
                if not self.shares_passes(batch):
                    return outputs_without_any_nodes(self, batch)
                last = int(batch.num_nodes.argmax())
                rest = batch.emptied(last, self.read_of_graphs())
                found = self._pass(tokens[last, 1:][batch.mask[last]], rest, rest.mask)[:-1]
                return found.expand(len(batch), -1)
        except (RuntimeError, ValueError, IndexError):
            return None

    def split_by_feature(self, batch: WrappedBatch, gradient: Tensor) -> Tensor | None:
        """Parts (B, N, F) of each node's `x . gradient`, if `x` gets it and has feature names."""
        if self.how.at is not None or not self.how.features:
            return None
        parts = batch.x.to(gradient) * gradient
        return parts if parts.shape[-1] == len(self.how.features) else None

    def __call__(self, batch: WrappedBatch) -> Tensor:
        """Outputs (B, C), as the module itself returns them."""
        if self.how.at is None:
            return self.encode(self.embed(batch), batch)
        if len(passes := self.passes(batch)) > 1:
            return torch.cat([self(one) for one in passes])
        if not self._masks_padding and not bool(batch.mask.all()):
            raise ValueError("inputs of different lengths cannot share a batch of this model.")
        return self._pass(None, batch, batch.mask)

    # -- passes --------------------------------------------------------------------------------

    @property
    def _dtype(self) -> torch.dtype:
        floats = (p.dtype for p in self.parameters() if p.is_floating_point())
        return next(floats, torch.get_default_dtype())

    def _pass(self, rows: Tensor | None, batch: WrappedBatch, shown: Tensor) -> Tensor:
        """Outputs (B, C) of node rows, with rules, recordings and bias shares as requested."""
        tape, state = current_tape(), current_relevance()
        if rows is None:
            return self._call(None, batch, shown)
        if tape is None and state is None and current_rules() == Rules():
            return self.rows_to_outputs(batch, shown)(rows)
        try:
            given = self._given(rows, batch, shown)
            if state is not None:
                return pass_by_positive_rules(given, state)
            outputs = pass_by_conservative_rules(given, current_rules(), tape)
        except GraphsNeedOwnPass:
            raise OneGraphAtATime(self, batch) from None
        if tape is not None and not tape.with_biases and not tape.attention:
            raise NoAttentionError(
                f"{type(self.module).__name__} has no attention between nodes that graphxai can"
                " see: methods that read attention cannot explain it. (Attention without a softmax"
                " is not read, nor attention over more rows than the nodes, for example with a"
                " class token that the model adds.)"
            )
        return outputs

    def _given(self, rows: Tensor, batch: WrappedBatch, shown: Tensor) -> PassRequest:
        """The pass of these node rows, with the graph's other attributes.

        `x` is one of them where the rows are an embedding: others may be made of it, too.
        """
        beside = (self.how, shown, *batch.parts())
        leaves, batch = batch.leaves, batch.without_gradients()
        call = self.rows_to_outputs(batch, shown)
        no_inputs = NO_INPUTS if self.how.at is None else NO_INPUTS - {"x"}
        others = {
            name: value
            for name, value in (() if batch.graphs is None else batch.graphs.items())
            if isinstance(value, Tensor) and name not in no_inputs
        }
        of_rows = batch.layout, others, batch.graphs_of
        return PassRequest(self.running, call, rows, *of_rows, leaves, beside)

    def rows_to_outputs(self, batch: WrappedBatch, shown: Tensor) -> Callable[[Tensor], Tensor]:
        """A plain pass as a function of node rows (n, D) or (B, S, D)."""

        def call(rows: Tensor) -> Tensor:
            with self._hooked(lambda module, args, output: rows):
                return self._call(rows, batch, shown)

        return call

    @contextmanager
    def _hooked(self, hook: Callable[..., Any]) -> Iterator[None]:
        """Within the block the module `at`, if it is named, has this forward hook."""
        if self.how.at is None:
            yield
            return
        handle = module_named(self.running, self.how.at).register_forward_hook(hook)
        try:
            with uncompiled(self.running):
                yield
        finally:
            handle.remove()

    def pass_on(self, rows: Tensor, batch: WrappedBatch) -> Tensor:
        """Outputs (B, C) of node rows (n, D), even if there are none."""
        return self._pass(rows, batch, batch.mask)

    def _outputs_of_rest(self, tokens: Tensor, batch: WrappedBatch, keep: Tensor) -> Tensor:
        last = int(batch.num_nodes.argmax())
        if not int(batch.num_nodes[last]):
            raise ValueError("none of these graphs has any nodes.")
        shown = batch.mask & keep
        rest = batch.without(shown, last, self.read_of_graphs())
        rows = torch.cat([tokens[:, 1:][shown], tokens[last, 1:][batch.mask[last]]])
        outputs = self._pass(rows, rest, rest.mask)[:-1]
        hidden, empty = batch.mask.any(-1) & ~shown.any(-1), ~batch.mask.any(-1)
        if not bool(torch.isfinite(outputs[empty]).all()):
            warn_of_undefined_empty(self)
        if bool(torch.isfinite(outputs[hidden]).all()):
            return outputs
        warn_of_zeroed_nodes(self)
        zeros = tokens.masked_fill(hidden[:, None, None], 0.0)
        return self._outputs_of_rest(zeros, batch, keep | (hidden[:, None] & batch.mask))

    def read_of_graphs(self) -> set[str] | None:
        """Names of the graph attributes passed to the model; None: it may read any."""
        return None if self.how.forward else attributes_read(self.module)

    def _call(self, rows: Tensor | None, batch: WrappedBatch, shown: Tensor) -> Tensor:
        """The user's module on the batch, with `x` replaced by rows if they are the input."""
        size, columns = len(batch), self.config.num_outputs
        if batch.graphs is not None:
            graphs = batch.graphs.clone().apply(self._in_own_type)
            if rows is not None and self.how.at is None:
                graphs.x = rows.clone()  # a model may write over its input
            run = self.how.forward or call_with_graphs
            given = as_typed(graphs) if SCHEMA in graphs else graphs
            with without_fused_attention(self.running):
                return as_outputs(run(self.running, given), size, columns, graphs)
        replaced = rows is not None and self.how.at is None
        x = rows if replaced else batch.dense
        assert x is not None
        mask = torch.nn.functional.pad(shown, (1, 0), value=True) if self.how.graph_token else shown
        run = self.how.forward or call_with_tokens
        x = x.clone() if replaced else self._in_own_type(x.clone())
        with without_fused_attention(self.running):
            return as_outputs(run(self.running, Tokens(x, mask)), size, columns)

    def _in_own_type(self, value: Tensor) -> Tensor:
        return value.to(self._dtype) if value.is_floating_point() else value

    def _embedded(self, batch: WrappedBatch) -> Tensor:
        """The output of the module `at` in a pass: node rows (n, D), or tokens (B, S, D)."""
        found: list[Any] = []
        with self._hooked(lambda module, args, output: found.append(output)):
            self._call(None, batch, batch.mask)
        if len(found) != 1 or not isinstance(found[0], Tensor):
            raise ValueError(
                f"the module {self.how.at!r} is called {len(found)} times in a pass; name one"
                " that is called once and returns a tensor."
            )
        return found[0]
