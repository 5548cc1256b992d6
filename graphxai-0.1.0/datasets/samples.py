"""Provide real inputs that are bundled with the package, for demos and tests without a network."""

from pathlib import Path

# Drugs and drug candidates; the first five were made to inhibit BACE-1.
MOLECULES: dict[str, str] = {
    "verubecestat": "C[C@]1(CS(=O)(=O)N(C(=N1)N)C)c1cc(NC(=O)c2ccc(F)cn2)ccc1F",
    "lanabecestat": "CO[C@H]1CC[C@]2(CC1)Cc1ccc(cc1[C@@]21N=C(C)C(N)=N1)-c1cncc(c1)C#CC",
    "atabecestat": "C[C@@]1(N=C(N)SC=C1)c1cc(NC(=O)c2ccc(cn2)C#N)ccc1F",
    "elenbecestat": "C[C@H]1OC[C@@]2(N=C(N)SC[C@H]12)c1cc(NC(=O)c2cnc(cn2)C(F)F)ccc1F",
    "umibecestat": "C[C@@]1(N=C(N)[C@@](C)(OC1)C(F)(F)F)c1nc(NC(=O)c2ncc(cc2Cl)C(F)(F)F)ccc1F",
    "ibuprofen": "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "caffeine": "CN1C=NC2=C1C(=O)N(C)C(=O)N2C",
    "imatinib": "Cc1ccc(cc1Nc1nccc(n1)-c1cccnc1)NC(=O)c1ccc(cc1)CN1CCN(C)CC1",
    "sodium valproate": "CCCC(CCC)C(=O)[O-].[Na+]",
}


def digit_paths() -> tuple[Path, ...]:
    """Return ten pictures (28 x 28 PNG) from the MNIST test set, one of each digit 0 to 9."""
    folder = Path(__file__).parent / "sample_digits"
    return tuple(folder / f"{digit}.png" for digit in range(10))


def example_files() -> dict[str, Path]:
    """Return the files that the pages of the documentation use, by the name that they have there.

    `molecules.csv` and `assay.csv` are tables of molecules, `digit.png` is a picture of a 3.
    `README.md` says where they come from.
    """
    folder = Path(__file__).parent / "examples"
    files = {name: folder / name for name in ("molecules.csv", "assay.csv", "README.md")}
    return files | {"digit.png": digit_paths()[3]}
