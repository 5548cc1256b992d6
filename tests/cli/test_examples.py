"""The files that the documentation uses come with the package and replace none of the user's."""

from graphxai.datasets.samples import example_files


def test_examples_are_written_once_and_never_over_a_file_of_the_users(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # a second time, nothing is left to do
        status, _, printed = run("examples")
        assert status == 0
        assert "written: examples/molecules.csv" in printed
    for name, path in example_files().items():
        assert (tmp_path / "examples" / name).read_bytes() == path.read_bytes()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "assay.csv").write_text("smiles,pIC50\nCCO,5\n")
    status, _, complaint = run("examples", "mine")
    assert status == 1
    assert "mine/assay.csv: there is another file of this name" in complaint
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["assay.csv"]
