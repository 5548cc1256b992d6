"""Read what is wished for several properties from a text."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from graphxai.explanation.api import OneOrMoreModels
from graphxai.explanation.compute.models import Model, ModelPanel, PredictedProperty

from .desirability import DesirabilityCurve, PropertyGoal, PropertyProfile

MOST_GOALS = 20
LONGEST_TEXT = 2000  # characters
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_LIMIT = re.compile(rf"(.+?)\s*([<>])=?\s*({NUMBER})", re.I)
_RANGE = re.compile(rf"(.+?)[\s:=]+({NUMBER})\s*(?:to|\.\.|–)\s*({NUMBER})", re.I)
_VALUE = re.compile(rf"(.+?)\s*=\s*({NUMBER})", re.I)
_SETTING = rf"(?:0 at {NUMBER}(?: and {NUMBER})?|weight {NUMBER}|power {NUMBER})"
_SETTINGS = re.compile(rf"(.+?)\s*\(\s*({_SETTING}(?:\s*,\s*{_SETTING})*)\s*\)", re.I)
_OUTSIDE_BRACKETS = re.compile(r",(?![^()]*\))")


def profile(models: OneOrMoreModels, text: str) -> PropertyProfile:
    """Read what is wished for the properties that one or several models predict.

    A text such as "pIC50 > 7.5, log D 1 to 3, solubility > -4, penetrant" has a goal for each
    property, separated by commas, or by semicolons if a name has a comma. `pIC50 > 7.5` has
    desirability 1 above the limit, `log D 1 to 3` within the range, and `log D = 2` at the value
    alone. `BACE-1 inhibition: active`, or the class alone if one property has it, has the predicted
    probability of the class.

    Beyond a limit, desirability falls along a straight line to 0. It reaches 0 one standard
    deviation of the model's training values away (its task's `scale`, which is 1 if unknown), or
    where brackets say so: `pIC50 > 7.5 (0 at 6)`, `log D 1 to 3 (0 at 0 and 5)`. Brackets may also
    hold the property's weight in the mean and the exponent of its slopes: `(weight 2, power 0.5)`.

    A property is named by its task, the start of that name, or by its model if that has a single
    task. Capitals, spaces and punctuation do not count.

    Args:
        models: a model or several, or their names or folders.
        text: the goals.

    Raises:
        ValueError: the text is not understood, or names no property of the models. The message
            lists the properties.
    """
    return read_profile(ModelPanel.of(models), text)


def read_profile(panel: ModelPanel, text: str) -> PropertyProfile:
    """Read a profile for models that are loaded already, as `profile` does."""
    properties, text = panel.properties, text.replace("\u2212", "-")
    pieces = text.split(";") if ";" in text else _OUTSIDE_BRACKETS.split(text)
    pieces = [piece.strip() for piece in pieces if piece.strip()]
    if not 1 <= len(pieces) <= MOST_GOALS or len(text) > LONGEST_TEXT:
        raise ValueError(f"give 1 to {MOST_GOALS} goals. {_offered(properties)}")
    goals = []
    for piece in pieces:
        bracketed = _SETTINGS.fullmatch(piece)
        settings = _settings(bracketed[2]) if bracketed else _Settings()
        goals.append(_bare_goal(bracketed[1] if bracketed else piece, settings, properties))
    names = [goal.of.name for goal in goals]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"there are two goals for {twice[0]!r}: join them, as in '1 to 3'.")
    return PropertyProfile(tuple(goals))


def read_goal(model: Model, text: str) -> PropertyGoal:
    """Read the single goal of a model: a class, ">6.5" or "<6.5"; "task: ..." names a task.

    Raises:
        ValueError: for anything else, with a message that lists what the model offers; and for a
            class that several tasks have.
    """
    properties, text = ModelPanel.of(model).properties, text.strip()
    values = [each.name for each in properties if not each.task.classes]
    if text.startswith(("<", ">")) and values:
        text = f"{values[0]} {text}"
    goal = _bare_goal(text, _Settings(), properties)
    if math.isfinite(goal.curve.one_from) and math.isfinite(goal.curve.one_to):
        raise ValueError(f"{text!r} has two limits, and a single goal has one: give > or <.")
    return goal


def single_goal(model: Model, text: str) -> PropertyGoal | None:
    """Return the goal that `read_goal` reads, or None if the text joins goals for properties."""
    try:
        return read_goal(model, text)
    except ValueError:
        if not any(mark in text for mark in (",", ";", " to ")):
            raise
    return None


class _Settings(NamedTuple):
    """What stands in brackets after a goal: where desirability is 0, weight and exponent."""

    zeros: tuple[float, ...] = ()
    weight: float = 1.0
    power: float = 1.0


def _bare_goal(
    text: str, settings: _Settings, properties: Sequence[PredictedProperty]
) -> PropertyGoal:
    """Read a goal without its brackets."""
    if goal := _class_goal(text, settings, properties):
        return goal
    if match := _LIMIT.fullmatch(text):
        limit = _finite(match[3], text)
        low, high = (limit, math.inf) if match[2] == ">" else (-math.inf, limit)
        return _value_goal(match[1], f"{match[2]} {limit:g}", low, high, settings, properties)
    if match := _RANGE.fullmatch(text):
        low, high = _finite(match[2], text), _finite(match[3], text)
        if low > high:
            raise ValueError(f"{text!r}: {low:g} is above {high:g}.")
        return _value_goal(match[1], f"{low:g} to {high:g}", low, high, settings, properties)
    if match := _VALUE.fullmatch(text):
        value = _finite(match[2], text)
        return _value_goal(match[1], f"= {value:g}", value, value, settings, properties)
    raise ValueError(f"{text!r} is not a goal. {_offered(properties)}")


def _value_goal(
    name: str,
    wish: str,
    low: float,
    high: float,
    settings: _Settings,
    properties: Sequence[PredictedProperty],
) -> PropertyGoal:
    """Return the goal that a value lies between two limits, one of which may be infinite."""
    wanted = _named(name, [p for p in properties if p.task.kind == "regression"], properties)
    outside = low - wanted.task.scale, high + wanted.task.scale
    usual = tuple(filter(math.isfinite, outside))
    zeros, two_sided = settings.zeros or usual, len(usual) == 2
    if len(zeros) != len(usual):
        count = "two values, as in (0 at 0 and 5)" if two_sided else "one value"
        raise ValueError(f"'{name} {wish}': desirability is 0 at {count}.")
    below = zeros[0] if math.isfinite(low) else -math.inf
    above = zeros[-1] if math.isfinite(high) else math.inf
    if not (below < low or low == -math.inf) or not (above > high or high == math.inf):
        raise ValueError(f"'{name} {wish}': desirability must be 0 outside of what is wished.")
    curve = DesirabilityCurve(below, low, high, above, settings.power)
    return PropertyGoal(wanted, wish, curve=curve, weight=settings.weight)


def _class_goal(
    text: str, settings: _Settings, properties: Sequence[PredictedProperty]
) -> PropertyGoal | None:
    """Return the goal that a class is predicted, or None if the text names no class.

    A class may stand alone if one property has it.
    """
    having = [each for each in properties if text in each.task.classes]
    if len(having) > 1:
        raise ValueError(
            f"{len(having)} properties have a class {text!r}: name the property too, as in"
            f" '{having[0].name}: {text}'."
        )
    label = text
    for match in re.finditer(r"[:=]", text):  # names and classes may hold colons
        after = text[match.end() :].strip()
        candidates = [each for each in properties if after in each.task.classes]
        if not having and candidates:
            label, having = after, [_named(text[: match.start()], candidates, properties)]
    if not having:
        return None
    if settings.zeros or settings.power != 1:
        raise ValueError(
            f"{text!r}: a class only has a weight, as its desirability is a probability."
        )
    return PropertyGoal(having[0], label, label, weight=settings.weight)


def _named(
    name: str, candidates: Sequence[PredictedProperty], offered: Sequence[PredictedProperty]
) -> PredictedProperty:
    """Return the property of this name: a whole name, the name of its model, or how it starts."""
    plain = _plain(name)
    ways = (
        [each for each in candidates if each.name == name.strip()],
        [each for each in candidates if _plain(each.name) == plain],
        [each for each in candidates if _plain(each.model) == plain],
        [each for each in candidates if _plain(each.name).startswith(plain)],
    )
    for matching in ways:
        if len(matching) == 1 and plain:
            return matching[0]
    raise ValueError(f"there is no single property {name.strip()!r}. {_offered(offered)}")


def _plain(name: str) -> str:
    """Return a name without capitals, spaces and punctuation."""
    return "".join(character for character in name.casefold() if character.isalnum())


def _offered(properties: Sequence[PredictedProperty]) -> str:
    """List what goals may be about."""
    listed = [
        f"{each.name}: {', '.join(each.task.classes)}" if each.task.classes else f"{each.name} > 1"
        for each in properties[:MOST_GOALS]
    ]
    return f"Goals can be: {'; '.join(listed)}."


def _settings(text: str) -> _Settings:
    zeros, weight, power = re.search(rf"0 at ({NUMBER})(?: and ({NUMBER}))?", text, re.I), 1.0, 1.0
    if match := re.search(rf"weight ({NUMBER})", text, re.I):
        weight = _finite(match[1], text)
    if match := re.search(rf"power ({NUMBER})", text, re.I):
        power = _finite(match[1], text)
    if weight <= 0 or power <= 0:
        raise ValueError(f"({text}): weights and powers are above 0.")
    ends = () if zeros is None else tuple(_finite(end, text) for end in zeros.groups() if end)
    return _Settings(tuple(sorted(ends)), weight, power)


def _finite(number: str, text: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{text!r}: {number} is not a finite number.")
    return value
