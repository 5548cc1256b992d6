"""What the words of an explanation mean, in a line each, for readers who meet them first."""

from .explanation import Explanation


def about_output(explanation: Explanation) -> str:
    """What the explained output is and how to read its size, in one sentence."""
    target = explanation.target
    one, against, other = target.partition(" against ")
    if against and isinstance(explanation.wanted.choice, tuple):
        task = f"{explanation.prediction.task}: "
        ends = {one.removeprefix(task), other.removeprefix(task)}
        if ends <= set(explanation.prediction.probabilities):
            text = f"a difference of logits: +0.7 doubles the odds of {one} against {other}"
        else:
            text = f"the difference of two outputs, {one} minus {other}"
    elif explanation.prediction.label is None:
        unit = explanation.prediction.unit
        text = f"the predicted value in {unit}" if unit else "the predicted value"
    else:
        text = "a logit: +0.7 doubles the odds"
    return f"The output for the target, {target}, is {text}."


def about_terms(explanation: Explanation) -> dict[str, str]:
    """The words of the explanation's ledger that need explaining, each with its meaning."""
    if not explanation.additive:
        return {}
    node, links = ("atom", "bonds") if explanation.smiles is not None else ("node", "neighbours")
    meanings = {
        "without nodes": f"what the model says about a graph without any {node}s",
        "change": f"what the {node}s changed in that, all of them together",
        "centrality": f"the {node}s' share that comes from their number of {links}",
        "graph token": f"an extra node, not one of the {node}s, from which the model reads its"
        " answer",
        "biases": f"the model's constants, which belong to no {node}",
        "unexplained": "what the method cannot assign; under LRP only rounding",
    }
    if explanation.ledger.without_nodes is None:
        del meanings["without nodes"], meanings["change"]
    if explanation.ledger.centrality is None:
        del meanings["centrality"]
    return meanings
