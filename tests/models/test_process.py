"""A Gaussian process gives the posterior mean, and its account is the formula written by hand."""

import json
import math

import numpy as np
import pytest
import torch
from rdkit import Chem
from rdkit.Chem import Crippen
from safetensors.torch import load_file, save_file

import graphxai as gx
from graphxai.contract.checkpoint_files import CheckpointError
from graphxai.contract.intervals import Conformal
from graphxai.contract.model import NoAttentionError
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import (
    COUNTS,
    KINDS,
    similarity,
    structure_counts,
    structure_occurrences,
)
from graphxai.evaluation.testing import check_all
from graphxai.models.process import (
    KernelProcess,
    ProcessConfig,
    load_process,
    save_process,
)
from graphxai.models.process.model import CarriedCounts

TRAINING = (
    "CCO", "CCCO", "c1ccccc1O", "c1ccccc1C(=O)O", "CC(=O)Oc1ccccc1C(=O)O", "CCN(CC)CC", "CCCCCC",
    "Cc1ccccc1", "Clc1ccccc1", "OC(=O)CC(O)(C(=O)O)CC(=O)O", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "C[C@H](N)C(=O)O", "C[C@@H](F)Cl", "O=C(N)c1ccncc1", "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
)  # fmt: skip
NEW = ("CC(=O)Nc1ccc(O)cc1", "OCCc1ccccc1", "C", "[Na+].[Cl-]", "FC(F)(F)c1ccc(Cl)cc1")


def process(weights=None, tasks=(Task("logP", "regression", scale=2.0, offset=1.0),)):
    counts = structure_counts(TRAINING)
    columns = sum(task.num_outputs for task in tasks)
    if weights is None:
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(len(TRAINING), columns, generator=generator, dtype=torch.float64)
    means = torch.linspace(0.1, 0.7, columns, dtype=torch.float64)
    config = ProcessConfig(tasks, len(TRAINING))
    return KernelProcess(config, CarriedCounts.of(counts), weights, means).eval()


@pytest.fixture(scope="module")
def model():
    return process()


def occurrences(smiles):
    """Return (kind, column, atoms) of everything that is counted in a molecule."""
    columns, sizes, atoms = structure_occurrences(Chem.MolFromSmiles(smiles))
    places = np.split(atoms, sizes.cumsum()[:-1])
    return [
        (c // COUNTS, c % COUNTS, set(a.tolist())) for c, a in zip(columns, places, strict=True)
    ]


IN_THREES = (
    "c1cc(N(CC2CO2)CC2CO2)ccc1Cc1ccc(N(CC2CO2)CC2CO2)cc1", "Cc1ncc(CC2CC2)s1", "CC1SC1C(N)=O",
    "FC1(F)CC1CO", "C1C2CC12CN", "C[C@@H]1O[C@@H]1CCl",
)  # fmt: skip


@pytest.mark.parametrize("smiles", [*IN_THREES, *NEW])
def test_what_is_counted_does_not_depend_on_the_order_of_the_atoms(smiles):
    """RDKit begins torsions around a ring of three at the atom with the lowest number."""
    mol = Chem.MolFromSmiles(smiles)
    expected = sorted((kind, column, sorted(a)) for kind, column, a in occurrences(smiles))
    counts = structure_counts([Chem.MolToSmiles(mol)])
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(mol.GetNumAtoms()).tolist()
        columns, sizes, atoms = structure_occurrences(Chem.RenumberAtoms(mol, order))
        places = np.split(np.array(order)[atoms], sizes.cumsum()[:-1])
        counted = zip(columns.tolist(), places, strict=True)
        assert (
            sorted((c // COUNTS, c % COUNTS, sorted({*a.tolist()})) for c, a in counted) == expected
        )
        drawn = Chem.MolToRandomSmilesVect(mol, 1, randomSeed=seed + 1)
        for kind, of_kind in enumerate(structure_counts(drawn)):
            np.testing.assert_array_equal(of_kind, counts[kind])


def by_hand(model, smiles, hidden=frozenset()):
    """Return the output, and each atom's share, by the formula and in loops."""
    counts, shares = structure_counts(TRAINING), np.zeros(Chem.MolFromSmiles(smiles).GetNumAtoms())
    weights, total = model.weights.detach().numpy()[:, 0], 0.0
    for kind in range(KINDS):
        counted = [(c, a) for k, c, a in occurrences(smiles) if k == kind and not a & hidden]
        x = np.bincount([c for c, _ in counted], minlength=COUNTS)
        for weight, carried in zip(weights, counts[kind].astype(int), strict=True):
            shared = np.minimum(x, carried)
            either = max(x.sum() + carried.sum() - shared.sum(), 1)
            total += weight * shared.sum() / either / KINDS
            for column, atoms in counted:
                each = weight * shared[column] / either / KINDS / x[column]
                for atom in atoms:
                    shares[atom] += each / len(atoms)
    return model.means.item() + total, shares


@pytest.mark.parametrize("smiles", NEW)
def test_the_output_and_the_shares_of_the_atoms_are_those_of_the_formula(model, smiles):
    explained = gx.explain(model, smiles)
    output, shares = by_hand(model, smiles)
    assert explained.method == "kernel"
    assert explained.prediction.value == pytest.approx(1 + 2 * output, abs=1e-12)
    assert np.abs(explained.relevance - 2 * shares).max() < 1e-6  # stored in float32
    batch = model.collate([model.prepare(smiles).graph])
    exact = gx.methods()["kernel"]().attribute(model, batch)
    assert np.abs(exact.relevance[0].detach().numpy() - 2 * shares).max() < 1e-12


@pytest.mark.parametrize("smiles", [*TRAINING[:4], *NEW])
def test_a_molecule_without_a_gradient_has_the_similarities_of_one_with(model, smiles):
    """Without one, levels are counted as bits; with one, they are a product of matrices."""
    batch = model.collate([model.prepare(smiles).graph])
    counts = batch.counts(model.embed(batch)[:, 1:, 0], None)
    with torch.no_grad():
        as_bits = model.similarities(counts, batch.columns)
        faded = model.similarities(counts / 2, batch.columns)
    as_product = model.similarities(counts.clone().requires_grad_(), batch.columns)
    faded_too = model.similarities((counts / 2).requires_grad_(), batch.columns)
    assert as_bits.equal(as_product.detach())
    assert faded.equal(faded_too.detach())


def test_the_posterior_mean_of_a_teacher_is_the_output_of_its_process():
    from graphxai.datasets.fingerprints import similarity
    from graphxai.learning.teachers.gaussian_process import Process

    y = np.array([[Crippen.MolLogP(Chem.MolFromSmiles(smiles))] for smiles in TRAINING])
    counts = structure_counts(TRAINING)
    teacher = Process.fit(similarity(counts, counts), np.arange(len(y)), y)
    model = process(torch.from_numpy(teacher.weights))
    expected = teacher.predict(similarity(structure_counts(NEW), counts))[:, 0] - teacher.means
    batch = model.collate([model.prepare(smiles).graph for smiles in NEW])
    outputs = (model(batch) - model.means)[:, 0]
    assert outputs.detach().numpy() == pytest.approx(expected, abs=1e-5)  # its kernel is float32


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("method", ["kernel", "lrp", "attn_lrp"])
def test_the_ledger_closes(dtype, most, method):
    model = process().to(dtype)
    batch = model.collate([model.prepare(smiles).graph for smiles in NEW])
    attribution = gx.methods()[method]().attribute(model, batch)
    assert attribution.relevance.dtype == dtype
    assert attribution.unexplained.abs().max() < most
    assert not attribution.graph_token.any()
    assert torch.allclose(attribution.biases, (1 + 2 * model.means).expand(len(NEW)))


@pytest.mark.parametrize("smiles", NEW)
def test_hiding_an_atom_drops_every_structure_that_covers_it(model, smiles):
    item = model.prepare(smiles)
    n = item.num_nodes
    keep = ~torch.eye(n, dtype=torch.bool)
    hidden = gx.evaluation.outputs_of_parts(model, item.data, keep)[:, 0].tolist()
    recounted = [by_hand(model, smiles, {atom})[0] for atom in range(n)]
    assert hidden == pytest.approx(recounted, abs=1e-12)
    nothing = gx.evaluation.outputs_of_parts(model, item.data, torch.zeros(1, n, dtype=torch.bool))
    assert nothing.item() == model.means.item()
    occlusion = gx.explain(model, smiles, "occlusion")
    whole = by_hand(model, smiles)[0]
    assert occlusion.relevance == pytest.approx(2 * (whole - np.array(recounted)), abs=1e-6)
    assert occlusion.without_nodes == pytest.approx(1 + 2 * model.means.item())


def test_shapley_values_of_all_orders_of_three_atoms(model):
    from itertools import permutations

    exact = np.zeros(3)
    for order in permutations(range(3)):
        for place, atom in enumerate(order):
            before, after = ({*range(3)} - {*order[:k]} for k in (place, place + 1))
            exact[atom] += by_hand(model, "CCO", after)[0] - by_hand(model, "CCO", before)[0]
    sampled = gx.explain(model, "CCO", "shapley_sampling", permutations=3000)
    assert sampled.relevance == pytest.approx(2 * exact / 6, abs=0.02)


def test_presence_between_none_and_all_counts_in_part(model):
    batch = model.collate([model.prepare("CCO").graph])
    occupied = 0.37
    x = [np.zeros(COUNTS) for _ in range(KINDS)]
    for kind, column, _ in occurrences("CCO"):
        x[kind][column] += occupied
    expected = model.means.item()
    for weight, *carried in zip(
        model.weights[:, 0].tolist(), *structure_counts(TRAINING), strict=True
    ):
        for own, other in zip(x, carried, strict=True):
            shared = np.minimum(own, other).sum()
            expected += weight / KINDS * shared / max(own.sum() + other.sum() - shared, 1)
    output = model.encode(model.embed(batch) * occupied, batch)
    assert output.item() == pytest.approx(expected, abs=1e-12)


def test_the_gradient_is_the_slope_of_fading_atoms(model):
    batch = model.collate([model.prepare("CC(=O)Nc1ccc(O)cc1").graph])
    tokens = model.embed(batch).requires_grad_()
    (gradient,) = torch.autograd.grad(model.encode(tokens, batch).sum(), tokens)
    step = 1e-6
    with torch.no_grad():
        for atom in range(1, tokens.shape[1]):
            faded = tokens.clone()
            faded[0, atom] -= step
            slope = (model.encode(tokens, batch) - model.encode(faded, batch)).item() / step
            assert gradient[0, atom].item() == pytest.approx(slope, abs=1e-4)


def test_integrated_gradients_account_for_the_output(model):
    explained = gx.explain(model, "CC(=O)Nc1ccc(O)cc1", "integrated_gradients", steps=400)
    assert abs(explained.ledger.unexplained) < 0.02 * abs(explained.ledger.nodes)


def test_all_methods_that_need_no_attention_have_the_properties_of_explanations(model):
    check_all(model, ["CCO", "CC(=O)Nc1ccc(O)cc1", "c1ccccc1"])


@pytest.mark.parametrize(
    "method", ["rollout", "gae", "attention_last", "partial_lrp", "lrp_zplus", "path_marginals"]
)
def test_methods_that_read_attention_are_refused(model, method):
    with pytest.raises(NoAttentionError, match="no attention between nodes"):
        gx.explain(model, "CCO", method)
    with pytest.raises(NoAttentionError):
        gx.pairs(model, "CCO")


def test_only_a_process_is_explained_by_its_kernel():
    with pytest.raises(ValueError, match="explains a Gaussian process: use 'lrp'"):
        gx.explain("bace", "CCO", "kernel")
    assert gx.explain("bace", "CCO").method == "lrp"


def test_operators_that_need_subgraphs_or_other_atoms_are_refused(model):
    data = model.prepare("CCO").data
    keep = torch.tensor([[True, True, False]])
    assert gx.evaluation.operators_for(model) == ("mask", "zero")
    with pytest.raises(ValueError, match="reads whole molecules"):
        gx.evaluation.outputs_of_parts(model, data, keep, "delete")
    with pytest.raises(ValueError, match="draws atoms in a Graphormer's encoding"):
        gx.evaluation.outputs_of_parts(model, data, keep, "resample")


def test_inputs_that_are_no_molecules_are_refused(model):
    with pytest.raises(ValueError, match="a process takes SMILES or RDKit molecules, not int"):
        gx.predict(model, 3)
    with pytest.raises(ValueError, match="cannot be read"):
        gx.predict(model, "C1CC")
    with pytest.warns(UserWarning, match="input 1 was left out"):
        assert gx.predict(model, ["CCO", "not a molecule"])[1] is None


def test_an_rdkit_molecule_in_another_order_gets_the_same_shares(model):
    order = [4, 2, 0, 1, 3]
    molecule = Chem.MolFromSmiles("CCC(N)O")
    given = gx.explain(model, Chem.RenumberAtoms(molecule, order)).relevance
    assert given == pytest.approx(gx.explain(model, "CCC(N)O").relevance[order], abs=1e-7)


def test_the_account_sums_to_the_output_by_training_molecule_and_by_structure(model):
    smiles = "CC(=O)Nc1ccc(O)cc1"
    account, explained = gx.kernel_account(model, smiles), gx.explain(model, smiles)
    assert account.output == pytest.approx(explained.prediction.value, abs=1e-12)
    assert account.mean == pytest.approx(explained.without_nodes, abs=1e-12)
    for shares in (account.training, account.structures):
        total = math.fsum(each.share for each in shares)
        assert account.mean + total == pytest.approx(account.output, abs=1e-12)
        assert [abs(each.share) for each in shares] == sorted(
            (abs(each.share) for each in shares), reverse=True
        )
    atoms = np.zeros(11)
    for structure in account.structures:
        for place in structure.atoms:
            atoms[list(place)] += structure.share / len(structure.atoms) / len(place)
    assert atoms == pytest.approx(explained.relevance, abs=1e-6)
    assert len(account.by_training_molecule()) == len(TRAINING)
    assert list(account.by_structure().columns) == ["kind", "atoms", "share"]
    assert account.training[0].smiles in repr(account)
    assert len(repr(account)) < 400  # not all of its shares
    assert account.relevance == pytest.approx(explained.relevance, abs=1e-6)


def test_the_share_of_a_measurement_is_its_weight_times_its_distance_from_the_mean():
    """By equation 2.27 of Rasmussen 2006, with the noise that the weights were fitted for."""
    noise, counts = 0.3, structure_counts(TRAINING)
    kernel = similarity(counts, counts).astype(float)
    y = np.array([Crippen.MolLogP(Chem.MolFromSmiles(smiles)) for smiles in TRAINING])
    y[3] = np.nan  # was not measured
    known = ~np.isnan(y)
    inverse = np.linalg.inv(kernel[known][:, known] + noise * np.eye(known.sum()))
    centred = y[known] - y[known].mean()
    weights = np.zeros((len(y), 1))
    weights[known, 0] = inverse @ centred
    config = ProcessConfig((Task("logP", "regression", scale=2.0),), len(TRAINING), noise=(noise,))
    numbers = torch.from_numpy(weights), torch.tensor([y[known].mean()])
    model = KernelProcess(config, CarriedCounts.of(counts), *numbers).eval()
    np.testing.assert_array_equal(model.carried_kernel, similarity(counts, counts))
    near = torch.from_numpy(similarity(structure_counts([NEW[0]]), counts)[0].astype(float))
    expected = np.zeros(len(y))
    expected[known] = (inverse @ near.numpy()[known]) * centred
    assert model.by_measurement(near, 0).numpy() == pytest.approx(expected, abs=1e-9)
    account = gx.kernel_account(model, NEW[0])
    shares = sorted((each.share for each in account.training), key=abs)
    assert shares == pytest.approx(sorted(2 * expected, key=abs), abs=1e-5)
    assert account.mean + sum(shares) == pytest.approx(account.output, abs=1e-6)


@pytest.mark.parametrize("noise", [(), (0.1, 0.2), (-1.0,)])
def test_noise_is_positive_and_known_for_all_tasks_or_none(noise):
    tasks = (Task("logP", "regression"),)
    if not noise:
        assert ProcessConfig(tasks, 3, noise=noise).noise == ()
        return
    with pytest.raises(ValueError, match="noise must be a positive number for each task"):
        ProcessConfig(tasks, 3, noise=noise)


def test_an_account_needs_a_process():
    with pytest.raises(TypeError, match="needs a process, not Graphormer"):
        gx.kernel_account(gx.load("bace"), "CCO")


# -- checkpoints -----------------------------------------------------------------------------------


TASKS = (
    Task("logP", "regression", unit="log"),
    Task("toxic", "binary", ("no", "yes")),
    Task("colour", "multiclass", ("red", "green", "blue")),
)


def test_a_checkpoint_gives_the_same_outputs_and_intervals(tmp_path):
    model = process(tasks=TASKS)
    model.conformal = {"logP": Conformal({"": [k / 8 for k in range(1, 31)]}, 0.5)}
    folder = save_process(model, tmp_path / "run" / "model", card="# P\n", metadata={"a": 1})
    loaded = gx.load(tmp_path / "run")
    assert isinstance(loaded, KernelProcess)
    assert loaded.origin.name == "run"
    assert loaded.origin.metadata == {"a": 1}
    assert loaded.conformal["logP"].scores == model.conformal["logP"].scores
    assert loaded.config == model.config
    stored = load_file(folder / "model.safetensors")  # 20,480 columns, and no count above 255
    assert (stored["columns"].dtype, stored["counts"].dtype) == (torch.int16, torch.uint8)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[key], value, rtol=0, atol=0)
    before, after = (gx.predict(each, list(NEW)) for each in (model, loaded))
    for a, b in zip(before, after, strict=True):
        for name in ("logP", "toxic", "colour"):
            assert (a[name].value, a[name].probabilities) == (b[name].value, b[name].probabilities)
        assert a["logP"].interval == b["logP"].interval is not None
    assert gx.load(folder, as_drawn=True).config.standardise == "as drawn"


def test_several_tasks_are_explained_one_by_one():
    model = process(tasks=TASKS)
    for target in ("toxic", "colour: green", "logP"):
        explained = gx.explain(model, "OCCc1ccccc1", target=target)
        assert abs(explained.ledger.unexplained) < 1e-6


def _broken(tensors, content, what):
    if what not in ("missing", "dtype"):  # of the types that fit, those that hold any number
        for key in ("starts", "columns", "counts"):
            tensors[key] = tensors[key].long()
    if what == "missing":
        del tensors["means"]
    elif what == "surplus":
        tensors["more"] = torch.zeros(3)
    elif what == "weights":
        tensors["weights"] = tensors["weights"][:-1]
    elif what == "nan":
        tensors["weights"][0] = math.nan
    elif what == "columns":
        tensors["columns"][0] = COUNTS * KINDS
    elif what == "unsorted":
        tensors["columns"] = tensors["columns"].flip(0)
    elif what == "counts":
        tensors["counts"][0] = 0
    elif what == "huge":
        tensors["counts"][0] = 2**31 - 1
    elif what == "starts":
        tensors["starts"][1] = -5
    elif what == "dtype":
        tensors["columns"] = tensors["columns"].float()
    elif what == "carriers":
        content["model"]["carriers"] = 10**12
    elif what == "negative":
        content["model"]["carriers"] = -1
    elif what == "tasks":
        content["model"]["tasks"] = []
    elif what == "names":
        content["model"]["layers"] = 3
    elif what == "standardise":
        content["model"]["standardise"] = "somehow"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("missing", "missing key 'means'"),
        ("surplus", "unexpected key 'more'"),
        ("weights", "key 'weights' has shape"),
        ("nan", "key 'weights' holds values that are not finite"),
        ("columns", "key 'columns' does not hold counts"),
        ("unsorted", "key 'columns' does not hold counts"),
        ("counts", "key 'counts' does not hold counts"),
        ("huge", "key 'counts' does not hold counts"),
        ("starts", "key 'starts' does not hold counts"),
        ("dtype", "key 'columns' does not hold a row of integers"),
        ("carriers", "has shape"),
        ("negative", "carriers must be at least 1"),
        ("tasks", "at least one task"),
        ("names", "layers"),
        ("standardise", "standardise must be one of"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_file_and_key(tmp_path, what, message):
    folder = save_process(process(), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    content = json.loads((folder / "config.json").read_text())
    _broken(tensors, content, what)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message) as error:
        gx.load(folder)
    assert str(folder) in str(error.value)


def test_a_truncated_file_and_a_network_are_no_process(tmp_path):
    folder = save_process(process(), tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="corrupt or truncated"):
        gx.load(folder)
    with pytest.raises(CheckpointError, match="'format' is not 'graphxai-process'"):
        load_process(gx.load("bace").origin.folder)
