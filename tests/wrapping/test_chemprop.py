"""Models of chemprop 2 predict what chemprop predicts, and their explanations add up."""

from functools import partial
from itertools import combinations
from math import factorial
from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem

import graphxai as gx
from graphxai.engine.request import PassMemory
from graphxai.models.graphormer.checkpoint import CheckpointError

pytest.importorskip("chemprop", reason="chemprop is an extra")

from chemprop.models import MPNN, save_model
from chemprop.nn import BondMessagePassing

from chemprop_models import MOLECULES, mpnn, of_chemprop

FILES = Path(__file__).parents[1] / "data" / "chemprop"
RUN = FILES / "run_2.2.4"


# -- predictions ---------------------------------------------------------------------------


def values(model, smiles):
    """Return the predictions of all tasks as chemprop gives them: values or probabilities."""

    def number(prediction):
        probabilities = list(prediction.probabilities.values())
        if not probabilities:
            return prediction.value
        return probabilities if len(probabilities) > 2 else probabilities[1]

    predicted = gx.predict(model, smiles)
    return np.array([[number(p) for p in predictions.values()] for predictions in predicted])


@pytest.mark.parametrize("passing", ["Bond", "Atom"])
@pytest.mark.parametrize("agg", ["Mean", "Sum", "Norm", "Attentive"])
def test_predictions_are_those_of_chemprop_in_the_units_of_the_table(passing, agg):
    model = mpnn(passing, agg, batch_norm=agg == "Norm", scaled=True, n_tasks=2)
    expected = of_chemprop(model, MOLECULES)
    np.testing.assert_allclose(values(gx.wrap(model), MOLECULES), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("head", "options"),
    [
        ("MveFFN", {"n_tasks": 2, "scaled": True}),
        ("EvidentialFFN", {"n_tasks": 2, "scaled": True}),
        ("QuantileFFN", {"n_tasks": 2, "scaled": True}),
        ("BinaryClassificationFFN", {"n_tasks": 2}),
        ("BinaryDirichletFFN", {"n_tasks": 2}),
        ("MulticlassClassificationFFN", {"n_tasks": 2, "n_classes": 3}),
        ("MulticlassDirichletFFN", {"n_tasks": 2, "n_classes": 3}),
    ],
)
def test_every_head_predicts_what_chemprop_predicts(head, options):
    model = mpnn(head=head, **options)
    expected = of_chemprop(model, MOLECULES)
    mean = expected[..., 0] if expected.dim() == 3 and "Multiclass" not in head else expected
    wrapped = gx.wrap(model)
    np.testing.assert_allclose(values(wrapped, MOLECULES), mean, atol=1e-5)
    explanation = gx.explain(wrapped, MOLECULES[1], "gradient_input")
    assert abs(gx.explain(wrapped, MOLECULES[1]).ledger.unexplained) < 1e-5
    assert np.isfinite(explanation.relevance).all()


def test_features_of_atoms_are_recognised_by_their_number():
    for mode, (atoms, bonds) in {"V1": (133, 14), "V2": (72, 14), "ORGANIC": (44, 14)}.items():
        model = mpnn(message_passing={"d_v": atoms, "d_e": bonds})
        expected = of_chemprop(model, MOLECULES, mode=mode)
        np.testing.assert_allclose(values(gx.wrap(model), MOLECULES), expected, atol=1e-5)
    with pytest.raises(ValueError, match="80 features of an atom"):
        gx.wrap(mpnn(message_passing={"d_v": 80}))


def test_options_of_message_passing_are_kept():
    options = {"depth": 5, "undirected": True, "bias": True, "activation": "tanh"}
    model = mpnn(message_passing=options)
    expected = of_chemprop(model, MOLECULES)
    np.testing.assert_allclose(values(gx.wrap(model), MOLECULES), expected, atol=1e-5)


# -- relevance -----------------------------------------------------------------------------


@pytest.mark.parametrize("passing", ["Bond", "Atom"])
@pytest.mark.parametrize("agg", ["Mean", "Sum", "Norm", "Attentive"])
def test_the_ledger_of_lrp_closes_alone_and_in_a_batch(passing, agg):
    model = gx.wrap(mpnn(passing, agg, batch_norm=agg == "Sum", scaled=True))
    together = gx.explain(model, MOLECULES)
    for smiles, explanation in zip(MOLECULES, together, strict=True):
        alone = gx.explain(model, smiles)
        for e in (explanation, alone):
            ledger = e.ledger
            assert abs(ledger.unexplained) < 1e-5
            assert ledger.others.keys() <= {"edge_attr"}
            assert e.relevance_of["edge_attr"].sum() == pytest.approx(
                ledger.others.get("edge_attr", 0), abs=1e-5
            )
        np.testing.assert_allclose(alone.relevance, explanation.relevance, atol=1e-6)
        np.testing.assert_allclose(alone.bonds, explanation.bonds, atol=1e-6)


def by_hand(model, smiles):
    """Return the relevance of atoms and bonds by LRP, from an own pass without autograd.

    With its gates of ReLU and its attention held as they are in the full pass, the network is
    linear. Without constants, its output for one row of the input alone is the row's relevance.
    """
    from chemprop.featurizers import SimpleMoleculeMolGraphFeaturizer

    weights = {k: v.double().numpy() for k, v in model.state_dict().items() if v.dim()}
    graph = SimpleMoleculeMolGraphFeaturizer()(Chem.MolFromSmiles(smiles))
    (first, second), reverse = graph.edge_index, graph.rev_edge_index
    atoms, edges, depth = len(graph.V), len(graph.E), model.message_passing.depth
    into = np.zeros((atoms, edges))  # which edges end at an atom
    into[second, np.arange(edges)] = 1
    is_bond = "Bond" in type(model.message_passing).__name__

    def affine(name, x, constants):
        bias = weights.get(f"{name}.bias", 0.0) if constants else 0.0
        return x @ weights[f"{name}.weight"].T + bias

    def run(V, E, gates, attention, constants):
        """Run the network. Lists that are empty are filled, full ones are used."""
        kept = iter(list(gates))

        def relu(x):
            gate = next(kept, None)
            if gate is None:
                gates.append(gate := x > 0)
            return x * gate

        start = np.hstack([V[first], E]) if is_bond else V[first]
        hidden_0 = affine("message_passing.W_i", start, constants)
        hidden = relu(hidden_0)
        for _ in range(1, depth):
            if is_bond:
                message = (into @ hidden)[first] - hidden[reverse]
            else:
                message = (into @ np.hstack([hidden, E]))[first]
            hidden = relu(hidden_0 + affine("message_passing.W_h", message, constants))
        last = relu(affine("message_passing.W_o", np.hstack([V, into @ hidden]), constants))
        if not attention:
            attention.append(pooling(last))
        pooled = attention[0] @ last
        first_layer = affine("predictor.ffn.0.0", pooled, constants)
        return affine("predictor.ffn.1.2", relu(first_layer), constants)[0]

    def pooling(last):
        kind = type(model.agg).__name__
        if kind == "AttentiveAggregation":
            weight = np.exp(affine("agg.W", last, True)[:, 0])
            return weight / weight.sum()
        share = {"Mean": 1 / atoms, "Sum": 1.0, "Norm": 0.01}[kind.removesuffix("Aggregation")]
        return np.full(atoms, share)

    gates, attention = [], []
    output = run(graph.V, graph.E, gates, attention, True)

    def part(V, E):
        return run(V, E, gates, attention, False)

    V, E = np.zeros_like(graph.V), np.zeros_like(graph.E)
    of_atoms = [part(np.where(np.arange(atoms)[:, None] == i, graph.V, 0), E) for i in range(atoms)]
    of_edges = [part(V, np.where(np.arange(edges)[:, None] == i, graph.E, 0)) for i in range(edges)]
    return output, np.array(of_atoms), np.array(of_edges)


@pytest.mark.parametrize("passing", ["Bond", "Atom"])
@pytest.mark.parametrize("agg", ["Mean", "Sum", "Attentive"])
def test_lrp_is_a_pass_written_by_hand_with_gates_and_attention_held(passing, agg):
    model = mpnn(passing, agg, message_passing={"bias": True})
    smiles = MOLECULES[1]
    output, of_atoms, of_edges = by_hand(model, smiles)
    explanation = gx.explain(gx.wrap(model), smiles)
    assert explanation.output == pytest.approx(output, abs=1e-5)
    np.testing.assert_allclose(explanation.relevance, of_atoms, atol=1e-6)
    np.testing.assert_allclose(explanation.relevance_of["edge_attr"], of_edges, atol=1e-6)


def test_lrp_is_the_exact_shapley_value_of_each_atom_and_bond_where_the_network_is_linear():
    """With no negative weight or feature, no ReLU ever closes. Players are rows of the input."""
    from chemprop import data
    from chemprop.featurizers import SimpleMoleculeMolGraphFeaturizer

    model = mpnn(agg="Sum")
    with torch.no_grad():
        for weight in model.parameters():
            weight.abs_()
    graph = SimpleMoleculeMolGraphFeaturizer()(Chem.MolFromSmiles("CCO"))
    atoms, players = len(graph.V), len(graph.V) + len(graph.E)  # 3 and 7

    def output(present):
        shown = np.isin(np.arange(players), list(present))[:, None]
        part = graph._replace(V=graph.V * shown[:atoms], E=graph.E * shown[atoms:])
        with torch.no_grad():
            return float(model(data.BatchMolGraph([part])))

    outputs = {
        coalition: output(coalition)
        for size in range(players + 1)
        for coalition in combinations(range(players), size)
    }
    shapley = np.zeros(players)
    for coalition, value in outputs.items():
        for player in set(range(players)) - set(coalition):
            size = len(coalition)
            weight = factorial(size) * factorial(players - size - 1) / factorial(players)
            joined = tuple(sorted({*coalition, player}))
            shapley[player] += weight * (outputs[joined] - value)
    explanation = gx.explain(gx.wrap(model), "CCO")
    np.testing.assert_allclose(explanation.relevance, shapley[:atoms], rtol=1e-4)
    np.testing.assert_allclose(explanation.relevance_of["edge_attr"], shapley[atoms:], rtol=1e-4)


def test_hiding_an_atom_predicts_the_rest_of_the_molecule_with_its_features():
    """Occlusion removes an atom with its bonds, and the other atoms keep their features."""
    from chemprop import data
    from chemprop.data.molgraph import MolGraph
    from chemprop.featurizers import SimpleMoleculeMolGraphFeaturizer

    model = mpnn("Bond", "Attentive")
    graph = SimpleMoleculeMolGraphFeaturizer()(Chem.MolFromSmiles("CCO"))
    rest = MolGraph(graph.V[1:], graph.E[2:], graph.edge_index[:, 2:] - 1, np.array([1, 0]))
    with torch.no_grad():
        whole, without = (float(model(data.BatchMolGraph([g]))) for g in (graph, rest))
    explanation = gx.explain(gx.wrap(model), "CCO", "occlusion")
    assert explanation.relevance[0] == pytest.approx(whole - without, abs=1e-6)


def test_the_relevance_of_a_bond_is_that_of_both_directions_and_is_drawn_on_it():
    explanation = gx.explain(gx.wrap(mpnn()), "CC(=O)O")
    edges = explanation.relevance_of["edge_attr"]
    np.testing.assert_allclose(explanation.bonds, edges[::2] + edges[1::2], rtol=1e-6)
    picture = explanation.svg()
    assert picture.count("<title>bond ") == 3
    assert "bonds " in explanation.caption


def test_a_molecule_without_bonds_has_none_to_explain():
    explanation = gx.explain(gx.wrap(mpnn()), "C")
    assert explanation.bonds.shape == explanation.relevance_of["edge_attr"].shape == (0,)


def test_relevance_divides_into_features_of_atoms():
    explanation = gx.explain(gx.wrap(mpnn()), "CCO")
    assert explanation.feature_names[:2] == ("element", "degree")
    np.testing.assert_allclose(explanation.features.sum(1), explanation.relevance, atol=1e-6)


def test_an_rdkit_molecule_keeps_the_order_of_its_atoms():
    model = gx.wrap(mpnn())
    mol = Chem.RenumberAtoms(Chem.MolFromSmiles("CCO"), [2, 0, 1])
    turned, usual = gx.explain(model, mol), gx.explain(model, "CCO")
    np.testing.assert_allclose(turned.relevance, usual.relevance[[2, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(sorted(turned.bonds), sorted(usual.bonds), atol=1e-6)


# -- features of whole molecules -------------------------------------------------------------


def charge_and_size(mol):
    return [Chem.GetFormalCharge(mol), mol.GetNumAtoms() / 10]


def test_features_of_whole_molecules_are_a_line_of_the_ledger():
    model = mpnn(features=2, scaled=True)
    wrapped = gx.wrap(model, molecule_features=charge_and_size)
    features = [charge_and_size(Chem.MolFromSmiles(text)) for text in MOLECULES]
    np.testing.assert_allclose(
        values(wrapped, MOLECULES), of_chemprop(model, MOLECULES, features), atol=1e-5
    )
    explanations = gx.explain(wrapped, MOLECULES)
    for explanation in explanations:
        assert abs(explanation.ledger.unexplained) < 1e-5
    hidden = gx.explain(wrapped, "CCO", "occlusion")  # atoms leave, the features stay
    assert np.isfinite(hidden.relevance).all()
    share = explanations[1].ledger.others["molecule_features"]
    direct = gx.explain(wrapped, MOLECULES[1], wrt="molecule_features")
    assert direct.relevance_of["molecule_features"].sum() == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize("agg", ["Mean", "Attentive"])
def test_networks_in_units_of_a_table_are_explained_without_recordings(monkeypatch, agg):
    told = []
    monkeypatch.setattr(PassMemory, "warn_of_recording", lambda *reason: told.append(reason))
    network = mpnn(agg=agg, scaled=True, batch_norm=True, features=1)
    gx.explain(gx.wrap(network, molecule_features=lambda mol: [mol.GetNumAtoms()]), "CCO")
    assert told == []


def test_missing_features_of_molecules_are_asked_for():
    with pytest.raises(ValueError, match="reads 2 features of whole molecules"):
        gx.wrap(mpnn(features=2))
    with pytest.raises(ValueError, match="morgan_binary"):
        gx.wrap(mpnn(features=2), molecule_features="no such name")
    with pytest.raises(ValueError, match="computes 1"):
        gx.wrap(mpnn(), molecule_features="charge")


# -- ensembles and tasks ---------------------------------------------------------------------


def test_an_ensemble_is_the_mean_of_its_members_with_a_spread():
    members = [mpnn(seed=seed, scaled=True) for seed in (0, 1, 2)]
    model = gx.wrap(members)
    expected = torch.stack([of_chemprop(member, MOLECULES) for member in members]).mean(0)
    np.testing.assert_allclose(values(model, MOLECULES), expected, atol=1e-5)
    explanation = gx.explain(model, MOLECULES[1])
    single = [gx.explain(gx.wrap(member), MOLECULES[1]) for member in members]
    np.testing.assert_allclose(explanation.members, [e.relevance for e in single], atol=1e-6)
    np.testing.assert_allclose(
        explanation.bonds, np.mean([e.bonds for e in single], axis=0), atol=1e-6
    )
    assert explanation.spread.shape == explanation.relevance.shape
    assert abs(explanation.ledger.unexplained) < 1e-5
    with pytest.raises(ValueError, match="same tasks"):
        gx.wrap([members[0], mpnn(n_tasks=2)])


def test_tasks_and_classes_get_the_names_that_the_caller_gives():
    binary = gx.wrap(mpnn(head="BinaryClassificationFFN"), task="hERG", classes=("safe", "toxic"))
    assert set(gx.predict(binary, "CCO")["hERG"].probabilities) == {"safe", "toxic"}
    tasks = [gx.Task("logS", "regression", unit="log(mol/l)"), gx.Task("logD", "regression")]
    several = gx.wrap(mpnn(n_tasks=2), tasks)
    assert list(gx.predict(several, "CCO")) == ["logS", "logD"]
    assert gx.explain(several, "CCO", target="logD").target == "logD"
    with pytest.raises(ValueError, match="another number of outputs"):
        gx.wrap(mpnn(), tasks)
    with pytest.raises(ValueError, match="takes no forward"):
        gx.wrap(mpnn(), forward=lambda model, batch: None)


def test_a_network_in_double_precision_is_explained_by_hooks():
    model = gx.wrap(mpnn(batch_norm=True, scaled=True).double())
    for e in gx.explain(model, MOLECULES):
        assert model.tier == "hooks"
        assert abs(e.ledger.unexplained) < 1e-7  # results are kept in single precision


@pytest.mark.parametrize("around", [torch.nn.DataParallel, partial(torch.compile, backend="eager")])
def test_a_network_may_be_compiled_or_run_in_parallel(around):
    network = mpnn(batch_norm=True, scaled=True)
    expected = gx.explain(gx.wrap(network), MOLECULES[1]).relevance
    for given in (around(network), [around(network), around(network)]):
        relevance = gx.explain(gx.wrap(given), MOLECULES[1]).relevance
        np.testing.assert_allclose(relevance, expected, atol=1e-6)


@pytest.mark.parametrize("part", ["", "predictor"])
def test_hooks_that_would_not_run_are_refused(part):
    network = mpnn()
    hooked = network.get_submodule(part)
    handle = hooked.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(ValueError, match=f"^{type(hooked).__name__} has forward hooks"):
        gx.wrap(network)
    handle.remove()
    before = of_chemprop(network, ["CCO"])
    network.predictor.ffn.register_forward_hook(lambda module, inputs, output: 2 * output)
    np.testing.assert_allclose(values(gx.wrap(network), ["CCO"]), 2 * before, atol=1e-5)


@pytest.mark.parametrize("members", [1, 2])
def test_a_wrapped_network_is_in_the_mode_of_the_network_and_a_check_keeps_it(members):
    networks = [mpnn(batch_norm=True, scaled=True, seed=k) for k in range(members)]
    model = gx.wrap(networks)
    assert not model.training
    gx.check(model, MOLECULES[:2], ["gradient_input"])
    assert not any(part.training for network in networks for part in network.modules())
    assert gx.wrap([network.train() for network in networks]).training


def test_a_network_that_computes_something_else_is_refused():
    from chemprop.models import MPNN

    class Doubled(MPNN):
        def fingerprint(self, *args):
            return 2 * super().fingerprint(*args)

    usual = mpnn()
    with pytest.raises(ValueError, match="`fingerprint` of its own"):
        gx.wrap(Doubled(usual.message_passing, usual.agg, usual.predictor))
    with pytest.raises(ValueError, match="SpectralFFN"):
        gx.wrap(mpnn(head="SpectralFFN", n_tasks=4))


# -- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("passing", ["Bond", "Atom"])
@pytest.mark.parametrize("agg", ["Mean", "Norm", "Attentive"])
def test_a_saved_model_predicts_the_same_and_has_the_names_of_its_columns(tmp_path, passing, agg):
    model = mpnn(passing, agg, batch_norm=True, scaled=True, n_tasks=2)
    save_model(tmp_path / "model.pt", model, ["logS", "logD"])
    loaded = gx.load(tmp_path / "model.pt")
    assert [task.name for task in loaded.config.tasks] == ["logS", "logD"]
    assert (loaded.origin.name, len(loaded.origin.sha256)) == ("model", 64)
    np.testing.assert_allclose(values(loaded, MOLECULES), of_chemprop(model, MOLECULES), atol=1e-5)


@pytest.mark.parametrize("activation", ["LeakyReLU", "PReLU", "ELU", "GELU", "Softplus"])
def test_activations_as_modules_are_rebuilt_with_their_settings(tmp_path, activation):
    function = getattr(torch.nn, activation)()
    if activation == "LeakyReLU":
        function.negative_slope = 0.3
    model = mpnn(message_passing={"activation": function}, activation=function)
    save_model(tmp_path / "model.pt", model, ["logS"])
    loaded = gx.load(tmp_path / "model.pt")
    np.testing.assert_allclose(values(loaded, MOLECULES), of_chemprop(model, MOLECULES), atol=1e-5)


def test_a_network_that_started_from_a_foundation_model_is_rebuilt(tmp_path):
    """As by `--from-foundation CheMeleon`: layers made of a file that names its activation."""
    whole, start = mpnn(), mpnn(message_passing={"depth": 6}, seed=1).message_passing
    settings = {name: start.hparams[name] for name in ("d_v", "d_e", "d_h", "bias", "depth")}
    torch.save({"settings": settings, "state": start.state_dict()}, tmp_path / "foundation.pt")
    saved = torch.load(tmp_path / "foundation.pt", weights_only=True)
    passing = BondMessagePassing(**saved["settings"], activation="relu")
    passing.load_state_dict(saved["state"])
    model = MPNN(passing, whole.agg, whole.predictor).eval()
    save_model(tmp_path / "model.pt", model, ["logS"])
    loaded = gx.load(tmp_path / "model.pt")
    np.testing.assert_allclose(values(loaded, MOLECULES), of_chemprop(model, MOLECULES), atol=1e-5)
    assert abs(gx.explain(loaded, MOLECULES[1]).ledger.unexplained) < 1e-5


@pytest.mark.parametrize(
    ("path", "expected"),
    [  # what chemprop 2.0.0 and 2.1.2 predict with these files
        ("2.0.0.pt", [-3.658057928, -3.603019477, -3.647644997]),
        ("2.1.2.pt", [-3.652143717, -3.599551439, -3.642642260]),
    ],
)
def test_files_of_earlier_versions_predict_what_those_versions_predicted(path, expected):
    smiles = ["CCO", "CC(=O)Oc1ccccc1C(=O)O", "C[C@H](N)C(=O)O"]
    np.testing.assert_allclose(values(gx.load(FILES / path), smiles)[:, 0], expected, atol=1e-6)


def test_the_folder_of_a_run_is_an_ensemble_that_reads_what_the_run_read():
    """The run had two members, the featurizer `charge`, and no stereochemistry."""
    model = gx.load(RUN)
    smiles = ["CCO", "C[N+](C)(C)C", "C[C@H](N)C(=O)O"]
    expected = [-3.191753864, -2.941958904, -3.208525658]  # the mean of chemprop's predictions
    np.testing.assert_allclose(values(model, smiles)[:, 0], expected, atol=1e-6)
    assert len(model.members) == 2
    explanation = gx.explain(model, smiles[1])
    assert {"edge_attr", "molecule_features"} == set(explanation.ledger.others)
    single = gx.load(RUN / "model_0" / "best.pt")
    assert single.members == []


def changed(path, **blocks):
    """Write a model with other hyperparameters of some blocks."""
    save_model(path, mpnn(), ["logS"])
    content = torch.load(path, weights_only=False)
    for block, values_of in blocks.items():
        content["hyper_parameters"][block] |= values_of
    torch.save(content, path)
    return path


class Foreign(torch.nn.Module):
    pass


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ({"message_passing": {"cls": Foreign}}, "needs .*Foreign.*chemprop.models.load_model"),
        ({"agg": {"cls": Foreign}}, "needs .*Foreign"),
        ({"predictor": {"cls": Foreign}}, "needs .*Foreign"),
        ({"message_passing": {"activation": Foreign()}}, "needs .*Foreign"),
        ({"message_passing": {"depth": 10**9}}, "depth is 1000000000"),
        ({"message_passing": {"d_h": 10**12}}, "d_h is"),
        ({"message_passing": {"d_h": 10**5}}, "do not fit"),
        ({"message_passing": {"d_h": "12"}}, "d_h is '12'"),
        ({"message_passing": {"d_h": -1}}, "d_h is -1"),
        ({"predictor": {"n_layers": 10**6}}, "n_layers is"),
    ],
)
def test_a_file_that_needs_more_than_chemprop_has_is_refused(tmp_path, blocks, says):
    with pytest.raises(CheckpointError, match=says):
        gx.load(changed(tmp_path / "model.pt", **blocks))


def test_weights_that_are_not_finite_are_refused(tmp_path):
    model = mpnn()
    with torch.no_grad():
        model.message_passing.W_h.weight[0, 0] = float("nan")
    save_model(tmp_path / "model.pt", model, ["logS"])
    with pytest.raises(CheckpointError, match="not finite"):
        gx.load(tmp_path / "model.pt")
