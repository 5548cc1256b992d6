"""Call a user's module as the settings of `wrap` say, and check what it returns.

If a node is explained, its row is taken from the answer.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from inspect import Parameter, signature
from types import MethodType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.overrides import BaseTorchFunctionMode
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import Sequential

from graphxai.contract.inputs import EDGE_GATES, EXPLAINED_NODE
from graphxai.contract.tasks import TaskSet
from graphxai.rules.conservative import Rules
from graphxai.rules.module_rule import CustomRule
from graphxai.runtime.device import users_default_device
from graphxai.runtime.modules import uncompiled
from graphxai.wrapping.ties import shared_ties

from .batches import WrappedBatch, closed, is_real
from .chosen import (
    PAIR,
    advice_for_node_outputs,
    nodes_asked,
    outputs_of_explained_pairs,
    rows_of_explained_nodes,
    with_rows_of_hidden_nodes,
)
from .heterogeneous import SCHEMA, as_typed
from .lookups import Hook, codes_of
from .messages import gated_messages
from .reading import Tokens, naming_columns

Forward = Callable[[nn.Module, Any], Tensor]

UNNAMED = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
WHOLE_BATCH = ("data", "batch", "graph", "graphs", "g", "batch_data", "batched_data", "inputs")
OF_GRAPHS = ("batch", "ptr", "graph")  # in the names of arguments that say which graph is whose
TRUE_AT_PADDING = ("src_key_padding_mask", "key_padding_mask", "padding_mask")
ONE_AT_TOKENS = ("attention_mask",)  # as in Hugging Face's models


def call_with_graphs(model: nn.Module, batch: Batch) -> Any:
    """Call `model.forward` with the batch, or with the attributes of the batch that it names.

    Raises:
        TypeError: the graphs do not have an attribute for an argument.
    """
    if attributes_read(model) is None:
        return model(batch)
    sizes = {"batch_size": batch.num_graphs, "num_graphs": batch.num_graphs}
    passes_arguments_on = {p.kind for p in _all_parameters(model)} <= UNNAMED
    by_place = passes_arguments_on or isinstance(model, GraphModule)  # exports take no names
    in_order: list[Any] = []
    by_name: dict[str, Any] = {}
    for parameter in _parameters(model):
        value = _attribute(batch, parameter.name, sizes.get(parameter.name))
        if value is None and parameter.default is Parameter.empty:
            raise TypeError(
                f"{type(model).__name__}.forward needs {parameter.name!r}, which the graph does not"
                " have: pass wrap(..., forward=lambda model, batch: ...)."
            )
        if by_place and parameter.kind != Parameter.KEYWORD_ONLY:
            in_order.append(parameter.default if value is None else value)
        elif value is not None:
            by_name[parameter.name] = value
    return model(*in_order, **by_name)


def _attribute(batch: Any, name: str, default: Any = None) -> Any:
    """Get an attribute of a batch, or in a heterogeneous batch all its types (`x_dict`)."""
    if name.endswith("_dict") and isinstance(batch, HeteroData):
        return batch.collect(name.removesuffix("_dict"), allow_empty=True) or default
    return batch.get(name, default)


def attributes_read(model: nn.Module) -> set[str] | None:
    """Return the attributes that `model.forward` names, or None if it takes the whole batch."""
    names = [p.name for p in _parameters(model)]
    return None if "x" not in names and names and names[0] in WHOLE_BATCH else set(names)


def takes_batch_vector(model: nn.Module) -> bool:
    """Return whether `model.forward` has an argument that assigns nodes to graphs."""
    names = attributes_read(model)
    return names is None or any(word in name for name in names for word in OF_GRAPHS)


def takes_padding_mask(model: nn.Module) -> bool:
    """Return whether `model.forward` has an argument that marks padding."""
    return any(p.name in (*TRUE_AT_PADDING, *ONE_AT_TOKENS) for p in _parameters(model))


def call_with_tokens(model: nn.Module, tokens: Tokens) -> Any:
    """Call `model.forward` with x, and with the padding mask if it has an argument for it."""
    options = {}
    for parameter in _parameters(model)[1:]:
        if parameter.name in TRUE_AT_PADDING:
            options[parameter.name] = ~tokens.mask
        elif parameter.name in ONE_AT_TOKENS:
            options[parameter.name] = tokens.mask.long()
    return model(tokens.x, **options)


def answer_of(run: Forward, module: nn.Module, inputs: Any) -> Any:
    """Return what a module answers.

    Without gradients, PyTorch's encoder layers run in a kernel that fails under autocast. If it
    does, they run as they do with gradients.
    """
    try:
        return run(module, inputs)
    except RuntimeError:
        layers = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
        if torch.is_grad_enabled() or not any(isinstance(m, layers) for m in module.modules()):
            raise
    with BaseTorchFunctionMode():  # layers use no kernel while one is active
        return run(module, inputs)


@contextmanager
def without_fused_attention(model: nn.Module) -> Iterator[None]:
    """If the block calls `flex_attention`, which hides its attention, say what to do."""
    try:
        yield
    except RuntimeError as error:  # also NotImplementedError and errors of torch.compile
        if re.search("flex_?attention", str(error), re.IGNORECASE) is None:
            raise
        raise ValueError(
            f"{type(model).__name__} calls flex_attention, a fused kernel that hides its attention,"
            " cannot be given rules and has no gradient on a CPU. Let the model call"
            " F.scaled_dot_product_attention instead (attn_implementation='sdpa' in Hugging Face"
            " models)."
        ) from error


def as_outputs(
    answer: Any,
    size: int,
    columns: int,
    graphs: Batch | None = None,
    attributes: Collection[str] | None = None,
) -> Tensor:
    """Turn the model's answer into outputs (B, columns).

    Args:
        answer: what the model returned.
        size: the number of inputs B.
        graphs: the batch that the answer is about. If it says which nodes are explained, the
            answer must have a row per node.
        attributes: the names of the attributes that the model reads, or None if it reads all.

    Raises:
        ValueError: the answer cannot be turned into outputs.
    """
    answer, advice = getattr(answer, "logits", answer), ""
    if isinstance(answer, Mapping) and isinstance(answer.get("logits"), Tensor):
        answer = answer["logits"]
    if graphs is not None and PAIR in graphs:
        answer = outputs_of_explained_pairs(answer, graphs, size, attributes)
    elif graphs is not None and EXPLAINED_NODE in graphs:
        if (rows := rows_of_explained_nodes(answer, graphs)) is None:
            raise ValueError("node= is for models that return one row per node: leave it out.")
        answer = rows
    elif graphs is not None:
        answer = with_rows_of_hidden_nodes(answer, graphs, size, attributes)
        advice = advice_for_node_outputs(answer, graphs, size)
    if advice:
        form = "a mapping" if isinstance(answer, Mapping) else f"shape {tuple(answer.shape)}"
        raise ValueError(
            f"the model returns {form} for {size} inputs, one row per node: {advice}, or pool rows"
            " with wrap(..., forward=...)."
        )
    if not isinstance(answer, Tensor):
        raise ValueError(
            f"the model returns {type(answer).__name__}, not a tensor: select one with"
            " wrap(..., forward=...)."
        )
    outputs = answer[:, None] if answer.dim() == 1 and len(answer) == size else answer
    if size == 1 and answer.dim() < 2 and answer.numel() == columns:
        outputs = answer.reshape(1, columns)  # of a graph by itself
    if graphs is not None:
        columns *= len(nodes_asked(graphs))
    if outputs.shape != (size, columns):
        advice = (
            "If it returns one row per node, choose a node with explain(..., node=...), or select"
            " or pool rows with wrap(..., forward=...)."
        )
        if answer.dim() == 2 and len(answer) == size:
            several = answer.shape[1]
            advice = (
                f"If its {several} columns are logits of classes, pass kind='multiclass' and"
                f" classes={several}, or their names; if they are different properties, pass"
                " tasks=[...]; or select columns with wrap(..., forward=...)."
            )
        raise ValueError(
            f"the model returns shape {tuple(answer.shape)} for {size} inputs; the tasks need"
            f" ({size}, {columns}). {advice}"
        )
    return outputs


def module_named(model: nn.Module, name: str) -> nn.Module:
    """Find a part of the model by name, or raise ValueError with similar names."""
    modules = dict(model.named_modules())
    if name and name in modules:
        return modules[name]
    names = [path for path in modules if path]
    similar = get_close_matches(name, names, n=3, cutoff=0.4) or names[:10]
    raise ValueError(
        f"{type(model).__name__} has no module {name!r}; similar: {', '.join(similar) or 'none'}."
    )


def _parameters(model: nn.Module) -> list[Parameter]:
    """Return the named parameters of `forward`.

    If `forward` only has `*args` or `**kwargs`, return those of the class that it extends, or else
    of the module's only child.
    """
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    parameters = _all_parameters(model)
    named = [p for p in parameters if p.kind in kinds]
    if not parameters or named:
        return named
    for base in type(model).__mro__[1:]:
        forward = vars(base).get("forward")
        if base is not nn.Module and forward is not None and type(model.forward) is MethodType:
            extended = [p for p in _parameters_of(forward)[1:] if p.kind in kinds]
            if extended:
                return extended
    children = list(model.children())
    return _parameters(children[0]) if len(children) == 1 else named


def _all_parameters(model: nn.Module) -> list[Parameter]:
    """Return all parameters of `forward` except `self`. PyG's `Sequential` lists its own."""
    if isinstance(model, Sequential):
        names = model.signature.param_dict
        return [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    forward = model.forward
    if type(forward) is not MethodType:
        try:
            return list(signature(forward).parameters.values())
        except ValueError as error:  # a traced module has none
            raise ValueError(
                f"{type(model).__name__}.forward does not say what it takes: give wrap a forward=,"
                " such as forward=lambda model, batch: model(batch.x)."
            ) from error
    first, *others = _parameters_of(forward.__func__)
    return [first, *others] if first.kind == Parameter.VAR_POSITIONAL else others


@lru_cache(maxsize=64)
def _parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a function, cached because reading them takes a while."""
    return tuple(signature(function).parameters.values())


# -- the settings of `wrap` ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CallSettings:
    """The settings of `wrap`, which documents each of them."""

    embedding: tuple[str, ...] = ()
    forward: Forward | None = None
    dense: bool = False  # whether the inputs are tokens, not graphs
    graph_token: bool = False
    featurize: Callable[[Any], Any] | None = None
    transform: Callable[[Data], Data] | None = None
    features: tuple[str, ...] = ()
    rules: tuple[CustomRule, ...] = ()
    has_gradients: bool = True  # an estimator that is no network has none
    one_at_a_time: bool = False
    zeroes_nodes: bool = False  # where all are hidden, although they could be removed
    wrt: tuple[str, ...] = ("x",)  # the inputs that get relevance unless the caller names others

    def rules_with(self, rules: Rules) -> Rules:
        """Add the rules of the model to those of a method, if the method has any.

        Where both have a rule for an operation or class, that of the model acts.
        """
        if not self.rules or rules == Rules():
            return rules
        replaced = {rule.acts_on for rule in self.rules}
        others = tuple(rule for rule in rules.custom if rule.acts_on not in replaced)
        return replace(rules, custom=(*self.rules, *others))

    def transformed(self, graph: Data) -> Data:
        """Recompute the structure of a graph that has lost some of its nodes or edges."""
        return graph if self.transform is None else self.transform(graph)

    def call(
        self,
        module: nn.Module,
        rows: Tensor | None,
        batch: WrappedBatch,
        shown: Tensor,
        dtype: torch.dtype,
        columns: int,
    ) -> Tensor:
        """Return the outputs (B, columns) of a module on a batch.

        Args:
            module: the module.
            rows: node rows (n, D) or (B, S, D), which replace `x` unless they are an embedding.
            batch: the batch.
            shown (B, N): False at the tokens to hide.
            dtype: the type of the module's floats. Those of the batch are converted to it.
            columns: the number of output columns.
        """
        size, replaces_x = len(batch), rows is not None and not self.embedding

        def converted(value: Tensor) -> Tensor:
            return value.to(dtype) if value.is_floating_point() else value

        if batch.graphs is None:
            x = rows if replaces_x else batch.dense
            assert x is not None
            mask = F.pad(shown, (1, 0), value=True) if self.graph_token else shown
            x = x.clone() if replaces_x else converted(x.clone())
            tokens = Tokens(x, mask)
            naming = naming_columns(module, {"x": tokens.x})
            answer = self._answer(module, call_with_tokens, lambda: tokens, naming)
            return as_outputs(answer, size, columns)
        graphs = batch.graphs.clone().apply(converted)
        if replaces_x:
            assert rows is not None
            # a model may write over its input
            graphs.x = rows.clone() if is_real(graphs.x) else codes_of(rows, graphs.x)
        graphs = closed(graphs)
        gates = graphs.get(EDGE_GATES)
        gated = nullcontext() if gates is None else gated_messages(module, graphs.edge_index, gates)

        def inputs() -> Any:
            return as_typed(graphs) if SCHEMA in graphs else graphs

        with naming_columns(module, graphs.to_dict()):
            answer = self._answer(module, call_with_graphs, inputs, gated)
        names = None if self.forward else attributes_read(module)
        return as_outputs(answer, size, columns, graphs, names)

    def _answer(
        self,
        module: nn.Module,
        usual: Forward,
        inputs: Callable[[], Any],
        gated: AbstractContextManager[None],
    ) -> Any:
        """Call the module, by the user's own function or as is usual for such inputs."""
        with (
            without_fused_attention(module),
            uncompiled(module),  # or the search for ties would be compiled too, which may fail
            shared_ties(module),
            users_default_device(),
            gated,
        ):
            return answer_of(self.forward or usual, module, inputs())

    @contextmanager
    def hooking_embedding(self, module: nn.Module, hook: Hook) -> Iterator[None]:
        """Within the block, call a hook in the forward pass of each embedding."""
        if not self.embedding:
            yield
            return
        with ExitStack() as stack:
            for name in self.embedding:
                part = module_named(module, name)
                handle = part.register_forward_hook(lambda m, args, out, n=name: hook(n, args, out))
                stack.callback(handle.remove)
            stack.enter_context(uncompiled(module))
            yield


@dataclass(frozen=True)
class WrappedConfig(TaskSet):
    """The tasks of a wrapped model, and what it reads.

    Args:
        reads: "molecules" if it takes SMILES and the nodes of a graph are the atoms, otherwise
            "graphs" or "tokens".
    """

    reads: Literal["molecules", "graphs", "tokens"] = "graphs"

    @property
    def reads_molecules(self) -> bool:
        """Whether the model takes SMILES."""
        return self.reads == "molecules"
