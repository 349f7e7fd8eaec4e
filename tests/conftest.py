"""Where the fixtures that everything uses are found."""

pytest_plugins = [
    "tests.fixtures.databases",
    "tests.fixtures.issuer",
    "tests.fixtures.pair",
    "tests.fixtures.processes",
    "tests.fixtures.aimock",
]
