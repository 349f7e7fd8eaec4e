"""The script behind `make spec` counts what it should count."""

from scripts.spec_coverage import SPEC, marks, rules

SAMPLE = """# Title
## 1 First
1. A rule
   on two lines. (planned)
2. Another.

## 2 Second
One rule without a number.
"""


def test_rules_are_found_with_their_whole_text() -> None:
    assert rules(SAMPLE) == {
        "1.1": "A rule\n   on two lines. (planned)",
        "1.2": "Another.",
        "2.1": "One rule without a number.",
    }


def test_only_real_marks_count() -> None:
    source = 'import pytest\n# @pytest.mark.spec("1.1")\n@pytest.mark.spec("1.2", "2.1")\ndef test() -> None: ...\n'
    assert marks(source) == ["1.2", "2.1"]


def test_each_section_of_the_rules_is_read() -> None:
    sections = {rule.split(".")[0] for rule in rules(SPEC.read_text())}
    assert sections == {str(number) for number in range(1, 12)}
