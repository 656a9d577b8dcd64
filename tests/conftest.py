"""Properties are drawn the same way everywhere: how slow a shared machine is says
nothing about them.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("railx", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("railx")
