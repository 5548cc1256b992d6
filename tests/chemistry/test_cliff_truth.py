"""What activity cliffs say about explanations agrees with a count by hand."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import graphxai as gx
from graphxai.chemistry.cliff_truth import cliff_scores, evaluate_cliffs
from graphxai.chemistry.matching import common_part

ANISOLE, CHLOROANISOLE = "COc1ccccc1", "COc1ccc(Cl)cc1"  # atoms 0 to 7; atom 6 is chlorine
STEREO = "C[C@H](N)C(=O)Nc1ccccc1", "C[C@@H](N)C(=O)Nc1ccccc1"
TAUTOMERS = "Cc1ccc(O)nc1", "Cc1ccc(=O)[nH]c1"


@pytest.fixture(scope="module")
def model():
    return gx.load("lipophilicity")


def test_scores_of_a_pair_are_those_of_a_count_by_hand(model):
    """Only the chlorine changes: the rest is subtracted atom by atom."""
    a, b = gx.explain(model, [CHLOROANISOLE, ANISOLE], method="occlusion", progress=False)
    same = [0, 1, 2, 3, 4, 5, 7, 8]  # atoms of chloroanisole without chlorine, in order
    in_b = [0, 1, 2, 3, 4, 5, 6, 7]
    share, sign, signed, unsigned, by_model = cliff_scores(
        a, b, common_part(a.molecule, b.molecule, timeout=1)
    )
    assert a.molecule.GetAtomWithIdx(6).GetSymbol() == "Cl"
    chlorine, rest = abs(a.relevance[6]), np.abs(a.relevance[same] - b.relevance[in_b]).sum()
    flipped = np.abs(a.relevance[same] - b.relevance[[0, 1, 2, 7, 6, 5, 4, 3]]).sum()
    assert any(share == pytest.approx(chlorine / (chlorine + r)) for r in (rest, flipped))
    assert sign == (a.relevance[6] > 0)
    truth = np.arange(9) == 6
    assert signed == pytest.approx(roc_auc_score(truth, a.relevance))
    assert unsigned == pytest.approx(roc_auc_score(truth, np.abs(a.relevance)))
    assert by_model == (a.output > b.output)


def test_pairs_that_differ_in_stereo_or_tautomer_alone_are_left_out(model):
    smiles = [ANISOLE, CHLOROANISOLE, *STEREO, *TAUTOMERS]
    rows = evaluate_cliffs(
        model, smiles, [5.0, 7.0, 1.0, 9.0, 20.0, 25.0], ["lrp"], similarity=0.2, matched=False,
        progress=False,
    )  # fmt: skip
    pairs = set(rows.graph)
    assert "1-0" in pairs
    assert not {"3-2", "5-4"} & pairs
    assert rows.attrs["left_out"]["same but for stereo or tautomer"] == 2


def test_controls_show_what_a_score_cannot_judge(model):
    rows = evaluate_cliffs(
        model, [ANISOLE, CHLOROANISOLE], [5.0, 7.0], ["lrp"], progress=False
    ).pivot(index="method", columns="metric", values="value")
    assert rows.loc["ones", "share_at_change"] == 1  # equal scores always differ at the change only
    assert rows.loc["ones", "roc_auc"] == 0.5
    assert rows.loc["reverse", "roc_auc"] == pytest.approx(1 - rows.loc["lrp", "roc_auc"])
    assert rows.loc["reverse", "sign_at_change"] == 1 - rows.loc["lrp", "sign_at_change"]


def test_a_table_without_cliffs_says_why(model):
    with pytest.raises(ValueError, match=r"no activity cliff to score among 1 .*1 same but for"):
        evaluate_cliffs(model, STEREO, [1.0, 9.0], ["lrp"], progress=False)


def test_pairs_that_were_both_learned_from_are_left_out(model):
    learned = list(gx.training_set_of(model).given[:150])
    pair = gx.activity_cliffs(learned, np.arange(150.0))[0]
    both = [learned[pair.b], learned[pair.a]]
    with pytest.raises(ValueError, match=r"among 1 .1 both in the training set"):
        evaluate_cliffs(model, both, [1.0, 9.0], ["lrp"], progress=False)


def test_the_command_writes_the_scores_of_cliffs(tmp_path):
    from typer.testing import CliRunner

    from graphxai.cli.main import app

    table = tmp_path / "two.csv"
    table.write_text(f"smiles,measured\n{ANISOLE},5\n{CHLOROANISOLE},7\n")
    out = tmp_path / "cliffs"
    command = ["benchmark", "lipophilicity", str(table), "--truth", "cliffs", "--methods", "lrp"]
    done = CliRunner().invoke(app, [*command, "--label-column", "measured", "--out", str(out)])
    assert done.exit_code == 0, done.output
    text = (out / "summary.md").read_text()
    assert text.startswith("1 activity cliffs in measured; left out: none")
    assert "| `lrp` |" in text
    assert (out / "rows.csv").is_file()
    refused = CliRunner().invoke(app, [*command, "--metrics", "auac"])
    assert refused.exit_code
    assert "--metrics" in refused.output
