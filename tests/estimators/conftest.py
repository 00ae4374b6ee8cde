"""A small cluster that all tests of a process share: its workers take seconds to start."""

import logging

import pytest


@pytest.fixture(scope="session")
def cluster():
    """Two workers in processes of their own. Those that a test kills are started again."""
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    quick = {
        "distributed.comm.timeouts.connect": "3s",
        "distributed.deploy.lost-worker-timeout": "1h",
    }
    with (
        dask.config.set(quick),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            protocol="tcp",
            silence_logs=logging.CRITICAL + 1,
        ) as cluster,
    ):
        yield cluster
