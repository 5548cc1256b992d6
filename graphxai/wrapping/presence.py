"""Run passes of a wrapped model with some nodes absent, and compute the marginals of all nodes.

The model is recorded once, on the whole graphs. `engine.presence` then runs the recorded pass again
for every coalition of nodes.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import is_sparse

from graphxai.contract.target import ValueOfOutputs
from graphxai.engine.attention.node_ids import EntryIds
from graphxai.engine.attention.passes import ids_of_rows
from graphxai.engine.presence.functions import StructureTracker
from graphxai.engine.presence.run import PresencePlan, plan_presence
from graphxai.engine.request import record_pass
from graphxai.engine.trace import Trace, refs_in

from .attribute_roles import NODES, AttributeRole, roles_and_doubts
from .batches import as_rows
from .describing import described_pass
from .hiding import nodes_of_answer

CLOSE = 1e-3  # relative to the outputs, as the recorded pass computes in another order
ROUNDINGS = 8  # how many roundings of the least precise values outputs may differ by, if more


class NotGated(ValueError):
    """The model's nodes cannot be left out of its recorded pass. The message says why."""


@dataclass(eq=False)
class PresencePass:
    """A recorded pass of a batch, in which nodes can be absent.

    The first coalition that lacks nodes is compared with the model's own pass without them. Without
    a node that is explained, or one of a pair, the output is zero. So these nodes stay present, and
    what each of them adds to a coalition is the whole output there.

    Args:
        plan: where presence acts.
        mask: True at nodes, (B, N).
        explained: True at the nodes that `node=` or `pair=` names, (B, N).
        whole: the outputs (B, C) of the whole graphs.
        removed: computes the model's own outputs (B, C) with only the nodes where its argument is
            True.
        close: by how much the outputs may differ, relative to their size.
        instead: what to read instead of sparse matrices, whose entries are of no known nodes.
    """

    plan: PresencePlan
    mask: Tensor
    explained: Tensor
    whole: Tensor
    removed: Callable[[Tensor], Tensor]
    name: str
    close: float = CLOSE
    instead: str = ""
    compared: bool = False

    def outputs(self, present: Tensor) -> Tensor:
        """Return the outputs (B, C) with only the present nodes (B, N)."""
        with torch.no_grad():
            outputs = self._run(self._presence(present))
        self._compare(outputs, present)
        hidden = (self.explained & ~present).any(-1, keepdim=True)
        return outputs.masked_fill(hidden, 0.0)

    def marginals(self, present: Tensor, value: ValueOfOutputs) -> Tensor:
        """Return the marginals (B, N) of `value_and_marginals`."""
        return self.value_and_marginals(present, value)[1]

    def value_and_marginals(self, present: Tensor, value: ValueOfOutputs) -> tuple[Tensor, Tensor]:
        """Return a value (B,) of the outputs and the marginals (B, N) of all nodes at a coalition.

        The marginal of a present node says how much would be lost without it. That of an absent
        node says how much would be gained with it.

        Raises:
            NotGated: the pass has other outputs than the model without the absent nodes.
        """
        with torch.enable_grad():
            presence = self._presence(present).requires_grad_()
            outputs = self._run(presence)
            at_coalition = value(outputs)
            (gradient,) = torch.autograd.grad(at_coalition.sum(), presence)
        outputs, at_coalition = outputs.detach(), at_coalition.detach()
        self._compare(outputs, present)
        of_nodes = gradient[:, 1:].masked_fill(~self.mask, 0.0).nan_to_num(0.0, 0.0, 0.0)
        whole = (at_coalition - value(torch.zeros_like(outputs)))[:, None]
        return at_coalition, torch.where(self.explained, whole.to(of_nodes), of_nodes)

    def _run(self, presence: Tensor) -> Tensor:
        """Return the outputs (B, C) of the recorded pass with these presences (B, T)."""
        try:
            return self.plan.outputs(presence)
        except (IndexError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise NotGated(
                f"{self.name} combines nodes in a way that cannot leave some out: where nodes are"
                " absent, others remain, as after a pooling that drops nodes (TopKPooling,"
                " SAGPooling); 'order_marginals', 'occlusion' and 'lrp' do not need this"
            ) from error

    def _presence(self, present: Tensor) -> Tensor:
        """Return the presence (B, T) of every token.

        The graph token and the nodes that are explained are always present.
        """
        shown = present | self.explained | ~self.mask
        of_nodes = torch.cat([torch.ones_like(present[:, :1]), shown], dim=1)
        return of_nodes.to(self.plan.dtype)

    def _compare(self, outputs: Tensor, present: Tensor) -> None:
        present = present | self.explained
        if self.compared or bool((present == self.mask).all()):
            return
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            wanted = self.removed(present)
        size = wanted.abs().amax().clamp(min=1.0)
        if not bool(((outputs - wanted).abs() <= self.close * size).all()):
            raise NotGated(
                f"{self.name} combines nodes in a way that cannot leave some out"
                f" ({'; '.join(self.plan.without)}): write it as a sum, mean, maximum or softmax"
                f" over the nodes that its mask or graph has, and no others{self.instead}"
            )
        self.compared = True


def presence_pass(model: Any, batch: Any, tokens: Tensor) -> PresencePass:
    """Record a pass of a wrapped model, and find where its nodes can be left out.

    Args:
        tokens: the tokens of the batch (B, T, D), from `model.embed`.

    Raises:
        NotGated: nodes cannot be left out anywhere.
    """
    tokens = tokens.detach()
    request = described_pass(model, as_rows(tokens, batch), batch, batch.mask)
    if batch.graphs is None:  # a readout may divide by the number of tokens that the mask shows
        request = replace(request, others={"mask": batch.mask})
    trace = record_pass(request)
    others = _ids_of_others(trace, request, batch)
    layout = request.layout
    ids = ids_of_rows(layout, request.rows)
    nodes = StructureTracker(trace, ids, layout.tokens, others).nodes
    plan = plan_presence(trace, nodes, len(layout.mask) * layout.tokens, tokens.dtype)
    name = type(model.module).__name__
    types = {t.dtype for t in trace.memory.tensors if t.dtype.is_floating_point}
    least_precise = max((torch.finfo(dtype).eps for dtype in types), default=0.0)
    if not plan.gates:
        raise NotGated(f"no operation of {name} combines nodes in a way that is understood")
    (whole,) = refs_in(trace.output)
    given = {} if batch.graphs is None else batch.graphs.to_dict()
    sparse = sorted(name for name, value in given.items() if is_sparse(value))
    return PresencePass(
        plan,
        batch.mask,
        nodes_of_answer(model, batch, tokens),
        trace.tensor(whole.value).detach(),
        lambda present: model.encode(tokens, batch, present),
        name,
        max(CLOSE, ROUNDINGS * least_precise),
        f", or let it read edge_index instead of {' and '.join(sparse)}" if sparse else "",
    )


def _ids_of_others(trace: Trace, request: Any, batch: Any) -> dict[int, EntryIds]:
    """Return the ids of the entries of the graph's other attributes, or of the mask, by slot."""
    slots = {bit: slot for slot, bit in trace.inputs.items()}
    of_rows = ids_of_rows(request.layout, request.rows)[..., 0]  # (n,) or (B, S)
    if batch.graphs is None:
        (bit,) = request.names
        return {slots[bit]: EntryIds(of_rows[:, -batch.mask.shape[1] :])} if bit in slots else {}
    roles, _ = roles_and_doubts(batch.examples())
    ids: dict[int, EntryIds] = {}
    for bit, name in request.names.items():
        role = AttributeRole(NODES) if name == "batch" else roles.get(name)
        if bit not in slots or role is None:
            continue
        entries = _ids_of(request.others[name], role, batch.graphs, of_rows)
        if entries is not None:
            ids[slots[bit]] = entries
    return ids


def _ids_of(value: Tensor, role: AttributeRole, graphs: Any, of_rows: Tensor) -> EntryIds | None:
    """Return the ids of an attribute's entries, or None if they do not belong to nodes."""
    if role.along is None or not value.dim():
        return None
    if role.square:
        return EntryIds(of_rows[:, None], of_rows[None]) if len(value) == len(of_rows) else None
    if role.along == NODES:
        fits = len(value) == len(of_rows)
        return EntryIds(of_rows.view(-1, *[1] * (value.dim() - 1))) if fits else None
    index = graphs.get(role.along)
    if not isinstance(index, Tensor) or index.dim() != 2 or len(index) != 2:
        return None
    start, end = of_rows[index.long()]
    if role.names is not None:
        return EntryIds(start[None], end[None]) if value.dim() == 2 and len(value) == 2 else None
    if len(value) != index.shape[1]:
        return None
    shape = (-1, *[1] * (value.dim() - 1))
    return EntryIds(start.view(shape), end.view(shape))
