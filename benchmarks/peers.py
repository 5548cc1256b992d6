"""Compare the time of tools that explain one plain encoder, on the same molecules.

    python benchmarks/peers.py --data FOLDER [--molecules 32] [--repeats 3]

The encoder is of PyTorch's own layers: 2 of width 64, over the atoms of molecules of 22 atoms, so
that tools that know no padding can take part. Every tool explains its output for all molecules, in
one thread and in turns. Captum, shap, zennit, LXT, exmol and PyG are compared if they are
installed, and the script says which are not. Their methods differ in what they compute, and so in
what they are worth. They belong in an environment of their own, as some bring libraries that
graphxai does without. chemprop is not among them: it has no command that explains, and its networks
are no transformers.
"""

import argparse
import csv
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from types import MethodType

import torch
from rdkit import Chem, RDLogger
from speed_timing import taking_turns
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_dense_batch

import graphxai as gx
from graphxai.datasets.molecules import molecule_to_data

ATOMS = 22
NEAR = 250  # mutated molecules for each, of which exmol makes 3,000 by default
GRADIENT = "Gradient x Input"
Run = Callable[[], object]


class Encoder(nn.Module):
    """A transformer over atoms, with the mean of them as its answer (B, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(9, 64), nn.Linear(64, 1)
        layers = (nn.TransformerEncoderLayer(64, 8, 64, 0.0, batch_first=True) for _ in "12")
        self.layers = nn.ModuleList(layers)

    def dense(self, x: Tensor) -> Tensor:
        """Return outputs (B, 1) of features (B, N, F)."""
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        """Return outputs (B, 1) of graphs with features x (N, F)."""
        return self.dense(to_dense_batch(x, batch)[0])


class Dense(nn.Module):
    """The same encoder for tools that take one tensor."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder.dense(x)


def of_graphxai(encoder: Encoder, graphs: list[Data], x: Tensor) -> dict[str, Run]:
    model = gx.wrap(encoder, kind="regression")
    methods = {"LRP": "lrp", GRADIENT: "gradient_input"}
    return {
        name: lambda each=each: gx.explain(model, graphs, each) for name, each in methods.items()
    }


def of_torch(encoder: Encoder, graphs: list[Data], x: Tensor) -> dict[str, Run]:
    def run() -> None:
        inputs = x.clone().requires_grad_()
        inputs * torch.autograd.grad(encoder.dense(inputs).sum(), inputs)[0]

    return {GRADIENT: run}


def of_captum(encoder: Encoder, graphs: list[Data], x: Tensor) -> dict[str, Run]:
    from captum.attr import InputXGradient, IntegratedGradients

    gradient, integrated = (tool(Dense(encoder)) for tool in (InputXGradient, IntegratedGradients))
    return {
        GRADIENT: lambda: gradient.attribute(x.clone().requires_grad_()),
        "Integrated Gradients, 50 steps": lambda: integrated.attribute(x, n_steps=50),
    }


def of_shap(encoder: Encoder, graphs: list[Data], x: Tensor) -> dict[str, Run]:
    import shap

    explainer = shap.GradientExplainer(Dense(encoder), x[:8])
    return {"expected gradients, 50 samples": lambda: explainer.shap_values(x, nsamples=50)}


def of_zennit(encoder: Encoder, graphs: list[Data], x: Tensor) -> dict[str, Run]:
    from zennit.attribution import Gradient
    from zennit.composites import EpsilonPlus

    def run() -> None:
        with Gradient(model=Dense(encoder), composite=EpsilonPlus()) as tool:
            tool(x.clone(), torch.ones(len(x), 1))

    return {"epsilon+ in linear maps": run}


def of_lxt(encoder: Encoder, graphs: list[Data], x: Tensor) -> dict[str, Run]:
    from lxt.efficient import patches

    rules = {
        nn.LayerNorm: patches.layer_norm_forward,
        nn.MultiheadAttention: patches.cp_multi_head_attention_forward,
    }
    patched = deepcopy(encoder)
    for module in patched.modules():
        if type(module) in rules:  # LXT patches classes, and so every model of a process
            module.original_forward = module.forward
            module.forward = MethodType(rules[type(module)], module)
    return {"LRP, attention and LayerNorm detached": of_torch(patched, graphs, x)[GRADIENT]}


def of_exmol(encoder: Encoder, graphs: list[Data], x: Tensor) -> dict[str, Run]:
    import exmol

    def predicted(smiles: list[str]) -> list[float]:
        features = (molecule_to_data(each).x.float() for each in smiles)
        return [encoder.dense(x[None]).item() for x in features]

    def run() -> None:
        for graph in graphs:
            near = exmol.sample_space(graph.written, predicted, num_samples=NEAR, quiet=True)
            exmol.lime_explain(near, "ECFP")

    return {f"linear model of {NEAR} mutated molecules": run}


def of_pyg(encoder: Encoder, graphs: list[Data], x: Tensor) -> dict[str, Run]:
    from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer

    def explaining(algorithm: object) -> Run:
        explainer = Explainer(
            encoder,
            algorithm,
            explanation_type="model",
            node_mask_type="attributes",
            model_config={
                "mode": "regression",
                "task_level": "graph",
                "return_type": "raw",
            },
        )

        def run() -> None:
            for graph in graphs:
                explainer(graph.x, graph.edge_index)

        return run

    return {
        "Gradient x Input, by Captum": explaining(CaptumExplainer("InputXGradient")),
        "GNNExplainer, 100 epochs": explaining(GNNExplainer(epochs=100)),
    }


TOOLS = {
    "graphxai": of_graphxai,
    "torch": of_torch,
    "Captum": of_captum,
    "shap": of_shap,
    "zennit": of_zennit,
    "LXT": of_lxt,
    "exmol": of_exmol,
    "PyG": of_pyg,
}


def molecules(data: Path, count: int) -> Iterator[Data]:
    """Yield graphs of molecules of MoleculeNet's lipophilicity table with 22 atoms."""
    with (data / "molecules" / "lipo.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            smiles = row["smiles"]
            if count and Chem.MolFromSmiles(smiles).GetNumAtoms() == ATOMS:
                graph = molecule_to_data(smiles)
                yield Data(x=graph.x.float(), edge_index=graph.edge_index, written=smiles)
                count -= 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with molecules/lipo.csv")
    parser.add_argument("--molecules", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    RDLogger.DisableLog("rdApp.*")
    warnings.simplefilter("ignore")
    graphs = list(molecules(options.data, options.molecules))
    x = to_dense_batch(*(lambda batch: (batch.x, batch.batch))(Batch.from_data_list(graphs)))[0]
    encoder, runs = Encoder().eval(), {}
    for tool, make in TOOLS.items():
        try:
            of_tool = make(encoder, graphs, x)
            for run in of_tool.values():
                run()
        except (ImportError, RuntimeError) as error:  # not installed, or not for this encoder
            print(f"{tool} is left out: {error}")
        else:
            runs |= {f"{tool}: {name}": run for name, run in of_tool.items()}
    milliseconds = taking_turns(runs, len(graphs), repeats=options.repeats)
    print("| tool and method | ms a molecule |\n|---|---|")
    for name, each in milliseconds.items():
        print(f"| {name} | {each:.2f} |")


if __name__ == "__main__":
    main()
