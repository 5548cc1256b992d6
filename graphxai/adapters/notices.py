"""Warnings of one intercepted block, each naming places in the model."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

from graphxai.rules import conservative as propagation

from .attending import AttentionWatch
from .placing import remarks
from .trace import Nonlinearity


@dataclass(eq=False)
class Notices:
    """What to report about the model `root`, and what was already reported.

    chance: where random numbers were drawn.
    """

    root: str
    chance: set[str] = field(default_factory=set)
    _curves: set[Nonlinearity] = field(default_factory=set)
    _told_of_chance: bool = False

    def of_curves(self, curves: Iterable[Nonlinearity]) -> None:
        """Warn once about whatever kept its gradient although a rule was requested."""
        rules = propagation.current_rules()
        new = {curve for curve in curves if _is_asked_for(curve, rules)} - self._curves
        if not new:
            return
        self._curves |= new
        lines = sorted({f"{curve.place or self.root}: {curve.what}" for curve in new})
        warnings.warn(
            f"{self.root} has parts that no rule covers; they use the ordinary gradient, so"
            f" relevance may not sum to the output: {'; '.join(lines)}.",
            stacklevel=7,
        )

    def of_chance(self) -> None:
        """Warn once about random numbers that affect the output."""
        chance, self.chance = self.chance, set()
        if not chance or self._told_of_chance:
            return
        self._told_of_chance = True
        warnings.warn(
            f"{self.root} draws random numbers: {'; '.join(sorted(chance))}. The explanation is of"
            " one random draw, and every call explains a different one. Call model.eval(), and"
            " pass training=self.training to F.dropout and the like.",
            stacklevel=8,
        )

    def of_attention(self, watch: AttentionWatch, hidden: set[str], is_read: bool) -> None:
        """Warn about attention that methods that read attention may miss.

        hidden: where something ran out of sight.
        """
        unseen, watch.unseen = watch.unseen, set()
        undecided, watch.exposure.undecided = watch.exposure.undecided, set()
        if undecided and is_read:
            warnings.warn(
                f"{self.root} builds its own index, and in a batch of single-node graphs it is"
                " unclear whether that refers to nodes or to graphs: the softmax in"
                f" {', '.join(sorted(undecided))} was treated as attention between nodes. If it"
                " pools nodes, let it use the batch vector, or explain single nodes together with"
                " a larger graph.",
                stacklevel=8,
            )
        if hidden and is_read:
            places = ", ".join(sorted(place or self.root for place in hidden))
            warnings.warn(
                f"{self.root} runs hidden operations (TorchScript, another thread or compiled"
                f" code) in {places}; methods that read attention leave out any attention in"
                " there.",
                stacklevel=8,
            )
        for remark in remarks(self.root, watch.left_out, watch.guessed) if is_read else ():
            warnings.warn(remark, stacklevel=8)
        watch.left_out, watch.guessed = set(), set()
        if unseen and is_read:
            warnings.warn(
                f"{self.root} has attention that cannot be recorded; methods that read attention"
                f" leave it out: {'; '.join(sorted(unseen))}. Call the function on the whole batch"
                " instead, or write it in PyTorch operations.",
                stacklevel=8,
            )


def _is_asked_for(curve: Nonlinearity, rules: propagation.Rules) -> bool:
    """Whether a rule in force is violated by the nonlinearity."""
    if curve.rule is None:
        return rules.attention or rules.layernorm or rules.activation is not None
    return bool(getattr(rules, curve.rule))
