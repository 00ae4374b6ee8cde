"""Tables that are larger than the part of them that comes into memory, at a small scale."""

import contextlib

from pickmix.estimators import fit_rows


@contextlib.contextmanager
def small_samples(n_bytes):
    """Let samples of tables take so many bytes, instead of a gigabyte."""
    before, fit_rows._SAMPLE_BYTES = fit_rows._SAMPLE_BYTES, n_bytes
    try:
        yield
    finally:
        fit_rows._SAMPLE_BYTES = before
