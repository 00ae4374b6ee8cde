import pytest

from pickmix.selection.arrays import ArrayOperations
from pickmix.selection.compiled_operations import CompiledOperations
from pickmix.threads import Threads


@pytest.fixture(params=["arrays", "compiled"])
def operations(request):
    return ArrayOperations() if request.param == "arrays" else CompiledOperations(Threads())
