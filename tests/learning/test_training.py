"""Training learns, resumes after an interruption as if there had been none, and is reproducible."""

import csv
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from graphxai.contract.prediction_metrics import score_task
from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, BOND_CARDINALITIES
from graphxai.datasets.molecules import molecule_to_data
from graphxai.learning.calibration import scale_logits, task_temperature
from graphxai.learning.fit import FitResult, evaluate, fit, initialise
from graphxai.learning.predicting import SizeBuckets, encode_all, make_loaders, predict
from graphxai.learning.scores import Objective, measure
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import Graphormer, GraphormerConfig, collate

OXYGEN = Task("oxygen", "binary", ("without", "with"))
SIZE = Task("size", "regression", offset=4.0, scale=2.0)
KIND = Task("kind", "multiclass", ("a", "b", "c"))


def twenty_molecules() -> list[Data]:
    graphs = []
    for length in range(1, 6):
        for end in ("O", "N", "Cl", "C=O"):
            data = molecule_to_data("C" * length + end)
            oxygen = float("O" in end)
            data.y = torch.tensor([[oxygen, math.nan if length == 3 else data.num_nodes]])
            graphs.append(data)
    return graphs


def tiny(seed: int = 0, dropout: float = 0.0) -> Graphormer:
    torch.manual_seed(seed)
    return Graphormer(
        GraphormerConfig(
            (OXYGEN, SIZE),
            num_layers=1,
            hidden_dim=16,
            ffn_dim=32,
            num_heads=2,
            node_cardinalities=ATOM_CARDINALITIES,
            edge_cardinalities=BOND_CARDINALITIES,
            dropout=dropout,
            attention_dropout=0.0,
        )
    )


def settings(**changes: object) -> TrainingSettings:
    values = {
        "epochs": 6,
        "batch_size": 8,
        "learning_rate": 5e-3,
        "ema_decay": 0.9,
        "accelerator": "cpu",
        "progress": False,
    }
    return TrainingSettings(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    """Train without a stop: three batches an epoch, six epochs."""
    pytest.importorskip("lightning")
    graphs = twenty_molecules()
    return fit(tiny(), graphs, graphs, settings(), tmp_path_factory.mktemp("whole"))


def same_weights(a: Graphormer, b: Graphormer) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_a_tiny_model_overfits_twenty_molecules(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    graphs = twenty_molecules()
    result = fit(tiny(), graphs, graphs, settings(epochs=40, learning_rate=1e-2), tmp_path)
    assert result.scores["oxygen"] == 1.0
    assert result.scores["size"] > 0.95
    assert evaluate(result.model, graphs) == pytest.approx(result.scores, abs=1e-5)
    assert (tmp_path / "metrics.csv").exists()
    assert "bag_codes" not in graphs[0]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropout: float
) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from graphxai.learning.lightning import GraphormerModule

    graphs = twenty_molecules()
    whole = fit(tiny(dropout=dropout), graphs, graphs, settings(), tmp_path / "whole")

    original = GraphormerModule.training_step

    def killed(self: GraphormerModule, batch: object, index: int) -> torch.Tensor:
        if self.current_epoch == 3 and index == 1:
            raise RuntimeError("killed")
        return original(self, batch, index)  # type: ignore[arg-type]

    monkeypatch.setattr(GraphormerModule, "training_step", killed)
    with pytest.raises(RuntimeError, match="killed"):
        fit(tiny(dropout=dropout), graphs, graphs, settings(), tmp_path / "broken")
    monkeypatch.undo()
    save = pl.Trainer.save_checkpoint

    def killed_after_saving(self: object, *args: object, **named: object) -> None:
        save(self, *args, **named)
        raise RuntimeError("killed")

    monkeypatch.setattr(pl.Trainer, "save_checkpoint", killed_after_saving)
    with pytest.raises(RuntimeError, match="killed"):
        fit(tiny(dropout=dropout), graphs, graphs, settings(), tmp_path / "broken")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="already contains a run"):
        fit(tiny(dropout=dropout), graphs, graphs, settings(), tmp_path / "broken", resume=False)
    resumed = fit(tiny(dropout=dropout), graphs, graphs, settings(), tmp_path / "broken")
    assert same_weights(whole.model, resumed.model)
    assert (whole.epoch, whole.scores) == (resumed.epoch, resumed.scores)
    again = fit(tiny(dropout=dropout), graphs, graphs, settings(), tmp_path / "broken")
    assert same_weights(resumed.model, again.model)
    rows = [(tmp_path / name / "metrics.csv").read_text() for name in ("whole", "broken")]
    assert rows[0] == rows[1]


def test_a_run_that_stopped_early_trains_no_further_epoch_when_it_is_read_back(
    tmp_path: Path,
) -> None:
    pytest.importorskip("lightning")
    graphs = twenty_molecules()
    still = settings(epochs=8, patience=2, learning_rate=1e-9)
    stopped = fit(tiny(), graphs, graphs, still, tmp_path)
    metrics = (tmp_path / "metrics.csv").read_text()
    assert len(metrics.splitlines()) == 1 + 3
    again = fit(tiny(), graphs, graphs, still, tmp_path)
    assert (tmp_path / "metrics.csv").read_text() == metrics
    assert same_weights(stopped.model, again.model)
    assert (stopped.epoch, stopped.scores) == (again.epoch, again.scores)


def test_the_state_of_a_run_is_read_without_unpickling_and_a_damaged_one_is_named(
    tmp_path: Path,
) -> None:
    pytest.importorskip("lightning")
    from safetensors.torch import load_file

    from graphxai.learning.lightning import StateFile

    graphs = twenty_molecules()
    model = tiny()
    fit(model, graphs, graphs, settings(epochs=1, ema_decay=None), tmp_path)
    state = tmp_path / "state" / "last.ckpt"
    stored = [(value.shape, value.sum().item()) for value in load_file(state).values()]
    for weights in model.parameters():
        assert (weights.shape, weights.sum().item()) in stored
    torch.save({"a": "pickle"}, state)
    with pytest.raises(ValueError, match=r"last\.ckpt is no state of a training .* train anew"):
        StateFile().load_checkpoint(state)


def test_a_state_keeps_the_kind_and_the_bits_of_every_value(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from graphxai.learning.lightning import StateFile

    shared = torch.rand(3, 4)
    state = {
        "text": "ü\n",
        "pair": (1, (2.5, None)),
        "rows": [{0: True, 10: [], "": {}}],
        "numbers": [0.1 + 0.2, 5e-324, -math.inf, 2**70],
        "tensors": {"t": shared.t(), "same": shared, "step": torch.tensor(3), "none": shared[:0]},
        "half": torch.tensor([1.1], dtype=torch.bfloat16),
    }
    StateFile().save_checkpoint(state, tmp_path / "state.ckpt")
    back = StateFile().load_checkpoint(tmp_path / "state.ckpt")
    for place in (["tensors", "t"], ["tensors", "same"], ["tensors", "step"], ["tensors", "none"]):
        torch.testing.assert_close(
            back[place[0]].pop(place[1]), state[place[0]].pop(place[1]), rtol=0, atol=0
        )
    torch.testing.assert_close(back.pop("half"), state.pop("half"), rtol=0, atol=0)
    assert back == state
    assert type(back["pair"]) is tuple


def test_a_state_is_written_when_that_pays_or_at_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning")
    from graphxai.learning import lightning

    clock = [0.0]
    monkeypatch.setattr(lightning.time, "monotonic", lambda: clock[0])
    write = lightning.write_whole

    def written_in_a_second(path: Path, content: bytes) -> Path:
        clock[0] += 1.0
        return write(path, content)

    monkeypatch.setattr(lightning, "write_whole", written_in_a_second)
    path, states, weights = tmp_path / "last.ckpt", lightning.StateFile(), torch.zeros(2)

    def save(epoch: int) -> int:
        weights.fill_(epoch)  # as training goes on with the same tensors
        states.save_checkpoint({"epoch": epoch, "weights": weights}, path)
        stored = states.load_checkpoint(path)
        assert stored["weights"].tolist() == [stored["epoch"]] * 2
        return int(stored["epoch"])

    assert save(0) == 0  # the first is written at once
    clock[0] = lightning.PAYS
    assert save(1) == 0
    weights.fill_(7)
    states.flush()
    assert states.load_checkpoint(path)["weights"].tolist() == [1, 1]
    clock[0] = 2 * lightning.PAYS + 2
    assert save(2) == 2


def test_the_last_weights_are_written_once_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning")
    from graphxai.learning import lightning

    graphs, save, folders = twenty_molecules(), lightning.save_checkpoint, []
    monkeypatch.setattr(
        lightning, "save_checkpoint", lambda model, to: (folders.append(to), save(model, to))
    )
    last = settings(epochs=3, keep_best=False)
    trained = fit(tiny(), graphs, graphs, last, tmp_path)
    assert folders == [tmp_path / "state" / "best"]
    again = fit(tiny(), graphs, graphs, last, tmp_path)
    assert same_weights(trained.model, again.model)
    assert trained.epoch == again.epoch == 2
    assert trained.scores == again.scores
    assert trained.scores == pytest.approx(evaluate(again.model, graphs), abs=1e-5)


def test_an_epoch_logs_the_mean_loss_of_its_graphs_by_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("lightning")
    from graphxai.learning.lightning import GraphormerModule

    module = GraphormerModule(tiny(), settings(), Path())
    logged: list[tuple[str, float]] = []
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.append((name, float(value))))
    graphs = encode_all(twenty_molecules(), module.model.config)
    parts = collate(graphs[:15]), collate(graphs[15:])
    losses = [float(module.training_step(part, k).detach()) for k, part in enumerate(parts)]
    assert not logged
    module.on_train_epoch_end()
    assert logged == [("train/loss", pytest.approx((15 * losses[0] + 5 * losses[1]) / 20))]


def test_a_step_notes_no_calls_for_other_processors() -> None:
    pytest.importorskip("lightning")
    from graphxai.learning.lightning import GraphormerModule

    module = GraphormerModule(tiny(dropout=0.5), settings(), Path())
    batch = collate(encode_all(twenty_molecules(), module.model.config))
    waiting = len(torch.cuda._queued_calls)
    first, second = (module.training_step(batch, 0) for _ in range(2))
    assert torch.equal(first, second)  # both are the first step, which draws the same dropout
    assert len(torch.cuda._queued_calls) == waiting


def test_the_average_of_the_weights_is_that_of_the_moving_average() -> None:
    pytest.importorskip("lightning")
    from graphxai.learning.lightning import GraphormerModule

    module = GraphormerModule(tiny(), settings(ema_decay=0.5), Path())
    expected = [weights.detach().clone() for weights in module.model.parameters()]
    for step in range(4):
        with torch.no_grad():
            for weights in module.model.parameters():
                weights.add_(step + 1.0)
        module.on_train_batch_end(None, None, step)  # type: ignore[arg-type]
        keep = min(0.5, (1 + step) / (10 + step)) if step else 0.0  # begins with the weights
        pairs = zip(expected, module.model.parameters(), strict=True)
        expected = [torch.lerp(average, now.detach(), 1 - keep) for average, now in pairs]
    for average, weights in zip(expected, module.current_model.parameters(), strict=True):
        torch.testing.assert_close(weights.detach(), average, rtol=0, atol=0)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("at", [(0, 0), (3, 1), (5, 2)], ids=["first step", "middle", "last step"])
def test_a_training_that_a_scheduler_ends_has_an_error_status_and_resumes_to_the_same_weights(
    whole: FitResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[int, int]
) -> None:
    pytest.importorskip("lightning")
    from graphxai.learning.lightning import GraphormerModule

    graphs = twenty_molecules()
    original = GraphormerModule.training_step

    def terminated(self: GraphormerModule, batch: object, index: int) -> torch.Tensor:
        if (self.current_epoch, index) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch, index)  # type: ignore[arg-type]

    out = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        patched.setattr(GraphormerModule, "training_step", terminated)
        with pytest.raises(SystemExit) as stop:
            fit(tiny(), graphs, graphs, settings(), out)
    # Python prints a text and ends with status 1
    assert (
        stop.value.code == f"training was terminated; continue the run in {out} with resume=True."
    )
    resumed = fit(tiny(), graphs, graphs, settings(), out)
    assert same_weights(whole.model, resumed.model)
    assert (whole.epoch, whole.scores) == (resumed.epoch, resumed.scores)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_ends_no_kernel_and_says_how_to_go_on(
    whole: FitResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning would end the process, in a notebook as `SystemExit: 1`."""
    pytest.importorskip("lightning")
    from graphxai.learning.lightning import GraphormerModule

    graphs = twenty_molecules()
    original = GraphormerModule.training_step

    def interrupted(self: GraphormerModule, batch: object, index: int) -> torch.Tensor:
        if (self.current_epoch, index) == (3, 1):
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, batch, index)  # type: ignore[arg-type]

    out = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        patched.setattr(GraphormerModule, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt, match=r"resume=True to continue in .*stopped"):
            fit(tiny(), graphs, graphs, settings(), out)
    assert same_weights(whole.model, fit(tiny(), graphs, graphs, settings(), out).model)


def test_the_same_seed_gives_the_same_weights_and_another_one_does_not(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    graphs = twenty_molecules()

    def run(name: str, seed: int) -> FitResult:
        return fit(tiny(dropout=0.1), graphs, [], settings(epochs=2, seed=seed), tmp_path / name)

    first, second, third = run("a", 0), run("b", 0), run("c", 1)
    assert same_weights(first.model, second.model)
    assert not same_weights(first.model, third.model)


def test_several_devices_wait_for_no_gradient_that_never_comes(tmp_path: Path) -> None:
    """One process is enough: PyTorch refuses the second step if a gradient of the first is due."""
    pytest.importorskip("lightning")
    from graphxai.learning.lightning import GraphormerModule

    module = GraphormerModule(tiny(), settings(), tmp_path)
    module.log = lambda *args, **options: None  # type: ignore[method-assign]
    module.forward = lambda batch: module.training_step(batch, 0)  # type: ignore[method-assign]
    batch = collate(encode_all(twenty_molecules(), module.model.config))
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        shared = torch.nn.parallel.DistributedDataParallel(module)
        for _ in range(2):
            shared(batch).backward()
    finally:
        torch.distributed.destroy_process_group()
    assert all(parameter.grad is not None for parameter in module.model.parameters())


def test_bf16_trains_weights_in_single_precision(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    graphs, losses = twenty_molecules(), {}
    for precision in ("32-true", "bf16-mixed"):
        used = settings(epochs=3, precision=precision)
        result = fit(tiny(), graphs, graphs, used, tmp_path / precision)
        assert {p.dtype for p in result.model.parameters()} == {torch.float32}
        losses[precision] = result.loss
    assert losses["bf16-mixed"] != losses["32-true"]
    assert losses["bf16-mixed"] == pytest.approx(losses["32-true"], rel=0.05)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accelerator": "abacus"}, "'abacus'.*cpu"),
        ({"devices": 0}, "devices 0"),
        ({"precision": "7-true"}, "'7-true'.*bf16-mixed"),
    ],
)
def test_hardware_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    pytest.importorskip("lightning")
    with pytest.raises(ValueError, match=f"^cannot train with .*{words}"):
        fit(tiny(), twenty_molecules(), [], settings(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU was found; nor is explaining on one tested"
)
def test_a_gpu_learns_the_same(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    graphs = twenty_molecules()
    used = settings(epochs=40, learning_rate=1e-2, accelerator="gpu")
    assert fit(tiny(), graphs, graphs, used, tmp_path).scores["oxygen"] == 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"monitor": "accuracy"}, "monitor must be 'score' or 'loss', not 'accuracy'"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
    ],
)
def test_settings_that_train_nothing_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings(**change)


def test_other_settings_for_a_run_that_exists_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    graphs = twenty_molecules()[:4]
    fit(tiny(), graphs, [], settings(epochs=1), tmp_path)
    with pytest.raises(ValueError, match=r"different settings \(learning_rate\)"):
        fit(tiny(), graphs, [], settings(epochs=1, learning_rate=1.0), tmp_path)
    with pytest.raises(ValueError, match="no graphs to train on"):
        fit(tiny(), [], [], settings(), tmp_path / "new")


def test_the_lowest_loss_decides_between_epochs_of_the_same_score(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    graphs = twenty_molecules()
    used = settings(epochs=12, learning_rate=1e-2, ema_decay=None, monitor_task="oxygen")
    best = fit(tiny(), graphs, graphs, used, tmp_path).epoch
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["valid/loss"]]
    by_epoch = {
        int(row["epoch"]): (float(row["valid/score"]), -float(row["valid/loss"])) for row in rows
    }
    highest = max(score for score, _ in by_epoch.values())
    tied = [epoch for epoch, (score, _) in by_epoch.items() if score == highest]
    assert len(tied) > 1
    assert best == max(tied, key=by_epoch.__getitem__)


def test_training_stops_when_nothing_improves(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    graphs = twenty_molecules()
    quiet = settings(epochs=50, patience=2, learning_rate=1e-9, ema_decay=None)
    fit(tiny(), graphs, graphs, quiet, tmp_path)
    epochs = [line.split(",")[0] for line in (tmp_path / "metrics.csv").read_text().splitlines()]
    assert int(epochs[-1]) < 10


def test_the_loss_is_the_textbook_one_and_missing_labels_are_ignored() -> None:
    config = GraphormerConfig((OXYGEN, SIZE, KIND), num_node_features=1)
    outputs = torch.tensor([[0.5, 1.0, 0.0, 2.0, 0.0], [9.0, 0.5, 0.0, 0.0, 9.0]])
    y = torch.tensor([[1.0, 4.0, 1.0], [math.nan, 7.0, math.nan]])
    kind = -torch.log_softmax(torch.tensor([0.0, 2.0, 0.0]), 0)[1]
    binary = math.log1p(math.exp(-0.5))
    expected = (2.0 * binary + 1.0 + 1.0 + 3.0 * float(kind)) / (2 + 1 + 1 + 3)
    assert float(Objective(config.tasks, (2.0, 1.0, 3.0))(outputs, y)) == pytest.approx(expected)
    assert float(Objective(config.tasks)(outputs, y * math.nan)) == 0.0


def test_roc_auc_and_the_other_scores_equal_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    values = torch.tensor([0.1, 0.4, 0.4, 0.8, 0.9, 0.2])
    positive = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    active = Task("active", "binary", ("no", "yes"))
    expected = metrics.roc_auc_score(positive, values)
    assert score_task(active, values[:, None], positive) == pytest.approx(expected)
    assert score_task(active, values[:, None], torch.ones(6)) is None
    y = torch.arange(6.0)
    predicted = (4 + 2 * values).numpy()
    score = score_task(SIZE, values[:, None], y)
    assert score == pytest.approx(metrics.r2_score(y.numpy(), predicted))


def test_batches_contain_every_graph_once_and_similar_sizes_together() -> None:
    sizes = [k % 50 for k in range(1000)]
    batches = list(SizeBuckets(sizes, 16, seed=1))
    assert sorted(k for batch in batches for k in batch) == list(range(1000))
    spread = [max(sizes[k] for k in b) - min(sizes[k] for k in b) for b in batches]
    assert sum(spread) / len(spread) < 5
    shares = [SizeBuckets(sizes, 16, seed=1, share=lambda r=r: (r, 3)) for r in range(3)]
    assert {len(list(share)) for share in shares} == {len(shares[0])}
    assert {k for share in shares for batch in share for k in batch} == set(range(1000))


def test_training_graphs_come_in_a_new_order_each_epoch_and_validation_graphs_in_one() -> None:
    graphs = encode_all(twenty_molecules(), tiny().config)
    for number, graph in enumerate(graphs):
        graph.y = torch.tensor([[float(number), 0.0]])
    module = SimpleNamespace(current_epoch=0, trainer=SimpleNamespace(global_rank=0, world_size=1))
    train, valid = make_loaders(graphs, graphs, settings(num_workers=0), module)

    def order(loader: Any, epoch: int) -> list[float]:
        module.current_epoch = epoch
        return [number for batch in loader for number in batch.y[:, 0].tolist()]

    first, second = order(train, 0), order(train, 1)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert order(train, 0) == first
    assert order(valid, 0) == order(valid, 1)


def test_the_body_is_copied_and_the_head_stays() -> None:
    source, model = tiny(1), tiny(2)
    head = model.head.weight.clone()
    initialise(model, source)
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.graph_token, source.graph_token)


def test_calibration_is_measured_and_the_temperature_folded_into_the_head() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, generator=generator)
    active = (torch.rand(4000, generator=generator) < logits.sigmoid()).float()
    task = Task("active", "binary", ("no", "yes"))
    assert task_temperature(task, 3 * logits[:, None], active) == pytest.approx(3.0, rel=0.1)
    readings = {
        name: (factor * logits).sigmoid().double().numpy()
        for name, factor in (("calibrated", 1), ("overconfident", 3))
    }
    scores = measure("binary", readings, active.double().numpy(), resamples=50)["scores"]
    calibrated, overconfident = scores["calibrated"], scores["overconfident"]
    value, low, high = calibrated["ROC-AUC"]
    assert low < value < high
    assert calibrated["ECE"][0] < 0.03 < overconfident["ECE"][0]
    assert calibrated["Brier"][0] < overconfident["Brier"][0]
    model, graphs = tiny().eval(), twenty_molecules()[:3]
    before = predict(model, graphs)
    scale_logits(model, model.config.task_columns("oxygen")[1], 2.0)
    after = predict(model, graphs)
    assert torch.allclose(after[:, 0], before[:, 0] / 2)
    assert torch.equal(after[:, 1], before[:, 1])


@pytest.mark.parametrize(("precision", "fused"), [("32-true", True), ("bf16-mixed", False)])
def test_steps_are_fused_on_a_processor_unless_gradients_of_mixed_precision_are_clipped(
    tmp_path: Path, precision: str, fused: bool
) -> None:
    """A fused step takes a third of the time, and Lightning does not clip a mixed one."""
    pytest.importorskip("lightning")
    from graphxai.learning.lightning import GraphormerModule

    module = GraphormerModule(tiny(), settings(precision=precision), tmp_path)
    module._trainer = SimpleNamespace(estimated_stepping_batches=10)
    (optimizer,), _ = module.configure_optimizers()
    assert optimizer.defaults["fused"] is fused
