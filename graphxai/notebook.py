"""How results show themselves in a notebook, and methods side by side. Everything is escaped."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from graphxai.explanation import Explanation
from graphxai.markup import page_html, table_html

if TYPE_CHECKING:
    from graphxai.api import Model
    from graphxai.pictures import Picture

COMPARED = ("lrp", "gradient_input", "gae")  # methods that `show` takes by default
TOP = 5


def explanation_html(explanation: Explanation) -> str:
    """What is said, the strongest nodes, the ledger, and where it comes from."""
    told = f"<p><b>{escape(explanation.headline)}</b>: {escape(explanation.caption)}</p>"
    return told + _details(explanation)


def explanations_page(explanations: Sequence[Explanation | None], **options: Any) -> str:
    """A page by itself: pictures, else headlines, and details; options as for `svg`."""
    found = [e for e in explanations if e is not None]
    if not found:
        raise ValueError("there is no explanation to show.")
    shown = [
        _image(e, options) + _details(e) if e.has_picture else explanation_html(e) for e in found
    ]
    title = found[0].headline if len(found) == 1 else f"{len(found)} explanations"
    return page_html(title, "".join(f"<section>{html}</section>" for html in shown))


def _image(explanation: Explanation, options: dict[str, Any]) -> str:
    """The picture as a document of its own, since ids of two pictures may be the same."""
    code = b64encode(explanation.svg(**options).encode()).decode()
    told = escape(f"{explanation.headline}. {explanation.caption}")
    return f'<p><img alt="{told}" src="data:image/svg+xml;base64,{code}"></p>'


def _details(explanation: Explanation) -> str:
    return (
        f"{_most_relevant(explanation)}"
        f"<details><summary>Ledger and provenance</summary>{explanation.ledger._repr_html_()}"
        f"<p>{escape(_told(explanation))}</p></details>"
    )


def drawable(explanations: Sequence[Explanation | None], limit: int) -> bool:
    """Whether the first of these have pictures."""
    shown = _first(explanations, limit)
    return bool(shown) and all(e.has_picture for _, e in shown)


def explanations_picture(explanations: Sequence[Explanation | None], limit: int) -> "Picture":
    """The first pictures in a grid."""
    from graphxai.pictures import grid

    shown = _first(explanations, limit)
    return grid(
        [e for _, e in shown],
        titles=[f"{place}: {e.headline}" for place, e in shown],
        subtitle=_counts(explanations, limit),
        shared_scale=len({(e.method, e.target) for _, e in shown}) == 1,
    )


def explanations_html(explanations: Sequence[Explanation | None], limit: int) -> str:
    """A table of the first explanations, and how many are not shown."""
    shown = _first(explanations, limit)
    rows = [(place, e.headline, e.caption) for place, e in shown]
    table = table_html(("input", "prediction", "explanation"), rows) if rows else ""
    return f"{table}<p>{escape(_counts(explanations, limit))}</p>"


def _first(explanations: Sequence[Explanation | None], limit: int) -> list[tuple[int, Explanation]]:
    """The first `limit` that are not None, with their places."""
    found = [(place, e) for place, e in enumerate(explanations) if e is not None]
    return found[:limit]


def _counts(explanations: Sequence[Explanation | None], limit: int) -> str:
    """How many there are, how many are not shown, how many were left out."""
    left_out = sum(e is None for e in explanations)
    hidden = len(explanations) - left_out - limit
    told = [f"{len(explanations)} input{'' if len(explanations) == 1 else 's'}"]
    told += [f"{hidden} more not shown"] if hidden > 0 else []
    told += [f"{left_out} left out (None)"] if left_out else []
    return ", ".join(told)


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


def _most_relevant(explanation: Explanation) -> str:
    order = np.argsort(-np.abs(explanation.relevance), kind="stable")[:TOP]
    values = [f"{explanation.relevance[i]:+z.4f}" for i in order]
    molecule = explanation.molecule
    if molecule is None:
        return table_html(("node", "relevance"), zip(order.tolist(), values, strict=True))
    symbols = [molecule.GetAtomWithIdx(i).GetSymbol() for i in order.tolist()]
    rows = zip(order.tolist(), symbols, values, strict=True)
    return table_html(("atom", "symbol", "relevance"), rows)


def _told(explanation: Explanation) -> str:
    """Where an explanation comes from, in one line."""
    told = explanation.provenance
    parts = [explanation.smiles or f"{len(explanation)} nodes", explanation.title]
    if told.get("model"):
        parts.append(f"model {told['model']} ({str(told.get('sha256') or 'not saved')[:12]})")
    parts += [f"{name} {version}" for name, version in dict(told.get("versions", {})).items()]
    return " · ".join(parts)
