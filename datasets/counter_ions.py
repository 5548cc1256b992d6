"""Counter-ions and solvents of drugs, by what a chemist calls them when they are removed."""

from functools import cache

from graphxai.runtime.reading import packaged_rows

ELEMENTS = {  # names of ions of one atom; those of other metals make complexes, which stay whole
    "Li": "lithium", "Na": "sodium", "K": "potassium", "Rb": "rubidium", "Cs": "caesium",
    "Mg": "magnesium", "Ca": "calcium", "Sr": "strontium", "Ba": "barium", "Al": "aluminium",
    "Zn": "zinc", "Ag": "silver", "Bi": "bismuth", "F": "fluoride", "Cl": "chloride",
    "Br": "bromide", "I": "iodide", "H": "hydrogen",
}  # fmt: skip


@cache
def counter_ions() -> dict[str, str]:
    """Return the names of counter-ions by canonical SMILES, neutral where they can be."""
    return _canonical("salt")


@cache
def solvents() -> dict[str, str]:
    """Return the names of solvents by canonical SMILES."""
    return _canonical("solvent")


def _canonical(kind: str) -> dict[str, str]:
    from rdkit import Chem

    rows = packaged_rows(__package__, "counter_ions.csv")
    return {Chem.CanonSmiles(row["smiles"]): row["name"] for row in rows if row["kind"] == kind}
