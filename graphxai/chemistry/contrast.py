"""One molecule against another: what causes the difference in a matched pair or activity cliff."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphxai.api import explain, load
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.result import Result
from graphxai.visualization.resonance import averaged
from graphxai.visualization.text import minus_signs

from .matching import CommonPart, common_part

if TYPE_CHECKING:
    import pandas as pd

    from graphxai.visualization import Scale

COMPARED = "lower than in the other molecule", "higher than in the other molecule"
NO_MOLECULE = "a contrast needs two molecules, but one input has none."


@dataclass(frozen=True)
class Account:
    """The difference between two outputs, term by term.

    `f(a) - f(b) = common + changed_a - changed_b + graph_token + biases + structure + average_atoms
    + unexplained`.
    common: summed differences of corresponding atoms. changed_a, changed_b: summed relevance of
    the atoms found only in a, only in b. graph_token, biases, structure, average_atoms: a's share
    minus b's (see `Ledger`). Under `lrp`, `unexplained` is only rounding.
    """

    output: float
    common: float
    changed_a: float
    changed_b: float
    graph_token: float
    biases: float
    structure: float = 0.0
    average_atoms: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all terms."""
        atoms = self.common + self.changed_a - self.changed_b + self.average_atoms
        return atoms + self.graph_token + self.biases + self.structure

    @property
    def unexplained(self) -> float:
        """Output minus total."""
        return self.output - self.total

    def to_dict(self) -> dict[str, float]:
        """The terms by name, then `unexplained`, `total` and `output`."""
        terms = asdict(self)
        output = terms.pop("output")
        return terms | {"unexplained": self.unexplained, "total": self.total, "output": output}


@dataclass(frozen=True, eq=False)
class Contrast(Result):
    """Two molecules explained for the same target, with the atoms that correspond."""

    a: Explanation
    b: Explanation
    part: CommonPart

    def __repr__(self) -> str:
        return (
            f"Contrast({self.a.smiles} against {self.b.smiles}: {len(self.part.same)} atoms in"
            f" common; {self.a.title} for {self.a.target!r},"
            f" {self.account.output:+z.3f}, unexplained {self.account.unexplained:+.1e})"
        )

    @property
    def difference(self) -> NDArray[np.floating]:
        """Relevance in a minus relevance in b, (M,), for each row of `part.same`."""
        in_a, in_b = self.part.same.T
        gap: NDArray[np.floating] = self.a.relevance[in_a] - self.b.relevance[in_b]
        return gap

    @property
    def changed_a(self) -> NDArray[np.intp]:
        """Atoms of a without a counterpart in b."""
        return np.setdiff1d(np.arange(len(self.a)), self.part.same[:, 0])

    @property
    def changed_b(self) -> NDArray[np.intp]:
        """Atoms of b without a counterpart in a."""
        return np.setdiff1d(np.arange(len(self.b)), self.part.same[:, 1])

    @property
    def account(self) -> Account:
        """The difference between the outputs, term by term."""
        one, other = self.a.ledger, self.b.ledger
        return Account(
            output=one.output - other.output,
            common=float(self.difference.sum(dtype=np.float64)),
            changed_a=float(self.a.relevance[self.changed_a].sum(dtype=np.float64)),
            changed_b=float(self.b.relevance[self.changed_b].sum(dtype=np.float64)),
            graph_token=one.graph_token - other.graph_token,
            biases=one.biases - other.biases,
            structure=sum(one.structure.values()) - sum(other.structure.values()),
            average_atoms=(one.average_node or 0.0) - (other.average_node or 0.0),
        )

    @property
    def headline(self) -> str:
        """The target with both outputs and their difference."""
        one, other = self.a.ledger.output, self.b.ledger.output
        text = f"{one:+z.2f} against {other:+z.2f}, difference {one - other:+z.2f} {self.a.unit}"
        return minus_signs(f"{self.a.subject} · {text.rstrip()}")

    @property
    def caption(self) -> str:
        """The account in one line."""
        if not self.a.additive:
            return self.a.caption
        account = self.account
        terms = {
            "common atoms": account.common,
            "changed atoms": account.changed_a - account.changed_b,
            "graph token and biases": account.graph_token + account.biases,
        }
        for name in ("structure", "average atoms"):
            if share := getattr(account, name.replace(" ", "_")):
                terms[name] = share
        if abs(account.unexplained) >= 0.005:
            terms["unexplained"] = account.unexplained
        text = ", ".join(f"{name} {value:+z.2f}" for name, value in terms.items())
        hint = "" if self.part.complete else " · the common part may be larger"
        return minus_signs(f"{self.a.title} · {text}{hint}")

    def to_frame(self) -> "pd.DataFrame":
        """One row per atom or pair of corresponding atoms: part, atoms, relevances, difference.

        part: "common", "changed in a" or "changed in b". A cell is empty if the atom has no
        counterpart.
        """
        import pandas as pd

        one, other = self.a.atoms(NO_MOLECULE), self.b.atoms(NO_MOLECULE)
        rows: list[tuple[Any, ...]] = []
        for (i, j), gap in zip(self.part.same.tolist(), self.difference.tolist(), strict=True):
            symbol = one.GetAtomWithIdx(i).GetSymbol()
            rows.append(("common", symbol, i, j, self.a.relevance[i], self.b.relevance[j], gap))
        for i in self.changed_a.tolist():
            symbol = one.GetAtomWithIdx(i).GetSymbol()
            rows.append(("changed in a", symbol, i, None, self.a.relevance[i], None, None))
        for j in self.changed_b.tolist():
            symbol = other.GetAtomWithIdx(j).GetSymbol()
            rows.append(("changed in b", symbol, None, j, None, self.b.relevance[j], None))
        names = ["part", "symbol", "atom_a", "atom_b", "relevance_a", "relevance_b", "difference"]
        frame = pd.DataFrame(rows, columns=names)
        return frame.astype(
            {"atom_a": "Int64", "atom_b": "Int64"} | dict.fromkeys(names[4:], float)
        )

    def svg(
        self,
        *,
        difference: bool = True,
        scale: "Scale | float | None" = None,
        palette: str = "red-blue",
        **options: Any,
    ) -> str:
        """Both molecules, with the common part drawn in the same way, on one colour scale.

        Colours show what differs: an atom's relevance minus that of its counterpart, or all of it
        for an atom without one, which is outlined. difference: False colours the relevance itself.
        Where resonance makes atoms equivalent, both have their mean. Options as for `contrast_svg`.
        """
        from graphxai.visualization import Scale
        from graphxai.visualization.contrast import Panel, contrast_svg

        shown = [averaged(e.relevance, e.equivalent) for e in (self.a, self.b)]
        if difference:
            in_a, in_b = self.part.same.T
            gap = shown[0][in_a] - shown[1][in_b]
            shown[0][in_a], shown[1][in_b] = gap, -gap
        panels = [
            Panel(e.atoms(NO_MOLECULE), values, changed.tolist(), f"{name}: {e.headline}")
            for name, e, values, changed in zip(
                "ab", (self.a, self.b), shown, (self.changed_a, self.changed_b), strict=True
            )
        ]
        chosen = Scale.chosen(scale, *shown, palette=palette)
        options.setdefault("title", self.headline)
        options.setdefault("subtitle", self.caption)
        options.setdefault("legend", COMPARED if difference else self.a.legend)
        one_sided = bool(self.a.unsigned) and not difference
        chosen = replace(chosen, one_sided=one_sided)
        return contrast_svg(panels, self.part.mapping, scale=chosen, **options)


def contrast(
    model: "Model | str | Path",
    a: Any,
    b: Any,
    method: Method = "lrp",
    *,
    target: Any = None,
    timeout: float = 10.0,
    **options: Any,
) -> Contrast:
    """Explain molecule a against molecule b, which share a scaffold.

    a, b: SMILES, RDKit molecules or graphs with a molecule; other arguments as for `explain`. By
    default, both are explained for the class predicted for a. timeout: seconds for each search for
    the common part (see `matching`), which uses the best one found by then. Raises ValueError for
    inputs without a molecule, or if fewer than three atoms correspond.
    """
    model = load(model) if isinstance(model, str | Path) else model
    one = explain(model, a, method, target=target, progress=False, **options)
    other = explain(model, b, method, target=one.wanted, progress=False, **options)
    cost = np.abs(one.relevance[:, None] - other.relevance)  # (Na, Nb)
    part = common_part(one.atoms(NO_MOLECULE), other.atoms(NO_MOLECULE), timeout=timeout, cost=cost)
    return Contrast(one, other, part)
