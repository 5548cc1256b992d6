"""Exports of twenty programs, as they are, give the models of the same tables in plain form.

The headers are those of the programs' public descriptions and downloads. Every export has the same
measurements: 24 compounds, a second value of the first, an unreadable structure and a missing one.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rdkit import Chem
from rdkit.Chem.Descriptors import MolWt

import graphxai as gx
from graphxai.learning.cleaned_table import CleanTable
from graphxai.learning.cleaning import clean_table
from graphxai.learning.run import train_table
from graphxai.learning.settings import TableSettings
from graphxai.learning.table import TableSource, split_table
from graphxai.tables.run import predict_table

ACYLS = ("C", "CC", "CCC", "C1CC1", "c1ccccc1", "c1ccncc1")
AMINES = ("c1ccccc1", "c1ccc(F)cc1", "c1ccc(OC)cc1", "C1CCCCC1")
SMILES = [Chem.CanonSmiles(f"{acyl}C(=O)N{amine}") for acyl in ACYLS for amine in AMINES]
NANOMOLAR = [12.5 * 1.5**k for k in range(24)]
SIGNS = ["", "", "", "", "", ">", "", "", "", "<", "", ""] * 2
# name, structure, IC50 in nM, relation
ROWS = [
    *((f"GX-{k:03}", *each) for k, each in enumerate(zip(SMILES, NANOMOLAR, SIGNS, strict=True))),
    ("GX-000", SMILES[0], 25.0, ""),
    ("GX-900", "C1CC", 100.0, ""),
    ("GX-901", "", 100.0, ""),
]
TURNED = {"": "", ">": "<", "<": ">"}
PLAIN = [("smiles", "y"), *((s, f"{TURNED[r]}{9 - math.log10(v)!r}") for _, s, v, r in ROWS)]


def micro(value: float) -> float:
    return float(f"{value / 1000:.10g}")


def by_mass(smiles: str, value: float) -> float:
    """Return nM in ug/mL."""
    mol = Chem.MolFromSmiles(smiles) if smiles else None
    return value * 1e-6 * MolWt(mol) if mol else value


def write(path: Path, rows: Iterable[Sequence[Any]], separator: str = ",", **options: Any) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator, **options).writerows(rows)
    return path


def table(header: str, cells: Callable[..., dict[str, Any]], separator: str = ",") -> list[Any]:
    """Return a header and its rows, in which columns that `cells` leaves out are empty."""
    names = header.split(separator)
    made = [cells(*row) for row in ROWS]
    assert set(made[0]) <= set(names)
    return [names, *([row.get(name, "") for name in names] for row in made)]


def workbook(path: Path, rows: Iterable[Sequence[Any]]) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(["" if cell is None else cell for cell in row])
    book.save(path)
    return path


CHEMBL = (
    "Molecule ChEMBL ID;Molecule Name;Molecule Max Phase;Molecular Weight;#RO5 Violations;AlogP;"
    "Compound Key;Smiles;Standard Type;Standard Relation;Standard Value;Standard Units;"
    "pChEMBL Value;Data Validity Comment;Comment;Uo Units;Ligand Efficiency BEI;"
    "Ligand Efficiency LE;Ligand Efficiency LLE;Ligand Efficiency SEI;Potential Duplicate;"
    "Assay ChEMBL ID;Assay Description;Assay Type;BAO Format ID;BAO Label;Assay Organism;"
    "Assay Tissue ChEMBL ID;Assay Tissue Name;Assay Cell Type;Assay Subcellular Fraction;"
    "Target ChEMBL ID;Target Name;Target Organism;Target Type;Document ChEMBL ID;Source ID;"
    "Source Description;Document Journal;Document Year;Cell ChEMBL ID"
)
CHEMBL_API = (
    "activity_id,assay_chembl_id,canonical_smiles,molecule_chembl_id,pchembl_value,relation,"
    "standard_relation,standard_type,standard_units,standard_value,type,units,value"
)
BINDING_DB = (
    "BindingDB Reactant_set_id\tLigand SMILES\tLigand InChI\tLigand InChI Key\t"
    "BindingDB MonomerID\tBindingDB Ligand Name\tTarget Name\t"
    "Target Source Organism According to Curator or DataSource\tKi (nM)\tIC50 (nM)\tKd (nM)\t"
    "EC50 (nM)\tkon (M-1-s-1)\tkoff (s-1)\tpH\tTemp (C)\tCuration/DataSource"
)
PUBCHEM = (
    "PUBCHEM_RESULT_TAG,PUBCHEM_SID,PUBCHEM_CID,PUBCHEM_EXT_DATASOURCE_SMILES,"
    "PUBCHEM_ACTIVITY_OUTCOME,PUBCHEM_ACTIVITY_SCORE,PUBCHEM_ACTIVITY_URL,"
    "PUBCHEM_ASSAYDATA_COMMENT,Activity Qualifier,AC50,Hill Slope"
)
PUBCHEM_BIOACTIVITY = (
    "baid,activity,aid,sid,cid,geneid,pmid,aidtype,hasdrc,rnai,protacxn,acname,acqualifier,acvalue,"
    "aidsrcname,aidname,cmpdname,targetname,taxids,cellids,smiles"
)
PDSP = (
    "Number,Receptor,Unigene,Ligand ID,Ligand Name,SMILES,CAS,NSC,Hotligand,species,source,ki Note,"
    "ki Val,Reference,Link"
)
PHARMACOLOGY = (
    "Target,Target ID,Ligand,Ligand ID,SMILES,Type,Action,Affinity Units,Affinity Median,"
    "Original Affinity Units,Original Affinity Low nm,Original Affinity Median nm,"
    "Original Affinity High nm,Original Affinity Relation,PubMed ID"
)


def chembl(name, smiles, value, sign):
    return {
        "Molecule ChEMBL ID": name, "Smiles": smiles, "Standard Type": "IC50",
        "Standard Relation": f"'{sign or '='}'", "Standard Value": value, "Standard Units": "nM",
        "Comment": "Active", "Potential Duplicate": "0", "Assay Type": "B",
    }  # fmt: skip


def chembl_in_several_units(name, smiles, value, sign):
    cells = chembl(name, smiles, value, sign)
    if int(name[-1]) % 3 == 0:
        cells |= {"Standard Value": by_mass(smiles, value), "Standard Units": "ug.mL-1"}
    if int(name[-1]) % 3 == 1:
        cells |= {"Standard Value": micro(value), "Standard Units": "uM"}
    return cells


def chembl_api(name, smiles, value, sign):
    return {
        "molecule_chembl_id": name, "canonical_smiles": smiles, "standard_type": "IC50",
        "standard_relation": sign or "=", "standard_value": value, "standard_units": "nM",
        "type": "IC50", "relation": sign or "=", "value": micro(value), "units": "uM",
    }  # fmt: skip


def pubchem(path):
    rows = table(
        PUBCHEM,
        lambda name, smiles, value, sign: {
            "PUBCHEM_RESULT_TAG": name[3:], "PUBCHEM_CID": name[3:], "AC50": micro(value),
            "PUBCHEM_EXT_DATASOURCE_SMILES": smiles, "Activity Qualifier": sign or "=",
            "Hill Slope": 1,
        },
    )  # fmt: skip
    rows[1:1] = [
        ["RESULT_TYPE", *[""] * 7, "STRING", "FLOAT", "FLOAT"],
        ["RESULT_DESCR", *[""] * 7, "", "concentration of half of the effect, in 1,2 and 3", ""],
        ["RESULT_UNIT", *[""] * 7, "", "MICROMOLAR", ""],
        ["RESULT_IS_ACTIVE_CONCENTRATION", *[""] * 7, "", "TRUE", ""],
    ]
    return write(path / "AID_1_datatable_all.csv", rows)


def dotmatics(path):
    """Two assays stand side by side below merged titles; the second is of something else."""
    rows = [
        ["", "", "EGFR biochemical", None, None, "hERG", None, None],
        ["Formatted ID", "Structure", *["IC50 (uM)", "Operator", "n"] * 2],
        *([n, s, micro(v), r or "=", 1, 30, ">", 1] for n, s, v, r in ROWS),
    ]
    return workbook(path / "dotmatics.xlsx", rows)


def two_rows(path):
    rows = [
        ["Molecule Name", "SMILES", "EGFR inhibition", None, None],
        [None, None, "IC50 (nM)", "IC50 Modifier", "Hill slope"],
        *([n, s, v, r or "=", 1.0] for n, s, v, r in ROWS),
    ]
    return workbook(path / "cdd.xlsx", rows)


def notebook(path):
    rows = [
        ["Experiment", "ELN-2024-0117"],
        ["Exported 2024-05-31 by a notebook"],
        [],
        ["Sample", "SMILES", "Qualifier", "IC50", "Inhibition at 10 uM", "Remark"],
        ["", "", "", "(µM)", "(%)", ""],
        *([n, s, r, micro(v), 50, "ok, repeated"] for n, s, v, r in ROWS),
    ]
    return write(path / "notebook.csv", rows)


def european(path):
    rows = [
        ["Compound ID", "SMILES", "qAC50 Mode", "qAC50 [µM]", "Hill"],
        *([n, s, r or "=", str(micro(v)).replace(".", ","), "1,05"] for n, s, v, r in ROWS),
    ]
    return write(path / "screener.csv", rows, ";")


def sd_file(path):
    blocks = []
    for name, smiles, value, sign in ROWS:
        mol = Chem.MolFromSmiles(smiles)
        block = Chem.MolToMolBlock(mol) if mol else "\n\n\nno molecule\nM  END\n"
        items = {"ID": name, "IC50": value, "IC50 Modifier": sign or "=", "IC50 Units": "nM"}
        texts = [f">  <{key}>\n{item}\n" for key, item in items.items()]
        blocks.append("\n".join([block.rstrip("\n"), *texts, "$$$$\n"]))
    (path / "export.sdf").write_text("".join(blocks))
    return path / "export.sdf"


def parquet(path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    names = ["SMILES", "accession", "relation", "standard_value", "units", "type_IC50"]
    rows = [(s, "P00533", r or "=", v, "nM", 1) for _, s, v, r in ROWS]
    pd.DataFrame(rows, columns=names).to_parquet(path / "knime.parquet")
    return path / "knime.parquet"


def delimited(file: str, header: str, cells: Callable[..., Any], separator: str = ",", **options):
    def make(path: Path) -> Path:
        return write(path / file, table(header, cells, separator), separator, **options)

    return make


def of(*names: str) -> Callable[..., Any]:
    """Return a function that fills columns with what the names after them say."""

    def cells(name: str, smiles: str, value: float, sign: str) -> dict[str, Any]:
        said = {
            "name": name, "smiles": smiles, "nM": value, "uM": micro(value), "sign": sign,
            "signed nM": f"{sign}{value}", "signed uM": f"{sign} {micro(value)}",
            "sign or =": sign or "=", "words": {">": "greater than", "<": "less than"}.get(sign),
        }  # fmt: skip
        return {key: said.get(how, how) for key, how in zip(names[::2], names[1::2], strict=True)}

    return cells


LIVE_DESIGN = "Compound Structure,ID,All IDs,Rationale,EGFR IC50 (uM)"
CDD = "Molecule Name,SMILES,Batch Name,Run Date,EGFR inhibition: IC50 (µM),EGFR inhibition: Comment"
DOTMATICS = "FORMATTED_ID,SMILES,BATCH,EGFR_IC50_OPERATOR,EGFR_IC50_UM,HERG_OPERATOR,HERG_IC50_UM"
BENCHLING = "Entity,SMILES,IC50,IC50 Units,Qualifier,Run,Operator Name"
ACTIVITY_BASE = "COMPOUND_ID\tSMILES\tPROTOCOL\tRESULT_TYPE\tPREFIX\tRESULT\tUNITS"
STARDROP = "title,Structure,Ki (nM),Ki (nM) Operator,logD"

# What makes the file, the column to learn, and what its values are called
EXPORTS = {
    "ChEMBL": (
        delimited("chembl.csv", CHEMBL, chembl, ";", quoting=csv.QUOTE_ALL),
        "Standard Value",
        "pIC50",
    ),
    "ChEMBL in three units": (
        delimited("chembl.csv", CHEMBL, chembl_in_several_units, ";", quoting=csv.QUOTE_ALL),
        "Standard Value",
        "pIC50",
    ),
    "ChEMBL web services": (
        delimited("chembl.csv", CHEMBL_API, chembl_api),
        "standard_value",
        "pIC50",
    ),
    "ChEMBL as published": (delimited("c.csv", CHEMBL_API, chembl_api), "value", "pIC50"),
    "BindingDB": (
        delimited(
            "bdb.tsv",
            BINDING_DB,
            of("Ligand SMILES", "smiles", "IC50 (nM)", "signed nM", "BindingDB MonomerID", "name"),
            "\t",
        ),
        "IC50 (nM)",
        "pIC50",
    ),
    "PubChem assay": (pubchem, "AC50", "pAC50"),
    "PubChem bioactivity": (
        delimited(
            "p.csv",
            PUBCHEM_BIOACTIVITY,
            of("smiles", "smiles", "acvalue", "uM", "acqualifier", "sign or =", "acname", "IC50",
               "cid", "name"),
        ),
        "acvalue",
        "pIC50",
    ),
    "PDSP Ki": (
        delimited(
            "kidb.csv",
            PDSP,
            of("SMILES", "smiles", "ki Val", "nM", "ki Note", "sign", "Ligand Name", "name"),
        ),
        "ki Val",
        "pki Val",
    ),
    "Guide to Pharmacology": (
        lambda path: write(
            path / "interactions.csv",
            [
                ["# GtoPdb Version: 2024.1 - published: 2024-03-26"],
                *table(
                    PHARMACOLOGY,
                    of("SMILES", "smiles", "Original Affinity Median nm", "nM", "Ligand", "name",
                       "Original Affinity Relation", "sign or =",
                       "Original Affinity Units", "IC50"),
                ),
            ],
        ),
        "Original Affinity Median nm",
        "pIC50",
    ),
    "CDD Vault": (
        delimited(
            "cdd.csv",
            CDD,
            of("Molecule Name", "name", "SMILES", "smiles",
               "EGFR inhibition: IC50 (µM)", "signed uM"),
        ),
        "EGFR inhibition: IC50 (µM)",
        "EGFR inhibition: pIC50",
    ),
    "CDD Vault, two rows of titles": (
        two_rows,
        "EGFR inhibition IC50 (nM)",
        "EGFR inhibition pIC50",
    ),
    "Dotmatics, merged titles": (
        dotmatics,
        "EGFR biochemical IC50 (uM)",
        "EGFR biochemical pIC50",
    ),
    "Dotmatics": (
        delimited(
            "dotmatics.csv",
            DOTMATICS,
            of("FORMATTED_ID", "name", "SMILES", "smiles", "EGFR_IC50_OPERATOR", "sign",
               "EGFR_IC50_UM", "uM", "HERG_OPERATOR", ">", "HERG_IC50_UM", "30"),
        ),
        "EGFR_IC50_UM",
        "EGFR_pIC50",
    ),
    "Benchling": (
        delimited(
            "benchling.csv",
            BENCHLING,
            of("Entity", "name", "SMILES", "smiles", "IC50", "uM", "IC50 Units", "µM",
               "Qualifier", "words", "Operator Name", "Ms Smith"),
        ),
        "IC50",
        "pIC50",
    ),
    "electronic notebook, units in a row": (notebook, "IC50", "pIC50"),
    "LiveDesign": (
        delimited(
            "ld.csv",
            LIVE_DESIGN,
            of("Compound Structure", "smiles", "ID", "name", "EGFR IC50 (uM)", "signed uM"),
        ),
        "EGFR IC50 (uM)",
        "EGFR pIC50",
    ),
    "Genedata Screener, decimal commas": (european, "qAC50 [µM]", "pqAC50"),
    "ActivityBase": (
        delimited(
            "ab.txt",
            ACTIVITY_BASE,
            of("COMPOUND_ID", "name", "SMILES", "smiles", "RESULT_TYPE", "IC50", "PREFIX", "sign",
               "RESULT", "nM", "UNITS", "nmol/L"),
            "\t",
        ),
        "RESULT",
        "pIC50",
    ),
    "SD file": (sd_file, "IC50", "pIC50"),
    "StarDrop": (
        delimited(
            "stardrop.csv",
            STARDROP,
            of("title", "name", "Structure", "smiles", "Ki (nM)", "nM", "Ki (nM) Operator", "sign"),
        ),
        "Ki (nM)",
        "pKi",
    ),
}  # fmt: skip


SETTINGS = TableSettings(split="random", model="process", progress=False)


def read(path: Path, column: str) -> tuple[CleanTable, TableSource]:
    clean = clean_table(path, None, [column])
    return clean, split_table(clean, SETTINGS)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("twin") / "plain.csv", PLAIN)
    clean, source = read(path, "y")
    model = train_table(clean, path.parent / "run", SETTINGS)
    return source, (model / "model.safetensors").read_bytes()


@pytest.mark.parametrize("program", EXPORTS)
def test_an_export_is_learned_from_as_its_plain_form(tmp_path, twin, program):
    """All that a model is made of is the same: molecules, their order, labels, bounds, parts."""
    make, column, name = EXPORTS[program]
    clean, source = read(make(tmp_path), column)
    plain, _ = twin
    assert clean.targets[0].name == name
    assert clean.canonical == plain.table.canonical
    np.testing.assert_array_equal(source.y, plain.y)
    np.testing.assert_array_equal(source.bounds, plain.bounds)
    assert source.parts == plain.parts
    assert source.config.tasks == (replace(plain.config.tasks[0], name=name),)
    for graph, expected in zip(source.graphs, plain.graphs, strict=True):
        for key in ("x", "edge_index", "edge_attr"):
            assert torch.equal(graph.get(key), expected.get(key))


@pytest.mark.parametrize("program", ["ChEMBL", "ChEMBL in three units", "SD file"])
def test_an_export_gives_the_model_of_its_plain_form(tmp_path, twin, program):
    make, column, _ = EXPORTS[program]
    model = train_table(clean_table(make(tmp_path), None, [column]), tmp_path / "run", SETTINGS)
    assert (model / "model.safetensors").read_bytes() == twin[1]


@pytest.fixture(scope="module")
def bundled():
    return gx.load("solubility")


@pytest.mark.parametrize("program", EXPORTS)
def test_every_row_of_an_export_has_an_answer_or_a_reason(tmp_path, program, bundled):
    make, column, _ = EXPORTS[program]
    path = make(tmp_path)
    clean = clean_table(path, None, [column])
    fates = [f for f in clean.findings if f.done in ("left out", "merged")]
    left_out = {row.row: row.reason for finding in fates for row in finding.rows}
    assert {*clean.rows, *left_out} == set(range(1, len(ROWS) + 1))
    assert set(left_out) == {25, 26, 27}
    assert all(left_out.values())

    done, rejected = io.StringIO(newline=""), io.StringIO(newline="")
    predict_table(bundled, path, done, rejected=rejected)
    separator = clean.file.dialect.separator
    answers, refused = (
        list(csv.DictReader(io.StringIO(text.getvalue().lstrip("\ufeff")), delimiter=separator))
        for text in (done, rejected)
    )
    assert [int(row["row"]) for row in answers] == list(range(1, 26))
    assert [int(row["row"]) for row in refused] == [26, 27]
    assert all(row["reason"] for row in refused)
    columns = [name for name in clean.file.columns if name in answers[0]]
    assert list(answers[0])[1 : 1 + len(clean.file.columns)] == list(clean.file.columns)
    assert [row[clean.file.structures.name] for row in answers] == [
        smiles for _, smiles, *_ in ROWS[:25]
    ]
    assert columns == list(clean.file.columns)
    names = clean.file.names_column
    if names is not None:
        assert [row[names] for row in answers] == [name for name, *_ in ROWS[:25]]
