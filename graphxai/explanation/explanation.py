"""One graph's explanation: plain values, a ledger that adds up, a picture, files."""

import math
from base64 import b64encode
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.target import Target
from graphxai.visualization.resonance import averaged, equivalent_atoms
from graphxai.visualization.text import minus_signs

from . import files
from .html import page_html, table_html
from .ledger import Ledger
from .prediction import NotFiniteError, Prediction
from .result import Result

if TYPE_CHECKING:
    import pandas as pd
    from rdkit.Chem import Mol
    from torch_geometric.explain import Explanation as PygExplanation

    from graphxai.datasets.training_set import Nearness
    from graphxai.visualization import Scale

TOP = 5  # strongest nodes listed on a page
NO_MOLECULE = "this graph has no molecule: write .csv, .parquet or .json."


@dataclass(frozen=True, eq=False)
class Explanation(Result):
    """Relevance of every node of one graph for one output, and what describes it.

    relevance (N,), signed; target: the explained output, in words; wanted: the same as a `Target`,
    for explaining it again; prediction: for the target's task; predictions: for all tasks;
    additive: whether relevance is in units of the output, as the ledger assumes; unsigned: if no
    score is negative, what a large one says about a node, otherwise empty; caveat: what to know
    about the method's scores, if anything; features (N, F): relevance split exactly by feature, one
    column for each of `feature_names`, or None; spread (N,): the standard error of each score, in
    its unit, for methods that average over samples, or its standard deviation over `members` (K,
    N), the relevance by each model of an ensemble; otherwise None; relevance_of, features_of: by
    name the relevance of each row (rows,) of the inputs named in `of`, or of the nodes of
    each type of a heterogeneous graph, and its parts (rows, ...) in the input's own shape, where
    the method splits by feature; smiles or mol, or image (H, W) and segments (H, W), for the
    picture; provenance: model, checkpoint hash, options, versions. Raises NotFiniteError if
    relevance or ledger are not finite.
    """

    relevance: NDArray[np.floating]
    target: str
    wanted: Target
    prediction: Prediction
    predictions: tuple[Prediction, ...]
    method: str
    title: str
    ledger: Ledger
    additive: bool = True
    caveat: str = ""
    unsigned: str = ""
    features: NDArray[np.floating] | None = None
    feature_names: tuple[str, ...] = ()
    spread: NDArray[np.floating] | None = None
    members: NDArray[np.floating] | None = None
    relevance_of: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    features_of: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    smiles: str | None = None
    mol: "Mol | None" = None
    image: NDArray[np.floating] | None = None
    segments: NDArray[np.integer] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arrays = [a for a in (self.relevance, self.features, self.spread) if a is not None]
        arrays += [*self.relevance_of.values(), *self.features_of.values()]
        figures = self.ledger.to_dict().values()
        if not (all(map(math.isfinite, figures)) and all(np.isfinite(a).all() for a in arrays)):
            raise NotFiniteError(
                f"{self.title} gives {self.smiles or f'a graph of {len(self)} nodes'} relevance"
                " that is not a finite number."
            )

    def __len__(self) -> int:
        return len(self.relevance)

    def __repr__(self) -> str:
        what = self.smiles or f"{len(self)} nodes"
        parts = [
            f"{what}: {self.prediction.in_full}",
            f"{self.title} for {self.target!r}, output {self.ledger.output:+z.3f},"
            f" unexplained {self.ledger.unexplained:+.1e}",
            self.prediction.warning,
        ]
        return f"Explanation({'; '.join(filter(None, parts))})"

    def at(self, level: float) -> "Explanation":
        """The same explanation, its predictions with intervals or classes at a level."""
        predictions = tuple(p.at(level) for p in self.predictions)
        own = next(p for p in predictions if p.task == self.prediction.task)
        return replace(self, prediction=own, predictions=predictions)

    @property
    def nearness(self) -> "Nearness | None":
        """How near the molecule is to the model's training set; None for other graphs."""
        return self.prediction.nearness

    @property
    def molecule(self) -> "Mol | None":
        """The RDKit molecule whose atoms, in order, are the nodes; None for other graphs."""
        if self.mol is not None or self.smiles is None:
            return self.mol
        from rdkit import Chem

        molecule = _read(self.smiles)
        return None if molecule is None else Chem.Mol(molecule)  # which the caller may change

    def atoms(self, error: str = NO_MOLECULE) -> "Mol":
        """The molecule whose atoms are the nodes; raises ValueError(error) for other graphs."""
        molecule = self.molecule
        if molecule is None or molecule.GetNumAtoms() != len(self):
            raise ValueError(error)
        return molecule

    @property
    def equivalent(self) -> list[tuple[int, ...]]:
        """Groups of atoms that differ only by the resonance form drawn; empty without a molecule.

        Source: `visualization.resonance`.
        """
        molecule = self.molecule
        return [] if molecule is None else equivalent_atoms(molecule)

    def scale(self, wanted: "Scale | float | None" = None, palette: str = "red-blue") -> "Scale":
        """The colour scale of the picture, from zero for scores without a sign.

        wanted: the relevance shown in full colour; by default the largest |relevance| of this one.
        """
        from graphxai.visualization import Scale

        chosen = Scale.chosen(wanted, self.relevance, palette=palette)
        return replace(chosen, one_sided=bool(self.unsigned))

    def svg(
        self,
        *,
        scale: "Scale | float | None" = None,
        palette: str = "red-blue",
        as_drawn: bool = False,
        agreed: bool = False,
        **options: Any,
    ) -> str:
        """The picture as SVG text.

        scale: the relevance shown in full colour, which several explanations can share; by default
        the largest |relevance| of this one. as_drawn: for molecules, do not show the mean where
        resonance makes atoms equivalent (see `equivalent`). agreed: give no colour to nodes on
        whose sign the models of an ensemble disagree (see `contested`). Other options as for
        `molecule_svg` (such as `atom_numbers=True`) and `superpixel_svg`.
        """
        from graphxai import visualization as draw

        relevance = self.relevance
        if agreed:
            if self.members is None:
                raise ValueError("agreed=True needs an explanation by an ensemble of models.")
            relevance = np.where(self.contested, 0.0, relevance)
            count = f"{self.contested.sum()} of {len(self)} {self._nodes}"
            options.setdefault(
                "subtitle", f"{self.caption}\nwithout colour: models disagree ({count})"
            )
        options.setdefault("title", self.headline)
        options.setdefault("subtitle", self.caption)
        options.setdefault("legend", self.legend)
        options["scale"] = self.scale(scale, palette)
        molecule = self.molecule
        if molecule is not None:
            groups = [] if as_drawn else equivalent_atoms(molecule)
            options.setdefault("note", _note(molecule, groups))
            return draw.molecule_svg(molecule, averaged(relevance, groups), **options)
        if self.image is not None and self.segments is not None:
            return draw.superpixel_svg(self.image, self.segments, relevance, **options)
        raise ValueError(
            "this graph has no picture: it has neither a molecule (a SMILES) nor an image with"
            " segments."
        )

    @property
    def has_picture(self) -> bool:
        """Whether there is a molecule, or an image with segments, to draw relevance on."""
        return self.molecule is not None or self.segments is not None

    def _repr_svg_(self) -> str | None:
        return super()._repr_svg_() if self.has_picture else None

    def _repr_html_(self) -> str | None:
        # A notebook stores every representation: two would double its size.
        return None if self.has_picture else self.section()

    def section(self, **options: Any) -> str:
        """HTML of a section of a page: the picture (or text instead), then the details.

        Options as for `svg`. All text is escaped.
        """
        text = escape(f"{self.headline}. {self.caption}".replace("\n", "; "))
        if self.has_picture:
            # as a separate document, because two pictures may use the same ids
            code = b64encode(self.svg(**options).encode()).decode()
            shown = f'<p><img alt="{text}" src="data:image/svg+xml;base64,{code}"></p>'
        else:
            shown = f"<p>{text}</p>"
        prediction = self.prediction
        if prediction.range:
            shown += f"<p>{escape(f'{prediction.task}: {prediction.in_full}')}</p>"
        warning = prediction.warning
        shown += f"<p><b>{escape(warning)}</b></p>" if warning else ""
        return (
            f"{shown}{self._strongest()}"
            f"<details><summary>Ledger and provenance</summary>{self.ledger._repr_html_()}"
            f"<p>{escape(self._origin())}</p></details>"
        )

    def _strongest(self) -> str:
        """A table of the nodes with the largest |relevance|."""
        order = np.argsort(-np.abs(self.relevance), kind="stable")[:TOP]
        values = [self.listed(i) for i in order.tolist()]
        molecule, head = self.molecule, f"relevance{self.errors}"
        if molecule is None:
            return table_html(("node", head), zip(order.tolist(), values, strict=True))
        symbols = [molecule.GetAtomWithIdx(i).GetSymbol() for i in order.tolist()]
        rows = zip(order.tolist(), symbols, values, strict=True)
        return table_html(("atom", "symbol", head), rows)

    def _origin(self) -> str:
        """The provenance in one line."""
        made = self.provenance
        parts = [self.smiles or f"{len(self)} nodes", self.title]
        if made.get("model"):
            parts.append(f"model {made['model']} ({str(made.get('sha256') or 'not saved')[:12]})")
        parts += [f"{name} {version}" for name, version in dict(made.get("versions", {})).items()]
        return " · ".join(parts)

    def written(self, relevance: float) -> str:
        """A relevance as text, with a plus sign only if scores have a sign."""
        return f"{relevance:z.4f}" if self.unsigned else f"{relevance:+z.4f}"

    def listed(self, node: int) -> str:
        """A node's relevance as text, ± its standard error if there is one."""
        text = self.written(self.relevance[node])
        return text if self.spread is None else f"{text} ± {self.spread[node]:.4f}"

    @property
    def errors(self) -> str:
        """What ± means in a list of scores; empty if no errors are known."""
        if self.members is not None and self.spread is not None:
            return f" ± standard deviation over {len(self.members)} models"
        return "" if self.spread is None else " ± standard error"

    @property
    def contested(self) -> NDArray[np.bool_]:
        """For each node (N,) whether models of the ensemble disagree on its sign."""
        if self.members is None:
            return np.zeros(len(self), dtype=np.bool_)
        return np.logical_and((self.members > 0).any(0), (self.members < 0).any(0))

    @property
    def subject(self) -> str:
        """The target, always with its task if the model has several: `hERG inhibition: active`."""
        task = self.prediction.task
        several = len(self.predictions) > 1 and self.prediction.label is not None
        if not several or isinstance(self.wanted.choice, tuple):
            return self.target
        return f"{task}: {self.target.removeprefix(f'{task}: ')}"

    @property
    def unit(self) -> str:
        """The unit of the explained output; empty for a class, a pair, or a task without a unit."""
        return "" if isinstance(self.wanted.choice, tuple) else self.prediction.unit

    @property
    def legend(self) -> tuple[str, str]:
        """What negative and positive relevance mean; without a sign, only what positive means."""
        if self.unsigned:
            return "", self.unsigned
        if isinstance(self.wanted.choice, tuple):
            first, _, second = self.target.partition(" against ")
            return f"for {second}", f"for {first}"
        if self.prediction.label is None:
            value = f"{self.target} ({self.unit})" if self.unit and self.additive else self.target
            return f"lowers {value}", f"raises {value}"
        return f"against {self.target}", f"for {self.target}"

    @property
    def headline(self) -> str:
        """The prediction in words."""
        return minus_signs(f"{self.prediction.task}: {self.prediction}")

    @property
    def caption(self) -> str:
        """What the nodes changed in the output, then the method's shares of it, a line each."""
        if not self.additive:
            what = "scores without a sign" if self.unsigned else "scores"
            caveat = f" · {self.caveat}" if self.caveat else ""
            return f"{self.title} · {what}, not shares of the output{caveat}"
        ledger = self.ledger
        terms = {self._nodes: ledger.nodes}
        if ledger.average_node is not None:
            terms[f"average {self._nodes}"] = ledger.average_node
        terms["graph token and biases"] = ledger.graph_token + ledger.biases
        if ledger.structure:
            terms["structure"] = sum(ledger.structure.values())
        terms |= ledger.others
        if abs(ledger.unexplained) >= 0.005:
            terms["unexplained"] = ledger.unexplained
        shares = ", ".join(f"{name} {value:+z.2f}" for name, value in terms.items())
        output = f"output {ledger.output:+z.2f} {self.unit}".rstrip()
        if ledger.change is None:
            return minus_signs(f"{self.title} · {output} = {shares}")
        empty = f"{ledger.without_nodes:+z.2f} without {self._nodes}"
        changed = f"{ledger.change:+z.2f} from adding them"
        return minus_signs(f"{output} = {empty}, {changed}\n{self.title}: {shares}")

    @property
    def _nodes(self) -> str:
        """What the nodes are, in the plural."""
        if self.smiles is not None:
            return "atoms"
        return "superpixels" if self.segments is not None else "nodes"

    def to_frame(self) -> "pd.DataFrame":
        """One row per node: symbol (for molecules), relevance, spread (if known), whether models of
        an ensemble disagree on its sign, its parts by feature.
        """
        import pandas as pd

        columns: dict[str, Any] = {}
        molecule = self.molecule
        if molecule is not None:
            columns["symbol"] = [atom.GetSymbol() for atom in molecule.GetAtoms()]
        columns["relevance"] = self.relevance
        if self.spread is not None:
            columns["spread"] = self.spread
        if self.members is not None:
            columns["contested"] = self.contested
        frame = pd.DataFrame(columns)
        if self.features is not None:
            parts = pd.DataFrame(self.features, columns=list(self.feature_names))
            frame = pd.concat([frame, parts], axis=1)
        frame.index.name = "atom" if molecule is not None else "node"
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Everything but the picture, as JSON values.

        Relevance follows the atom order of `smiles`. If there is a `molblock` (the input was an
        RDKit molecule), it follows the order in there, and `smiles` is only a name.
        """
        of_inputs = {
            field: {name: part.tolist() for name, part in getattr(self, field).items()}
            for field in ("relevance_of", "features_of")
            if getattr(self, field)
        }
        return {
            "smiles": self.smiles,
            "molblock": None if self.mol is None else _molblock(self.mol),
            "method": self.method,
            "target": self.target,
            "predictions": [p.to_dict() for p in self.predictions],
            "training_set": None if self.nearness is None else asdict(self.nearness),
            "relevance": self.relevance.tolist(),
            "spread": None if self.spread is None else self.spread.tolist(),
            **({} if self.members is None else {"members": self.members.tolist()}),
            "ledger": self.ledger.to_dict(),
            "feature_names": list(self.feature_names),
            "features": None if self.features is None else self.features.tolist(),
            **of_inputs,
            "provenance": self.provenance,
        }

    def to_pyg(self) -> "PygExplanation":
        """As `torch_geometric.explain.Explanation`.

        `node_mask` (N, 1): signed relevance; `edge_mask` (E,): that of `edge_attr`, if it was
        explained. Molecules have `edge_index`, and `x` and `edge_attr`
        in OGB's encoding; other graphs have only their number of nodes. Further attributes are
        `smiles`, `method`, `label` (the target in words) and `ledger`.
        """
        import torch
        from torch_geometric.explain import Explanation as PygExplanation

        from graphxai.datasets.molecules import molecule_to_data

        content: dict[str, Any] = {"node_mask": torch.from_numpy(self.relevance)[:, None].clone()}
        if "edge_attr" in self.relevance_of:
            content["edge_mask"] = torch.from_numpy(self.relevance_of["edge_attr"]).clone()
        molecule = self.molecule
        if molecule is not None and molecule.GetNumAtoms() == len(self):
            data = molecule_to_data(molecule, max_atoms=len(self))
            content |= {"x": data.x, "edge_index": data.edge_index, "edge_attr": data.edge_attr}
            content["smiles"] = self.smiles
        else:
            content["num_nodes"] = len(self)
        return PygExplanation(
            **content, method=self.method, label=self.target, ledger=self.ledger.to_dict()
        )

    def to_sdf(self, *, title: str = "", **properties: object) -> str:
        """One record of an SD file; see `files.sdf_record`.

        Your `properties` come first, then target, method, predictions, ledger and model. Raises
        ValueError for a graph without a molecule.
        """
        return files.sdf_record(
            self.atoms(),
            self.relevance,
            title=title,
            properties={**properties, **self._properties()},
        )

    def to_cxsmiles(self) -> str:
        """The molecule as CXSMILES with its relevance; see `files.cxsmiles`.

        Raises ValueError for a graph without a molecule.
        """
        return files.cxsmiles(self.atoms(), self.relevance)

    def _to_smi(self) -> str:
        output = f"{self.ledger.output:{files.DIGITS}}"
        comment = f"{self.method} for {self.target}, output {output}"
        return files.smi_line(self.to_cxsmiles(), comment)

    def _properties(self) -> dict[str, object]:
        """Properties of the molecule as a whole in an SD file."""
        text: dict[str, object] = {
            "SMILES": self.smiles or "",
            "Method": self.method,
            "Target": self.target,
        }
        for prediction in self.predictions:
            text[f"Prediction {prediction.task}"] = prediction
            if prediction.range:
                text[f"Range {prediction.task}"] = prediction.range
        for name, value in self.ledger.to_dict().items():
            text[name.replace("_", " ").capitalize()] = value
        columns = {} if self.nearness is None else self.nearness.columns
        text |= {name.replace("_", " ").capitalize(): value for name, value in columns.items()}
        for name in ("model", "sha256"):
            text[name.capitalize()] = self.provenance.get(name) or ""
        return text

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture (.svg, .png, .pdf), a page (.html) or the values, by suffix.

        Values: .csv, .parquet, .json, and for molecules .sdf, .smi; see `explanation.files`.
        Pictures and pages take the options of `svg`. Raises ValueError for any other suffix or if
        the explanation has no molecule or image to write, ImportError for Parquet without pyarrow.
        """
        path = files.writable(path)
        match path.suffix.lower():
            case ".html":
                return files.write_text([page_html(self.headline, [self.section(**options)])], path)
            case ".csv":
                return files.write_csv(self.to_frame(), path)
            case ".parquet":
                return files.write_parquet(self.to_frame().reset_index(), self.to_dict(), path)
            case ".json":
                return files.write_json(self.to_dict(), path)
            case ".sdf":
                return files.write_text([self.to_sdf()], path)
            case ".smi":
                return files.write_text([self._to_smi()], path)
        return files.write_pictures([self.svg(**options)], path)


@lru_cache(maxsize=1024)  # a table looks each molecule up several times, also at its end
def _read(smiles: str) -> "Mol | None":
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        return Chem.MolFromSmiles(smiles)


def _note(mol: "Mol", groups: list[tuple[int, ...]]) -> str:
    """Which atoms a picture shows with their mean; empty if there are none."""
    listed = [", ".join(f"{mol.GetAtomWithIdx(i).GetSymbol()}{i}" for i in g) for g in groups]
    return f"mean over atoms equivalent by resonance: {'; '.join(listed)}" if listed else ""


def _molblock(mol: "Mol") -> str:
    from rdkit import Chem

    return Chem.MolToV3KMolBlock(mol)
