"""Follow the codes of nodes through a pass to the rows that are looked up by them.

A model may look up a row in many ways: in a loop over graphs, in chunks, through `unique` or a
mask, by `F.embedding`, by `W[x]`, or as a product of one-hot vectors and weights. So each entry of
`x` has a number, its cell, and whatever moves entries moves their cells along. Where a table of
weights is indexed by codes, the cells say whose row it is, and another row can take its place.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from graphxai.engine.recording import name_of, tensors_kept_by

LOOK_UPS = "the look-ups of x"  # stands for a named embedding
NOWHERE = -1  # the cell of an entry that is not one of x, such as padding
_MOVES = """
    getitem index_select view reshape flatten squeeze unsqueeze transpose permute swapaxes t get
    expand expand_as view_as repeat repeat_interleave cat concat concatenate stack hstack split
    tensor_split chunk unbind narrow select masked_select gather take flip roll movedim pad clone
    pad_sequence detach contiguous ravel iter take_along_dim vstack"""
_CASTS = "to long int short type type_as cpu cuda float double half bfloat16"
_ONE_TO_ONE = """
    add add_ radd sub sub_ rsub mul mul_ rmul clamp clamp_ clamp_min clamp_max minimum maximum
    remainder mod fmod floor_divide floordiv where abs masked_fill masked_fill_ iadd isub"""
_SHAPES = "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty"
# names of functions by what they do to entries; of some, only the shape matters
MOVES, CASTS, ONE_TO_ONE, SHAPES = (
    frozenset(names.split()) for names in (_MOVES, _CASTS, _ONE_TO_ONE, _SHAPES)
)
PRODUCTS = frozenset(("matmul", "mm", "linear"))

# Returns the rows to put in place of those looked up (..., *row), given the name of the weights, or
# "" if these were computed, and the cells (...)
Answer = Callable[[str, Tensor, Tensor], Tensor]


class FollowedEntries(TorchFunctionMode):
    """Follows the entries of a tensor `x` through a pass, each by the number of its cell."""

    def __init__(self, x: Tensor, cells: Tensor) -> None:
        super().__init__()
        self._cells: dict[int, tuple[Tensor, Tensor | None]] = {}  # None: computed from x
        self._note(x, cells)

    def cells_of(self, codes: Any) -> Tensor | None:
        """Return the cells of the entries of a tensor, or None if they are no entries of `x`."""
        return self._cells.get(id(codes), (None, None))[1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        out = func(*args, **kwargs)
        if name not in SHAPES and any(id(tensor) in self._cells for tensor in _tensors(args)):
            self._follow(name, func, args, kwargs, out)
        return out

    def _note(self, tensor: Any, cells: Any) -> None:
        """Note the cells of a tensor, or of each of several tensors."""
        if isinstance(tensor, tuple | list):
            for k, part in enumerate(tensor):
                self._note(part, cells[k] if isinstance(cells, tuple | list) else None)
        elif isinstance(tensor, Tensor) and not tensor.is_complex():
            fits = isinstance(cells, Tensor) and cells.shape == tensor.shape
            if fits or not tensor.is_floating_point():
                self._cells[id(tensor)] = tensor, cells if fits else None

    def _follow(self, name: str, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note the cells of what a function makes of entries, or of what it writes them to."""
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            if name != "setitem":
                self._note(out, self._cells_after(name, func, args, kwargs, out))
            elif not args[0].is_floating_point():
                target, place, value = args
                cells, written = self._in_cells(target).clone(), self.cells_of(value)
                cells[place] = NOWHERE if written is None else written
                self._note(target, cells)

    def _cells_after(self, name: str, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        first = args[0] if args else None
        parts = first if isinstance(first, tuple | list) else [first]
        if name in MOVES and any(self.cells_of(part) is not None for part in parts):
            if name == "pad":
                return nn.functional.pad(self._in_cells(first), args[1], value=NOWHERE)
            if name == "pad_sequence":
                return func(self._in_cells(first), args[1], NOWHERE, *args[3:])
            return func(self._in_cells(first), *args[1:], **kwargs)
        known = [c for t in _tensors(args) if (c := self.cells_of(t)) is not None]
        if name in CASTS and known:
            return known[0]
        if name in ONE_TO_ONE and len(known) == 1 and isinstance(out, Tensor):
            return known[0].expand(out.shape) if known[0].dim() <= out.dim() else None
        if ("unique" in name or name.startswith("return_")) and known and isinstance(out, tuple):
            cells, inverse = known[0], out[1]
            if inverse.numel() == len(cells):  # of whole rows
                cells = cells.flatten(1)[:, 0] if cells.dim() > 1 else cells
            fits = isinstance(inverse, Tensor) and inverse.numel() == cells.numel()
            return (None, cells.reshape(inverse.shape)) if fits else None
        return None

    def _in_cells(self, value: Any) -> Any:
        """Put cells in the place of codes."""
        if isinstance(value, tuple | list):
            return type(value)(map(self._in_cells, value))
        cells = self.cells_of(value)
        return torch.full_like(value, NOWHERE, dtype=torch.long) if cells is None else cells


class CodeLookUps(FollowedEntries):
    """Asks, for each look-up by entries of `x` (n, ...) within a block, what rows it returns."""

    def __init__(self, x: Tensor, module: nn.Module, answer: Answer) -> None:
        super().__init__(x, torch.arange(x.numel(), device=x.device).view(x.shape))
        self._answer = answer
        self._weights = tensors_kept_by(module.modules())
        self._names = {id(weights): name for name, weights in module.named_parameters()}
        self._one_hot: dict[int, tuple[Tensor, Tensor]] = {}
        self._tables: dict[int, Tensor] = {}  # computed from weights alone

    def is_computed(self, codes: Any) -> bool:
        """Return whether a tensor is computed from `x` and does not hold its entries."""
        return id(codes) in self._cells and self.cells_of(codes) is None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        tensors = list(_tensors((*args, *kwargs.values())))
        out = func(*args, **kwargs)
        if (looked_up := self._looked_up(name, tensors, args, out)) is not None:
            return looked_up
        follows = (id(tensor) in self._cells or id(tensor) in self._one_hot for tensor in tensors)
        if name not in SHAPES and any(follows):
            self._follow(name, func, args, kwargs, out)
        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        if isinstance(out, Tensor) and floats and all(map(self._is_table, floats)):
            self._tables[id(out)] = out
        return out

    # -- look-ups ------------------------------------------------------------------------------

    def _looked_up(self, name: str, tensors: list[Tensor], args: Any, out: Any) -> Tensor | None:
        """Return what a function returns in place of rows that it looks up, or None."""
        if name in PRODUCTS and tensors and id(tensors[0]) in self._one_hot:
            if not self._is_table(tensors[1]):
                return None
            of_hot = self._one_hot[id(tensors[0])][1]
            bias = tensors[2] if len(tensors) > 2 else 0
            return self._answered(tensors[1], of_hot, out - bias) + bias
        if name not in ("embedding", "index_select", "getitem") or not isinstance(out, Tensor):
            return None
        table = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
        codes = [tensor for tensor in tensors if tensor is not table]
        if table is None or len(codes) != 1 or not self._is_table(table):
            return None
        cells = self.cells_of(codes[0])
        if cells is None or codes[0].dtype == torch.bool or out.shape[: cells.dim()] != cells.shape:
            return None
        along_others = (
            name == "getitem" and isinstance(args[1], tuple) and args[1][0] is not codes[0]
        )
        if along_others or (name == "index_select" and 0 not in (*args[1:2],)):
            return None
        return self._answered(table, cells, out)

    def _answered(self, table: Tensor, cells: Tensor, out: Tensor) -> Tensor:
        """Return rows (..., *row) in place of those looked up, which keep those of no cell."""
        weights, is_cell = self._names.get(id(table), ""), cells != NOWHERE
        if bool(is_cell.all()):
            return self._answer(weights, cells, out)
        filled = out.detach().clone()
        filled[is_cell] = self._answer(weights, cells[is_cell], out[is_cell]).to(filled)
        return filled

    def _is_table(self, tensor: Tensor) -> bool:
        known = isinstance(tensor, nn.Parameter) or id(tensor) in self._tables
        return known or id(tensor) in self._weights

    def _follow(self, name: str, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note the cells of what a function makes of codes, also of one-hot vectors."""
        codes = next(_tensors((*args, *kwargs.values())))
        cells: Any = self.cells_of(codes) if name == "one_hot" else None
        if id(codes) in self._one_hot and (name in CASTS or name == "getitem"):
            cells = self._one_hot[id(codes)][1]
            with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
                cells = cells if name in CASTS else func(cells, *args[1:])
        if cells is None:
            super()._follow(name, func, args, kwargs, out)
        elif isinstance(out, Tensor) and cells.shape == out.shape[:-1]:
            self._one_hot[id(out)] = out, cells


def _tensors(values: Any) -> Any:
    """Yield the tensors among values, and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


class RowsByCell:
    """Keeps, or hands out, a part of the row (W,) of each node at every look-up of a pass.

    A node has what is looked up for its entries of `x` side by side. Looked up twice in the same
    weights, an entry has one place.

    Args:
        x: the codes (n, ...).
        columns: where in a row stands what an entry looks up, by the name of the weights, the
            place of the entry among those of a node, and how many tables that are computed of
            weights the entry has been looked up in before. Passes add to it.
        rows: the rows (n, W) to hand out, or None to keep those that the model looks up.
    """

    def __init__(
        self, x: Tensor, columns: dict[tuple[str, int, int], range], rows: Tensor | None = None
    ) -> None:
        self._nodes, self._entries = len(x), max(1, x[:1].numel())
        self._columns, self._rows = columns, rows
        self._times = torch.zeros(x.numel(), dtype=torch.long, device=x.device)
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []  # nodes, starts, values
        self.calls = 0

    def __call__(self, weights: str, cells: Tensor, looked_up: Tensor) -> Tensor:
        """Return rows (..., *row) for these cells (...), in place of those that are looked up."""
        self.calls += 1
        width = math.prod(looked_up.shape[cells.dim() :])
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            cells = cells.flatten()
            node, start = cells // self._entries, self._starts(weights, cells, width)
            in_order = self._are_in_order(node, start, width)
        if self._rows is None or not len(node):
            self._kept.append((node, start, looked_up.detach().reshape(len(node), width)))
            return looked_up
        if in_order:
            columns = width * (len(node) // self._nodes)
            rows = self._rows.narrow(1, int(start[0]), columns)
        elif bool((start == start[0]).all()):
            rows = self._rows.narrow(1, int(start[0]), width).index_select(0, node)
        else:
            with _disable_current_modes():
                columns_of = start[:, None] + torch.arange(width).to(start)
            rows = self._rows[node[:, None], columns_of]
        return rows.reshape(looked_up.shape)

    def _starts(self, weights: str, cells: Tensor, width: int) -> Tensor:
        """Return the first of the columns (c,) for each of these cells (c,)."""
        entry = cells % self._entries
        if weights:  # the same row every time
            times = torch.zeros_like(cells)
        else:
            times = self._times[cells]
            self._times[cells] += 1
        start = torch.empty_like(cells)
        for place, time in torch.stack([entry, times], 1).unique(dim=0).tolist():
            used = max((columns.stop for columns in self._columns.values()), default=0)
            columns = self._columns.setdefault((weights, place, time), range(used, used + width))
            start[(entry == place) & (times == time)] = columns.start
        return start

    def _are_in_order(self, node: Tensor, start: Tensor, width: int) -> bool:
        """Return whether all nodes are looked up in order, with as many cells of each."""
        each, rest = divmod(len(node), max(1, self._nodes))
        if rest or not each:
            return False
        nodes = torch.arange(self._nodes).to(node).repeat_interleave(each)
        starts = start[0] + torch.arange(each).to(node).repeat(self._nodes) * width
        return torch.equal(node, nodes) and torch.equal(start, starts)

    def kept(self) -> Tensor:
        """Return the rows (n, W) that the model looked up."""
        widest = max((columns.stop for columns in self._columns.values()), default=0)
        values = self._kept[0][2] if self._kept else torch.empty(0)
        rows = values.new_zeros(self._nodes, widest)
        for node, start, values in self._kept:
            columns = start[:, None] + torch.arange(values.shape[1]).to(start)
            rows[node[:, None], columns] = values
        return rows

    def served(self) -> bool:
        """Return whether the pass asked for rows, unless nothing was looked up for these nodes."""
        assert self._rows is not None
        return self.calls > 0 or not bool(self._rows.any())
