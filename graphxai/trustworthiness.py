"""How far one explanation can be trusted: signs that are measured, and one rule over them.

gx.trust(model, explanation).sentence
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphxai.api import Key, Model, explain_prepared
from graphxai.evaluation.checks import NoisyModel
from graphxai.explainers import Explainer, get_explainer
from graphxai.explanation import Explanation
from graphxai.inputs import Input, prepare_for
from graphxai.training_set import training_set_of
from graphxai.trust_signs import (
    Level,
    Sign,
    agreement_sign,
    distance_sign,
    noise_sign,
    residual_sign,
    rewriting_sign,
    score_sign,
)

if TYPE_CHECKING:
    from rdkit.Chem import Mol

RULE = (
    "Warning if any sign is a warning; caution if any sign is a caution or could not be measured;"
    " otherwise nothing measured speaks against the explanation."
)
OTHERS = ("gae", "occlusion")  # one method of attention, one of removal
DRAWS = 3  # of noise on the embeddings
WRITINGS = 2  # other ways to write the same molecule


@dataclass(frozen=True)
class Trust:
    """What speaks for and against one explanation.

    `nearest`: SMILES of the nearest training compound, where the training set is known.
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
        """Whether the explanation should not be relied on."""
        return self.level == "warning"

    @property
    def sentence(self) -> str:
        """What follows from the signs, in one plain sentence; figures only where one is bad."""
        if self.level == "good":
            told = "; ".join(sign.text for sign in self.signs)
            return f"Nothing measured speaks against it: {told}."
        if self.level == "warning":
            return f"Do not rely on this explanation: {self._told('warning')}."
        return f"Use with care: {self._told('caution', 'unknown')}."

    def __getitem__(self, name: str) -> Sign:
        """The sign with this name; KeyError if it was not looked at."""
        for sign in self.signs:
            if sign.name == name:
                return sign
        raise KeyError(name)

    def _told(self, *levels: Level) -> str:
        return "; ".join(sign.told for sign in self.signs if sign.level in levels)


def trust(model: Model, explained: Any, *, target: Any = None) -> Trust:
    """What speaks for and against the explanation of one molecule.

    explained: an Explanation of this model, or an input, which is then explained by `lrp`.
    target: the one the explanation was made for. Costs about as much as `occlusion`. Raises
    ValueError for an explanation of another target or another model.
    """
    if not isinstance(explained, Explanation):
        item = prepare_for(model, explained)
        explainer = get_explainer("lrp")
        ((_, explanation),) = explain_prepared(model, [(0, item)], explainer, target=target)
    else:
        explanation = explained
        if explanation.provenance.get("sha256") != model.origin.sha256:
            raise ValueError("the explanation was made with another model than the one given.")
        value = explanation.mol if explanation.mol is not None else explanation.smiles
        if value is None:
            raise ValueError("trust is for molecules: this explanation came without one.")
        item = prepare_for(model, value)
        explainer = _explainer_of(explanation)
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
    """Trust in the explanations of encoded molecules, by key.

    others: explanations of the same inputs by other methods, by name and key; those missing for
    the agreement (`OTHERS`, and `lrp` beside them) are made, where the model allows them.
    """
    training = training_set_of(model)
    compared = dict(others or {})
    compared[explainer.name] = explanations
    methods = ("lrp" if explainer.name in OTHERS else explainer.name, *OTHERS)
    missing = [name for name in methods if name not in compared]
    compared |= explained_by_each(model, prepared, missing, target)[0]
    noisy = _with_noise(model, prepared, explainer, target)
    rewritten = _rewritten(model, prepared, explainer, target)
    found = {}
    for key, _ in prepared:
        explanation = explanations[key]
        beside = {name: compared[name][key] for name in methods if name in compared}
        for other in beside.values():
            _require_same_target(explanation, other)
        distance, nearest = distance_sign(training, explanation.molecule)
        signs = [
            score_sign(model.origin.metadata, explanation.prediction),
            distance,
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
    """Explanations by method and key; and the methods that the model does not allow, with why.

    So it is for methods that read attention, where a model has none between its nodes.
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


def _with_noise(
    model: Model, prepared: Sequence[tuple[Key, Input]], explainer: Explainer, target: Any
) -> dict[Key, list[NDArray[np.floating]]]:
    """Relevance (N,) of each molecule under a few draws of noise on its embeddings."""
    found: dict[Key, list[NDArray[np.floating]]] = {key: [] for key, _ in prepared}
    for seed in range(DRAWS):
        noisy: Any = NoisyModel(model, seed)
        for key, explanation in explain_prepared(noisy, prepared, explainer, target=target):
            found[key].append(explanation.relevance)
    return found


def _rewritten(
    model: Model, prepared: Sequence[tuple[Key, Input]], explainer: Explainer, target: Any
) -> dict[Key, list[NDArray[np.floating]]]:
    """Relevance (N,), in the first order of atoms, for other ways to write each molecule."""
    found: dict[Key, list[NDArray[np.floating]]] = {}
    for draw in range(WRITINGS):
        orders, inputs = {}, []
        for key, item in prepared:
            written = _written_anew(item, draw)
            if written is not None:
                value, orders[key] = written
                inputs.append((key, prepare_for(model, value)))
        for key, explanation in explain_prepared(model, inputs, explainer, target=target):
            relevance = np.empty_like(explanation.relevance)
            relevance[orders[key]] = explanation.relevance
            found.setdefault(key, []).append(relevance)
    return found


def _written_anew(item: Input, draw: int) -> "tuple[Mol | str, list[int]] | None":
    """Another way to write the input, and the first number of each of its atoms.

    An RDKit molecule is renumbered; a SMILES is written from another atom, or is None if that
    loses atoms.
    """
    from rdkit import Chem, rdBase

    if item.molecule is not None:
        size = item.molecule.GetNumAtoms()
        order = np.random.default_rng(draw).permutation(size).tolist()
        return Chem.RenumberAtoms(item.molecule, order), order
    if item.smiles is None:
        return None
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(item.smiles)
        start = (draw + 1) * mol.GetNumAtoms() // (WRITINGS + 1)
        text = Chem.MolToSmiles(mol, canonical=False, rootedAtAtom=start)
        again = Chem.MolFromSmiles(text)
    if again is None or again.GetNumAtoms() != mol.GetNumAtoms():  # explicit hydrogens are lost
        return None
    return text, list(mol.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])


def _explainer_of(explanation: Explanation) -> Explainer:
    """The explainer that made an explanation, with its options."""
    try:
        return get_explainer(explanation.method, **explanation.provenance.get("options", {}))
    except ValueError:  # an attribute that is no option
        return get_explainer(explanation.method)


def _require_same_target(explanation: Explanation, other: Explanation) -> None:
    if explanation.target != other.target:
        raise ValueError(
            f"the explanation is for {explanation.target!r}, but the target given means"
            f" {other.target!r}: give the target it was made for."
        )
