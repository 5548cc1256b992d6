"""Say whether a molecule can be made, and what medicinal chemists would object to."""

import importlib.util
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from rdkit import Chem, RDConfig
from rdkit.Chem.FilterCatalog import FilterCatalog, FilterCatalogParams


def accessibility(mol: Chem.Mol) -> float | None:
    """Return the synthetic accessibility from 1 (easy) to 10 (hard), Ertl 2009.

    The result is None where RDKit comes without its Contrib folder, and for a molecule without
    atoms, which RDKit cannot score.
    """
    scorer = _scorer()
    if scorer is None or not mol.GetNumAtoms():
        return None
    return float(scorer.calculateScore(mol))


def alerts(mol: Chem.Mol) -> tuple[str, ...]:
    """Return the sorted names of substructure alerts: BRENK (Brenk 2008) and PAINS (Baell 2010)."""
    return tuple(sorted({match.GetDescription() for match in _catalog().GetMatches(mol)}))


@lru_cache(maxsize=4096)  # a search asks again after every batch
def feasibility(smiles: str) -> tuple[float | None, tuple[str, ...]]:
    """Return the synthetic accessibility and the alerts of a molecule."""
    mol = Chem.MolFromSmiles(smiles)
    return accessibility(mol), alerts(mol)


@cache
def _catalog() -> FilterCatalog:
    params = FilterCatalogParams()
    params.AddCatalog(FilterCatalogParams.FilterCatalogs.BRENK)
    params.AddCatalog(FilterCatalogParams.FilterCatalogs.PAINS)
    return FilterCatalog(params)


@cache
def _scorer() -> Any:
    """Load RDKit's script for the score, which is not part of its package."""
    path = Path(RDConfig.RDContribDir) / "SA_Score" / "sascorer.py"
    spec = importlib.util.spec_from_file_location("sascorer", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
