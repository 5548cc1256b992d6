"""A model's output as a game: its values are the outputs for the nodes of the players."""

import numpy as np
import pytest
import torch

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.contract.tasks import Task
from graphxai.wrapping.removal import outputs_of_parts
from other_models import GpsModel, molecules
from toy import random_graphormer

PHENOL = "Oc1ccccc1"


@pytest.mark.parametrize("operator", ["mask", "zero", "delete"])
def test_a_coalition_has_the_output_of_its_nodes(operator):
    model = random_graphormer(num_layers=2)
    game = gx.game(model, PHENOL, {"hydroxy": [0], "ring": range(1, 7)}, operator=operator)
    coalitions = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=bool)
    keep = torch.from_numpy(coalitions[:, [0, 1, 1, 1, 1, 1, 1]])
    outputs = outputs_of_parts(model, prepare_for(model, PHENOL).data, keep, operator)
    np.testing.assert_allclose(game(coalitions), outputs[:, 0].numpy(), rtol=1e-6)
    assert game(coalitions[1]) == pytest.approx(game(coalitions)[1:2])
    assert (game.n_players, game.names) == (2, ("hydroxy", "ring"))


def test_the_class_that_is_predicted_for_the_whole_graph_is_the_value_of_all_coalitions():
    model = random_graphormer(tasks=(Task("size", "multiclass", ("small", "medium", "large")),))
    game = gx.game(model, PHENOL)
    chosen = gx.explain(model, PHENOL).target
    named = gx.game(model, PHENOL, target=chosen)
    coalitions = np.eye(game.n_players, dtype=bool)
    np.testing.assert_array_equal(game(coalitions), named(coalitions))


def test_nodes_of_no_player_are_absent_and_wrapped_models_play_too():
    model = gx.wrap(GpsModel("layer_norm").eval(), kind="regression")
    (graph, *_) = molecules()
    n = int(graph.num_nodes)
    alone = gx.game(model, graph, [[0]])
    keep = torch.zeros(1, n, dtype=torch.bool)
    keep[0, 0] = True
    output = outputs_of_parts(model, prepare_for(model, graph).data, keep)
    assert alone([[True]])[0] == pytest.approx(float(output), rel=1e-5)
    whole = gx.explain(model, graph).output
    assert gx.game(model, graph)(np.ones((1, n), bool))[0] == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least one player"),
        ([[7]], "nodes 0 to 6"),
        ([[-1]], "nodes 0 to 6"),
        ([[]], "player '0' has the nodes"),
        ({"a": [0, 1], "b": [1]}, "node 1 belongs to two players"),
    ],
)
def test_players_that_do_not_fit_the_graph_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        gx.game(random_graphormer(), PHENOL, parts)


def test_coalitions_of_another_number_of_players_are_refused():
    with pytest.raises(ValueError, match="2 players"):
        gx.game(random_graphormer(), PHENOL, [[0], [1]])([[True, True, True]])
