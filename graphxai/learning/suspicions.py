"""Report molecules and labels that are kept for training, but that a user should know about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem.rdMolHash import HashFunction, MolHash

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.datasets.as_given import AS_DRAWN, MoleculeError, Standardisation
from graphxai.datasets.molecules import RejectedRow
from graphxai.datasets.standardise import parent_of
from graphxai.learning.cleaned_table import Finding, TargetColumn
from graphxai.learning.merging import TableMolecule

RARE_CLASS = 10  # molecules
OUTLIER = 6.0  # robust standard deviations (1.4826 MAD) from the median
SKEWED = 1e3  # ratio of largest to smallest value above which a logarithm is likely needed


def suspicions(
    molecules: Sequence[TableMolecule],
    targets: Sequence[TargetColumn],
    y: FloatArray,
    standardise: Standardisation,
) -> list[Finding]:
    """Report suspicious molecules and labels y (n, targets), NaN where one is missing.

    Args:
        molecules: (n,).
        standardise: how the molecules were brought to their parents.
    """
    mixtures = _rows(
        molecules, ((m, f"{mol.parts} parts") for m, mol in enumerate(molecules) if mol.parts > 1)
    )
    findings = [
        Finding("salts or mixtures", len(mixtures), "kept whole", "", mixtures),
        _undefined(molecules),
        _relatives("stereoisomers", "stereochemistry", molecules, targets, y, lambda m: m.flat),
        _relatives("tautomers", "the place of hydrogens", molecules, targets, y, _tautomer_hash),
    ]
    if standardise == AS_DRAWN:
        findings.append(
            _relatives("salts or ions", "salt or charge", molecules, targets, y, _parent_smiles)
        )
    for target, column in zip(targets, y.T, strict=True):
        findings += _of_labels(molecules, target, column)
    return findings


def _rows(
    molecules: Sequence[TableMolecule], chosen: Iterable[tuple[int, str]]
) -> tuple[RejectedRow, ...]:
    """Return the first row of each chosen molecule, with a remark about it."""
    return tuple(
        RejectedRow(int(molecules[m].graph.row), molecules[m].graph.smiles, reason)
        for m, reason in chosen
    )


def _undefined(molecules: Sequence[TableMolecule]) -> Finding:
    """Report the molecules of which some configuration is not drawn."""
    counts = []
    for m, molecule in enumerate(molecules):
        with rdBase.BlockLogs():
            places = Chem.FindPotentialStereo(molecule.mol)
        open_places = [p for p in places if p.specified == Chem.StereoSpecified.Unspecified]
        if open_places:
            counts.append((m, f"{len(open_places)} of {len(places)} not drawn"))
    done = "kept; the model reads them as no isomer in particular"
    return Finding("undefined configuration", len(counts), done, "", _rows(molecules, counts))


def _relatives(
    kind: str,
    difference: str,
    molecules: Sequence[TableMolecule],
    targets: Sequence[TargetColumn],
    y: FloatArray,
    key: Callable[[TableMolecule], str],
) -> Finding:
    """Report molecules with the same key as one before, and how much their labels differ."""
    groups: dict[str, list[int]] = defaultdict(list)
    for m, molecule in enumerate(molecules):
        groups[key(molecule)].append(m)
    several = [group for group in groups.values() if len(group) > 1]
    remarks = []
    for first, *others in several:
        text = f"differs from row {molecules[first].graph.row} only in {difference}"
        remarks += [(m, "; ".join([text, *_differences(y[first], y[m], targets)])) for m in others]
    rows = _rows(molecules, remarks)
    done = "; ".join(["kept", *_contradictions(several, targets, y)])
    return Finding(f"{kind} of another row", len(rows), done, "", rows)


def _differences(
    first: FloatArray, other: FloatArray, targets: Sequence[TargetColumn]
) -> list[str]:
    """Say how the labels (targets,) of two molecules differ."""
    return [
        f"{target.name} differs by {abs(b - a):.3g}"
        if target.kind == "regression"
        else f"{target.name} is {target.classes[int(b)]!r} and not {target.classes[int(a)]!r}"
        for target, a, b in zip(targets, first, other, strict=True)
        if abs(b - a) > 0
    ]


def _contradictions(
    groups: Sequence[Sequence[int]], targets: Sequence[TargetColumn], y: FloatArray
) -> list[str]:
    """Say for each column how much labels y (n, targets) differ within groups of molecules."""
    stated = []
    for target, column in zip(targets, y.T, strict=True):
        measured = [column[list(group)] for group in groups]
        measured = [values[~np.isnan(values)] for values in measured]
        spans = [float(np.ptp(values)) for values in measured if len(values) > 1]
        differing = sum(span > 0 for span in spans)
        if not differing:
            continue
        of_column = f" in {target.name}" if len(targets) > 1 else ""
        if target.kind == "classification":
            groups_have = "group has" if differing == 1 else "groups have"
            stated.append(f"{differing} {groups_have} several classes{of_column}")
        else:
            stated.append(f"values differ by up to {max(spans):.3g}{of_column}")
    return stated


def _tautomer_hash(molecule: TableMolecule) -> str:
    """Return a key that tautomers share, and seldom other molecules (RDKit's, version 2)."""
    with rdBase.BlockLogs():
        return str(MolHash(Chem.Mol(molecule.mol), HashFunction.HetAtomTautomerv2))


def _parent_smiles(molecule: TableMolecule) -> str:
    try:
        with rdBase.BlockLogs():
            parent = parent_of(molecule.mol, "parent")
    except (MoleculeError, ValueError, RuntimeError):
        parent = None
    return molecule.canonical if parent is None else str(Chem.MolToSmiles(parent.mol))


def far_from_the_rest(values: FloatArray) -> list[int]:
    """Return the positions of outliers, see `OUTLIER`, of values (n,), NaN where one is missing."""
    distance = np.abs(values - np.nanmedian(values))
    limit = OUTLIER * 1.4826 * float(np.nanmedian(distance))
    return np.flatnonzero(distance > limit).tolist() if limit else []


def _of_labels(
    molecules: Sequence[TableMolecule], target: TargetColumn, column: FloatArray
) -> list[Finding]:
    """Report rare classes, or values far from the rest and over orders of magnitude."""
    if target.kind == "classification":
        each = zip(target.classes, target.counts, strict=True)
        rare = [f"{name!r}: {count}" for name, count in each if count < RARE_CLASS]
        done = f"kept; {', '.join(rare)}"
        return [Finding("class with few molecules", len(rare), done, target.name)]
    far = _rows(molecules, ((m, f"value {column[m]:g}") for m in far_from_the_rest(column)))
    findings = [Finding("values far from the rest", len(far), "kept", target.name, far)]
    low, high = target.limits
    if low > 0 and high / low > SKEWED:
        done = "kept; their logarithm is easier to learn (--transform log10, or pIC50 with a unit)"
        check = "values span orders of magnitude"
        findings.append(Finding(check, target.measured, done, target.name))
    return findings
