"""Strange inputs of every kind in `hostile`, as strategies of Hypothesis."""

from composed import PARTS, Block, Pool
from hypothesis import strategies as st

from graphxai.datasets.samples import MOLECULES

SIGNS = "CNOPSFIBHclnos[]()=#$:/\\@+-.%0123456789*>|,;^~ \t\n\x00\x1b"
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([0, -1, 1, 255, 2**15, 2**31, 2**63, 10**30]),
    st.floats(),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
BYTES = st.binary(max_size=40).map(lambda raw: raw.decode("latin-1"))


@st.composite
def damaged_smiles(draw):
    """Draw a real SMILES with a part replaced."""
    text = draw(st.sampled_from(list(MOLECULES.values())))
    start = draw(st.integers(0, len(text)))
    stop = draw(st.integers(start, min(start + 8, len(text))))
    return text[:start] + draw(st.text(SIGNS, max_size=6)) + text[stop:]


ATOMS = st.tuples(
    st.sampled_from(["", "2", "13", "999"]),
    st.sampled_from(["C", "c", "H", "*", "Xe", "Og", "#0", "#6", "#118", "R", "U", "se", "Fe"]),
    st.sampled_from(["", "@", "@@", "@TH2", "@AL1", "@SP3", "@TB7", "@OH9"]),
    st.sampled_from(["", "H", "H4", "H9"]),
    st.sampled_from(["", "+", "-", "+4", "-15", "++", "+15"]),
    st.sampled_from(["", ":1", ":0", ":999"]),
).map(lambda parts: f"[{''.join(parts)}]")
PIECES = st.one_of(
    ATOMS,
    st.sampled_from(["C", "c1ccccc1", "(C)", "=", "#", "$", ":", "->", "<-", ".", "~", "%10"]),
)
CELLS = st.one_of(
    damaged_smiles(),
    st.lists(PIECES, min_size=1, max_size=6).map("".join),
    st.text(SIGNS, max_size=30),
    st.text(max_size=20),
)
NAMES = [
    "tasks", "num_layers", "hidden_dim", "ffn_dim", "num_heads", "node_cardinalities",
    "node_feature_names", "num_node_features", "edge_cardinalities", "position_bands",
    "position_bias_bands", "max_degree", "max_distance", "num_hops", "ties", "mask_distance",
    "pre_layernorm", "embedding_layernorm", "final_layernorm", "head", "dropout",
    "attention_dropout", "layernorm_eps", "extra", "strange",
]  # fmt: skip
TASKS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=3), "kind": st.sampled_from(["binary", "regression", "other"])},
        optional={"classes": VALUES, "unit": VALUES, "offset": VALUES, "scale": VALUES},
    ),
    max_size=3,
)
TENSORS = st.tuples(
    st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "bool", "complex64"]),
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 9]), max_size=3),
    st.sampled_from([0, 1, 2, -1, 300, 0.5, float("nan"), float("inf")]),
)
PART = st.one_of(
    st.sampled_from([f"{kind}: {way}" for way in cls.spellings]) for kind, cls in PARTS.items()
)
BLOCK = st.tuples(st.sampled_from(Block.spellings), st.lists(PART, min_size=1, max_size=3))
FILES = ["explanations.csv", "rejected.csv", "explanations.sdf", "run.json"]

STRATEGIES = {
    "cells": st.lists(CELLS, min_size=1, max_size=3),
    "bytes": st.one_of(
        BYTES, BYTES.map("smiles\n{}".format), BYTES.map("id,smiles\n1,CC{}".format)
    ),
    "config": st.one_of(
        st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=2),
        TASKS.map(lambda tasks: {"tasks": tasks}),
    ),
    "weights": st.tuples(st.one_of(st.integers(0, 4000), st.integers(0)), BYTES).map(list),
    "data": st.dictionaries(
        st.sampled_from(["x", "edge_index", "edge_attr", "pos", "y"]),
        TENSORS.map(list),
        min_size=1,
        max_size=2,
    ),
    "folder": st.lists(
        st.tuples(st.sampled_from(FILES), st.integers(0, 3000), BYTES | st.just("")).map(list),
        min_size=1,
        max_size=2,
    ),
    "model": st.tuples(
        st.lists(BLOCK.map(lambda block: [block[0], *block[1]]), min_size=1, max_size=5),
        st.sampled_from(Pool.spellings),
    ).map(list),
}
