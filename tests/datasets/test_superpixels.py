"""Digits become graphs of superpixels, from IDX files and pictures."""

import gzip
import math
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch_geometric.data import Batch, Data
from torch_geometric.utils import contains_self_loops, is_undirected

from graphxai.datasets.mnist import Deformation, IdxError, deform, load_mnist, read_digit, read_idx
from graphxai.datasets.superpixels import (
    SuperpixelError,
    from_mnist_superpixels,
    image_to_data,
    images_to_data,
    region_adjacency,
    segment,
)
from graphxai.runtime.download import DownloadError


@pytest.fixture
def digits(mnist_digits: np.ndarray) -> np.ndarray:
    return mnist_digits


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


# --- segmentation -----------------------------------------------------------------------------


def test_a_digit_has_about_75_superpixels(digits: np.ndarray) -> None:
    counts = [image_to_data(image).num_nodes for image in digits]
    assert 72 <= np.mean(counts) <= 78
    assert min(counts) >= 60
    assert max(counts) <= 90


def test_segments_are_connected_and_numbered_without_gaps(digits: np.ndarray) -> None:
    from skimage.measure import label

    for image in digits[::10]:
        ids = segment(image)
        assert np.array_equal(np.unique(ids), np.arange(ids.max() + 1))
        for i in range(ids.max() + 1):
            assert label(ids == i, connectivity=1).max() == 1


def test_features_are_mean_intensity_and_centroid(digits: np.ndarray) -> None:
    image = digits[37]
    data = image_to_data(image, y=3)
    ids = data.segments[0].numpy()
    for i in range(data.num_nodes):
        rows, columns = np.nonzero(ids == i)
        assert data.x[i, 0] == pytest.approx((image[ids == i] / 255).mean(), abs=1e-6)
        assert data.pos[i, 0] == pytest.approx((columns.mean() + 0.5) / 28, abs=1e-6)
        assert data.pos[i, 1] == pytest.approx((rows.mean() + 0.5) / 28, abs=1e-6)
    assert torch.equal(data.y, torch.tensor([3]))
    assert np.allclose(data.image[0].numpy(), image / 255)


def test_edges_join_segments_that_touch(digits: np.ndarray) -> None:
    data = image_to_data(digits[12])
    ids = data.segments[0].numpy()
    expected = set()
    for r in range(28):
        for c in range(28):
            for r2, c2 in ((r + 1, c), (r, c + 1)):
                if r2 < 28 and c2 < 28 and ids[r, c] != ids[r2, c2]:
                    expected |= {(ids[r, c], ids[r2, c2]), (ids[r2, c2], ids[r, c])}
    assert set(map(tuple, data.edge_index.T.tolist())) == expected
    assert is_undirected(data.edge_index)
    assert not contains_self_loops(data.edge_index)


def test_segments_follow_the_strokes_better_than_a_regular_grid(digits: np.ndarray) -> None:
    def error(image: np.ndarray, ids: np.ndarray) -> float:
        flat, grey = ids.ravel(), image.ravel() / 255
        mean = np.bincount(flat, grey) / np.bincount(flat)
        return float(np.abs(mean[flat] - grey).mean())

    rows, columns = np.divmod(np.arange(784), 28)
    grid = ((rows // 3) * 10 + columns // 3).reshape(28, 28)
    grid = np.unique(grid, return_inverse=True)[1].reshape(28, 28)  # 100 squares
    ours = np.mean([error(image, segment(image)) for image in digits])
    assert ours < 0.8 * np.mean([error(image, grid) for image in digits])


def test_batches_stack_segmentations(digits: np.ndarray) -> None:
    batch = Batch.from_data_list(list(images_to_data(digits[:3], [0, 1, 2])))
    assert batch.segments.shape == (3, 28, 28)
    assert batch.image.shape == (3, 28, 28)
    assert int(batch.segments.min()) == 0  # ids count within each graph


def test_segmentation_is_deterministic_and_fast(digits: np.ndarray) -> None:
    start = time.process_time()
    first = list(images_to_data(digits))
    assert (time.process_time() - start) / len(digits) < 0.05
    again = image_to_data(digits[5])
    assert torch.equal(first[5].segments, again.segments)
    assert torch.equal(first[5].edge_index, again.edge_index)


@pytest.mark.parametrize("shape", [(28, 28), (10, 40), (64, 64), (2, 2)])
def test_other_sizes_and_blank_images_work(shape: tuple[int, int]) -> None:
    data = image_to_data(np.zeros(shape), segments=20)
    assert data.num_nodes >= 1
    assert data.x.abs().max() == 0
    assert data.pos.min() > 0
    assert data.pos.max() < 1


def test_one_segment_has_no_edges() -> None:
    assert region_adjacency(np.zeros((4, 4), dtype=np.int64)).shape == (2, 0)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((3, 28, 28)), "shape"),
        (np.zeros((28, 1)), "shape"),
        (np.full((28, 28), np.nan), "finite"),
        (np.full((28, 28), 7.0), "uint8"),
        (np.full((28, 28), -0.1), "expected"),
        (np.zeros((2, 3000)), "2048"),
        ([["a", "b"], ["c", "d"]], "numeric"),
    ],
)
def test_bad_images_are_refused_with_a_reason(image: object, words: str) -> None:
    with pytest.raises(SuperpixelError, match=words):
        image_to_data(image)  # type: ignore[arg-type]


def test_a_bad_image_among_many_is_named(digits: np.ndarray) -> None:
    images = np.stack([digits[0] / 255, np.full((28, 28), np.inf)])
    with pytest.raises(SuperpixelError, match="image 1"):
        list(images_to_data(images))


# --- Monti's superpixels ----------------------------------------------------------------------


def test_graphs_of_monti_are_converted() -> None:
    pixels = torch.tensor([[0.0, 0.0], [27.0, 13.5]])
    monti = Data(x=torch.tensor([[0.0], [1.0]]), pos=pixels, y=torch.tensor([4]))
    monti.edge_index = torch.tensor([[0, 1], [1, 0]])
    data = from_mnist_superpixels(monti)
    expected = torch.tensor([[0.5 / 28, 0.5 / 28], [27.5 / 28, 0.5]])
    assert torch.allclose(data.pos, expected)
    assert data.y.tolist() == [4]
    assert "segments" not in data


def test_graphs_that_are_not_superpixels_are_refused() -> None:
    with pytest.raises(SuperpixelError, match="pos"):
        from_mnist_superpixels(Data(x=torch.zeros(2, 1), edge_index=torch.zeros(2, 0).long()))
    with pytest.raises(SuperpixelError, match="pixels"):
        from_mnist_superpixels(
            Data(x=torch.zeros(1, 1), pos=torch.tensor([[99.0, 0]]), edge_index=torch.zeros(2, 0))
        )


# --- IDX files --------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files_are_read(tmp_path: Path, compressed: bool) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = idx_bytes(array)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content) if compressed else content)
    assert np.array_equal(read_idx(path), array)


GOOD = idx_bytes(np.zeros((2, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an IDX file"),
        (b"\x89PNG\r\n", "not an IDX file"),
        (b"\x00\x00\x0d\x01" + bytes(8), "type 0x0d"),
        (b"\x00\x00\x08\xff" + bytes(2000), "255 dimensions"),
        (GOOD[:7], "header"),
        (GOOD[:-1], "truncated"),
        (GOOD + b"x", "more data"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, "claims"),
        (b"\x00\x00\x08\x01" + bytes(4), "claims"),
        (gzip.compress(GOOD, mtime=0)[:-9], "gzip"),  # one name in all test processes
        (b"\x1f\x8b" + b"\x07" * 30, "gzip"),
    ],
)
def test_hostile_idx_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "hostile-ubyte"
    path.write_bytes(content)
    with pytest.raises(IdxError, match=words) as error:
        read_idx(path)
    assert "hostile-ubyte" in str(error.value)


def test_a_gzip_bomb_is_not_expanded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(GOOD + bytes(50_000_000)))
    start = time.process_time()
    with pytest.raises(IdxError, match="more data"):
        read_idx(path)
    assert time.process_time() - start < 1


# --- MNIST ------------------------------------------------------------------------------------


def write_mnist(folder: Path, prefix: str, images: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        path = folder / f"{prefix}-{kind}-ubyte.gz"
        path.write_bytes(gzip.compress(idx_bytes(array), compresslevel=1))


def test_mnist_is_found_in_a_local_folder(tmp_path: Path, digits: np.ndarray) -> None:
    labels = np.repeat(np.arange(10, dtype=np.uint8), 10)
    write_mnist(tmp_path / "mnist", "train10k", digits, labels)
    images, classes = load_mnist(tmp_path, limit=30, download=False)
    assert np.array_equal(images, digits[:30])
    assert np.array_equal(classes, labels[:30])
    with pytest.raises(DownloadError, match="t10k-images"):
        load_mnist(tmp_path, "test", download=False)


def test_mnist_follows_the_environment_variable(
    tmp_path: Path, digits: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "mnist", "t10k", digits, np.zeros(100, dtype=np.uint8))
    monkeypatch.setenv("GRAPHXAI_DATA", str(tmp_path))
    assert len(load_mnist(split="test", download=False)[0]) == 100


def test_mnist_files_that_do_not_belong_together_are_refused(
    tmp_path: Path, digits: np.ndarray
) -> None:
    write_mnist(tmp_path, "t10k", digits, np.zeros(99, dtype=np.uint8))
    with pytest.raises(SuperpixelError, match="100 images"):
        load_mnist(tmp_path, "test", download=False)
    write_mnist(tmp_path, "t10k", digits, np.full(100, 10, dtype=np.uint8))
    with pytest.raises(SuperpixelError, match="digits are 0 to 9"):
        load_mnist(tmp_path, "test", download=False)
    with pytest.raises(SuperpixelError, match="split"):
        load_mnist(tmp_path, "validation", download=False)  # type: ignore[arg-type]


def test_the_official_test_set_is_read(mnist_folder: Path) -> None:
    images, labels = load_mnist(mnist_folder, "test", download=False)
    assert images.shape == (10_000, 28, 28)
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


# --- a picture of a digit ---------------------------------------------------------------------


@pytest.fixture
def seven(digits: np.ndarray) -> np.ndarray:
    return digits[75]


def save(path: Path, array: np.ndarray, mode: str | None = None) -> Path:
    picture = Image.fromarray(array)
    (picture.convert(mode) if mode else picture).save(path)
    return path


def test_an_mnist_image_is_returned_unchanged(tmp_path: Path, digits: np.ndarray) -> None:
    for image in digits[::9]:
        assert np.allclose(read_digit(save(tmp_path / "d.png", image)), image / 255)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA"])
def test_ink_on_paper_of_any_size_becomes_an_mnist_digit(
    tmp_path: Path, seven: np.ndarray, mode: str
) -> None:
    large = np.kron(255 - seven, np.ones((9, 9), dtype=np.uint8))
    page = np.full((420, 300), 255, dtype=np.uint8)  # the digit is off-centre on a tall page
    page[150 : 150 + 252, 20 : 20 + 252] = large
    digit = read_digit(save(tmp_path / "d.png", page, mode))
    assert digit.shape == (28, 28)
    assert np.corrcoef(digit.ravel(), seven.ravel())[0, 1] > 0.95


def test_transparent_paper_is_white(tmp_path: Path, seven: np.ndarray) -> None:
    rgba = np.zeros((28, 28, 4), dtype=np.uint8)  # black ink, alpha = amount of ink
    rgba[..., 3] = seven
    digit = read_digit(save(tmp_path / "d.png", rgba))
    assert np.corrcoef(digit.ravel(), seven.ravel())[0, 1] > 0.95


def test_sixteen_bit_and_two_tone_pictures_work(tmp_path: Path, seven: np.ndarray) -> None:
    deep = read_digit(save(tmp_path / "d.png", seven.astype(np.uint16) * 257))
    assert np.allclose(deep, seven / 255, atol=1e-3)
    two_tone = read_digit(save(tmp_path / "b.png", (seven > 100).astype(np.uint8) * 255, "1"))
    assert np.corrcoef(two_tone.ravel(), seven.ravel())[0, 1] > 0.8


def test_the_digit_is_boxed_and_centred(tmp_path: Path) -> None:
    page = np.zeros((100, 100), dtype=np.uint8)
    page[10:60, 70:80] = 200  # a one, far from the centre
    digit = read_digit(save(tmp_path / "d.png", page))
    rows, columns = np.nonzero(digit)
    assert rows.max() - rows.min() + 1 == 20
    mass = digit.sum()
    assert abs((digit.sum(1) @ np.arange(28)) / mass - 14) <= 0.5
    assert abs((digit.sum(0) @ np.arange(28)) / mass - 14) <= 0.5
    assert digit.max() == 1
    assert columns.max() - columns.min() + 1 == 4


def png_that_claims(width: int, height: int) -> bytes:
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(100)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [5_000, 12_000, 100_000])
def test_decompression_bombs_are_refused(tmp_path: Path, side: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_that_claims(side, side))
    with pytest.raises(SuperpixelError, match="pixels") as error:
        read_digit(path)
    assert "bomb.png" in str(error.value)


def test_damaged_pictures_are_refused(tmp_path: Path, seven: np.ndarray) -> None:
    whole = save(tmp_path / "d.png", seven).read_bytes()
    for content, words in [
        (b"", "not a readable picture"),
        (b"P5 28 28 255\n" + bytes(784), "not a readable picture"),
        (whole[: len(whole) // 2], "damaged"),
        (png_that_claims(28, 28), "damaged|single colour"),
        (png_that_claims(1, 900), "too small for a digit"),
    ]:
        path = tmp_path / "bad.png"
        path.write_bytes(content)
        with pytest.raises(SuperpixelError, match=words):
            read_digit(path)


@pytest.mark.parametrize("value", [0, 128, 255])
def test_an_empty_page_is_refused(tmp_path: Path, value: int) -> None:
    with pytest.raises(SuperpixelError, match="single colour"):
        read_digit(save(tmp_path / "d.png", np.full((50, 50), value, dtype=np.uint8)))


def test_a_missing_picture_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_digit(tmp_path / "none.png")


# --- deformations -----------------------------------------------------------------------------


def test_a_deformation_of_nothing_changes_nothing(digits: np.ndarray) -> None:
    images = torch.from_numpy(digits[:4]).float() / 255
    same = deform(images, torch.Generator(), Deformation(0, 0, 0, 0, 0))
    assert torch.allclose(same, images, atol=1e-4)


def test_deformations_repeat_with_the_seed_and_differ_otherwise(digits: np.ndarray) -> None:
    images = torch.from_numpy(digits[:4]).float() / 255
    first, again, other = (deform(images, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=0.1)
    assert first.min() >= 0
    assert first.max() <= 1


def test_rotation_keeps_the_centre_and_the_amount_of_ink(digits: np.ndarray) -> None:
    images = torch.zeros(8, 28, 28)
    images[:, 13:15, 4:24] = 1.0  # a bar through the centre
    turned = deform(images, torch.Generator().manual_seed(0), Deformation(40, 0, 0, 0, 0))
    assert torch.allclose(turned.sum((1, 2)), images.sum((1, 2)), rtol=0.1)
    assert torch.all(turned[:, 13:15, 13:15] > 0.5)
    assert math.isclose(float(turned.flip(1, 2).sub(turned).abs().mean()), 0, abs_tol=1e-3)
