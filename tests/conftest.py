"""Properties are drawn the same way everywhere: how slow a shared machine is says
nothing about them.
"""

import pytest
from hypothesis import HealthCheck, settings

from railx import effort

settings.register_profile("railx", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("railx")


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are those of a machine with 64 GiB, whatever runs the tests."""
    monkeypatch.setattr(effort, "machine_memory_bytes", lambda: 64.0 * 2**30)
