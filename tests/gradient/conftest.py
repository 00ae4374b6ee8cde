"""What the gradient engine's tests share."""

import pytest
from small_models import NETWORKS
from step_inputs import Program

from pickmix.gradient.settings import StepSettings


@pytest.fixture(scope="session")
def programs():
    """Compiled chunks by model and options, each made when it is first asked for."""

    class Programs(dict):
        def __call__(self, name, **options):
            key = (name, *sorted(options.items()))
            if key not in self:
                self[key] = Program(NETWORKS[name], StepSettings(**options))
            return self[key]

    return Programs()
