"""Errors about molecules."""


class MoleculeError(ValueError):
    """A molecule cannot become a graph. The message says which, why, and what to do."""


class MixtureError(MoleculeError):
    """A molecule is a mixture of several compounds, none of which is a counter-ion."""
