"""Call a wrapped module, and prepare its inputs, as the settings of `wrap` say."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data

from graphxai.contract.inputs import EDGE_GATES
from graphxai.contract.tasks import TaskSet
from graphxai.rules.conservative import Rules
from graphxai.rules.module_rule import CustomRule
from graphxai.runtime.device import users_default_device
from graphxai.runtime.modules import uncompiled
from graphxai.wrapping.ties import shared_ties

from .batches import WrappedBatch, closed, is_real
from .calling import (
    Forward,
    answer_of,
    as_outputs,
    attributes_read,
    call_with_graphs,
    call_with_tokens,
    module_named,
    without_fused_attention,
)
from .heterogeneous import SCHEMA, as_typed
from .lookups import Hook, codes_of
from .messages import gated_messages
from .reading import Tokens


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

        if batch.graphs is not None:
            graphs = batch.graphs.clone().apply(converted)
            if replaces_x:
                assert rows is not None
                # a model may write over its input
                graphs.x = rows.clone() if is_real(graphs.x) else codes_of(rows, graphs.x)
            graphs = closed(graphs)
            run_graphs = self.forward or call_with_graphs
            gates = graphs.get(EDGE_GATES)
            gated = (
                nullcontext() if gates is None else gated_messages(module, graphs.edge_index, gates)
            )
            with (
                without_fused_attention(module),
                shared_ties(module),
                users_default_device(),
                gated,
            ):
                inputs = as_typed(graphs) if SCHEMA in graphs else graphs
                names = None if self.forward else attributes_read(module)
                answer = answer_of(run_graphs, module, inputs)
            return as_outputs(answer, size, columns, graphs, names)
        x = rows if replaces_x else batch.dense
        assert x is not None
        mask = F.pad(shown, (1, 0), value=True) if self.graph_token else shown
        run_tokens = self.forward or call_with_tokens
        x = x.clone() if replaces_x else converted(x.clone())
        with without_fused_attention(module), shared_ties(module), users_default_device():
            answer = answer_of(run_tokens, module, Tokens(x, mask))
        return as_outputs(answer, size, columns)

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
