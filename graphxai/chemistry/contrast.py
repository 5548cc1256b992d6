"""Compare two molecules: what causes the difference in a matched pair or an activity cliff."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphxai.explainers.registry import Method
from graphxai.explanation.api import KnownTarget, explain, load
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explained_graph import of_either_sign
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.explanations import with_doubt
from graphxai.explanation.result import Result
from graphxai.visualization import Scale
from graphxai.visualization.grid import contrast_svg
from graphxai.visualization.layout import averaged
from graphxai.visualization.text import minus_signs

from .matching import CommonPart, common_part

if TYPE_CHECKING:
    import pandas as pd

COMPARED = "lower than in the other molecule", "higher than in the other molecule"
NO_MOLECULE = "a contrast needs two molecules, but one input has none."


@dataclass(frozen=True)
class Account:
    """The difference between the outputs of two molecules a and b, split into terms.

    `f(a) - f(b) = common + changed_a - changed_b + graph_token + biases + structure + average_atoms
    + other_inputs + unexplained`. Under `lrp`, `unexplained` is only rounding.

    Args:
        output: the difference between the two outputs.
        common: the differences of corresponding atoms, summed.
        changed_a: summed relevance of the atoms that only a has.
        changed_b: summed relevance of the atoms that only b has.
        graph_token, biases, structure, average_atoms: the share of a minus the share of b; `Ledger`
            says what these shares are.
        other_inputs: the same for all other shares of a wrapped model, such as that of features of
            whole molecules. Those of bonds are in the terms of their atoms, half in each.
    """

    output: float
    common: float
    changed_a: float
    changed_b: float
    graph_token: float
    biases: float
    structure: float = 0.0
    average_atoms: float = 0.0
    other_inputs: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all terms."""
        atoms = self.common + self.changed_a - self.changed_b + self.average_atoms
        return atoms + self.graph_token + self.biases + self.structure + self.other_inputs

    @property
    def unexplained(self) -> float:
        """Output minus total."""
        return self.output - self.total

    @property
    def at_change(self) -> float | None:
        """The share of the output that lies at the changed atoms, None if the outputs are equal."""
        return (self.changed_a - self.changed_b) / self.output if self.output else None

    def to_dict(self) -> dict[str, float]:
        """Return the terms by name, then `unexplained`, `total` and `output`."""
        terms = asdict(self)
        output = terms.pop("output")
        return terms | {"unexplained": self.unexplained, "total": self.total, "output": output}


@dataclass(frozen=True, eq=False)
class Contrast(Result):
    """Two molecules a and b, explained for the same target, and the atoms that correspond."""

    a: Explanation
    b: Explanation
    part: CommonPart

    def __repr__(self) -> str:
        account = self.account
        return (
            f"Contrast({self.a.smiles} against {self.b.smiles}: {len(self.part.same)} atoms in"
            f" common; {self.a.title} for {self.a.target!r},"
            f" {self.a.output - self.b.output:+z.3f}"
            + (f", unexplained {account.unexplained:+.1e})" if account else ")")
        )

    @property
    def of_a(self) -> NDArray[np.floating]:
        """The relevance of the atoms of a, with half of that of each of their bonds."""
        return self.a.relevance_with_edges

    @property
    def of_b(self) -> NDArray[np.floating]:
        """The relevance of the atoms of b, with half of that of each of their bonds."""
        return self.b.relevance_with_edges

    @property
    def difference(self) -> NDArray[np.floating]:
        """Relevance in a minus relevance in b, (M,), for each row of `part.same`."""
        in_a, in_b = self.part.same.T
        return self.of_a[in_a] - self.of_b[in_b]

    @property
    def changed_a(self) -> NDArray[np.intp]:
        """Atoms of a without a counterpart in b."""
        return np.setdiff1d(np.arange(len(self.a)), self.part.same[:, 0])

    @property
    def changed_b(self) -> NDArray[np.intp]:
        """Atoms of b without a counterpart in a."""
        return np.setdiff1d(np.arange(len(self.b)), self.part.same[:, 1])

    @property
    def account(self) -> Account | None:
        """The difference between the outputs, term by term. It is None without a ledger."""
        first, second = self.a.ledger, self.b.ledger
        if first is None or second is None:
            return None
        return Account(
            output=first.output - second.output,
            common=float(self.difference.sum(dtype=np.float64)),
            changed_a=float(self.of_a[self.changed_a].sum(dtype=np.float64)),
            changed_b=float(self.of_b[self.changed_b].sum(dtype=np.float64)),
            graph_token=first.graph_token - second.graph_token,
            biases=first.biases - second.biases,
            structure=sum(first.structure.values()) - sum(second.structure.values()),
            average_atoms=(first.average_node or 0.0) - (second.average_node or 0.0),
            other_inputs=_beside_atoms(self.a) - _beside_atoms(self.b),
        )

    @property
    def headline(self) -> str:
        """One line with the target, both outputs and their difference."""
        first, second = self.a.output, self.b.output
        text = (
            f"{first:+z.2f} against {second:+z.2f}, difference {first - second:+z.2f} {self.a.unit}"
        )
        return minus_signs(f"{self.a.subject} · {text.rstrip()}")

    @property
    def caption(self) -> str:
        """The account in one line."""
        account = self.account
        if account is None:
            return self.a.caption
        terms = {
            "common atoms": account.common,
            "changed atoms": account.changed_a - account.changed_b,
            "graph token and biases": account.graph_token + account.biases,
        }
        for name in ("structure", "average atoms", "other inputs"):
            if share := getattr(account, name.replace(" ", "_")):
                terms[name] = share
        if abs(account.unexplained) >= 0.005:
            terms["unexplained"] = account.unexplained
        text = ", ".join(f"{name} {value:+z.2f}" for name, value in terms.items())
        hint = "" if self.part.complete else " · the common part may be larger"
        return minus_signs(f"{self.a.title} · {text}{hint}")

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per atom or pair of corresponding atoms.

        Its columns are part ("common", "changed in a" or "changed in b"), symbol, the two atom
        numbers, the two relevances, their difference, and the SMILES of both molecules. A cell is
        empty if the atom has no counterpart.
        """
        import pandas as pd

        first, second = self.a.atoms(NO_MOLECULE), self.b.atoms(NO_MOLECULE)
        rows: list[tuple[Any, ...]] = []
        for (i, j), gap in zip(self.part.same.tolist(), self.difference.tolist(), strict=True):
            symbol = first.GetAtomWithIdx(i).GetSymbol()
            rows.append(("common", symbol, i, j, self.of_a[i], self.of_b[j], gap))
        for i in self.changed_a.tolist():
            symbol = first.GetAtomWithIdx(i).GetSymbol()
            rows.append(("changed in a", symbol, i, None, self.of_a[i], None, None))
        for j in self.changed_b.tolist():
            symbol = second.GetAtomWithIdx(j).GetSymbol()
            rows.append(("changed in b", symbol, None, j, None, self.of_b[j], None))
        names = ["part", "symbol", "atom_a", "atom_b", "relevance_a", "relevance_b", "difference"]
        frame = pd.DataFrame(rows, columns=names)
        kinds = {"atom_a": "Int64", "atom_b": "Int64"} | dict.fromkeys(names[4:], float)
        return frame.astype(kinds).assign(smiles_a=self.a.smiles, smiles_b=self.b.smiles)

    def svg(
        self,
        *,
        difference: bool = True,
        scale: Scale | float | None = None,
        palette: str = "red-blue",
        **options: Any,
    ) -> str:
        """Draw both molecules on one colour scale, with their common part in the same orientation.

        Where resonance makes atoms equivalent, each of them has their mean. Atoms are pale if the
        models of an ensemble disagree on the sign of what is drawn.

        Args:
            difference: colour what differs: an atom's relevance minus that of its counterpart. An
                atom without a counterpart has its whole relevance and an outline. False colours the
                relevance of each molecule.
            scale: the relevance shown in full colour; by default the largest |value| drawn.
            palette: one of `visualization.PALETTES`.
            options: as for `contrast_svg`.
        """
        shown = [averaged(e.relevance_with_edges, e.equivalent) for e in (self.a, self.b)]
        pale = [self.a.contested, self.b.contested]
        if difference:
            in_a, in_b = self.part.same.T
            gap = shown[0][in_a] - shown[1][in_b]
            shown[0][in_a], shown[1][in_b] = gap, -gap
            if self.a.members is not None and self.b.members is not None:
                gaps = self.a.members[:, in_a] - self.b.members[:, in_b]
                pale[0][in_a] = pale[1][in_b] = of_either_sign(gaps)
        chosen = Scale.chosen(scale, *shown, palette=palette)
        options.setdefault("title", self.headline)
        options.setdefault("subtitle", with_doubt(self.caption, *pale))
        options.setdefault("legend", COMPARED if difference else self.a.legend)
        one_sided = bool(self.a.unsigned) and not difference
        return contrast_svg(
            [e.atoms(NO_MOLECULE) for e in (self.a, self.b)],
            self.part.mapping,
            shown,
            scale=replace(chosen, one_sided=one_sided),
            titles=[f"a: {self.a.headline}", f"b: {self.b.headline}"],
            outlined=[self.changed_a.tolist(), self.changed_b.tolist()],
            pale=pale,
            **options,
        )


def _beside_atoms(explanation: Explanation) -> float:
    """Return the sum of a ledger's further shares, apart from that of the bonds."""
    others = explanation.ledger.others if explanation.ledger else {}
    with_bonds = explanation.relevance_with_edges.sum(dtype=np.float64)
    return sum(others.values()) - float(with_bonds - explanation.relevance.sum(dtype=np.float64))


def contrast(
    model: "Model | str | Path",
    a: Any,
    b: Any,
    method: Method | None = None,
    *,
    target: KnownTarget = None,
    timeout: float = 10.0,
    **options: Any,
) -> Contrast:
    """Explain molecule a against molecule b, which share a scaffold.

    By default, both are explained for the class that is predicted for a.

    Args:
        model: as for `explain`.
        a: a SMILES, an RDKit molecule, or a graph with a molecule.
        b: the molecule to compare with.
        method: as for `explain`.
        target: as for `explain`.
        timeout: seconds for each search for the common part (see `matching`). When they are over,
            the best common part so far is used.
        options: as for `explain`.

    Raises:
        ValueError: for inputs without a molecule, or if fewer than three atoms correspond.
    """
    model = load(model) if isinstance(model, str | Path) else model
    shared: dict[str, Any] = {"method": method, "progress": False, **options}
    first = explain(model, a, target=target, **shared)
    second = explain(model, b, target=first.wanted, **shared)
    cost = np.abs(first.relevance_with_edges[:, None] - second.relevance_with_edges)  # (Na, Nb)
    part = common_part(
        first.atoms(NO_MOLECULE), second.atoms(NO_MOLECULE), timeout=timeout, cost=cost
    )
    return Contrast(first, second, part)
