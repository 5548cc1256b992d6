"""Train on a list of SMILES, as an estimator of scikit-learn.

An estimator writes its molecules to a table, and trains as `graphxai train` does: part of the
molecules stop the training and calibrate the model, and are not learned from.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rdkit import Chem
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.datasets.as_given import Standardisation
from graphxai.datasets.tables.rows import as_text
from graphxai.explainers.registry import Method
from graphxai.explanation.api import explain, load, predict
from graphxai.learning.cleaning import clean_table
from graphxai.learning.fit import has_run
from graphxai.learning.run import train_table
from graphxai.learning.settings import TableSettings

__all__ = ["GraphormerClassifier", "GraphormerRegressor"]

SMILES = "smiles"


class _GraphormerEstimator(BaseEstimator):
    """What the regressor and the classifier share: the settings, training and explanations."""

    _kind: Literal["classification", "regression"]

    def __init__(
        self,
        *,
        epochs: int | None = None,
        ensemble: int = 1,
        teacher: bool = True,
        init_weights: str | None = "molecules",
        standardise: Standardisation = "parent",
        split: Literal["scaffold", "random", "clusters"] = "random",
        seed: int = 0,
        accelerator: str = "cpu",
        folder: str | Path | None = None,
    ) -> None:
        self.epochs = epochs
        self.ensemble = ensemble
        self.teacher = teacher
        self.init_weights = init_weights
        self.standardise = standardise
        self.split = split
        self.seed = seed
        self.accelerator = accelerator
        self.folder = folder

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.input_tags.string = True
        tags.target_tags.required = True
        tags.non_deterministic = False
        return tags

    def explain(self, X: Any, method: Method = DEFAULT_METHOD, **options: Any) -> Any:
        """Explain molecules as `graphxai.explain` does, with its options.

        Args:
            X: a SMILES, or a list or column of SMILES or RDKit molecules.
            method: the name of a method, or your own function.
            options: those of `graphxai.explain`, such as `target`.
        """
        check_is_fitted(self)
        inputs: Any = X if isinstance(X, str) else _structures(X)
        return explain(self.model_, inputs, **{"method": method, **options})

    def _train(self, X: Any, columns: Mapping[str, Sequence[str]]) -> None:
        """Train on molecules and columns of labels, and keep the model as `model_`."""
        structures = _structures(X)
        check_consistent_length(structures, *columns.values())
        if self.folder is not None and has_run(Path(self.folder)):
            raise ValueError(
                f"{self.folder} already contains the run of a fit: set_params(folder=...) names"
                " another one. Every fit of cross_val_score or a search would write to the same"
                " one, so they take folder=None."
            )
        settings = TableSettings(
            model="network", seed=self.seed, epochs=self.epochs, ensemble=self.ensemble,
            split=self.split, teacher=self.teacher, init_weights=self.init_weights,
            accelerator=self.accelerator, progress=False,
        )  # fmt: skip
        with TemporaryDirectory() as temporary:
            table = Path(temporary) / "molecules.csv"
            with table.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow([SMILES, *columns])
                written = (s if isinstance(s, str) else Chem.MolToSmiles(s) for s in structures)
                writer.writerows(zip(written, *columns.values(), strict=True))
            clean = clean_table(
                table,
                SMILES,
                list(columns),
                kinds=dict.fromkeys(columns, self._kind),
                standardise=self.standardise,
            )
            out = Path(temporary) / "run" if self.folder is None else Path(self.folder)
            self.model_ = load(train_table(clean, out, settings))
            if self.folder is None:  # the files are about to go
                self.model_.origin = replace(self.model_.origin, folder=None)
        self.n_features_in_ = 1

    def _predictions(self, X: Any) -> list[dict[str, Any]]:
        check_is_fitted(self)
        return predict(self.model_, _structures(X), on_error="raise", progress=False)


class GraphormerRegressor(RegressorMixin, _GraphormerEstimator):
    """A Graphormer for values of molecules, as an estimator of scikit-learn.

    Args:
        epochs: how often the network learns from each molecule; see `TableSettings`.
        ensemble: the number of networks to average. Relevance then has a spread over them.
        teacher: whether the network also learns from forests and Gaussian processes.
        init_weights: the weights to start from: a model's name, a folder, or None for none.
        standardise: "parent" learns from molecules without counter-ions and neutral; see
            `clean_table`.
        split: how the molecules are chosen that stop the training and calibrate the model.
        seed: the seed of everything that is drawn at random.
        accelerator: Lightning's accelerator.
        folder: where the run is written, for a single fit. By default nothing is kept but the model
            in memory, which then does not know its training compounds.

    Attributes:
        model_: the trained model, for every function of graphxai.
        several_: whether y had two axes.
    """

    _kind = "regression"

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Train on molecules X (n), as SMILES or RDKit molecules, with values y (n) or (n, tasks).

        A value may be NaN where it was not measured, or a text such as ">7" where only a bound is
        known.

        Raises:
            ImportError: the extra `train` is not installed.
            ValueError: fewer than 20 molecules can be read, or all values are alike.
        """
        values = np.asarray(y)
        values = np.asarray(y, dtype=np.float64 if values.dtype.kind in "biuf" else object)
        self.several_ = values.ndim > 1
        columns = values.reshape(len(values), -1).T
        names = ["y"] if len(columns) == 1 else [f"y{k + 1}" for k in range(len(columns))]
        cells = [[as_text(value) for value in column] for column in columns.tolist()]
        self._train(X, dict(zip(names, cells, strict=True)))
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the values (n,), or (n, tasks) if y had two axes."""
        rows = [[p.value for p in row.values()] for row in self._predictions(X)]
        tasks = len(self.model_.config.tasks)
        values = np.array(rows, dtype=np.float64).reshape(len(rows), tasks)
        return values if self.several_ else values[:, 0]


class GraphormerClassifier(ClassifierMixin, _GraphormerEstimator):
    """A Graphormer for classes of molecules, as an estimator of scikit-learn.

    Its settings are those of `GraphormerRegressor`.

    Attributes:
        classes_: the classes, in the order of the columns of `predict_proba`.
        model_: the trained model, for every function of graphxai.
    """

    _kind = "classification"

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Train on molecules X (n), as SMILES or RDKit molecules, with a class each, y (n).

        Raises:
            ImportError: the extra `train` is not installed.
            ValueError: fewer than 20 molecules can be read, all have one class, or y has several
                columns.
        """
        check_classification_targets(y)
        self.classes_, numbers = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        self._train(X, {"y": [_class_name(k) for k in numbers.tolist()]})
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probabilities (n, classes), in the order of `classes_`.

        A class of which no molecule could be read has probability 0.
        """
        names = [_class_name(k) for k in range(len(self.classes_))]
        rows = [row["y"].probabilities for row in self._predictions(X)]
        shares = [row.get(name, 0.0) for row in rows for name in names]
        return np.array(shares, dtype=np.float64).reshape(len(rows), len(names))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest class of each molecule (n,)."""
        return self.classes_[self.predict_proba(X).argmax(1)]


def _class_name(number: int) -> str:
    """Return the name of a class in the table, where a number would be read as a value."""
    return f"class {number}"


def _structures(X: Any) -> list[Any]:
    """Return molecules as a list, from a list, an array or a column of a frame."""
    if isinstance(X, str):
        raise ValueError("X is a single text: give a list of SMILES.")
    if getattr(X, "ndim", 1) == 2:
        if X.shape[1] != 1:
            raise ValueError(f"X has {X.shape[1]} columns: give one of SMILES.")
        X = X.iloc[:, 0] if hasattr(X, "iloc") else X[:, 0]
    structures = list(X)
    for structure in structures:
        if not isinstance(structure, str | Chem.Mol):
            raise ValueError(
                f"X holds {type(structure).__name__}: give SMILES, or RDKit molecules."
            )
    return structures
