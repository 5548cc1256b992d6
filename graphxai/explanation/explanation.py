"""An explanation of one graph, which becomes a picture, a page, a table or a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphxai import visualization as draw
from graphxai.runtime.writing import write_whole
from graphxai.visualization import Scale
from graphxai.visualization.layout import averaged, equivalent_atoms, layout_note
from graphxai.visualization.render import save_picture

from . import files
from .explained_graph import ExplainedGraph
from .result import Result, image_html, page_html, table_html

if TYPE_CHECKING:
    import pandas as pd
    from rdkit.Chem import Mol
    from torch_geometric.explain import Explanation as PygExplanation

TOP = 5  # how many of the strongest nodes a page lists
NUMBERED = "atoms are numbered as in the molecule given"


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(ExplainedGraph, Result):
    """The explanation of one graph, as a picture, a page, a table or a file.

    It holds plain values, which `ExplainedGraph` lists, and a ledger that adds up.
    """

    def scale(self, wanted: Scale | float | None = None, palette: str = "red-blue") -> "Scale":
        """Return the colour scale of the picture, which starts at zero for scores without a sign.

        Args:
            wanted: the relevance that is shown in full colour. By default it is the largest
                |relevance| of this graph.
            palette: one of `visualization.PALETTES`.
        """
        chosen = Scale.chosen(wanted, self.relevance, palette=palette)
        return replace(chosen, one_sided=bool(self.unsigned))

    def svg(
        self,
        *,
        scale: Scale | float | None = None,
        palette: str = "red-blue",
        as_drawn: bool = False,
        **options: Any,
    ) -> str:
        """Return the picture as SVG text.

        Nodes on whose sign the models of an ensemble disagree are pale (see `contested`), and the
        caption says so.

        Args:
            scale: the relevance that is shown in full colour, or a scale that several explanations
                share. By default it is the largest |relevance| of this graph.
            palette: one of `visualization.PALETTES`.
            as_drawn: whether each atom shows its own relevance. By default, atoms that resonance
                makes equivalent show their mean (see `equivalent`).
            options: options of `molecule_svg` (such as `atom_numbers=True`, which writes the
                numbers of the atoms in the molecule given), `superpixel_svg`, `graph_svg` and
                `tokens_svg` (such as the `words` of a sentence). For patches of an image there are
                `grid=(rows, columns)` and the options of `patches_svg`, such as the `image`.
        """
        relevance = self.relevance
        options.setdefault("title", self.headline)
        options.setdefault("subtitle", self.caption)
        if self.contested.any():
            options.setdefault("pale", self.contested)
        options.setdefault("legend", self.legend)
        options["scale"] = self.scale(scale, palette)
        molecule = self.molecule
        if molecule is not None:
            groups = [] if as_drawn else equivalent_atoms(molecule)
            notes = [self.note, layout_note(molecule), _note(molecule, groups)]
            if options.get("atom_numbers") is True and self.as_given is not None:
                options["atom_numbers"] = self.as_given.atoms
                notes.append(NUMBERED)
            options.setdefault("note", "; ".join(note for note in notes if note))
            bonds = self.bonds
            if scale is None and bonds is not None:
                options["scale"] = replace(options["scale"], limit=self._limit(bonds))
            return draw.molecule_svg(
                molecule, averaged(relevance, groups), bond_relevance=bonds, **options
            )
        if self.image is not None and self.segments is not None:
            return draw.superpixel_svg(self.image, self.segments, relevance, **options)
        if self.drawn is not None:
            edges = self.relevance_of.get("edge_attr")
            if scale is None and edges is not None:
                options["scale"] = replace(options["scale"], limit=self._limit(edges))
            return draw.graph_svg(self.drawn, relevance, edge_relevance=edges, **options)
        if self.is_sequence:
            return draw.tokens_svg(relevance, **options)
        if grid := options.pop("grid", self.grid):
            return draw.patches_svg(relevance, grid, **options)
        raise ValueError(
            "this input cannot be drawn: it has no molecule (a SMILES), no image with segments and"
            " no edges. For patches of an image, give grid=(rows, columns)."
        )

    def _limit(self, edges: NDArray[np.floating]) -> float:
        """Return the largest |relevance| of nodes and edges, or 1 if all is zero."""
        return float(np.abs(np.concatenate([self.relevance, edges])).max()) or 1.0

    @property
    def _is_of_cells(self) -> bool:
        """Whether superpixels or patches are drawn, whose picture takes the height of a panel."""
        of_others = any(x is not None for x in (self.smiles, self.mol, self.drawn))
        return self.image is not None or not (of_others or self.is_sequence)

    def _options_for(self, width: float, height: float) -> dict[str, Any]:
        size = {} if self._is_of_cells else {"width": width, "height": height}
        return {"title": "", "subtitle": "", **size}

    @property
    def _title(self) -> str:
        return self.headline

    def _repr_svg_(self) -> str | None:
        return super()._repr_svg_() if self.has_picture else None

    def _repr_html_(self) -> str | None:
        # A notebook stores every representation, so two would double its size.
        return None if self.has_picture else self.section()

    def section(self, **options: Any) -> str:
        """Return the HTML of a section of a page: the picture, or a text, and the details.

        Options are those of `svg`. All text is escaped.
        """
        text = f"{self.headline}. {self.caption}".replace("\n", "; ")
        if self.has_picture:
            shown = f"<p>{image_html(self.svg(**options), text)}</p>"
        else:
            shown = f"<p>{escape(text)}</p>"
        prediction = self.prediction
        if prediction.range:
            shown += f"<p>{escape(f'{prediction.task}: {prediction.in_full}')}</p>"
        shown += f"<p>{escape(self.note)}</p>" if self.note else ""
        warning = prediction.warning
        ledger = "" if self.ledger is None else self.ledger._repr_html_()
        shown += f"<p><b>{escape(warning)}</b></p>" if warning else ""
        return (
            f"{shown}{self._strongest()}"
            f"<details><summary>Ledger and provenance</summary>{ledger}"
            f"<p>{escape(self.provenance_line)}</p></details>"
        )

    def _strongest(self) -> str:
        order = np.argsort(-np.abs(self.relevance), kind="stable")[:TOP]
        values = [self.format_node(i) for i in order.tolist()]
        molecule, head = self.molecule, f"relevance{self.spread_note}"
        if molecule is None:
            return table_html(("node", head), zip(order.tolist(), values, strict=True))
        symbols = [molecule.GetAtomWithIdx(i).GetSymbol() for i in order.tolist()]
        given = range(len(self)) if self.as_given is None else self.as_given.atoms
        rows = zip((given[i] for i in order.tolist()), symbols, values, strict=True)
        return table_html(("atom", "symbol", head), rows)

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per node.

        Its columns are symbol (for molecules), relevance, spread (if there is one), contested
        (whether the models of an ensemble disagree on the sign), agreement (how many share it), the
        parts by feature, and given_atom (the number of the atom in the molecule given, if its
        parent was explained). Files have the SMILES of the molecule, too.
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
            columns |= {"contested": self.contested, "agreement": self.agreement}
        frame = pd.DataFrame(columns)
        if self.features is not None:
            parts = pd.DataFrame(self.features, columns=list(self.feature_names))
            frame = pd.concat([frame, parts], axis=1)
        if self.as_given is not None:
            frame["given_atom"] = list(self.as_given.atoms)
        frame.index.name = "atom" if molecule is not None else "node"
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the picture, as JSON values.

        Relevance follows the atom order of `smiles`. If the input was an RDKit molecule, there is a
        `molblock`. Relevance then follows its order, and `smiles` is only a name.
        """
        of_inputs = {
            field: {name: part.tolist() for name, part in getattr(self, field).items()}
            for field in ("relevance_of", "features_of")
            if getattr(self, field)
        }
        return {
            "smiles": self.smiles,
            "molblock": None if self.mol is None else _molblock(self.mol),
            **({} if self.as_given is None else {"as_given": self.as_given._asdict()}),
            "method": self.method,
            "target": self.target,
            "predictions": [p.to_dict() for p in self.predictions],
            "training_set": None if self.nearness is None else self.nearness.to_dict(),
            "relevance": self.relevance.tolist(),
            "spread": None if self.spread is None else self.spread.tolist(),
            **({} if self.members is None else {"members": self.members.tolist()}),
            "output": self.output,
            "without_nodes": self.without_nodes,
            "ledger": None if self.ledger is None else self.ledger.to_dict(),
            "feature_names": list(self.feature_names),
            "features": None if self.features is None else self.features.tolist(),
            **of_inputs,
            "provenance": self.provenance,
        }

    def to_pyg(self) -> "PygExplanation":
        """Return a `torch_geometric.explain.Explanation`.

        Its `node_mask` (N, 1) is the signed relevance. Its `edge_mask` (E,) is the relevance of
        `edge_attr`, if this was explained. A molecule has `x`, `edge_index` and `edge_attr` in
        OGB's encoding, where half of a bond's relevance belongs to each direction, and other graphs
        have those of the input. Graphs with several types of nodes have only their number of nodes.
        Further attributes are `pos` (of superpixels), `smiles`,
        `method`, `label` (the target as text), `output`, and `ledger` if the method has one.
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
            if (bonds := self.bonds) is not None:  # OGB lists both directions of each bond
                content["edge_mask"] = torch.from_numpy(bonds).repeat_interleave(2) / 2
            content["smiles"] = self.smiles
        else:
            content |= {name: torch.from_numpy(values) for name, values in self.graph.items()}
            content["num_nodes"] = len(self)
        if self.ledger is not None:
            content["ledger"] = self.ledger.to_dict()
        return PygExplanation(**content, method=self.method, label=self.target, output=self.output)

    def to_sdf(self, *, title: str = "", **properties: object) -> str:
        """Return a record of an SD file, as `files.sdf_record` writes it.

        The `properties` come first, then the target, method, predictions, ledger and model.

        Raises:
            ValueError: the graph is no molecule.
        """
        items = {**properties, **self._properties()}
        return files.sdf_record(self.atoms(), self.relevance, title=title, properties=items)

    def to_cxsmiles(self) -> str:
        """Return the molecule as CXSMILES with its relevance, as `files.cxsmiles` writes it.

        Raises:
            ValueError: the graph is no molecule.
        """
        return files.cxsmiles(self.atoms(), self.relevance)

    def _to_smi(self) -> str:
        output = f"{self.output:{files.DIGITS}}"
        comment = f"{self.method} for {self.target}, output {output}"
        return files.smi_line(self.to_cxsmiles(), comment)

    def _properties(self) -> dict[str, object]:
        given: dict[str, object] = {}
        if (as_given := self.as_given) is not None:
            atoms = " ".join(map(str, as_given.atoms))
            given = {"Given": as_given.smiles, "Given atoms": atoms, "Note": as_given.sentence}
        text: dict[str, object] = {"SMILES": self.smiles or "", **given}
        text |= {"Method": self.method, "Target": self.target}
        for prediction in self.predictions:
            text[f"Prediction {prediction.task}"] = prediction
            if prediction.range:
                text[f"Range {prediction.task}"] = prediction.range
        figures = {"output": self.output} if self.ledger is None else self.ledger.to_dict()
        for name, value in figures.items():
            text[name.replace("_", " ").capitalize()] = value
        columns = {} if self.nearness is None else self.nearness.columns
        text |= {name.replace("_", " ").capitalize(): value for name, value in columns.items()}
        for name in ("model", "sha256"):
            text[name.capitalize()] = self.provenance.get(name) or ""
        return text

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture (.svg, .png, .pdf), a page (.html) or the values, by the file's suffix.

        The values can be written as .csv, .parquet or .json, and for molecules as .sdf or .smi (see
        `explanation.files`). Pictures and pages take the options of `svg`.

        Raises:
            ValueError: the suffix is another one, or the explanation has no molecule or image to
                write.
            ImportError: Parquet is wanted, but pyarrow is not installed.
        """
        path = files.writable(path)
        suffix = path.suffix.lower()
        if suffix in files.TABLES:
            return write_values([self], path, lambda: self.to_frame().reset_index(), self.to_dict)
        if suffix == ".html":
            return write_whole(path, page_html(self.headline, [self.section(**options)]))
        return save_picture([self.svg(**options)], path)


def write_values(
    explanations: Sequence[Explanation],
    path: Path,
    to_frame: "Callable[[], pd.DataFrame]",
    content: Callable[[], Any],
) -> Path:
    """Write what explanations hold to one of `files.TABLES`.

    A table of nodes has the SMILES of their molecules, by which it is read again.

    Args:
        to_frame: makes the table of their nodes.
        content: returns all that they hold, as JSON values.
    """
    suffix = path.suffix.lower()
    if suffix in (".csv", ".parquet"):
        frame, smiles = to_frame(), [each.smiles for each in explanations for _ in each.relevance]
        frame = frame.assign(smiles=smiles) if any(smiles) else frame
        if suffix == ".csv":
            return files.write_csv(frame, path, index=False)
        return files.write_parquet(frame, path, content())
    if suffix == ".json":
        return files.write_json(content(), path)
    written = Explanation.to_sdf if suffix == ".sdf" else Explanation._to_smi
    return write_whole(path, "".join(map(written, explanations)))


def _note(mol: "Mol", groups: list[tuple[int, ...]]) -> str:
    """Say which atoms a picture shows with their mean. Return "" if there are none."""
    listed = [", ".join(f"{mol.GetAtomWithIdx(i).GetSymbol()}{i}" for i in g) for g in groups]
    return f"mean over atoms equivalent by resonance: {'; '.join(listed)}" if listed else ""


def _molblock(mol: "Mol") -> str:
    from rdkit import Chem

    return Chem.MolToV3KMolBlock(mol)


def about_output(explanation: ExplainedGraph) -> str:
    """Say in one sentence what the explained output is and how to read its size."""
    target = explanation.target
    first, against, second = target.partition(" against ")
    if against and isinstance(explanation.wanted.choice, tuple):
        task = f"{explanation.prediction.task}: "
        ends = {first.removeprefix(task), second.removeprefix(task)}
        if ends <= set(explanation.prediction.probabilities):
            text = f"a difference of logits: +0.7 doubles the odds of {first} against {second}"
        else:
            text = f"the difference of two outputs, {first} minus {second}"
    elif explanation.prediction.label is None:
        unit = explanation.prediction.unit
        text = f"the predicted value in {unit}" if unit else "the predicted value"
    else:
        text = "a logit: +0.7 doubles the odds"
    return f"The output for the target, {target}, is {text}."


def about_terms(explanation: ExplainedGraph) -> dict[str, str]:
    """Return the words of the explanation's ledger that need explaining, each with its meaning."""
    ledger = explanation.ledger
    if ledger is None:
        return {}
    node, links = ("atom", "bonds") if explanation.smiles is not None else ("node", "neighbours")
    meanings = {
        "without nodes": f"what the model says about a graph without any {node}s",
        "zeroed nodes": f"what the model says about the graph if all its {node}s are zeros",
        "change": f"what all {node}s together change in that",
        "centrality": f"the {node}s' share that comes from their number of {links}",
        "graph token": f"an extra node beside the {node}s, from which the model reads its answer",
        "biases": f"the model's constants, which belong to no {node}",
        "unexplained": "what the method cannot assign, which under LRP is only rounding",
        "curve": f"what a group of {node}s adds by its size alone, for k of all {node}s",
        "group error": f"how far without nodes + shares + curve is off for a group of {node}s",
    }
    values = vars(ledger) | {"change": ledger.change, "curve": ledger.group_error}
    return {t: m for t, m in meanings.items() if values.get(t.replace(" ", "_"), 0) is not None}
