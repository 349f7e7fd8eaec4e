"""Lists the rules of protos/SPEC.md that no test is marked with, for example `@pytest.mark.spec("4.5")`.

`spec_coverage.py [SECTION ...]`: exits 1 when a served rule of these sections (all, when none is named) has no test, or
when a mark names no rule. Rules that end with "(planned)" are not served yet and are listed apart.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from pathlib import Path

SPEC = Path("protos/SPEC.md")
TESTS = Path("tests")
PLANNED = "(planned)"


def rules(spec: str) -> dict[str, str]:
    """The rules by their number, "section.rule"; a section without numbered rules is its own rule 1."""
    found: dict[str, str] = {}
    for section in re.split(r"(?m)^## ", spec)[1:]:
        heading, _, body = section.partition("\n")
        number = heading.split(" ", 1)[0]
        parts = re.split(r"(?m)^(\d+)\. ", body)
        numbered = dict(zip(parts[1::2], parts[2::2], strict=True)) or {"1": body}
        found |= {f"{number}.{rule}": text.strip() for rule, text in numbered.items()}
    return found


def marks(source: str) -> list[str]:
    """The rules that a test module's marks name, read from its syntax tree: a comment is no mark."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [argument for call in calls if ast.unparse(call.func) == "pytest.mark.spec" for argument in call.args]
    return [node.value for node in named if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def main() -> None:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="for example 1 2 5")
    sections = set(parser.parse_args().sections)
    all_rules = rules(SPEC.read_text())
    tested = Counter(mark for path in sorted(TESTS.rglob("test_*.py")) for mark in marks(path.read_text()))
    unknown = sorted(tested.keys() - all_rules.keys())
    chosen = {rule: text for rule, text in all_rules.items() if not sections or rule.split(".")[0] in sections}
    untested = {rule: text for rule, text in chosen.items() if not tested[rule]}
    missing = {rule: text for rule, text in untested.items() if not text.endswith(PLANNED)}
    planned = {rule: text for rule, text in untested.items() if text.endswith(PLANNED)}
    for title, group in (("Planned, without a test:", planned), ("Served, without a test:", missing)):
        if group:
            print(title, *(f"{rule:>6}  {text.splitlines()[0][:100]}" for rule, text in group.items()), sep="\n")
    if unknown:
        print("Marks that name no rule:", *unknown)
    print(f"{len(chosen) - len(untested)} of {len(chosen)} rules have a test; {len(planned)} of the rest are planned")
    sys.exit(bool(missing or unknown))


if __name__ == "__main__":
    main()
