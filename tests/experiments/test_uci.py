"""The UCI sets: which rows and columns come out, and where the files come from."""

import functools
import hashlib
import http.server
import os
import threading

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from pickmix_experiments import uci

DATA = os.environ.get("PICKMIX_DATA")
needs_data = pytest.mark.skipif(
    DATA is None, reason="PICKMIX_DATA does not name a folder of data sets"
)

# Columns with "paper" and with "clean" and seed 0, where they are not all.
KEPT = {"ecoli": (6, 6), "ionosphere": (33, 32)}


@pytest.fixture(autouse=True)
def nothing_outside(monkeypatch, tmp_path):
    """Keep every test off the real network, home and cache."""
    monkeypatch.delenv("PICKMIX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    # Nobody listens on this port.
    monkeypatch.setattr(uci, "_BASE_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setattr(uci, "_TIMEOUT_SECONDS", 5.0)


def write(folder, normal, easy, name="iris"):
    place = folder / "loda" / name
    place.mkdir(parents=True, exist_ok=True)
    # The digits of 17 places read back to the same number.
    np.savetxt(place / "normal.txt", normal, fmt="%.17g")
    np.savetxt(place / "easy.txt", easy, fmt="%.17g")
    return folder


def made_up(N, D=3):
    """Return normal and easy rows; the first column of the normal ones is the row's number."""
    rng = np.random.default_rng(8)
    normal, easy = rng.normal(size=(N, D)), rng.normal(2.0, 3.0, size=(N // 2, D))
    normal[:, 0] = np.arange(N)
    return normal, easy


def row_numbers(split):
    """Undo the standardisation of the first column of `made_up`: row numbers of the three parts."""
    parts = [split.train[:, 0], split.validation[:, 0], split.test[:, 0]]
    values = np.concatenate(parts)
    # N values with equal steps are 0 to N - 1, shifted and scaled: every row is there, and once.
    steps = np.diff(np.sort(values))
    np.testing.assert_allclose(steps, steps.mean(), rtol=1e-9)
    assert steps.mean() > 0
    return [np.rint((part - values.min()) / steps.mean()).astype(int).tolist() for part in parts]


def test_names():
    assert list(uci.NAMES) == sorted(uci.SIZES)
    assert set(uci.SHA256) == {f"{n}/{kind}.txt" for n in uci.SIZES for kind in ("normal", "easy")}


@pytest.mark.parametrize("N", [5, 6, 100, 107])
def test_parts_are_64_16_and_20_percent_and_hold_every_row_once(tmp_path, N):
    sizes = {5: (3, 1, 1), 6: (4, 1, 1), 100: (64, 16, 20), 107: (68, 18, 21)}[N]
    split = uci.load("iris", "paper", folder=write(tmp_path, *made_up(N)))
    assert (split.name, split.protocol) == ("iris", "paper")
    parts = (split.train, split.validation, split.test)
    assert tuple(part.shape for part in parts) == tuple((size, 3) for size in sizes)
    assert sorted(np.concatenate(row_numbers(split))) == list(range(N))


def test_seed_says_which_rows_whatever_the_protocol(tmp_path):
    folder = write(tmp_path, *made_up(10))

    def rows(protocol, seed):
        return row_numbers(uci.load("iris", protocol, random_state=seed, folder=folder))

    # Written down: should NumPy's stream change, results with these splits change too.
    assert rows("clean", 0) == rows("paper", 0) == [[4, 6, 2, 7, 3, 5], [9, 0], [8, 1]]
    assert rows("clean", 1) == rows("paper", np.int64(1)) != rows("clean", 0)


def test_paper_scales_by_normal_and_easy_rows_and_drops_constant_columns(tmp_path):
    normal, easy = made_up(40, 5)
    wiggle = np.where(np.arange(40) % 2 == 0, 1.0, -1.0)
    normal[:, 1] = 3.0  # the easy rows vary
    normal[:, 2], easy[:, 2] = 1e-7 * wiggle, 0.0
    normal[:, 3], easy[:, 3] = 1e-5 * wiggle, 0.0
    folder = write(tmp_path, normal, easy)
    split, clean = uci.load("iris", "paper", folder=folder), uci.load("iris", folder=folder)
    assert clean.train.shape[1] == 3
    kept = [0, 1, 3, 4]
    expected = StandardScaler().fit(np.vstack([normal, easy])[:, kept]).transform(normal[:, kept])
    for part, numbers in zip(
        (split.train, split.validation, split.test), row_numbers(split), strict=True
    ):
        np.testing.assert_allclose(part, expected[numbers], rtol=1e-10, atol=1e-12)


def test_clean_looks_at_training_rows_only(tmp_path):
    normal, easy = made_up(50, 4)
    normal[:, 3] = 7.0
    before = uci.load("iris", folder=write(tmp_path, normal, easy))
    assert before.train.shape == (32, 3)
    train, validation, test = row_numbers(before)

    changed = 100.0 * normal
    changed[train] = normal[train]
    # Constant in training rows, though not elsewhere.
    changed[validation, 3] = np.arange(len(validation))
    after = uci.load("iris", folder=write(tmp_path, changed, easy[:3] - 40.0))
    np.testing.assert_array_equal(after.train, before.train)
    mean, scale = normal[train, :3].mean(axis=0), normal[train, :3].std(axis=0)
    np.testing.assert_allclose(after.test, (changed[test, :3] - mean) / scale, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "irises"}, "name must be one of breast-cancer-wisconsin, .*; got 'irises'"),
        ({"protocol": "dirty"}, "protocol must be one of clean, paper; got 'dirty'"),
        ({"random_state": -1}, "random_state must be an integer >= 0; got -1"),
        ({"random_state": 1.0}, r"random_state must be an integer >= 0; got 1\.0"),
    ],
)
def test_bad_arguments_are_named(tmp_path, arguments, message):
    folder = write(tmp_path, *made_up(20))
    with pytest.raises(ValueError, match=message):
        uci.load(**{"name": "iris", "folder": folder} | arguments)


def test_bad_files_are_named(tmp_path):
    normal, easy = made_up(20)
    with pytest.raises(ValueError, match=r"in easy\.txt as in normal\.txt, 3, got 2"):
        uci.load("iris", folder=write(tmp_path, normal, easy[:, :2]))
    with pytest.raises(ValueError, match="iris: expected at least 5 normal rows to split, got 4"):
        uci.load("iris", folder=write(tmp_path, normal[:4], easy))
    with pytest.raises(ValueError, match="expected a column that is not constant, got 3 that are"):
        uci.load("iris", folder=write(tmp_path, np.ones((20, 3)), easy))
    easy[4, 1] = np.nan
    with pytest.raises(ValueError, match=r"easy\.txt: .* got nan in row 4 and column 1"):
        uci.load("iris", folder=write(tmp_path, normal, easy))


@pytest.fixture
def server(monkeypatch, tmp_path):
    """Serve tmp_path/served in place of GitHub; yield the list of the paths asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *arguments):
            pass

    handler = functools.partial(Handler, directory=str(tmp_path / "served"))
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(uci, "_BASE_ADDRESS", f"http://127.0.0.1:{running.server_port}")
        yield asked
        running.shutdown()
        thread.join()


def serve(monkeypatch, tmp_path, normal, easy):
    """Put a set where the server looks, and its checksums where the module looks."""
    place = write(tmp_path / "served", normal, easy) / "loda" / "iris"
    for file in ("normal.txt", "easy.txt"):
        digest = hashlib.sha256((place / file).read_bytes()).hexdigest()
        monkeypatch.setitem(uci.SHA256, f"iris/{file}", digest)
    return place


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


BOTH = ["/loda/iris/normal.txt", "/loda/iris/easy.txt"]


def test_download_is_kept_not_repeated_and_mended(monkeypatch, tmp_path, server):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    normal, easy = made_up(20)
    serve(monkeypatch, tmp_path, normal, easy)
    for _ in range(2):
        found = uci.read("iris")
        np.testing.assert_array_equal(found[0], normal)
        np.testing.assert_array_equal(found[1], easy)
        assert server == BOTH
    kept = tmp_path / "home" / ".cache" / "pickmix" / "loda" / "iris"
    assert files_in(tmp_path / "home") == files_in(kept) == ["easy.txt", "normal.txt"]
    with open(kept / "easy.txt", "r+") as file:
        file.truncate(40)
    np.testing.assert_array_equal(uci.read("iris")[1], easy)
    assert server == [*BOTH, BOTH[1]]


@pytest.mark.parametrize("file", ["normal.txt", "easy.txt"])
def test_wrong_checksum_is_refused(monkeypatch, tmp_path, server, file):
    place = serve(monkeypatch, tmp_path, *made_up(20))
    with open(place / file, "a") as other:
        other.write("1 2 3\n")
    with pytest.raises(
        FileNotFoundError, match=rf"/iris/{file}: expected SHA-256 [0-9a-f]{{64}}, "
    ):
        uci.read("iris")
    assert file not in files_in(tmp_path / "cache")


def test_offline_error_says_what_was_tried_and_what_to_do(monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match="PICKMIX_DATA is not set"):
        uci.load("iris")
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(FileNotFoundError) as caught:
        uci.load("iris")
    message = str(caught.value)
    assert message.startswith("iris: found its files nowhere.")
    assert f"PICKMIX_DATA: no file {tmp_path}/elsewhere/loda/iris/normal.txt" in message
    assert f"cache: no file {tmp_path}/cache/pickmix/loda/iris/easy.txt" in message
    assert "download: http://127.0.0.1:9/loda/iris/normal.txt: " in message
    assert "from http://127.0.0.1:9/loda/iris/ in a folder <data>/loda/iris and set" in message


def test_places_are_looked_at_in_order(monkeypatch, tmp_path, server):
    normal, easy = made_up(20)
    serve(monkeypatch, tmp_path, normal, easy)
    named, given = tmp_path / "named", tmp_path / "given"
    monkeypatch.setenv("PICKMIX_DATA", str(named))
    # A set that PICKMIX_DATA lacks, or holds half of, comes from further on.
    write(named, normal + 1, easy)
    (named / "loda" / "iris" / "easy.txt").unlink()
    np.testing.assert_array_equal(uci.read("iris")[0], normal)
    write(named, normal + 1, easy)
    np.testing.assert_array_equal(uci.read("iris")[0], normal + 1)
    # A folder that was asked for is the only one.
    with pytest.raises(FileNotFoundError, match=rf"{given}/loda/iris/normal\.txt: expected a file"):
        uci.read("iris", given)
    write(given, normal + 2, easy)
    np.testing.assert_array_equal(uci.read("iris", str(given))[0], normal + 2)
    assert server == BOTH


@needs_data
@pytest.mark.parametrize("name", ["ecoli", "ionosphere", "iris"])
def test_real_set(monkeypatch, name):
    monkeypatch.setenv("PICKMIX_DATA", DATA)
    clean, paper = uci.load(name), uci.load(name, "paper")
    N, D = uci.SIZES[name]
    D_paper, D_clean = KEPT.get(name, (D, D))
    for split, D in ((paper, D_paper), (clean, D_clean)):
        parts = (split.train, split.validation, split.test)
        assert all(part.shape[1] == D and np.isfinite(part).all() for part in parts)
        assert sum(part.shape[0] for part in parts) == N
        np.testing.assert_allclose(
            [part.shape[0] for part in parts], [0.64 * N, 0.16 * N, 0.2 * N], atol=1
        )
    np.testing.assert_allclose(clean.train.std(axis=0), 1.0, rtol=1e-9)
    for file in ("normal.txt", "easy.txt"):
        with open(os.path.join(DATA, "loda", name, file), "rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        assert digest == uci.SHA256[f"{name}/{file}"]
