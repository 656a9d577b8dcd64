"""Properties draw the same examples in every run, whatever the speed of the machine.

A change fails for what it changes. `pytest --hypothesis-profile=random` draws others.
"""

import pytest
from hypothesis import HealthCheck, settings

from railx import effort

settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("railx", settings.get_profile("random"), derandomize=True)
settings.load_profile("railx")


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are those of a machine with 64 GiB, whatever runs the tests."""
    monkeypatch.setattr(effort, "machine_memory_bytes", lambda: 64.0 * 2**30)
