"""What tests of several folders share: quick compilation by JAX, and one Dask cluster."""

import logging
import os
from importlib.metadata import PackageNotFoundError, version

import pytest
from _pytest.doctest import DoctestModule

# Tests run a program of JAX once or twice, mostly on few rows.
# Older code generators of XLA, which translate the same operations in a third of the time, and no
# optimisation by LLVM. XLA ends the process at a flag that it does not know, and flags come and go:
# they are set for a version that is known to have them, before anything imports JAX.
_QUICKLY = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
_KNOWN_BY = "0.10."


def _jaxlib():
    try:
        return version("jaxlib")
    except PackageNotFoundError:
        return ""


# Workers of a cluster are forks of a process that has imported Dask; read when that is imported.
os.environ["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "forkserver"
# Known by all versions; read when JAX is imported.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
if _jaxlib().startswith(_KNOWN_BY):
    os.environ["XLA_FLAGS"] = f"{_QUICKLY} {os.environ.get('XLA_FLAGS', '')}".strip()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Look for examples in the sources and on the pages, not in the tests: there are none."""
    collected = yield
    return [found for found in collected if not isinstance(found, DoctestModule)]


@pytest.fixture(scope="module")
def cluster():
    """Start two workers in processes of their own. Those that a test kills are started again."""
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    settings = {
        # A worker that wants something from a dead one tries for so long, by default 30 s.
        "distributed.comm.timeouts.connect": "10s",
        # So long after a death it is seen whether that worker is back. If it has been killed again
        # just then, a LocalCluster forgets it for ever.
        "distributed.deploy.lost-worker-timeout": "1h",
        # Workers look at their own stack a hundred times a second otherwise.
        "distributed.worker.profile.enabled": False,
    }
    with (
        dask.config.set(settings),
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
