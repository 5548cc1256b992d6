"""A user's model that meets the contract in `contract.model` without changes to its code."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphxai.contract.batch import OneGraphAtATime
from graphxai.contract.inputs import Input
from graphxai.contract.intervals import Conformal
from graphxai.contract.model import Origin, ShownModel, tasks_text
from graphxai.engine.attention.reading import GraphsNeedOwnPass
from graphxai.engine.positive.context import current_relevance
from graphxai.engine.positive.rules import pass_by_positive_rules
from graphxai.engine.recorded_pass import pass_by_recording
from graphxai.engine.request import PassMemory, Tier
from graphxai.engine.session import pass_by_conservative_rules
from graphxai.rules.conservative import Rules, current_rules, current_tape
from graphxai.rules.module_rule import computing_by_rules
from graphxai.runtime.scope import Blocks
from graphxai.wrapping.eval_replica import restoring_attributes, unchanged_by_errors

from .attribute_roles import attribute_roles, matrices_in, roles_and_doubts
from .batches import WrappedBatch, as_rows, as_tokens, collate_graphs, collate_tokens, is_real
from .calling import CallSettings, WrappedConfig, attributes_read, takes_padding_mask
from .chosen import is_about_nodes
from .describing import changes_gradients, described_pass, pass_under_rules
from .embedding import embedded_rows, outputs_of_rows
from .eval_replica import ModuleView
from .heterogeneous import SCHEMA, names_added
from .hiding import outputs_of_kept, outputs_without_nodes
from .lookups import LookupForms, codes_by_node
from .messages import counting_layers
from .model_checks import ATTENTION_IN_PARTS, COUNTS_PADDING, ModelChecks
from .one_at_a_time import PaddingCheck, one_by_one, runs_of_one_size, tokens_one_by_one
from .reading import prepared
from .subgraphs import disjoint_copies, reordered, restricted

if TYPE_CHECKING:
    from graphxai.datasets.training_set import TrainingSet

# the checks that hold within a block in which the model is explained
_checks_in_block: Blocks[ModelChecks | None] = Blocks("graphxai_checks", None)


class WrappedModel(ShownModel, ModuleView):
    """A module, made by `wrap`, that meets the contract `contract.model.ExplainableModel`."""

    takes_variants = True  # of a batch, in one call of `encode`
    joins_nodes = True  # one pass answers for several nodes of a graph

    def __init__(
        self, module: nn.Module, config: WrappedConfig, settings: CallSettings, name: str
    ) -> None:
        super().__init__(module)
        self.config, self.settings = config, settings
        self.origin = Origin(name)
        self.conformal: dict[str, Conformal] = {}
        self.training_set: TrainingSet | None = None
        self.padding = PaddingCheck()
        self._checks = ModelChecks(module)
        self.memory = PassMemory()
        self.lookups = LookupForms()
        of_graphs_or_own_call = settings.forward is not None or not settings.dense
        self.masks_padding = of_graphs_or_own_call or takes_padding_mask(module)

    def __repr__(self) -> str:
        tasks = tasks_text(self.config.tasks)
        takes = "rows of tokens" if self.settings.dense else self.config.reads
        names = " and ".join(self.settings.embedding)
        at = f", explained at {names}" if names else ""
        return f"WrappedModel({self.origin.name} of {takes}: {tasks}{at})"

    @property
    def default_method(self) -> str | None:
        """The method that explains the model where nobody chose one, or None for the usual one."""
        return None if self.settings.has_gradients else "occlusion"

    # -- what may share a pass -----------------------------------------------------------------

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the columns of `x`."""
        return self.settings.features

    @property
    def explained_inputs(self) -> tuple[str, ...]:
        """The inputs that get relevance unless the caller names others."""
        return self.settings.wrt

    @property
    def same_size_only(self) -> bool:
        """Whether inputs of different lengths cannot share a batch."""
        return not self.masks_padding

    def goes_alone(self, data: Data) -> bool:
        """Return whether an input cannot share a batch with others."""
        return bool(self.why_alone(data))

    def why_alone(self, data: Data) -> str:
        """Say of the model why an input cannot share a batch with others; "" if it can."""
        return self._checks.why_alone(self, data)  # to see whether they still hold takes long

    def warn_of_single_passes(
        self, why: str, graphs: int, together: int = 1, passes: int | None = None
    ) -> None:
        """Warn, once for each reason, that graphs take several passes, instead of `together`."""
        passes = graphs if passes is None else passes
        name = type(self.module).__name__
        self.checks.warn_of_single_passes(name, why, graphs, together, passes)

    def batch_group(self, data: Data) -> Any:
        """Return what the inputs of one batch must have in common: the attributes that are read.

        A batch only has the attributes that all of its graphs have. So a graph without features of
        edges, for example, would take away those of the others.
        """
        if self.settings.dense:
            return None
        names, added = self.attributes_read(), names_added(data)
        attributes = {
            key: tuple(value.shape[1:]) if key == "x" else value if key == SCHEMA else None
            for key, value in data.to_dict().items()
            if names is None or key in names or key in added or key == "x"
        }
        return frozenset(attributes.items())

    def passes(self, batch: WrappedBatch) -> list[WrappedBatch]:
        """Return the batch, or a batch for each of its inputs if they cannot share a pass.

        Neighbours of the same size share one if the model counts padding. The first batch of
        several inputs shows whether the model mixes graphs (`model_checks`).
        """
        if len(batch) == 1 or not (why := self.why_single_passes(batch)):
            return [batch]
        by_size = why == COUNTS_PADDING and self.padding.shares_by_size(batch)
        groups = runs_of_one_size(batch) if by_size else [[row] for row in range(len(batch))]
        self.warn_of_single_passes(why, len(batch), passes=len(groups))
        return [batch.of_rows(*rows) for rows in groups]

    def why_single_passes(self, batch: WrappedBatch) -> str:
        """Say of the model why inputs like those of a batch take a pass each; "" if they share."""
        return self.checks.why_single_passes(self, batch)

    @property
    def reads_class_token(self) -> bool:
        """Whether recorded attention has shown that the output is read at an added class token."""
        return self.checks.reads_class_token

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Run passes within the block in eval mode, and take the module's form as it is now."""
        with super().evaluating(), _checks_in_block.block(self.checks):
            yield

    @property
    def checks(self) -> ModelChecks:
        """What earlier passes have shown about the module in its present form."""
        if _checks_in_block.get() is self._checks:
            return self._checks
        if not self._checks.is_of(self.module):
            self._checks = ModelChecks(self.module)
        return self._checks

    # -- inputs --------------------------------------------------------------------------------

    def prepare(self, value: Any) -> Input:
        """Prepare one input of `explain`, or raise InputError if it cannot be used."""
        return prepared(self, value)

    def collate(self, graphs: list[Data], pad_to: int | None = None) -> WrappedBatch:
        """Collate prepared inputs into one batch, padded to at least `pad_to` nodes."""
        if not graphs:
            raise ValueError("cannot make a batch of no graphs.")
        if self.settings.dense:
            return collate_tokens(graphs, pad_to, self.settings.graph_token)
        return collate_graphs(graphs, pad_to, self.attributes_read())

    def induced(self, data: Data, choice: Tensor) -> Data:
        """Cut out the subgraph on the chosen nodes (N,) and recompute its structure."""
        if self.settings.dense:
            raise ValueError("rows of tokens have no subgraphs: use the operator 'mask'.")
        part = restricted(data, choice)
        if not bool(choice.any()):  # of which a transform may know no structure
            with suppress(Exception):
                return self.settings.transformed(part)
            return part
        return self.settings.transformed(part)

    def thinned(self, data: Data, choice: Tensor) -> Data:
        """Keep the chosen edges (E,) of a graph and recompute its structure."""
        names = self.attributes_read()
        roles = attribute_roles([data], names)
        matrices = [key for key in matrices_in(roles) if names is None or key in names]
        if matrices and self.settings.transform is None:
            raise ValueError(
                f"{', '.join(matrices)} may hold edges too, and would keep them: pass wrap(...,"
                " transform=...) that computes it from edge_index."
            )
        all_nodes = torch.ones(int(data.num_nodes or 0), dtype=torch.bool)
        return self.settings.transformed(restricted(data, all_nodes, roles, edges=choice))

    def renumbered(self, graphs: Sequence[Data], orders: Sequence[Tensor]) -> list[Data]:
        """Reorder nodes so that node k is node `order[k]`, and recompute each structure."""
        roles, _ = roles_and_doubts(graphs)
        pairs = zip(graphs, orders, strict=True)
        return [self.settings.transformed(reordered(graph, order, roles)) for graph, order in pairs]

    def repeated(self, data: Data, times: int) -> Data:
        """Join copies of a graph into one graph, and recompute its structure."""
        return self.settings.transformed(disjoint_copies(data, times))

    @property
    def tier(self) -> Tier | None:
        """How the last pass under the rules of a method ran: by "hooks", or by a "recording".

        LRP, its variants, AttnLRP and Gradient x Input run by hooks on PyTorch's autograd graph, if
        this graph says everything that the rules need. All other passes are recorded.
        """
        return self.memory.tier

    @property
    def why_recorded(self) -> str | None:
        """Why hooks did not do for a pass, with the operation and its modules, or None."""
        return self.memory.why_recorded

    def with_edge_gates(self, batch: WrappedBatch) -> WrappedBatch:
        """Return the batch with gates at the messages of edges, see `messages`.

        Raises InputError if messages cannot be followed to the edges, or there are none.
        """
        gated = batch.with_edge_gates()
        rows = as_rows(self.embed(batch), batch).detach().requires_grad_()
        with torch.enable_grad(), counting_layers() as layers:
            self.rows_to_outputs(gated, gated.mask)(rows)
        return replace(gated, message_layers=max(layers))

    # -- the contract --------------------------------------------------------------------------

    def embed(self, batch: WrappedBatch) -> Tensor:
        """Return the tokens (B, T, D) that get relevance, after a graph token or zeros."""
        if self.settings.embedding:
            rows = embedded_rows(self, batch)
        elif batch.graphs is not None:
            rows = batch.graphs.x
            rows = rows if is_real(rows) else codes_by_node(rows)
        else:
            assert batch.dense is not None
            rows = batch.dense
        return as_tokens(rows.to(self.float_dtype), batch, " and ".join(self.settings.embedding))

    def encode(self, tokens: Tensor, batch: WrappedBatch, keep: Tensor | None = None) -> Tensor:
        """Return the outputs (B, C) of tokens (B, T, D).

        Nodes are hidden where `keep` (B, N) is False. Both may hold the batch several times, as
        (K * B, ...).
        """
        times, rest = divmod(len(tokens), len(batch))
        if rest or not times:
            raise ValueError(f"{len(tokens)} rows of tokens do not fit a batch of {len(batch)}.")
        several = len(tokens) > 1 or (keep is not None and batch.graphs is not None)
        why = self.why_single_passes(batch) if several else ""
        if why == COUNTS_PADDING and self.padding.shares_by_size(
            batch, batch.mask.repeat(times, 1) if keep is None else keep
        ):
            why = ""
        if why:
            recorded = current_tape() is not None or current_relevance() is not None
            if recorded and len(batch) > 1:
                raise OneGraphAtATime(self, why)
            self.warn_of_single_passes(why, len(tokens))
            run = tokens_one_by_one if batch.graphs is None else one_by_one
            return run(self, tokens, batch, keep)
        batch = batch.repeated(times)
        if batch.graphs is not None and (keep is not None or not bool(batch.num_nodes.all())):
            return outputs_of_kept(self, tokens, batch, batch.mask if keep is None else keep)
        shown = batch.mask if keep is None else batch.mask & keep
        if not self.masks_padding and not bool(shown.all()):
            raise ValueError(
                f"{type(self.module).__name__}.forward takes no padding mask: nodes cannot be"
                " hidden, and inputs of different lengths cannot share a batch. Pass a wrap(...,"
                " forward=...) that uses `batch.mask`, or remove nodes with the operator 'zero'."
            )
        if batch.graphs is None and not self.settings.graph_token:
            all_hidden = ~shown.any(-1)
            tokens = tokens.masked_fill(all_hidden[:, None, None], 0.0)
            shown = shown | (all_hidden[:, None] & batch.mask)
        return self.run_pass(as_rows(tokens, batch), batch, shown)

    def outputs_without_nodes(self, batch: WrappedBatch) -> Tensor | None:
        """Return the outputs (B, C) of these graphs without nodes, with NaN if they are not finite.

        If the model cannot run on such graphs, or hides nodes by setting them to zero, return None.
        They run beside a few nodes of the smallest graph, or beside all of them if that fails.
        Without the node that is explained, or one of a pair, the output is zero.
        """
        return outputs_without_nodes(self, batch)

    def outputs_of_zeroed_nodes(self, batch: WrappedBatch) -> Tensor | None:
        """Return the outputs (B, C) of graphs whose nodes are zeros, or None if it has none."""
        if self.settings.dense or (batch.graphs is not None and is_about_nodes(batch.graphs)):
            return None
        with suppress(Exception), restoring_attributes(self.running):
            return self.encode(torch.zeros_like(self.embed(batch)), batch)
        return None

    def split_by_feature(self, batch: WrappedBatch, gradient: Tensor) -> Tensor | None:
        """Split each node's `x . gradient` into features (B, N, F), if features have names.

        If they have no names, or if an embedding gets the gradient, return None.
        """
        if self.settings.embedding or not self.settings.features:
            return None
        parts = batch.x.to(gradient) * gradient
        return parts if parts.shape[-1] == len(self.settings.features) else None

    def __call__(self, batch: WrappedBatch) -> Tensor:
        """Return the outputs (B, C) of the module itself."""
        if not self.settings.embedding:
            return self.encode(self.embed(batch), batch)
        if len(passes := self.passes(batch)) > 1:
            return torch.cat([self(single) for single in passes])
        if not self.masks_padding and not bool(batch.mask.all()):
            raise ValueError("inputs of different lengths cannot share a batch of this model.")
        return self.run_pass(None, batch, batch.mask)

    # -- passes --------------------------------------------------------------------------------

    def run_pass(self, rows: Tensor | None, batch: WrappedBatch, shown: Tensor) -> Tensor:
        """Return the outputs (B, C) of node rows, under the rules and recordings in force."""
        tape, state = current_tape(), current_relevance()
        if rows is None:
            return self.call_module(None, batch, shown)
        if tape is None and state is None and current_rules() == Rules():
            outputs = self.rows_to_outputs(batch, shown)(rows)
            pass_of_nodes = partial(described_pass, self, rows, replace(batch, leaves={}), shown)
            if not changes_gradients(outputs, self.checks.ways_back, pass_of_nodes):
                return outputs
            return pass_by_recording(described_pass(self, rows, batch, shown), Rules(), None)
        rules = self.settings.rules_with(current_rules())
        try:
            request = described_pass(self, rows, batch, shown)
            with unchanged_by_errors(self.memory):
                if state is not None:
                    outputs = pass_by_positive_rules(request, state)
                    self.checks.reads_class_token |= state.reads_class_token
                    return outputs
                request = pass_under_rules(request, rules.of_modules)
                with computing_by_rules(self.running, rules.of_modules) as acting:
                    outputs = pass_by_conservative_rules(request, rules, tape)
        except GraphsNeedOwnPass:
            raise OneGraphAtATime(self, ATTENTION_IN_PARTS) from None
        if tape is not None:
            self.checks.reads_class_token |= tape.reads_class_token
            if rules.custom and tape.with_biases:
                idle = {*self.settings.rules} - tape.acting_rules - acting
                self.checks.warn_of_idle_rules(type(self.module).__name__, idle)
        return outputs

    def rows_to_outputs(self, batch: WrappedBatch, shown: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a plain pass as a function of node rows (n, D) or (B, S, D)."""
        return lambda rows: outputs_of_rows(self, rows, batch, shown)

    def attributes_read(self) -> set[str] | None:
        """Return the names of the graph attributes that the model reads, or None for all."""
        return None if self.settings.forward else attributes_read(self.module)

    def call_module(self, rows: Tensor | None, batch: WrappedBatch, shown: Tensor) -> Tensor:
        """Call the user's module on the batch. Rows replace `x` unless they are an embedding."""
        return self.settings.call(
            self.running, rows, batch, shown, self.float_dtype, self.config.num_outputs
        )
