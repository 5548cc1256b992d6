"""How far one explanation can be trusted: measured signs, and a rule to combine them.

gx.trust(model, explanation).sentence
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.api import Model, explain_prepared
from graphxai.contract.batching import Key
from graphxai.contract.inputs import Input, prepare_for
from graphxai.datasets.training_set import training_set_of
from graphxai.evaluation.sanity_checks import NoisyModel
from graphxai.explainers import Explainer, get_explainer
from graphxai.explanation.explanation import Explanation

from .perturbed_inputs import WRITINGS, another_form
from .signs import (
    Level,
    Sign,
    agreement_sign,
    confidence_sign,
    distance_sign,
    likeness_sign,
    noise_sign,
    residual_sign,
    rewriting_sign,
    score_sign,
)
from .training_images import training_images_of

RULE = (
    "Warning if any sign is a warning; caution if any sign is a caution or could not be measured;"
    " otherwise nothing measured speaks against the explanation."
)
STYLE: dict[Level, str] = {
    "good": "color: #14532d; background: #e8f5ec",
    "caution": "color: #6b4200; background: #fff4d6",
    "warning": "color: #8a1420; background: #fdeaec",
    "unknown": "color: #3d4651; background: #eceff3",
}
OTHERS = ("gae", "occlusion")  # one based on attention, one on removal
DRAWS = 3  # draws of noise on the embeddings


@dataclass(frozen=True)
class Trust:
    """What speaks for and against one explanation.

    `nearest`: SMILES of the nearest training compound, if the training set is known.
    """

    signs: tuple[Sign, ...]
    nearest: str | None = None

    @property
    def level(self) -> Level:
        """The worst level of any sign, by `RULE`."""
        levels = {sign.level for sign in self.signs}
        if "warning" in levels:
            return "warning"
        return "caution" if levels & {"caution", "unknown"} else "good"

    @property
    def warns(self) -> bool:
        """Whether one should not rely on the explanation."""
        return self.level == "warning"

    @property
    def sentence(self) -> str:
        """The verdict in one plain sentence, with the signs behind it."""
        if self.level == "good":
            text = "; ".join(sign.text for sign in self.signs)
            return f"Nothing measured speaks against it: {text}."
        if self.level == "warning":
            return f"Do not rely on this explanation: {self._listed('warning')}."
        return f"Use with care: {self._listed('caution', 'unknown')}."

    def __str__(self) -> str:
        """The sentence, then a line per sign."""
        lines = (f"  {sign.name + ':':19}{sign.level:9}{sign.sentence}" for sign in self.signs)
        return "\n".join([self.sentence, *lines])

    def _repr_html_(self) -> str:
        """The same as a table, with each level in its colour."""
        cell = '<td style="text-align: left; {}">{}</td>'
        rows = "".join(
            "<tr>"
            + cell.format("", escape(sign.name))
            + cell.format(STYLE[sign.level], sign.level)
            + cell.format("", escape(sign.sentence))
            + "</tr>"
            for sign in self.signs
        )
        if self.nearest is not None:
            shown = f"nearest training compound: <code>{escape(self.nearest)}</code>"
            rows += f"<tr><td></td><td></td>{cell.format('', shown)}</tr>"
        verdict = f'<p style="padding: 6px 10px; {STYLE[self.level]}">{escape(self.sentence)}</p>'
        return f"<div>{verdict}<table>{rows}</table></div>"

    def __getitem__(self, name: str) -> Sign:
        """The sign with this name; KeyError if it was not measured."""
        for sign in self.signs:
            if sign.name == name:
                return sign
        raise KeyError(name)

    def _listed(self, *levels: Level) -> str:
        return "; ".join(sign.sentence for sign in self.signs if sign.level in levels)


def trust(model: Model, explained: Any, *, target: Any = None) -> Trust:
    """What speaks for and against the explanation of one molecule or picture.

    explained: an Explanation made with this model, or an input, which is then explained by `lrp`.
    target: the target for an input; for an explanation, its own target by default. The cost is
    about that of `occlusion`. Raises ValueError for an explanation of another target or model, and
    for one that does not hold its input.
    """
    if not isinstance(explained, Explanation):
        item = prepare_for(model, explained)
        explainer = get_explainer("lrp")
        ((_, explanation),) = explain_prepared(model, [(0, item)], explainer, target=target)
    else:
        explanation = explained
        if explanation.provenance.get("sha256") != model.origin.sha256:
            raise ValueError("the explanation was made with another model than the one given.")
        item = _input_of(model, explanation)
        explainer = _explainer_of(explanation)
        target = explanation.wanted if target is None else target
    return trust_prepared(model, [(0, item)], {0: explanation}, explainer, target=target)[0]


def trust_prepared(
    model: Model,
    prepared: Sequence[tuple[Key, Input]],
    explanations: Mapping[Key, Explanation],
    explainer: Explainer,
    *,
    target: Any = None,
    others: Mapping[str, Mapping[Key, Explanation]] | None = None,
) -> dict[Key, Trust]:
    """Trust in the explanations of encoded molecules or pictures, by key.

    others: explanations of the same inputs by other methods, by name and key. What is missing for
    the sign of agreement (`OTHERS` and `lrp`) is computed, if the method works for the model.
    """
    compared = dict(others or {})
    compared[explainer.name] = explanations
    methods = ("lrp" if explainer.name in OTHERS else explainer.name, *OTHERS)
    missing = [name for name in methods if name not in compared]
    compared |= explained_by_each(model, prepared, missing, target)[0]
    noisy = _with_noise(model, prepared, explainer, target)
    rewritten = _rewritten(model, prepared, explainer, target)
    found = {}
    for key, item in prepared:
        explanation = explanations[key]
        beside = {name: compared[name][key] for name in methods if name in compared}
        for other in beside.values():
            _require_same_target(explanation, other)
        metadata, prediction = model.origin.metadata, explanation.prediction
        distance, nearest = _distance(model, explanation, item)
        several = len(prediction.probabilities) > 2
        signs = [
            score_sign(metadata, prediction),
            distance,
            *([confidence_sign(metadata, prediction)] if several else []),
            agreement_sign(beside),
            *([residual_sign(explanation.ledger)] if explanation.additive else []),
            rewriting_sign(explanation, rewritten.get(key, [])),
            noise_sign(explanation, noisy[key]),
        ]
        found[key] = Trust(tuple(signs), nearest)
    return found


def explained_by_each(
    model: Model, prepared: Sequence[tuple[Key, Input]], methods: Sequence[str], target: Any
) -> tuple[dict[str, dict[Key, Explanation]], dict[str, str]]:
    """Explanations by method and key, and the methods that do not work for the model, with reasons.

    Methods that read attention, for example, need a model with attention between nodes.
    """
    found: dict[str, dict[Key, Explanation]] = {}
    refused: dict[str, str] = {}
    for name in methods:
        explainer = get_explainer(name)
        try:
            found[name] = dict(explain_prepared(model, prepared, explainer, target=target))
        except ValueError as error:
            refused[name] = str(error)
    return found, refused


def _input_of(model: Model, explanation: Explanation) -> Input:
    """The input of an explanation, encoded again."""
    for value in (explanation.mol, explanation.smiles, explanation.image):
        if value is not None:
            item = prepare_for(model, value)
            again, before = item.segments, explanation.segments
            if again is None or before is None or np.array_equal(again, before):
                return item
    raise ValueError("the explanation does not hold its input graph: pass the graph itself.")


def _distance(model: Model, explanation: Explanation, item: Input) -> tuple[Sign, str | None]:
    """The similarity to the training data and, for a molecule, the nearest compound."""
    if item.image is not None and explanation.molecule is None:
        return likeness_sign(training_images_of(model), item.image), None
    return distance_sign(training_set_of(model), explanation.molecule)


def _with_noise(
    model: Model, prepared: Sequence[tuple[Key, Input]], explainer: Explainer, target: Any
) -> dict[Key, list[NDArray[np.floating]]]:
    """Relevance (N,) of each input under several draws of noise on its embeddings."""
    found: dict[Key, list[NDArray[np.floating]]] = {key: [] for key, _ in prepared}
    for seed in range(DRAWS):
        noisy: Any = NoisyModel(model, seed)
        for key, explanation in explain_prepared(noisy, prepared, explainer, target=target):
            found[key].append(explanation.relevance)
    return found


def _rewritten(
    model: Model, prepared: Sequence[tuple[Key, Input]], explainer: Explainer, target: Any
) -> dict[Key, list[NDArray[np.floating]]]:
    """Relevance (N,), in the original node order, for other forms of each input."""
    found: dict[Key, list[NDArray[np.floating]]] = {}
    for draw in range(WRITINGS):
        orders, inputs = {}, []
        for key, item in prepared:
            written = another_form(item, draw)
            if written is not None:
                value, orders[key] = written
                inputs.append((key, prepare_for(model, value)))
        for key, explanation in explain_prepared(model, inputs, explainer, target=target):
            relevance = np.empty_like(explanation.relevance)
            relevance[orders[key]] = explanation.relevance
            found.setdefault(key, []).append(relevance)
    return found


def _explainer_of(explanation: Explanation) -> Explainer:
    """The explainer that made an explanation, with its options."""
    try:
        return get_explainer(explanation.method, **explanation.provenance.get("options", {}))
    except ValueError:  # one of the attributes is not an option
        return get_explainer(explanation.method)


def _require_same_target(explanation: Explanation, other: Explanation) -> None:
    if explanation.target != other.target:
        raise ValueError(
            f"the explanation is for {explanation.target!r}, but the given target means"
            f" {other.target!r}: give the target of the explanation."
        )
