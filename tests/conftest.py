"""Where the fixtures that everything uses are found."""

from hypothesis import HealthCheck, settings

# A fresh checkout on a busy machine is no fault of a property.
settings.register_profile("turnkeeper", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("turnkeeper")

pytest_plugins = [
    "tests.fixtures.databases",
    "tests.fixtures.issuer",
    "tests.fixtures.pair",
    "tests.fixtures.processes",
    "tests.fixtures.aimock",
]
