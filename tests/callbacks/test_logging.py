"""Callbacks that log, against the real MLflow and the real event files."""

import copy
import math
import pickle
import struct

import numpy as np
import pytest
from small_fits import fitted, make_flow, make_gaussian, make_table, two_groups

from pickmix.callbacks import MLflowCallback, TensorBoardCallback

# EM accepts nothing, and flows alone have validation rows: what is not there is not logged.
NAMES = {"log_likelihood", "live_components", "epoch", "seconds", "evaluations"}
EXPECTED = [
    (make_gaussian, NAMES),
    (make_table, NAMES | {"acceptance"}),
    (make_flow, NAMES | {"acceptance", "validation"}),
]

rows = pytest.fixture(two_groups, scope="module")


def trace_of(mixture, name):
    trace = mixture.trace_
    return [(int(s), float(v)) for s, v in zip(trace["step"], trace[name], strict=True)]


# MLflow


# It brings thirty packages, so it is not among the locked requirements of tests. `make dist` logs
# a fit to it.
@pytest.fixture
def client(monkeypatch, tmp_path):
    """A store of files, which needs no more packages than the extra has."""
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    mlflow.set_experiment("fits")
    yield mlflow.MlflowClient()
    mlflow.end_run()
    mlflow.set_tracking_uri(before)


def history(client, run, name):
    values = client.get_metric_history(run.info.run_id, name)
    return sorted((metric.step, metric.value) for metric in values)


@pytest.mark.parametrize(("make", "names"), EXPECTED)
def test_metrics_and_parameters_go_to_the_active_run(client, make, names, rows):
    import mlflow

    with mlflow.start_run() as run:
        mixture = fitted(make, rows, callbacks=MLflowCallback())
    data = client.get_run(run.info.run_id).data
    assert set(data.metrics) == names
    for name in ("log_likelihood", "live_components"):
        assert history(client, run, name) == trace_of(mixture, name)
    assert data.params["estimator"] == type(mixture).__name__
    assert data.params["n_components"] == str(mixture.n_components)
    assert "callbacks" not in data.params


def test_starts_are_told_apart_and_prefixes_hold_fits_apart(client, rows):
    import mlflow

    with mlflow.start_run() as run:
        first = MLflowCallback(prefix="a/")
        fitted(make_gaussian, rows, n_init=2, callbacks=first)
        fitted(make_gaussian, rows, callbacks=MLflowCallback("b/", parameters=False))
    data = client.get_run(run.info.run_id).data
    expected = {f"{where}/{name}" for name in NAMES for where in ("a", "a/start_2", "b")}
    assert set(data.metrics) == expected
    assert all(name.startswith("a/") for name in data.params)
    for name in ("a/start_2/log_likelihood", "b/log_likelihood"):
        assert [step for step, _ in history(client, run, name)] == [1, 2, 3, 4, 5]
    # The same callback in another run begins anew, and so does a copy.
    assert repr(copy.deepcopy(first)) == repr(pickle.loads(pickle.dumps(first))) == repr(first)
    with mlflow.start_run() as other:
        fitted(make_gaussian, rows, callbacks=first)
    assert set(client.get_run(other.info.run_id).data.metrics) == {f"a/{name}" for name in NAMES}


def test_without_an_active_run_one_is_started(client, rows):
    import mlflow

    fitted(make_gaussian, rows, callbacks=MLflowCallback())
    run = mlflow.active_run()
    assert history(client, run, "epoch")


# TensorBoard


def scalars(folder):
    """What the event files right in a folder hold: {name: [(step, value), ...]}, and texts."""
    from tensorboardX.proto.event_pb2 import Event

    values, texts = {}, {}
    for file in sorted(folder.glob("events.*")):
        body, place = file.read_bytes(), 0
        while place < len(body):
            # A record is its length, a checksum, as many bytes, and another checksum.
            (length,) = struct.unpack_from("<Q", body, place)
            event = Event.FromString(body[place + 12 : place + 12 + length])
            place += 16 + length
            for value in event.summary.value:
                if value.HasField("tensor"):
                    texts[value.tag] = value.tensor.string_val[0].decode()
                else:
                    values.setdefault(value.tag, []).append((event.step, value.simple_value))
    return values, texts


@pytest.mark.parametrize(("make", "names"), EXPECTED)
def test_events_are_the_trace(make, names, rows, tmp_path):
    board = TensorBoardCallback(tmp_path)
    mixture = fitted(make, rows, callbacks=board)
    board.close()
    values, texts = scalars(tmp_path)
    for name in values:
        logged, traced = np.array(values[name]), np.array(trace_of(mixture, name))
        np.testing.assert_allclose(logged, traced, rtol=1e-6)
    assert set(values) == names
    (text,) = texts.values()
    assert f"estimator = {type(mixture).__name__}" in text
    assert f"n_components = {mixture.n_components}" in text


def test_each_start_is_a_run_of_its_own(rows, tmp_path):
    board = TensorBoardCallback(tmp_path)
    mixture = fitted(make_gaussian, rows, n_init=2, callbacks=board)
    board.close()
    lasts = []
    for folder in (tmp_path, tmp_path / "start_2"):
        steps, values = zip(*scalars(folder)[0]["log_likelihood"], strict=True)
        assert steps == (1, 2, 3, 4, 5)
        lasts.append(values[-1])
    assert max(lasts) == pytest.approx(mixture.lower_bound_, rel=1e-6)
    assert not math.isclose(*lasts)


def test_files_are_closed_with_the_callback(rows, tmp_path):
    # An open file that is forgotten would be a ResourceWarning, an error here.
    fitted(make_gaussian, rows, callbacks=TensorBoardCallback(tmp_path))
    assert scalars(tmp_path)[0]["epoch"]
