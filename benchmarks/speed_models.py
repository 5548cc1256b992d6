"""Make the Graphormers that are timed, their molecules, and their batches."""

import math

import torch

import graphxai as gx
from graphxai.contract.batch import GraphBatch
from graphxai.contract.inputs import prepare_all
from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, BOND_CARDINALITIES
from graphxai.datasets.molecules import load_bace
from graphxai.datasets.samples import MOLECULES
from graphxai.models.graphormer import Graphormer, GraphormerConfig, collate, encoding

BATCH = 64
LAYERS, DIM, HEADS = 2, 64, 8


def molecules(count: int, data: str | None) -> list[str]:
    """Return the SMILES of BACE or of the samples, repeated up to a count."""
    try:
        smiles = [graph.smiles for graph in load_bace(data, download=False)]
    except FileNotFoundError:
        smiles = list(MOLECULES.values())
    return (smiles * (count // len(smiles) + 1))[:count]


def small_graphormer() -> Graphormer:
    """Return an untrained Graphormer of the size that the published pipeline is timed with."""
    torch.manual_seed(0)
    tasks = (Task("a", "multiclass", ("0", "1")),)
    config = GraphormerConfig(
        tasks,
        num_layers=LAYERS,
        hidden_dim=DIM,
        ffn_dim=DIM,
        num_heads=HEADS,
        node_cardinalities=ATOM_CARDINALITIES,
        edge_cardinalities=BOND_CARDINALITIES,
    )
    return Graphormer(config).eval()


def both_models() -> dict[str, Graphormer]:
    """Return the small model and the bundled BACE model, by the names that tables show."""
    return {f"{LAYERS} x {DIM}": small_graphormer(), "BACE (4 x 128)": gx.load("bace")}


def in_compiled_code(compiled: bool) -> None:
    """Encode graphs in compiled code from the first one on, or never."""
    encoding.COMPILED_FROM = 0 if compiled else math.inf


def prebuilt(model: Graphormer, smiles: list[str]) -> list[GraphBatch]:
    """Return batches of molecules that are sorted by size."""
    graphs = [item.graph for item in prepare_all(model, smiles)]
    graphs.sort(key=lambda graph: int(graph.num_nodes or 0))
    return [collate(graphs[i : i + BATCH]) for i in range(0, len(graphs), BATCH)]


def bare_gradient(model: Graphormer, batches: list[GraphBatch]) -> None:
    """Run the bare network forward, and backward from the largest output to the tokens."""
    for batch in batches:
        tokens = model.embed(batch).detach().requires_grad_()
        torch.autograd.grad(model.encode(tokens, batch).max(-1).values.sum(), tokens)
