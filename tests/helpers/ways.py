"""The ways in which one compound can be handed over, of which a model must give one answer."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rdkit import Chem
from rdkit.Chem import AllChem

import graphxai as gx
from graphxai.datasets.tables.table import open_table
from graphxai.tables.run import predict_table
from one_compound import ACID, AMINE, MODELS

Given = str | Chem.Mol
BENZYLATION = AllChem.ReactionFromSmarts("[*:1]-[CH2][SiH3]>>[*:1]")


@contextmanager
def coming_perception() -> Iterator[None]:
    """Let RDKit perceive stereochemistry as it will by default one day."""
    Chem.SetUseLegacyStereoPerception(False)
    try:
        yield
    finally:
        Chem.SetUseLegacyStereoPerception(True)


def written_at_random(mol: Chem.Mol) -> Given:
    return Chem.MolToRandomSmilesVect(mol, 1, randomSeed=7)[0]


def in_kekule_form(mol: Chem.Mol) -> Given:
    copy = Chem.Mol(mol)
    Chem.Kekulize(copy, clearAromaticFlags=True)
    return Chem.MolToSmiles(copy, kekuleSmiles=True)


def with_atom_numbers(mol: Chem.Mol) -> Given:
    copy = Chem.Mol(mol)
    for atom in copy.GetAtoms():
        atom.SetAtomMapNum(mol.GetNumAtoms() - atom.GetIdx())
    return Chem.MolToSmiles(copy)


def with_carbon_13(mol: Chem.Mol) -> Given:
    copy = Chem.Mol(mol)
    for atom in copy.GetAtoms():
        if atom.GetAtomicNum() == 6 and atom.GetIdx() % 3 == 0:
            atom.SetIsotope(13)
    return Chem.MolToSmiles(copy)


def with_deuterium(mol: Chem.Mol) -> Given:
    copy = Chem.AddHs(mol)
    for atom in copy.GetAtoms():
        if atom.GetAtomicNum() == 1 and atom.GetIdx() % 2:
            atom.SetIsotope(2 + atom.GetIdx() % 4 // 2)
    return Chem.MolToSmiles(Chem.RemoveHs(copy))


def renumbered(mol: Chem.Mol) -> Given:
    return Chem.RenumberAtoms(mol, list(range(mol.GetNumAtoms()))[::-1])


def pickled(mol: Chem.Mol) -> Given:
    return pickle.loads(pickle.dumps(mol))


def unsanitised(mol: Chem.Mol) -> Given:
    return Chem.MolFromSmiles(Chem.MolToSmiles(mol), sanitize=False)


def with_hydrogens(mol: Chem.Mol) -> Given:
    return Chem.AddHs(mol)


def written_with_hydrogens(mol: Chem.Mol) -> Given:
    return Chem.MolToSmiles(Chem.AddHs(mol))


def drawn(mol: Chem.Mol, *, v3000: bool) -> Given:
    copy = Chem.Mol(mol)
    AllChem.Compute2DCoords(copy)
    return Chem.MolFromMolBlock(Chem.MolToMolBlock(copy, forceV3000=v3000))


def in_space(mol: Chem.Mol) -> Given | None:
    """Return a structure in space, which has one configuration at every place."""
    places = Chem.FindPotentialStereo(Chem.Mol(mol))
    copy = Chem.AddHs(mol)
    if any(each.specified == Chem.StereoSpecified.Unspecified for each in places):
        return None
    if mol.GetNumAtoms() > 30 or AllChem.EmbedMolecule(copy, randomSeed=1, maxAttempts=5):
        return None
    return Chem.MolFromMolBlock(Chem.MolToMolBlock(copy), removeHs=False)


def as_json(mol: Chem.Mol) -> Given:
    return Chem.JSONToMols(Chem.MolToJSON(mol))[0]


def from_inchi(mol: Chem.Mol) -> Given | None:
    """Return what is read from an InChI, unless this is another tautomer or charge."""
    read = Chem.MolFromInchi(Chem.MolToInchi(mol))
    is_same = read is not None and Chem.MolToSmiles(read) == Chem.MolToSmiles(mol)
    return read if is_same else None


def extended(mol: Chem.Mol) -> Given:
    copy = Chem.Mol(mol)
    AllChem.Compute2DCoords(copy)
    return Chem.MolToCXSmiles(copy)


def as_salt(mol: Chem.Mol) -> Given:
    return f"{Chem.MolToSmiles(mol)}.OS(=O)(=O)c1ccccc1"


def charged(mol: Chem.Mol) -> Given | None:
    matches = mol.GetSubstructMatches(AMINE) or mol.GetSubstructMatches(ACID)
    if not matches:
        return None
    ion = Chem.RWMol(mol)
    atom = ion.GetAtomWithIdx(matches[0][-1])
    step = 1 if atom.GetAtomicNum() == 7 else -1
    atom.SetFormalCharge(step)
    atom.SetNumExplicitHs(atom.GetTotalNumHs() + step)
    atom.SetNoImplicit(True)
    return Chem.MolToSmiles(ion)


def perceived_anew(mol: Chem.Mol) -> Given:
    with coming_perception():
        return Chem.MolFromSmiles(Chem.MolToSmiles(mol))


def product_of_a_reaction(mol: Chem.Mol) -> Given | None:
    """Return what a reaction makes of a molecule with one hydrogen less, which is not sanitised."""
    hydrogen = mol.GetSubstructMatch(Chem.MolFromSmarts("[cH1]"))
    if not hydrogen:
        return None
    reagent = Chem.RWMol(mol)
    carbon, silicon = (reagent.AddAtom(Chem.Atom(number)) for number in (6, 14))
    reagent.AddBond(hydrogen[0], carbon, Chem.BondType.SINGLE)
    reagent.AddBond(carbon, silicon, Chem.BondType.SINGLE)
    Chem.SanitizeMol(reagent)
    return BENZYLATION.RunReactants((reagent.GetMol(),))[0][0]


WAYS: dict[str, Callable[[Chem.Mol], Given | None]] = {
    "random SMILES": written_at_random,
    "Kekulé SMILES": in_kekule_form,
    "atom numbers": with_atom_numbers,
    "carbon-13": with_carbon_13,
    "deuterium and tritium": with_deuterium,
    "renumbered": renumbered,
    "pickled": pickled,
    "not sanitised": unsanitised,
    "explicit hydrogens": with_hydrogens,
    "SMILES with hydrogens": written_with_hydrogens,
    "V2000": lambda mol: drawn(mol, v3000=False),
    "V3000": lambda mol: drawn(mol, v3000=True),
    "structure in space": in_space,
    "JSON": as_json,
    "InChI": from_inchi,
    "CXSMILES": extended,
    "salt": as_salt,
    "charge": charged,
    "coming perception": perceived_anew,
    "reaction product": product_of_a_reaction,
}


def in_own_files(texts: list[str]) -> Iterator[tuple[str, dict[int, str]]]:
    """Yield the structures as they are read from the files that the project writes, by suffix."""
    model = gx.load(MODELS[0])
    with TemporaryDirectory() as folder:
        given = Path(folder) / "given.csv"
        given.write_text("\n".join(["smiles", *texts]), encoding="utf-8")
        for suffix in (".csv", ".smi", ".sdf"):
            path = Path(folder) / f"own{suffix}"
            if suffix == ".csv":
                predict_table(model, given, path)
            else:
                gx.explain(model, texts, progress=False).save(path)
            records = open_table(path).records()
            yield suffix, dict(enumerate(record.cells["smiles"] for record in records))
