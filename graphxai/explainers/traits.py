"""What is said of an explainer beside its name: what its scores mean, needs and cost."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """What the scores of an explainer mean, what it needs of a model, and what it costs.

    Args:
        adds_up: scores are shares of the output, in its units, and a ledger accounts for the rest.
        in_output_units: scores are in the units of the output, but do not add up to it.
        large_score_means: what a large score says about a node, such as "attended to", for methods
            without negative scores. Empty if a sign tells for and against the target.
        caveat: what readers of the scores must know. It is shown beside them.
        cost: the passes that it takes, in words such as "1 forward, 1 backward".
        draws_random_numbers: scores depend on random numbers drawn in the order of the nodes.
        searches_curve: the method evaluates the curve that AUAC integrates, so that its AUAC is no
            independent test.
        needs_fitting: it needs a file of its own beside the checkpoint.
        needs_gradients: it needs gradients from the outputs back to the nodes.
        reports_cut_gradients: its own passes notice where a wrapped model cuts these gradients off.
        explains_other_inputs: it also explains inputs other than the nodes' features.
        explains_integer_inputs: these may be integers, such as the types of bonds.
    """

    adds_up: bool = False
    in_output_units: bool = False
    large_score_means: str = ""
    caveat: str = ""
    cost: str = "1 forward, 1 backward"
    draws_random_numbers: bool = False
    searches_curve: bool = False
    needs_fitting: bool = False
    needs_gradients: bool = False
    reports_cut_gradients: bool = False
    explains_other_inputs: bool = False
    explains_integer_inputs: bool = False
