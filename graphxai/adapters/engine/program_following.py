"""Follow a program while a model runs: check every operation, and apply the rules."""

from collections.abc import Hashable, Iterable
from contextlib import nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.utils._python_dispatch import TorchDispatchMode

from graphxai.runtime.randomness import current_draws

from ..eval_replica import all_modules, uncompiled
from .constant_shares import ConstantShares
from .flow_queries import numbers_among
from .operation_kind import operation_kind
from .pass_plans import Program
from .pass_request import NODES, PassRequest
from .program import ProgramStep, StoredProgram, give_up_programs, stored_programs
from .recording import memory_of, tensors_kept_by
from .recording_mode import saved_tensor_hooks_active, under_mode
from .replay import Replay
from .trace import Op, Ref

_NO_SETTINGS: dict[str, Any] = {}
_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)


class FollowedPass(NamedTuple):
    """A pass that followed a program.

    Args:
        outputs: under the rules.
        shares: those of constants, which come with the gradient.
        inputs: the inputs besides the nodes to which gradients lead, by line.
    """

    program: Program
    outputs: Tensor
    shares: ConstantShares | None
    inputs: dict[str, Tensor]


def follow_program(request: PassRequest, key: Hashable) -> FollowedPass | None:
    """Run a pass by a stored program, or return None if no program fits.

    Args:
        key: the rules and recordings in force.
    """
    module, rows = request.module, request.rows
    size = rows.shape[:-1].numel()
    programs = stored_programs(request, key)
    if not programs:
        return None
    stored = min(programs, key=lambda p: abs(p.size - size))
    with torch.enable_grad():
        leaf = rows.view_as(rows) if rows.requires_grad else rows.detach().requires_grad_()
    follower = _ProgramFollower(stored, [leaf, *request.others.values()], request)
    try:
        with uncompiled(module), under_mode(follower, graded=True):
            output = request.call(leaf)
    except RuntimeError:  # if the model raised it, the next pass raises it again
        return None
    if follower.unclear_graphs:
        give_up_programs(module, key)
    if not follower.ends_with(output):
        return None
    stored.size = size
    return FollowedPass(stored.program, follower.replay.output(), follower.shares, follower.inputs)


class _ProgramFollower(TorchDispatchMode):
    """Follows the steps of a program while the model runs, checks them and applies the rules.

    An operation runs as it is if the rules ask for nothing but its gradient. Otherwise its slot
    gets another tensor, with the right backward pass (`replay.now`). When a function returns the
    result to the model, that tensor takes its place. Until then whatever is made of it runs by the
    rules, too.
    """

    def __init__(
        self, stored: StoredProgram, inputs: Iterable[Tensor], request: PassRequest
    ) -> None:
        super().__init__()
        self._stored, self._program, self._module = stored, stored.program, request.module
        self._steps = stored.steps
        self._next = 0
        self._exits = 0  # values that have left PyTorch
        self._numbers: dict[int, str] = {}
        self._tensors: list[Tensor | None] = [None] * len(stored.required_grad)
        self._shapes: dict[int, torch.Size] = {}  # of tensors that are no longer held
        self._waiting: tuple[Op, Tensor, Any] | None = None  # a result without backward pass yet
        self.inputs: dict[str, Tensor] = {}  # besides the nodes, by line
        self.unclear_graphs = False  # whether constants are added to rows of unknown graphs
        self.apart: dict[int, int] = {}  # by `id`, the slots of results that are to be replaced
        trace, plan = self._program.trace, self._program.full_plan
        distinct = list({id(tensor): tensor for tensor in inputs}.values())
        self._differs = len(distinct) != len(trace.inputs)
        self._tensors[: len(distinct)] = distinct
        self.replay = Replay(plan, self._tensors)
        additions = self._program.additions if self._program.modules else None
        self.shares: ConstantShares | None = None
        if additions is not None:
            self.shares = ConstantShares(additions, stored.axes, request.layout)
        if plan is not self._program.node_plan and not self._differs:
            for slot, bit in trace.inputs.items():
                if bit != NODES and plan.signal[trace.flow.slot_of_value.index(slot)]:
                    leaf = distinct[slot].detach().requires_grad_()
                    self.inputs[self._program.names[bit]] = self.replay.now[slot] = leaf

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing compiled runs, and the check would slow every operation."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._waiting is not None:
            self._collect_shares()
        step, kwargs = self._steps[self._next], kwargs or _NO_SETTINGS
        if func is not step.func and (parts := operation_kind(func).parts) is not None:
            with self:  # the steps of the program are its parts
                return parts(*args, **kwargs)
        if self._differs or func is not step.func or not self._fits(step, args, kwargs):
            self._differs = True
            return func(*args, **kwargs)
        self._next += 1
        op, terms, by_rule = step.op, None, step.by_rule
        if step.adds_constants and self.shares is not None:
            terms = self.shares.terms(op, self._value, (args, kwargs))
        if step.passes and not by_rule:
            for slot in step.reads:  # an argument may have another backward pass than the model's
                if self.replay.now[slot] is not None:
                    by_rule = True
                    break
        out = self._by_rule(op, args, kwargs) if by_rule else func(*args, **kwargs)
        self._note(op.result, out)
        if terms is not None:
            self._waiting = op, out[0] if isinstance(out, tuple | list) else out, terms
        for slot in step.last_used:
            self._release(slot)
        return out

    def _collect_shares(self) -> None:
        """Collect shares from the gradient of the last result."""
        assert self._waiting is not None
        assert self.shares is not None
        op, out, terms = self._waiting
        self._waiting = None
        replaced = self.replay.now[op.makes[0].slot]
        self.unclear_graphs |= bool(terms) and self._stored.axes[op.number] is None
        tensor_in = self._tensors.__getitem__
        result = out if replaced is None else replaced
        if not self.shares.collect_from(op, result, terms, tensor_in):
            self._differs = True

    def returned(self, out: Any) -> Any:
        """Return to the model, in place of a function's results, tensors that obey the rules."""
        if isinstance(out, Tensor):
            slot = self.apart.get(id(out))
            by_rules = None if slot is None else self.replay.now[slot]
            if slot is None or by_rules is None or self._tensors[slot] is not out:
                return out
            if self._waiting is not None:
                self._collect_shares()
            if not by_rules.requires_grad or not out.requires_grad:
                return out
            self._tensors[slot], self.replay.now[slot] = by_rules, None
            return by_rules
        if type(out) in (tuple, list):
            return type(out)(map(self.returned, out))
        return out

    def _release(self, slot: int) -> None:
        """Release a tensor that is not needed any more, and keep its shape."""
        tensor = self._tensors[slot]
        if tensor is None or tensor.requires_grad != self._stored.required_grad[slot]:
            self._differs = True
        else:
            self._shapes[slot] = tensor.shape
        self._tensors[slot] = self.replay.now[slot] = None

    def _value(self, ref: Ref) -> Tensor:
        tensor = self._tensors[ref.slot]
        assert tensor is not None
        return tensor

    def leaves(self, tensor: Any) -> None:
        """Check that a value may leave PyTorch."""
        expected = self._program.trace.exits[self._exits :]
        number, slot = expected[0] if expected else (-1, None)
        same = slot is None or self._tensors[slot] is tensor
        self._differs |= number != self._next or not same
        self._exits += 1

    def changes_gradients(self) -> None:
        """Stop following, because the model reads or changes a gradient."""
        self._differs = True

    def draws(self, name: str) -> None:
        """Stop following, because the model draws random numbers."""
        self._differs = True
        if (draws := current_draws()) is not None:
            draws.seen = True

    def ends_with(self, output: Any) -> bool:
        """Whether the pass fits the program to the end."""
        trace, roles, tensors = self._program.trace, self._program.node_plan.roles, self._tensors
        if self._waiting is not None:
            self._collect_shares()
        if (
            self._differs
            or self._steps[self._next].func is not None
            or self._exits != len(trace.exits)
        ):
            return False
        if output is not tensors[trace.output.slot]:
            return False
        shapes = self._shapes
        for slot, (tensor, required_grad) in enumerate(
            zip(tensors, self._stored.required_grad, strict=True)
        ):
            if slot in shapes:
                continue
            if tensor is None or tensor.requires_grad != required_grad:
                return False
            shapes[slot] = tensor.shape
        for test, *values, answer in roles.size_comparisons:
            if test(*(shapes[trace.flow.slot_of_value[value]] for value in values)) != answer:
                return False
        return all(
            _pattern([self._numbers[number] for number in group])
            == _pattern([self._stored.numbers[number] for number in group])
            for group in roles.alike
        )

    # -- one operation -------------------------------------------------------------------------

    def _fits(self, step: ProgramStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these are the arguments that the next operation must have."""
        op, tensors = step.op, self._tensors
        if (
            op.grad_enabled is not is_grad_enabled()
            or saved_tensor_hooks_active()
            or len(args) != len(op.args)
        ):
            return False
        for place, slot in step.tensors:
            if tensors[slot] is not args[place] and not self._alike(op.args[place], args[place]):
                return False
        for place, expected in step.others:
            if expected is not args[place] and not self._alike(expected, args[place]):
                return False
        if (kwargs or op.kwargs) and not (step.plain and kwargs == op.kwargs):
            if op.called is not op.func:
                kwargs = dict(kwargs)
                if not self._alike(op.makes[0], kwargs.pop("out", None)):
                    return False
            if not self._alike(op.kwargs, kwargs):
                return False
        if step.compares_numbers:
            self._numbers[op.number] = numbers_among(op, args, kwargs)
        return True

    def _alike(self, expected: Any, argument: Any) -> bool:
        """Whether an argument holds the expected tensors and settings. Sizes may differ."""
        kind = type(expected)
        if kind is Ref:
            tensor = self._tensors[expected.slot]
            return tensor is argument or (
                tensor is None and self._comes_in(expected.slot, argument)
            )
        if kind is not type(argument):
            return False
        if kind is int:  # it may be a size or a place
            return bool(expected) == bool(argument)
        if kind is list or kind is tuple:
            return len(expected) == len(argument) and all(map(self._alike, expected, argument))
        if kind is dict:
            same = expected.keys() == argument.keys()
            return same and all(self._alike(part, argument[key]) for key, part in expected.items())
        # the second half is for numbers that are NaN
        return bool(expected == argument or (expected != expected and argument != argument))

    def _comes_in(self, slot: int, tensor: Any) -> bool:
        """Whether a tensor from outside, which is read for the first time, may be in this slot."""
        if slot not in self._program.trace.memory.external or not isinstance(tensor, Tensor):
            return False
        weight = self._program.trace.memory.external[slot]
        is_literal = self._steps[self._next].op.name == "lift_fresh"
        if weight is not None and weight() is not tensor:
            return False
        if weight is None and not is_literal:
            present = (t for t in self._tensors if t is not None)
            if (
                tensor.grad_fn is not None
                or isinstance(tensor, nn.Parameter)
                or id(tensor) in self._weights
                or memory_of(tensor) in map(memory_of, present)
            ):
                return False
        self._tensors[slot] = tensor
        return True

    @cached_property
    def _weights(self) -> dict[int, Tensor]:
        """The tensors that the model keeps, by `id`."""
        return tensors_kept_by(all_modules(self._module))

    def _note(self, result: Any, out: Any) -> None:
        """Put what an operation returned into its slots, and check that it is as expected."""
        if type(result) is Ref:
            present = self._tensors[result.slot]
            self._differs |= present is not None and present is not out
            self._tensors[result.slot] = out
        elif isinstance(result, list):
            self._differs |= len(result) != len(out)
            for ref, part in zip(result, out, strict=False):
                self._note(ref, part)

    def _by_rule(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation by the rules. Its result gets its backward pass later."""
        if (
            op.in_place
            and self._program.trace.memory.storage[op.makes[0].slot]
            in self._program.shared_storages
        ):
            self._differs = True  # other tensors share the memory
            return op.func(*args, **kwargs)
        arguments = self.replay.arguments(op, args, kwargs)
        # the model's call has arrived below autograd, which this block turns on again
        with (
            torch._C._RestorePythonTLSSnapshot(),  # type: ignore[attr-defined]
            torch._C._ExcludeDispatchKeyGuard(_PYTHON),
            nullcontext() if op.grad_enabled else torch.enable_grad(),
        ):
            out = self.replay.applied(op, *arguments)
        if op.in_place:
            return op.func(*args, **kwargs)
        parts = out if isinstance(out, tuple | list) else (out,)
        if any(part is None for part in parts):  # the rule leaves out some results
            return op.func(*args, **kwargs)
        results = [part.detach() for part in parts]
        for ref, part in zip(op.makes, results, strict=False):  # `_note` compares their number
            self.apart[id(part)] = ref.slot
        return results[0] if type(op.result) is Ref else results


def _pattern(values: list[str]) -> list[int]:
    """Return, for each value, the place of the first one that is equal."""
    return [values.index(value) for value in values]
