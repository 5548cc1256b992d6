"""Warnings of one intercepted block, each of which names places in the model."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

from graphxai.rules import conservative as propagation

from .attending import AttentionWatch
from .placing import remarks
from .trace import Nonlinearity


@dataclass(eq=False)
class Notices:
    """What is told of the model `root`, and what was told already.

    chance: where random numbers were drawn.
    """

    root: str
    chance: set[str] = field(default_factory=set)
    _curves: set[Nonlinearity] = field(default_factory=set)
    _told_of_chance: bool = False

    def of_curves(self, curves: Iterable[Nonlinearity]) -> None:
        """One warning that names what kept its gradient although a rule was asked for."""
        rules = propagation.current_rules()
        new = {curve for curve in curves if _is_asked_for(curve, rules)} - self._curves
        if not new:
            return
        self._curves |= new
        lines = sorted({f"{curve.place or self.root}: {curve.what}" for curve in new})
        warnings.warn(
            f"{self.root} has parts that the rules do not know; there the ordinary gradient was"
            f" taken, and relevance need not sum to the output: {'; '.join(lines)}.",
            stacklevel=7,
        )

    def of_chance(self) -> None:
        """One warning that names where random numbers decide about the output."""
        chance, self.chance = self.chance, set()
        if not chance or self._told_of_chance:
            return
        self._told_of_chance = True
        warnings.warn(
            f"{self.root} draws random numbers: {'; '.join(sorted(chance))}. What is explained is"
            " the network of one draw, and another call explains another one. Call model.eval(),"
            " and give F.dropout and the like training=self.training.",
            stacklevel=8,
        )

    def of_attention(self, watch: AttentionWatch, hidden: set[str], is_read: bool) -> None:
        """Warnings that name attention of which methods that read attention may not learn.

        hidden: where something ran out of sight.
        """
        unseen, watch.unseen = watch.unseen, set()
        undecided, watch.exposure.undecided = watch.exposure.undecided, set()
        if undecided and is_read:
            warnings.warn(
                f"{self.root} makes an index of its own, and in a batch of nothing but single"
                " nodes nothing tells whether it names nodes or graphs: the softmax in"
                f" {', '.join(sorted(undecided))} was taken for attention between nodes. If it"
                " pools nodes, let it use the batch vector, or explain single nodes together with"
                " a larger graph.",
                stacklevel=8,
            )
        if hidden and is_read:
            places = ", ".join(sorted(place or self.root for place in hidden))
            warnings.warn(
                f"{self.root} runs something out of sight (TorchScript, another thread or compiled"
                f" code) in {places}; if there is attention in it, methods that read attention"
                " leave it out.",
                stacklevel=8,
            )
        for remark in remarks(self.root, watch.left_out, watch.guessed) if is_read else ():
            warnings.warn(remark, stacklevel=8)
        watch.left_out, watch.guessed = set(), set()
        if unseen and is_read:
            warnings.warn(
                f"{self.root} has attention that cannot be recorded; methods that read attention"
                f" leave it out: {'; '.join(sorted(unseen))}. Call the function on the whole batch"
                " instead, or let it be made of PyTorch's operations.",
                stacklevel=8,
            )


def _is_asked_for(curve: Nonlinearity, rules: propagation.Rules) -> bool:
    """Whether a rule asks for what the curve is not."""
    if curve.rule is None:
        return rules.attention or rules.layernorm or rules.activation is not None
    return bool(getattr(rules, curve.rule))
