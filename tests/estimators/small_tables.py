"""Tables that are larger than the part of them that comes into memory, at a small scale."""

import contextlib

from pickmix.estimators import large


@contextlib.contextmanager
def small_samples(n_bytes):
    """Let samples of tables take so many bytes, instead of a gigabyte."""
    before, large._SAMPLE_BYTES = large._SAMPLE_BYTES, n_bytes
    try:
        yield
    finally:
        large._SAMPLE_BYTES = before
