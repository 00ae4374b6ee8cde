import pytest

from pickmix.kernels import numba_kernels, numpy_kernels


@pytest.fixture(params=["arrays", "compiled"])
def backend(request):
    return numpy_kernels if request.param == "arrays" else numba_kernels
