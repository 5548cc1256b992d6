"""Explain the words of an explanation in a line each, for readers who are new to them."""

from .explanation import Explanation


def about_output(explanation: Explanation) -> str:
    """Say in one sentence what the explained output is and how to read its size."""
    target = explanation.target
    first, against, second = target.partition(" against ")
    if against and isinstance(explanation.wanted.choice, tuple):
        task = f"{explanation.prediction.task}: "
        ends = {first.removeprefix(task), second.removeprefix(task)}
        if ends <= set(explanation.prediction.probabilities):
            text = f"a difference of logits: +0.7 doubles the odds of {first} against {second}"
        else:
            text = f"the difference of two outputs, {first} minus {second}"
    elif explanation.prediction.label is None:
        unit = explanation.prediction.unit
        text = f"the predicted value in {unit}" if unit else "the predicted value"
    else:
        text = "a logit: +0.7 doubles the odds"
    return f"The output for the target, {target}, is {text}."


def about_terms(explanation: Explanation) -> dict[str, str]:
    """Return the words of the explanation's ledger that need explaining, each with its meaning."""
    if not explanation.additive:
        return {}
    node, links = ("atom", "bonds") if explanation.smiles is not None else ("node", "neighbours")
    meanings = {
        "without nodes": f"what the model says about a graph without any {node}s",
        "change": f"what all {node}s together change in that",
        "centrality": f"the {node}s' share that comes from their number of {links}",
        "graph token": f"an extra node beside the {node}s, from which the model reads its answer",
        "biases": f"the model's constants, which belong to no {node}",
        "unexplained": "what the method cannot assign, which under LRP is only rounding",
    }
    if explanation.ledger.without_nodes is None:
        del meanings["without nodes"], meanings["change"]
    if explanation.ledger.centrality is None:
        del meanings["centrality"]
    return meanings
