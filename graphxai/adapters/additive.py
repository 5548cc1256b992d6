"""Constants that enter by addition or assignment, each with itself as tangent.

Sums, concatenations, maxima and assignments are linear, at least piecewise, in all of their terms
together. Their value is then the sum of the terms' shares: each term times the slope of the
operation there (Euler). If the terms that do not depend on the nodes get themselves as tangents,
forward mode carries their share to the output.
"""

import math
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from .arguments import mapped
from .trace import Traces, tensors_in
from .vocabulary import PLUS_PRODUCT

TERMS = {  # which arguments are terms, by position
    **dict.fromkeys(("add", "sub", "rsub", "subtract", "copy", "fill", "clamp_min"), (0, 1)),
    **dict.fromkeys(("maximum", "minimum", "max", "min", "clamp_max", "slice_scatter"), (0, 1)),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"), (0,)),
    **dict.fromkeys(("column_stack", "row_stack", "pad_sequence"), (0,)),
    **dict.fromkeys(("select_scatter", "diagonal_scatter"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addcmul", "addcdiv"), (0,)),
    **dict.fromkeys(("masked_fill", "setitem", "index_put", "masked_scatter"), (0, 2)),
    **dict.fromkeys(("index_fill", "index_copy", "index_add"), (0, 3)),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), (0, 3)),
    "block_diag": tuple(range(64)),
    "where": (1, 2),
    "clamp": (0, 1, 2),
}
TERMS |= {f"{name}_": places for name, places in TERMS.items()}
NAMED = {"other", "value", "values", "min", "max", "src", "source", "input", "tensors", "sequences"}
TAKE_NUMBERS = {"add", "sub", "rsub", "subtract", "where", "fill", "clamp", "clamp_min",
                "clamp_max", "masked_fill", "setitem", "index_fill", "scatter"}  # fmt: skip
PADDING = {"pad": 3, "constant_pad_nd": 2, "pad_sequence": 2}  # position of the padding's value
MASKS = {"masked_fill", "where", "index_fill", "setitem", "fill"}
A_MASK = 1e4  # values this large, put in place of logits, mask them and are not a share


def as_constant(value: Tensor) -> Tensor:
    """The constant with itself as tangent."""
    plain = value.detach().contiguous()  # an expanded tensor takes no tangent
    finite = plain.masked_fill(~plain.isfinite(), 0.0)  # -inf masks are no share
    return forward_ad.make_dual(plain, finite)


def with_tangents(traces: Traces, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of an operation, with constant terms as their own tangents.

    Only if another argument depends on the nodes. A tensor written to gets its tangent in place.
    """
    if name not in TERMS:
        return args, kwargs
    base = name.rstrip("_")
    given = list(tensors_in((*args, *kwargs.values())))
    of_nodes = next((t for t in given if traces.of(t) is not None), None)
    if of_nodes is None or not of_nodes.is_floating_point():
        return args, kwargs
    in_place = name.endswith("_") or name == "setitem"
    if in_place:
        _in_place(traces, args[0])

    def term(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(term(v) for v in value)
        if isinstance(value, Tensor):
            is_term = value.is_floating_point() and traces.of(value) is None
            return traces.known_constant(as_constant(value)) if is_term else value
        number = type(value) in (int, float) and base in TAKE_NUMBERS
        made = _number(base, value, of_nodes, args, kwargs) if number else value
        return traces.known_constant(made) if isinstance(made, Tensor) else made

    places = [place for place in TERMS[base] if place or not in_place]
    args = tuple(term(value) if i in places else value for i, value in enumerate(args))
    names = {"input"} if base in PLUS_PRODUCT or base == "addcdiv" else NAMED
    kwargs = {key: term(value) if key in names else value for key, value in kwargs.items()}
    if base in PLUS_PRODUCT and all(traces.of(t) is None for t in tensors_in(args[1:])):
        args = (args[0], *map(term, args[1:2]), *args[2:])
    return args, kwargs


def plus_offset(name: str, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """The result of a padding operation, with the padding value as a separate share."""
    if name not in PADDING or not out.is_floating_point():
        return out
    place = PADDING[name]
    value = args[place] if len(args) > place else kwargs.get("padding_value", kwargs.get("value"))
    if not value:
        return out
    nothing = mapped((args, kwargs), torch.zeros_like)
    offset = func(*nothing[0], **nothing[1]).detach()
    plain, tangent = forward_ad.unpack_dual(out)
    return forward_ad.make_dual(plain, offset if tangent is None else tangent + offset)


def _number(base: str, value: float, like: Tensor, args: Any, kwargs: Any) -> Any:
    hides = base in MASKS and abs(value) >= A_MASK
    if base != "clamp" and (value == 0 or hides or not math.isfinite(value)):
        return value
    if base == "scatter":
        index = args[2] if len(args) > 2 else kwargs["index"]
        return as_constant(like.new_full(index.shape, value))
    return as_constant(like.new_tensor(value))


def _in_place(traces: Traces, written_to: Tensor) -> None:
    """Give a constant that is written to itself as tangent; of a view, the whole base."""
    whole = written_to if written_to._base is None else written_to._base
    if whole.is_floating_point() and traces.of(whole) is None and traces.of(written_to) is None:
        traces.mark_if_new(whole)
        whole.copy_(as_constant(whole.clone()))
