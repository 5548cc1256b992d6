"""One graph's explanation: plain values, a ledger that adds up, a picture, files."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphxai.ledger import Ledger

if TYPE_CHECKING:
    import pandas as pd
    from rdkit.Chem import Mol
    from torch_geometric.explain import Explanation as PygExplanation

    from graphxai.pictures import Picture
    from graphxai.visualization import Scale


@dataclass(frozen=True)
class Prediction:
    """What the model says about one task.

    Classification: `label` and `probabilities` by class. Regression: `value` in `unit`.
    """

    task: str
    label: str | None = None
    probabilities: dict[str, float] = field(default_factory=dict)
    value: float | None = None
    unit: str = ""

    @property
    def probability(self) -> float | None:
        """Probability of the predicted class; None for a regression."""
        return None if self.label is None else self.probabilities[self.label]

    def __repr__(self) -> str:
        return f"Prediction({self.task}: {self})"

    def __str__(self) -> str:
        if self.label is None:
            return f"{self.value:z.2f} {self.unit}".rstrip()
        share = f"{self.probability:.0%}"
        return f"{self.label} ({'>99%' if share == '100%' else share})"

    def _repr_html_(self) -> str:
        """What is said, and the probability of every class."""
        rows = "".join(
            f'<tr><td style="text-align: left">{escape(name)}</td><td>{value:.1%}</td></tr>'
            for name, value in self.probabilities.items()
        )
        told = f"<div>{escape(self.task)}: <b>{escape(str(self))}</b></div>"
        return f"{told}<table>{rows}</table>" if rows else told


@dataclass(frozen=True, eq=False)
class Explanation:
    """Relevance of every node of one graph for one output, and what belongs to it.

    relevance (N,), signed; target: the output explained, in words; prediction: of the task the
    target belongs to; predictions: of all tasks; additive: whether relevance is in units of the
    output, as the ledger takes it to be; features (N, F): exact parts of relevance, one
    column for each of `feature_names`, or None; smiles or mol, or image (H, W) and segments
    (H, W), for the picture; provenance: model, checkpoint hash, options, versions.
    """

    relevance: NDArray[np.floating]
    target: str
    prediction: Prediction
    predictions: tuple[Prediction, ...]
    method: str
    title: str
    ledger: Ledger
    additive: bool = True
    features: NDArray[np.floating] | None = None
    feature_names: tuple[str, ...] = ()
    smiles: str | None = None
    mol: "Mol | None" = None
    image: NDArray[np.floating] | None = None
    segments: NDArray[np.integer] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.relevance)

    def __repr__(self) -> str:
        what = self.smiles or f"{len(self)} nodes"
        return (
            f"Explanation({what}: {self.prediction}; {self.title} for {self.target!r},"
            f" output {self.ledger.output:+z.3f}, unexplained {self.ledger.unexplained:+.1e})"
        )

    @property
    def molecule(self) -> "Mol | None":
        """The RDKit molecule whose atoms, in order, are the nodes; None for other graphs."""
        if self.mol is not None or self.smiles is None:
            return self.mol
        from rdkit import Chem, rdBase

        with rdBase.BlockLogs():
            return Chem.MolFromSmiles(self.smiles)

    def svg(
        self, *, scale: "Scale | float | None" = None, palette: str = "red-blue", **options: Any
    ) -> str:
        """The picture as SVG text.

        scale: the relevance of the fullest colours, to share over several explanations; by default
        the largest of this one.
        """
        from graphxai import visualization as draw

        options.setdefault("title", self.headline)
        options.setdefault("subtitle", self.caption)
        options.setdefault("legend", self.legend)
        options |= {"scale": scale, "palette": palette}
        molecule = self.molecule
        if molecule is not None:
            return draw.molecule_svg(molecule, self.relevance, **options)
        if self.image is not None and self.segments is not None:
            return draw.superpixel_svg(self.image, self.segments, self.relevance, **options)
        raise ValueError(
            "this graph has no picture: it came without a molecule (a SMILES) and without an"
            " image with its segments."
        )

    def png(self, *, zoom: float = 2.0, **options: Any) -> bytes:
        """The picture as PNG, `zoom` pixels per SVG unit; options as for `svg`."""
        from graphxai.visualization import svg_to_png

        return svg_to_png(self.svg(**options), zoom)

    @property
    def has_picture(self) -> bool:
        """Whether there is a molecule, or an image with its segments, to draw relevance on."""
        return self.molecule is not None or self.segments is not None

    def _repr_svg_(self) -> str | None:
        from graphxai.visualization import displayed

        return displayed(self.svg()) if self.has_picture else None

    def _repr_html_(self) -> str | None:
        from graphxai.notebook import explanation_html

        # A notebook keeps every form it is given: two would double its size.
        return None if self.has_picture else explanation_html(self)

    @property
    def legend(self) -> tuple[str, str]:
        """What negative and positive relevance mean, in words."""
        first, contrast, second = self.target.partition(" against ")
        if contrast:
            return f"for {second}", f"for {first}"
        if self.prediction.label is None:
            return f"lowers {self.target}", f"raises {self.target}"
        return f"against {self.target}", f"for {self.target}"

    @property
    def headline(self) -> str:
        """The prediction in words."""
        return f"{self.prediction.task}: {self.prediction}"

    @property
    def caption(self) -> str:
        """The method and how its relevance adds up, in one line."""
        if not self.additive:
            return f"{self.title} · scores, not shares of the output"
        ledger = self.ledger
        nodes = "superpixels" if self.segments is not None else "nodes"
        terms = {
            "atoms" if self.smiles is not None else nodes: ledger.nodes,
            "graph token and biases": ledger.graph_token + ledger.biases,
        }
        if ledger.structure:
            terms["structure"] = sum(ledger.structure.values())
        if abs(ledger.unexplained) >= 0.005:
            terms["unexplained"] = ledger.unexplained
        told = ", ".join(f"{name} {value:+z.2f}" for name, value in terms.items())
        return f"{self.title} · output {ledger.output:+z.2f} = {told}".replace(
            "-", "\N{MINUS SIGN}"
        )

    def to_frame(self) -> "pd.DataFrame":
        """One row a node: symbol (molecules), relevance, then its parts by feature."""
        import pandas as pd

        columns: dict[str, Any] = {}
        molecule = self.molecule
        if molecule is not None:
            columns["symbol"] = [atom.GetSymbol() for atom in molecule.GetAtoms()]
        columns["relevance"] = self.relevance
        frame = pd.DataFrame(columns)
        if self.features is not None:
            parts = pd.DataFrame(self.features, columns=list(self.feature_names))
            frame = pd.concat([frame, parts], axis=1)
        frame.index.name = "atom" if molecule is not None else "node"
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Everything but the picture, as JSON values.

        Relevance is in the order of the atoms of `smiles`; for an RDKit molecule in that of
        `molblock`, beside which `smiles` is only its name.
        """
        return {
            "smiles": self.smiles,
            "molblock": None if self.mol is None else _molblock(self.mol),
            "method": self.method,
            "target": self.target,
            "predictions": [asdict(p) for p in self.predictions],
            "relevance": self.relevance.tolist(),
            "ledger": self.ledger.to_dict(),
            "feature_names": list(self.feature_names),
            "features": None if self.features is None else self.features.tolist(),
            "provenance": self.provenance,
        }

    def to_pyg(self) -> "PygExplanation":
        """As `torch_geometric.explain.Explanation`, relevance in `node_mask` (N, 1)."""
        from graphxai.export import to_pyg

        return to_pyg(self)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture (.svg, .png, .pdf), a page (.html) or the values, by suffix.

        Values: .csv, .parquet, .json, and for molecules .sdf, .smi; see `graphxai.export`.
        Options of pictures and pages as for `svg`. Raises ValueError for another suffix.
        """
        from graphxai.export import save

        return save(self, path, **options)

    def show(self, methods: Sequence[Any] | None = None, **options: Any) -> "Picture":
        """The same input explained by several methods, side by side; see `notebook.show`.

        Options: model (needed unless it is a bundled one), target, and those of `compare`.
        """
        from graphxai import notebook

        return notebook.show(self, methods or notebook.COMPARED, **options)


def _molblock(mol: "Mol") -> str:
    from rdkit import Chem

    return Chem.MolToV3KMolBlock(mol)
