"""Explain graph transformers by conservative relevance propagation, from SMILES to a picture.

    import graphxai as gx
    model = gx.load("bace")
    gx.explain(model, "CC(C)Cc1ccc(cc1)C(C)C(=O)O").save("ibuprofen.svg")

A public name is loaded when it is first used, so that `import graphxai` is quick.
"""

from typing import TYPE_CHECKING

from graphxai.runtime.lazy import folders_beside, import_in_one_piece, is_interactive, lazily
from graphxai.runtime.version import VERSION as __version__  # noqa: F401

if TYPE_CHECKING:  # the list of public names
    from graphxai.chemistry.audit import Audit as Audit
    from graphxai.chemistry.audit import audit as audit
    from graphxai.chemistry.cliff_truth import evaluate_cliffs as evaluate_cliffs
    from graphxai.chemistry.contrast import Contrast as Contrast
    from graphxai.chemistry.contrast import contrast as contrast
    from graphxai.chemistry.desirability import DesirabilityScore as DesirabilityScore
    from graphxai.chemistry.desirability import PropertyProfile as PropertyProfile
    from graphxai.chemistry.fragment_table import fragment_table as fragment_table
    from graphxai.chemistry.fragments import Fragment as Fragment
    from graphxai.chemistry.fragments import Fragments as Fragments
    from graphxai.chemistry.fragments import fragments as fragments
    from graphxai.chemistry.free_wilson import FreeWilson as FreeWilson
    from graphxai.chemistry.free_wilson import free_wilson as free_wilson
    from graphxai.chemistry.matched_pairs import Cliff as Cliff
    from graphxai.chemistry.matched_pairs import Cliffs as Cliffs
    from graphxai.chemistry.matched_pairs import activity_cliffs as activity_cliffs
    from graphxai.chemistry.measurements import Measurements as Measurements
    from graphxai.chemistry.modalities import Core as Core
    from graphxai.chemistry.profile_text import profile as profile
    from graphxai.chemistry.search.changed_molecules import Counterfactual as Counterfactual
    from graphxai.chemistry.search.changed_molecules import (
        ProfileCounterfactual as ProfileCounterfactual,
    )
    from graphxai.chemistry.search.counterfactual_results import Counterfactuals as Counterfactuals
    from graphxai.chemistry.search.counterfactual_results import (
        ProfileCounterfactuals as ProfileCounterfactuals,
    )
    from graphxai.chemistry.search.counterfactuals import counterfactuals as counterfactuals
    from graphxai.chemistry.table_changes import MeasuredExchange as MeasuredExchange
    from graphxai.chemistry.table_changes import TableChanges as TableChanges
    from graphxai.chemistry.table_changes import rgroup_table as rgroup_table
    from graphxai.chemistry.table_changes import table_changes as table_changes
    from graphxai.contract.target import Target as Target
    from graphxai.contract.tasks import Task as Task
    from graphxai.datasets.ionisation import Ionisation as Ionisation
    from graphxai.datasets.ionisation import ionisation as ionisation
    from graphxai.datasets.molecules import RejectedRow as RejectedRow
    from graphxai.datasets.training_set import TrainingSet as TrainingSet
    from graphxai.datasets.training_set import training_set_of as training_set_of
    from graphxai.engine.session import conservative as conservative
    from graphxai.evaluation.benchmark import evaluate as evaluate
    from graphxai.evaluation.counterfactual_set import CounterfactualSet as CounterfactualSet
    from graphxai.evaluation.counterfactual_set import counterfactual_set as counterfactual_set
    from graphxai.evaluation.game import Game as Game
    from graphxai.evaluation.game import fit_shares as fit_shares
    from graphxai.evaluation.game import game as game
    from graphxai.evaluation.model_check import ModelCheck as ModelCheck
    from graphxai.evaluation.report import Report as Report
    from graphxai.evaluation.testing import check as check
    from graphxai.evaluation.trust.trust import Trust as Trust
    from graphxai.evaluation.trust.trust import trust as trust
    from graphxai.explainers.learned.network import FittedExplainer as FittedExplainer
    from graphxai.explainers.learned.train import fit_explainer as fit_explainer
    from graphxai.explanation.api import compare as compare
    from graphxai.explanation.api import explain as explain
    from graphxai.explanation.api import load as load
    from graphxai.explanation.api import methods as methods
    from graphxai.explanation.api import pairs as pairs
    from graphxai.explanation.api import predict as predict
    from graphxai.explanation.api import pretrained_models as pretrained_models
    from graphxai.explanation.explanation import Explanation as Explanation
    from graphxai.explanation.explanations import Explanations as Explanations
    from graphxai.explanation.explanations import grid as grid
    from graphxai.explanation.kernel_account import KernelAccount as KernelAccount
    from graphxai.explanation.kernel_account import kernel_account as kernel_account
    from graphxai.explanation.labelled import Predictions as Predictions
    from graphxai.explanation.ledger import Ledger as Ledger
    from graphxai.explanation.pairs import Pairs as Pairs
    from graphxai.explanation.prediction import Prediction as Prediction
    from graphxai.explanation.result import Picture as Picture
    from graphxai.learning.cleaned_table import CleanTable as CleanTable
    from graphxai.learning.cleaning import clean_table as clean_table
    from graphxai.learning.conformal import learned_from as learned_from
    from graphxai.learning.processes.adapting import adapt as adapt
    from graphxai.learning.recipes.masked_atoms import MaskedAtoms as MaskedAtoms
    from graphxai.learning.recipes.masked_atoms import fit_masked_atoms as fit_masked_atoms
    from graphxai.learning.run import train as train
    from graphxai.learning.run import train_table as train_table
    from graphxai.learning.settings import GraphSettings as GraphSettings
    from graphxai.learning.settings import TableSettings as TableSettings
    from graphxai.rules.conservative import record as record
    from graphxai.tables.app import explore as explore
    from graphxai.tables.batches import ExplainBatch as ExplainBatch
    from graphxai.tables.batches import ExplainedRow as ExplainedRow
    from graphxai.tables.cluster import explain_dataset as explain_dataset
    from graphxai.tables.estimators import GraphormerClassifier as GraphormerClassifier
    from graphxai.tables.estimators import GraphormerRegressor as GraphormerRegressor
    from graphxai.tables.report import report as report
    from graphxai.tables.rows import ExplainFrame as ExplainFrame
    from graphxai.tables.run import explain_rows as explain_rows
    from graphxai.wrapping.wrapping import wrap as wrap

__path__ += folders_beside(__file__)  # where git cannot make symbolic links
if is_interactive():
    import_in_one_piece()
__getattr__, __dir__, __all__ = lazily(__name__, __file__)
