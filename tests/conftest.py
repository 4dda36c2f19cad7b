"""For all tests: hypothesis does not judge how fast the machine is, which others may keep busy."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "shared-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("shared-machine")
