"""Measure how far one explanation can be trusted, by signs and a rule that combines them.

gx.trust(model, explanation).sentence
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.batching import Key
from graphxai.contract.inputs import Input, prepare_each, prepare_for
from graphxai.datasets.training_set import TrainingSet, training_set_of
from graphxai.explainers import Explainer, get_explainer
from graphxai.explanation.compute.explaining import explain_prepared
from graphxai.explanation.compute.models import Model, loaded
from graphxai.explanation.compute.predicting import nearness_of
from graphxai.explanation.explanation import Explanation
from graphxai.runtime.device import one_thread

from .errors import confidence_of, distance_of
from .other_forms import WRITINGS, another_form, tautomer_signs
from .signs import (
    Level,
    Sign,
    likeness_sign,
    residual_sign,
    rewriting_sign,
    score_sign,
    training_images_of,
)

ITEM = (0, -1)  # the key of an input beside those of its other forms
RULE = (
    "The verdict is a warning if any sign is a warning. Otherwise it is the first of these that"
    " applies: training compound if the molecule is one, caution if any sign is a caution, unknown"
    " if any sign could not be measured. If none applies, nothing measured speaks against it. The"
    " model's own test score, and what likely tautomers get, are stated and decide nothing here."
    " How far a molecule may be from the training set, and how sure the model must be of a class,"
    " is decided by this model's errors on molecules that it had not learned from, where they are"
    " stored, and otherwise by limits fitted to other models. All this is about predictions: no"
    " sign reliably predicted a wrong explanation."
)
# by level: text and ground on a light page, then on a dark one
COLOURS: dict[Level, tuple[str, str, str, str]] = {
    "good": ("#14532d", "#e8f5ec", "#b6ecc9", "#17362a"),
    "caution": ("#6b4200", "#fff4d6", "#ffdf9a", "#40330f"),
    "warning": ("#8a1420", "#fdeaec", "#ffc2c8", "#471c22"),
    "unknown": ("#3d4651", "#eceff3", "#d2d9e1", "#2b313a"),
    "known": ("#3d4651", "#eceff3", "#d2d9e1", "#2b313a"),
}
STYLE = {
    level: f"color: {text}; background: {ground}" for level, (text, ground, *_) in COLOURS.items()
}
OF_EXPLANATIONS = {"ledger", "equivalent inputs"}  # the other signs are about predictions
ORDER: tuple[Level, ...] = ("warning", "known", "caution", "unknown")


def level_properties(pattern: str) -> str:
    """Return the colours of the levels as CSS properties, such as `--good` and `--good-ink`.

    `pattern` is how a property takes its colours on a light and a dark page, such as
    "light-dark({0}, {1})" or "{1}".
    """
    return " ".join(
        f"--{level}: {pattern.format(ground, dark_ground)};"
        f" --{level}-ink: {pattern.format(text, dark_text)};"
        for level, (text, ground, dark_text, dark_ground) in COLOURS.items()
    )


@dataclass(frozen=True)
class Trust:
    """What speaks for and against one explanation.

    Args:
        signs: the measurements.
        nearest: the SMILES of the nearest training compound, or None without a training set.
        model: the model's score on test data. It is the same for all molecules, and does not affect
            the level.
        tautomers: whether likely tautomers get the same prediction, or None if there are none. It
            does not affect the level either.
    """

    signs: tuple[Sign, ...]
    nearest: str | None = None
    model: Sign | None = None
    tautomers: Sign | None = None

    @property
    def level(self) -> Level:
        """The worst level of all signs, by `RULE`."""
        levels = {sign.level for sign in self.signs}
        return next((level for level in ORDER if level in levels), "good")

    @property
    def warns(self) -> bool:
        """Whether the explanation should not be relied on."""
        return self.level == "warning"

    @property
    def sentence(self) -> str:
        """The verdict in one plain sentence, with the signs behind it."""
        also = ""
        if self.tautomers is not None and self.tautomers.level != "good":
            also = f" {self.tautomers.text[0].upper()}{self.tautomers.text[1:]}."
        if self.level == "good":
            text = "; ".join(sign.text for sign in self.signs)
            return f"Nothing measured speaks against it: {text}.{also}"
        # warnings are about an explanation that fails a check, or about the prediction
        warned = {sign.name for sign in self.signs if sign.level == "warning"}
        doubted = "explanation" if warned & OF_EXPLANATIONS else "prediction"
        start = {
            "warning": f"Do not rely on this {doubted}",
            "caution": "Use with care",
            "unknown": "Not everything can be checked",
            "known": "A training compound",
        }[self.level]
        levels = (self.level, "known")
        signs = "; ".join(sign.sentence for sign in self.signs if sign.level in levels)
        return f"{start}: {signs}.{also}"

    def __str__(self) -> str:
        """Write the sentence, then a line for each sign."""
        lines = (f"  {sign.name + ':':19}{sign.level:9}{sign.sentence}" for sign in self._all)
        return "\n".join([self.sentence, *lines])

    __repr__ = __str__

    @property
    def of_molecule(self) -> tuple[Sign, ...]:
        """The signs that differ between molecules, those that decide nothing included."""
        return self.signs if self.tautomers is None else (*self.signs, self.tautomers)

    @property
    def _all(self) -> tuple[Sign, ...]:
        return self.of_molecule if self.model is None else (*self.of_molecule, self.model)

    def _repr_html_(self) -> str:
        """Write the signs as a table, with each level in its colour."""
        cell = '<td style="text-align: left; {}">{}</td>'
        rows = "".join(
            "<tr>"
            + cell.format("", escape(sign.name))
            + cell.format(STYLE[sign.level], sign.level)
            + cell.format("", escape(sign.sentence))
            + "</tr>"
            for sign in self._all
        )
        if self.nearest is not None:
            shown = f"nearest training compound: <code>{escape(self.nearest)}</code>"
            rows += f"<tr><td></td><td></td>{cell.format('', shown)}</tr>"
        verdict = f'<p style="padding: 6px 10px; {STYLE[self.level]}">{escape(self.sentence)}</p>'
        return f"<div>{verdict}<table>{rows}</table></div>"

    def __getitem__(self, name: str) -> Sign:
        """Return the sign with this name, or raise KeyError if it was not measured."""
        for sign in self._all:
            if sign.name == name:
                return sign
        raise KeyError(name)


def trust(model: "Model | str | Path", explained: Any, *, target: Any = None) -> Trust:
    """Measure what speaks for and against the explanation of one molecule or picture.

    It takes as long as two further explanations.

    Args:
        model: the explained model, or its name.
        explained: an Explanation made with this model, or an input, which `lrp` then explains.
        target: the target for an input. If an explanation is given, its target is the default.

    Raises:
        ValueError: the explanation is of another target or model, or does not hold its input.
    """
    model = loaded(model)
    if not isinstance(explained, Explanation):
        item = prepare_for(model, explained)
        return explained_with_trust(model, item, get_explainer(None, model=model), target=target)[1]
    if explained.provenance.get("sha256") != model.origin.sha256:
        raise ValueError("the explanation was made with another model than the one given.")
    item = _input_of(model, explained)
    explainer = _explainer_of(explained)
    target = explained.wanted if target is None else target
    return trust_prepared(model, [(0, item)], {0: explained}, explainer, target=target)[0]


def explained_with_trust(
    model: Model,
    item: Input,
    explainer: Explainer,
    *,
    target: Any = None,
    training: TrainingSet | None = None,
) -> tuple[Explanation, Trust]:
    """Explain one encoded input, and measure its signs of trust.

    Its other forms are explained beside it in one pass. That takes two thirds of the time of two
    passes, but there are two for a method that draws random numbers, whose numbers depend on what
    is explained, and for a form that gets another class.

    `training` is the model's training set, see `explain_prepared`.
    """
    with one_thread():
        forms, orders = _other_forms(model, [(0, item)])
        together = [] if explainer.traits.draws_random_numbers else forms
        by_form = dict(
            explain_prepared(
                model, [(ITEM, item), *together], explainer, target=target, training=training
            )
        )
        explanation = by_form.pop(ITEM)
        if not by_form or any(form.target != explanation.target for form in by_form.values()):
            by_form = dict(explain_prepared(model, forms, explainer, target=explanation.wanted))
        rewritten = _in_order_of_input(by_form, orders)
        return explanation, _trusted(model, [(0, item)], {0: explanation}, rewritten)[0]


def trust_prepared(
    model: Model,
    prepared: Sequence[tuple[Key, Input]],
    explanations: Mapping[Key, Explanation],
    explainer: Explainer | None,
    *,
    target: Any = None,
) -> dict[Key, Trust]:
    """Return how far the explanations of encoded molecules or pictures can be trusted, by key.

    `explainer` is the method that made the explanations. It explains other forms of each input for
    one of the signs. None leaves this sign and that of tautomers out.
    """
    if explainer is None:
        return _trusted(model, prepared, explanations, None)
    with one_thread():
        forms, orders = _other_forms(model, prepared)
        by_form = dict(explain_prepared(model, forms, explainer, target=target))
        for (key, _), form in by_form.items():
            if (explained := explanations[key].target) != form.target:
                raise ValueError(
                    f"the explanation is for {explained!r}, but the given target means"
                    f" {form.target!r}: give the target of the explanation."
                )
        rewritten = _in_order_of_input(by_form, orders)
        return _trusted(model, prepared, explanations, rewritten)


def _trusted(
    model: Model,
    prepared: Sequence[tuple[Key, Input]],
    explanations: Mapping[Key, Explanation],
    rewritten: Mapping[Key, list[NDArray[np.floating]]] | None,
) -> dict[Key, Trust]:
    """Judge explanations by all signs, given the relevance of other forms if it is known.

    `rewritten` is the relevance (N,) of other forms of each input, in its own order of nodes, or
    None to leave this sign and that of tautomers out.
    """
    tautomers = {} if rewritten is None else tautomer_signs(model, prepared, explanations)
    training = training_set_of(model)
    trusted = {}
    for key, item in prepared:
        explanation = explanations[key]
        prediction = explanation.prediction
        near = explanation.nearness
        if near is None or near.word == "unknown":  # it may not have been requested
            near = nearness_of(item, training)
        distance = distance_of(model, prediction, near)
        if item.image is not None and near is None:
            distance = likeness_sign(training_images_of(model), item.image)
        signs = [
            distance,
            *([] if prediction.label is None else [confidence_of(model, prediction)]),
            *([residual_sign(explanation.ledger)] if explanation.ledger else []),
            *([] if rewritten is None else [rewriting_sign(explanation, rewritten.get(key, []))]),
        ]
        score = score_sign(model.origin.metadata, prediction)
        nearest = None if near is None else near.nearest
        trusted[key] = Trust(tuple(signs), nearest, score, tautomers.get(key))
    return trusted


def explained_by_each(
    model: Model, prepared: Sequence[tuple[Key, Input]], methods: Sequence[str], target: Any
) -> tuple[dict[str, dict[Key, Explanation]], dict[str, str]]:
    """Return explanations by method and key, and the methods that do not work for the model.

    Each method that does not work comes with the reason. Methods that read attention, for example,
    need a model with attention between nodes.
    """
    explanations: dict[str, dict[Key, Explanation]] = {}
    refused: dict[str, str] = {}
    for name in methods:
        explainer = get_explainer(name)
        try:
            explanations[name] = dict(explain_prepared(model, prepared, explainer, target=target))
        except ValueError as error:
            refused[name] = str(error)
    return explanations, refused


def _input_of(model: Model, explanation: Explanation) -> Input:
    """Encode the input of an explanation again."""
    for value in (explanation.mol, explanation.smiles, explanation.image):
        if value is not None:
            item = prepare_for(model, value)
            again, before = item.segments, explanation.segments
            if again is None or before is None or np.array_equal(again, before):
                return item
    raise ValueError("the explanation does not hold its input graph: pass the graph itself.")


def _other_forms(
    model: Model, prepared: Sequence[tuple[Key, Input]]
) -> tuple[list[tuple[tuple[Key, int], Input]], dict[tuple[Key, int], list[int]]]:
    """Encode other forms of inputs: molecules with another SMILES, or graphs renumbered.

    Each has the key of its input and a number, and by these the original number of each of its
    nodes. A form that cannot be read, or that lost atoms, is left out.
    """
    forms = {
        (key, draw): form
        for draw in range(WRITINGS)
        for key, item in prepared
        if (form := another_form(item, draw)) is not None
    }
    encoded = prepare_each(model, [value for value, _ in forms.values()], Exception)
    orders = {place: order for place, (_, order) in forms.items()}
    inputs = [
        (place, item)
        for place, item in zip(forms, encoded, strict=True)
        if isinstance(item, Input) and item.num_nodes == len(orders[place])
    ]
    return inputs, orders


def _in_order_of_input(
    explanations: Mapping[tuple[Key, int], Explanation],
    orders: Mapping[tuple[Key, int], Sequence[int]],
) -> dict[Key, list[NDArray[np.floating]]]:
    """Return the relevance (N,) of each input's forms, in the order of the input's nodes."""
    relevance_by_input: dict[Key, list[NDArray[np.floating]]] = {}
    for (key, draw), explanation in explanations.items():
        relevance = np.empty_like(explanation.relevance)
        relevance[orders[key, draw]] = explanation.relevance
        relevance_by_input.setdefault(key, []).append(relevance)
    return relevance_by_input


def _explainer_of(explanation: Explanation) -> Explainer:
    """Return the explainer that made an explanation, with its options."""
    try:
        return get_explainer(explanation.method, **explanation.provenance.get("options", {}))
    except ValueError:  # one of the attributes is not an option
        return get_explainer(explanation.method)
