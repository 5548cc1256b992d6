"""How many functions of the engine one LRP pass enters, for whoever reads the engine."""

import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, global_add_pool

import graphxai as gx

PACKAGE = Path(gx.__file__).parent
ENGINE = str(PACKAGE / "engine")
FIRST, LATER = 35, 16  # ceilings: lower them when a pass enters less


class Attending(nn.Module):
    """Two GAT layers and a readout."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = GATConv(4, 8), GATConv(8, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        x = self.second(self.first(x, edge_index).relu(), edge_index)
        return self.head(global_add_pool(x, batch))


def entered(call):
    """Return the functions of the engine that a call enters from another file, and all its calls.

    Frames of PyTorch between two functions of the package do not count, nor do comprehensions.
    """
    functions, calls = set(), 0

    def note(frame, event, argument):
        nonlocal calls
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        calls += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(PACKAGE)):
            caller = caller.f_back
        of_engine = code.co_filename.startswith(ENGINE) and not code.co_name.startswith("<")
        if of_engine and caller is not None and caller.f_code.co_filename != code.co_filename:
            functions.add((code.co_filename, code.co_firstlineno))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return functions, calls


def passes():
    """Yield what the first and two later explanations of a wrapped GAT enter."""
    torch.manual_seed(0)
    ring = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    graph = Data(x=torch.randn(5, 4), edge_index=torch.cat([ring, ring.flip(0)], dim=1))
    model = gx.wrap(Attending().eval(), kind="regression")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            yield entered(lambda: gx.explain(model, graph, "lrp"))
    assert model.tier == "hooks"


def test_a_pass_enters_few_functions_of_other_files_and_later_ones_make_no_plan():
    (first, all_calls), (second, later_calls), (third, _) = passes()
    assert len(first) <= FIRST
    assert len(second) <= LATER
    assert second == third
    assert later_calls < all_calls / 2


if __name__ == "__main__":
    for functions, calls in passes():
        files = {file for file, _ in functions}
        print(f"{len(functions)} functions in {len(files)} files, {calls} calls of the package")
