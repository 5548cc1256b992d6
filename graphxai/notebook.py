"""How results show themselves in a notebook, and methods side by side. Everything is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from graphxai.explanation import Explanation

if TYPE_CHECKING:
    from graphxai.api import Model
    from graphxai.pictures import Picture

COMPARED = ("lrp", "gradient_input", "gae")  # methods that `show` takes by default
TOP = 5


def explanation_html(explanation: Explanation) -> str:
    """The picture, if there is one, the ledger and where it comes from."""
    picture = explanation._repr_svg_()
    parts = [] if picture is None else [f"<div>{picture}</div>"]
    if picture is None:
        parts.append(f"<p><b>{escape(explanation.headline)}</b>: {escape(explanation.caption)}</p>")
        parts.append(_most_relevant(explanation))
    ledger = explanation.ledger.to_dict()
    rows = _row("th", (name.replace("_", " ") for name in ledger))
    rows += _row("td", (f"{value:+.4f}" for value in ledger.values()))
    parts.append(
        f"<details><summary>Ledger and provenance</summary><table>{rows}</table>"
        f"<p>{escape(_told(explanation))}</p></details>"
    )
    return "".join(parts)


def explanations_html(explanations: Sequence[Explanation | None], limit: int) -> str:
    """The first pictures in a grid, or a table where there are none; how many are not shown."""
    found = [(place, e) for place, e in enumerate(explanations) if e is not None]
    shown = found[:limit]
    notes = []
    if len(found) > len(shown):
        notes.append(f"{len(found) - len(shown)} more are not shown.")
    if len(found) < len(explanations):
        notes.append(f"{len(explanations) - len(found)} inputs were left out (None).")
    body = ""
    if shown and all(_drawable(e) for _, e in shown):
        from graphxai.pictures import grid

        alike = len({(e.method, e.target) for _, e in shown}) == 1
        small: dict[str, Any] = (
            {} if shown[0][1].image is not None else {"width": 400, "height": 300}
        )
        titles = [f"{place}: {e.headline}" for place, e in shown]
        body = (
            f"<div>{grid([e for _, e in shown], titles=titles, shared_scale=alike, **small)}</div>"
        )
    elif shown:
        rows = "".join(_row("td", (place, e.headline, e.caption)) for place, e in shown)
        body = f"<table>{_row('th', ('input', 'prediction', 'explanation'))}{rows}</table>"
    return f"{body}<p>{len(explanations)} inputs. {escape(' '.join(notes))}</p>"


def show(
    explanation: Explanation,
    methods: Sequence[Any] = COMPARED,
    *,
    model: "Model | None" = None,
    target: Any = None,
    **options: Any,
) -> "Picture":
    """Explain the same input by several methods, side by side.

    model: the one that was explained; a bundled model is found by its name. target: as for
    `explain`, by default what was explained. Options as for `graphxai.compare`.

    Raises ValueError if the model is needed, or is another one; and if the input was not kept.
    """
    from graphxai.api import explain
    from graphxai.pictures import compare

    model = _model_of(explanation, model)
    value = _input_of(explanation)
    target = _target_of(explanation) if target is None else target
    return compare([explain(model, value, m, target=target) for m in methods], **options)


def _model_of(explanation: Explanation, model: Any) -> Any:
    from graphxai.api import load, pretrained_models

    name, sha256 = (explanation.provenance.get(key) for key in ("model", "sha256"))
    if model is None:
        if name not in pretrained_models():
            raise ValueError(f"model {name!r} is not a bundled one: give it as show(model=...).")
        model = load(str(name))
    if sha256 and model.origin.sha256 and model.origin.sha256 != sha256:
        raise ValueError(
            f"model {model.origin.name!r} has other weights than the one explained here: give the"
            " same model as show(model=...), or explain the input anew."
        )
    return model


def _input_of(explanation: Explanation) -> Any:
    for value in (explanation.image, explanation.mol, explanation.smiles):
        if value is not None:
            return value
    raise ValueError(
        "the graph itself is not kept in its explanation: explain it by every method and use"
        " graphxai.compare."
    )


def _target_of(explanation: Explanation) -> Any:
    from graphxai.target import Target

    task = explanation.prediction.task
    if explanation.target in explanation.prediction.probabilities:
        return Target(explanation.target, task)
    if explanation.target == task:
        return Target(None, task)
    raise ValueError(f"{explanation.target!r} is no single class: give it as show(target=...).")


def _drawable(explanation: Explanation) -> bool:
    return explanation.image is not None or explanation.molecule is not None


def _most_relevant(explanation: Explanation) -> str:
    order = np.argsort(-np.abs(explanation.relevance), kind="stable")[:TOP]
    rows = "".join(_row("td", (int(i), f"{explanation.relevance[i]:+.4f}")) for i in order)
    return f"<table>{_row('th', ('node', 'relevance'))}{rows}</table>"


def _told(explanation: Explanation) -> str:
    """Where an explanation comes from, in one line."""
    told = explanation.provenance
    parts = [explanation.smiles or f"{len(explanation)} nodes", explanation.title]
    if told.get("model"):
        parts.append(f"model {told['model']} ({str(told.get('sha256') or 'not saved')[:12]})")
    parts += [f"{name} {version}" for name, version in dict(told.get("versions", {})).items()]
    return " · ".join(parts)


def _row(cell: str, values: Iterable[object]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(str(v))}</{cell}>" for v in values) + "</tr>"
