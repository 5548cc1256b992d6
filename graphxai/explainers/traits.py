"""What an explainer declares about itself: what its scores mean, what it needs, and its cost."""

from dataclasses import dataclass

SEARCHES = "searches the curve"  # of methods that optimise the curve itself
TRAINED = "trained on the activation curve"


@dataclass(frozen=True)
class Traits:
    """What the scores of an explainer mean, what it needs from a model, and what it costs.

    Args:
        adds_up: whether scores are shares of the output, in its units, so that a ledger accounts
            for the rest.
        in_output_units: whether scores are in the units of the output, but do not add up to it.
        large_score_means: for methods without negative scores, what a large score says about a
            node, such as "attended to". It is empty if the sign says for or against the target.
        caveat: what readers of the scores must know. It is shown beside the scores.
        cost: how many passes the method takes, as text such as "1 forward, 1 backward".
        draws_random_numbers: whether scores depend on random numbers drawn in the order of the
            nodes.
        searches_curve: whether the method evaluates the curve that AUAC integrates, so that its
            AUAC is no independent test.
        trained_on_curve: whether the method was trained on the activation curves of other graphs.
        needs_fitting: whether the method needs a fitted file beside the checkpoint.
        needs_process: whether the method explains Gaussian processes alone.
        needs_gradients: whether the method needs gradients from the outputs back to the nodes.
        reports_cut_gradients: whether the method's passes notice where a wrapped model cuts these
            gradients off.
        explains_other_inputs: whether the method also explains inputs other than the nodes'
            features.
        explains_integer_inputs: whether such inputs may be integers, such as the types of bonds.
        nodes_share_passes: whether the forward passes are the same for all nodes of a graph that
            are explained, so that they run once (see `wrapped.once_for_all_nodes`).
    """

    adds_up: bool = False
    in_output_units: bool = False
    large_score_means: str = ""
    caveat: str = ""
    cost: str = "1 forward, 1 backward"
    draws_random_numbers: bool = False
    searches_curve: bool = False
    trained_on_curve: bool = False
    needs_fitting: bool = False
    needs_process: bool = False
    needs_gradients: bool = False
    reports_cut_gradients: bool = False
    explains_other_inputs: bool = False
    explains_integer_inputs: bool = False
    nodes_share_passes: bool = False

    @property
    def explains_any_model(self) -> bool:
        """Whether the method needs neither a fitted file nor one kind of model."""
        return not (self.needs_fitting or self.needs_process)

    @property
    def is_quick(self) -> bool:
        """Whether many graphs take a moment: the method makes one pass, perhaps with gradients."""
        return self.cost in ("1 forward", Traits.cost)

    @property
    def note(self) -> str:
        """What tables say of a method whose AUAC is no independent test, or ""."""
        if self.searches_curve:
            return SEARCHES
        return TRAINED if self.trained_on_curve else ""
