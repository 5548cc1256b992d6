"""What Chefer 2021b and Song 2024 measured, on small transformers of words and of images.

    python benchmarks/sequences.py --out runs/sequences

Trains a BERT-like encoder on sentences whose parse is known, and a ViT on MNIST digits, and
measures the methods of the two papers on both. `--images 0` leaves the digits out, whose files
have to be at hand.

A sentence such as "the not very good cat sees the bad dog" has an agent and a patient, and is
active or passive. Its class is the mood of the agent: that of its adjective, turned round by "not".
So these words and no others decide the class, and finding them takes the syntax.
"""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import graphxai as gx
from graphxai.datasets.mnist import load_mnist
from graphxai.evaluation import Report
from graphxai.evaluation.statistics import bootstrap
from graphxai.explainers import Explainer, get_explainer, head_statistics

NOUNS = ["cat", "dog", "king", "nurse", "clerk", "child", "judge", "cook"]
MOODS = (["bad", "sad", "cruel", "dull"], ["good", "glad", "kind", "bright"])
ACTIVE, PASSIVE = ["sees", "helps", "meets"], ["seen by", "helped by", "met by"]
WORDS = ["[CLS]", "the", "not", "very", *MOODS[0], *MOODS[1], *NOUNS, *ACTIVE, *PASSIVE]
RELATIONS = ("determiner", "adjective", "negation", "degree", "agent", "patient")
METHODS = (
    "transformer_attribution", "gae", "rollout", "attention_last", "lrp_zplus", "partial_lrp",
    "grad_cam", "lrp", "lrp_ah_ln", "gradient_input",
)  # fmt: skip
METRICS = ("positive_perturbation", "negative_perturbation", "aopc", "lodds", "auac", "srg")
PATCH, SIDE = 4, 7


@dataclass(frozen=True)
class Sentence:
    """Words with their parse.

    Attributes:
        words: the words, without a class token.
        label: 1 if the agent is good.
        deciding: True at the words that decide the label.
        pairs: the two words of each dependency, by its name.
    """

    words: tuple[str, ...]
    label: int
    deciding: tuple[bool, ...]
    pairs: dict[str, list[tuple[int, int]]]

    @property
    def ids(self) -> Tensor:
        return torch.tensor([0, *map(WORDS.index, self.words)])


def drawn_sentence(draw: random.Random) -> Sentence:
    """Draw a sentence with two noun phrases and a verb between them."""
    words: list[str] = []
    deciding: list[bool] = []
    pairs: dict[str, list[tuple[int, int]]] = {name: [] for name in RELATIONS}
    passive = draw.random() < 0.5
    label = 0
    nouns: list[int] = []
    for phrase in range(2):
        is_agent = (phrase == 1) == passive
        mood, negated, very = (draw.random() < 0.5 for _ in range(3))
        phrase_words = ["the", *["not"] * negated, *["very"] * very]
        phrase_words += [draw.choice(MOODS[mood]), draw.choice(NOUNS)]
        noun = len(words) + len(phrase_words) - 1
        pairs["determiner"].append((len(words), noun))
        pairs["adjective"].append((noun - 1, noun))
        if negated:
            pairs["negation"].append((len(words) + 1, noun - 1))
        if very:
            pairs["degree"].append((noun - 2, noun - 1))
        if is_agent:
            label = int(mood != negated)
        deciding += [is_agent and w in ("not", phrase_words[-2]) for w in phrase_words]
        words += phrase_words
        nouns.append(noun)
        if phrase == 0:
            words.append(draw.choice(PASSIVE if passive else ACTIVE))
            deciding.append(False)
    verb = nouns[0] + 1
    pairs["agent"].append((verb, nouns[passive]))
    pairs["patient"].append((verb, nouns[not passive]))
    both_ways = {name: [*of, *((b, a) for a, b in of)] for name, of in pairs.items()}
    return Sentence(tuple(words), label, tuple(deciding), both_ways)


class Encoder(nn.Module):
    """Tokens with places and a class token, which is read: BERT's and ViT's common part."""

    def __init__(self, embed: nn.Module, places: int, outputs: int, pre_layernorm: bool) -> None:
        super().__init__()
        self.embed = embed
        self.token = nn.Parameter(torch.randn(64) * 0.1)
        self.places = nn.Parameter(torch.randn(places, 64) * 0.1)
        self.embedded = nn.LayerNorm(64)
        layer = nn.TransformerEncoderLayer(
            64, 4, 128, 0.1, activation="gelu", batch_first=True, norm_first=pre_layernorm
        )
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(64, outputs)

    def forward(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        x = torch.cat([x[:, :1] * 0 + self.token, x[:, 1:]], dim=1)
        x = self.embedded(x + self.places[: x.shape[1]])
        x = self.encoder(x, src_key_padding_mask=padding_mask)
        out: Tensor = self.head(x[:, 0])
        return out


def trained(
    module: Encoder, inputs: list[Tensor], labels: Tensor, epochs: int, file: Path
) -> Encoder:
    """Train by AdamW and a one-cycle schedule, or load what was trained before."""
    if file.exists():
        module.load_state_dict(load_file(file))
        return module.eval()
    steps = epochs * -(-len(inputs) // 64)
    optimiser = torch.optim.AdamW(module.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for epoch in range(epochs):
        for rows in torch.randperm(len(inputs)).split(64):
            outputs = module(*padded([inputs[k] for k in rows.tolist()]))
            loss = nn.functional.cross_entropy(outputs, labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"{file.stem} epoch {epoch + 1}: loss {float(loss):.3f}", flush=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(module.state_dict(), file)
    return module.eval()


def padded(inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return a batch, and True at its padding."""
    lengths = torch.tensor([len(each) for each in inputs])
    batch = nn.utils.rnn.pad_sequence(inputs, batch_first=True)
    return batch, torch.arange(batch.shape[1]) >= lengths[:, None]


@torch.no_grad()
def accuracy(module: Encoder, inputs: list[Tensor], labels: Tensor) -> float:
    outputs = torch.cat([
        module(*padded(inputs[k : k + 200])) for k in range(0, len(inputs), 200)
    ])  # fmt: skip
    return float((outputs.argmax(-1) == labels).double().mean())


def on_sentences(out: Path, count: int) -> Iterator[str]:
    """Train and measure on sentences, and yield the lines of the results."""
    draw = random.Random(0)
    learned = [drawn_sentence(draw) for _ in range(12_000)]
    known = {sentence.words for sentence in learned}
    tested = [s for s in (drawn_sentence(draw) for _ in range(4_000)) if s.words not in known]
    torch.manual_seed(0)
    module = Encoder(nn.Embedding(len(WORDS), 64), 16, 2, pre_layernorm=False)
    labels = torch.tensor([s.label for s in learned])
    module = trained(module, [s.ids for s in learned], labels, 12, out / "words.safetensors")
    right = accuracy(module, [s.ids for s in tested], torch.tensor([s.label for s in tested]))
    model = gx.wrap(
        module, kind="multiclass", classes=("bad", "good"), inputs="tokens", graph_token=True,
        embedding="embedded", name="words",
    )  # fmt: skip
    parsed = learned[:500]
    statistics = head_statistics(
        model,
        [s.ids for s in parsed],
        relations={name: [s.pairs[name] for s in parsed] for name in RELATIONS},
    )
    masked = get_explainer("masked_lrp", statistics=statistics)
    chosen = tested[:count]
    ids = [s.ids for s in chosen]
    labels_of = [s.label for s in chosen]
    report = measured(model, ids, [masked, *map(get_explainer, METHODS)], labels_of, out / "words")
    word_auc = {name: word_scores(model, method, chosen) for name, method in named_methods(masked)}
    related = statistics.related.reshape(-1, len(RELATIONS)).max(0)
    yield "## Sentences\n"
    yield (
        f"Accuracy {right:.3f} on {len(tested):,} sentences that were not learned; {count} of them"
        f" are explained. {int(statistics.positional.sum())} of {statistics.positional.size} heads"
        f" are positional and {int(statistics.relational.sum())} relational. The largest share of"
        " the rows in which a head follows a dependency: "
        + ", ".join(
            f"{name} {share:.2f} (base rate {base:.2f})"
            for name, share, base in zip(RELATIONS, related, statistics.base_rates, strict=True)
        )
        + ".\n"
    )
    yield from table(report, word_auc)


def word_scores(model: Any, method: Explainer, sentences: list[Sentence]) -> NDArray[np.float64]:
    """Return the ROC-AUC with which a method tells the deciding words of each sentence apart."""
    scores = []
    for sentence in sentences:
        e = gx.explain(model, sentence.ids, method, target=sentence.label)
        scores.append(roc_auc_score(sentence.deciding, e.relevance))
    return np.array(scores)


def on_digits(out: Path, images: int, count: int) -> Iterator[str]:
    """Train and measure on digits, and yield the lines of the results."""
    pictures, digits = load_mnist(None, "train", limit=images)
    test_pictures, test_digits = load_mnist(None, "test", limit=1_000)
    torch.manual_seed(0)
    module = Encoder(nn.Linear(PATCH * PATCH, 64), SIDE * SIDE + 1, 10, pre_layernorm=True)
    learned = list(map(patches, pictures))
    module = trained(
        module, learned, torch.as_tensor(digits).long(), 10, out / "digits.safetensors"
    )
    tested = list(map(patches, test_pictures))
    right = accuracy(module, tested, torch.as_tensor(test_digits).long())
    model = gx.wrap(
        module, kind="multiclass", classes=tuple("0123456789"), inputs="tokens", graph_token=True,
        embedding="embedded", name="digits",
    )  # fmt: skip
    statistics = head_statistics(model, learned[:200])
    masked = get_explainer("masked_lrp", statistics=statistics)
    labels = [int(digit) for digit in test_digits[:count]]
    report = measured(
        model, tested[:count], [masked, *map(get_explainer, METHODS)], labels, out / "digits"
    )
    yield "## Digits\n"
    yield (
        f"Accuracy {right:.3f} on 1,000 official test images, after {images:,} training images;"
        f" {count} of them are explained. {int(statistics.positional.sum())} of"
        f" {statistics.positional.size} heads are positional; neighbours in a row of patches are"
        f" the only relation, and {int(statistics.relational.sum())} heads follow it.\n"
    )
    yield from table(report, {})


def patches(picture: Any) -> Tensor:
    """Return the 49 patches of 4 x 4 pixels of a digit, after a row for the class token."""
    pixels = torch.as_tensor(np.asarray(picture), dtype=torch.float32) / 255
    tiles = pixels.unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH).reshape(SIDE * SIDE, -1)
    return torch.cat([tiles[:1] * 0, tiles])


def named_methods(masked: Explainer) -> list[tuple[str, Explainer]]:
    return [("masked_lrp", masked), *((name, get_explainer(name)) for name in METHODS)]


def measured(
    model: Any, inputs: list[Tensor], methods: list[Explainer], labels: list[int], out: Path
) -> Report:
    return gx.evaluate(
        model, inputs, methods, labels=labels, target="true", metrics=METRICS, out=out, resume=True
    )


def table(report: Report, word_auc: dict[str, NDArray[np.float64]]) -> Iterator[str]:
    """Yield the table of a report, with how well methods find the deciding words, if known."""
    values = {metric: report.values(metric) for metric in METRICS}
    titles = [*(["deciding words, ROC-AUC"] if word_auc else []), *METRICS]
    yield f"| method | {' | '.join(titles)} |\n{'|---' * (len(titles) + 1)}|"
    for name in sorted(report.methods, key=lambda name: -np.nanmean(values["srg"][name])):
        cells = [str(bootstrap(word_auc[name])) if name in word_auc else "-"] if word_auc else []
        cells += [str(bootstrap(values[metric][name])) for metric in METRICS]
        yield f"| `{name}` | {' | '.join(cells)} |"
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/sequences"))
    parser.add_argument("--images", type=int, default=9_000, help="training images; 0: no digits")
    parser.add_argument("--limit", type=int, default=100, help="explained inputs of each kind")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = list(on_sentences(options.out, options.limit))
    if options.images:
        lines += on_digits(options.out, options.images, options.limit)
    (options.out / "results.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
