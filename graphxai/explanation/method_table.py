"""The methods by name, which a notebook shows as a table."""

from inspect import cleandoc
from textwrap import fill

from graphxai.contract.method_names import MethodName
from graphxai.explainers import Explainer

from .html import table_html


class MethodTable(dict[MethodName, type[Explainer]]):
    """Explainers by name, with the first sentence of what each says about itself."""

    def __repr__(self) -> str:
        return fill(f"{len(self)} methods: {', '.join(self)}", 100)

    def _repr_html_(self) -> str:
        rows = [(name, _first_sentence(explainer)) for name, explainer in self.items()]
        return table_html(("method", "relevance"), rows)


def _first_sentence(explainer: type[Explainer]) -> str:
    return " ".join(cleandoc(explainer.__doc__ or "").split("\n\n")[0].split())
