"""Draw a map of the molecules on which similar molecules lie side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

from graphxai.datasets.fingerprints import ecfp4_bits, packed, set_bits, tanimoto
from graphxai.tables.settings import SMOOTH

FEWEST = 5  # how many molecules a map needs
WIDTH = 1000  # the width of the map in its units
NEIGHBOURS = 10  # the map should keep as many as it can of these most similar molecules
PERPLEXITY = 15  # about this many neighbours pull at a molecule
STEPS = 300  # the steps of the descent, 250 of them with exaggerated pulls. More gain little
ANGLE = 0.8  # how coarsely distant molecules are lumped together


def similarity_map(molecules: Sequence[Chem.Mol]) -> dict[str, Any] | None:
    """Place molecules on a map by similarity, or return None for too few or too many of them.

    The map is made by t-SNE (van der Maaten 2008) from the Tanimoto distances of ECFP4. It starts
    at the principal coordinates (Gower 1966) with a fixed seed and runs in one thread, so that the
    same molecules give the same map.

    Returns:
        The places `x` and `y`, as integers from 0 to at most `WIDTH`, and `kept`, which says which
        share of each molecule's ten most similar molecules are among its ten nearest on the map.
    """
    if not FEWEST <= len(molecules) <= SMOOTH:
        return None  # its time and memory grow with the square of their number
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    bits = packed([ecfp4_bits(mol) for mol in molecules])
    sizes = set_bits(bits)
    rows = [1 - tanimoto(molecule, bits, sizes) for molecule in bits]
    distances = np.stack(rows).astype(np.float32)  # (n, n)
    with threadpool_limits(1):  # the sums of several threads would differ in their last digits
        embedding = TSNE(
            metric="precomputed",
            init=_principal_coordinates(distances),
            perplexity=min(PERPLEXITY, (len(molecules) - 1) / 3),
            max_iter=STEPS,
            angle=ANGLE,
            random_state=0,
            n_jobs=1,
        )
        places = embedding.fit_transform(distances)  # (n, 2)
    places -= places.min(axis=0)
    drawn = np.rint(places * WIDTH / (places.max() or 1.0)).astype(int)
    return {
        "x": drawn[:, 0].tolist(),
        "y": drawn[:, 1].tolist(),
        "kept": round(_kept(distances, places), 2),
    }


def _principal_coordinates(distances: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the first two principal coordinates (n, 2), scaled down to start t-SNE."""
    from scipy.sparse.linalg import eigsh

    centred = distances**2
    centred -= centred.mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    if not centred.any():  # all molecules are the same
        return np.zeros((len(centred), 2), dtype=np.float32)
    start = np.linspace(1, 2, len(centred), dtype=np.float32)  # a random start is the default
    values, vectors = eigsh(-centred / 2, 2, v0=start, tol=1e-4)
    coordinates = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0))
    return (1e-4 * coordinates / coordinates[:, 0].std()).astype(np.float32)


def _kept(distances: NDArray[np.float32], places: NDArray[np.float32]) -> float:
    """Return the share of the nearest neighbours that stay nearest neighbours."""
    from scipy.spatial import KDTree

    count = min(NEIGHBOURS, len(places) - 1)
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    similar = np.argpartition(others, count - 1)[:, :count]
    _, near = KDTree(places).query(places, count + 1)
    pairs = zip(similar.tolist(), near.tolist(), range(len(places)), strict=True)
    return float(np.mean([len({*a} & ({*b} - {molecule})) for a, b, molecule in pairs])) / count
