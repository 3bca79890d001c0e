"""The forge's files are what the forge reads, and name what there is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_files_follow_their_schema(schema: str, files: list[Path]) -> None:
    assert files
    program = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [program, "--builtin-schema", schema, *files], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_make_what_the_makefile_has() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, flags=re.MULTILINE))
    tested = (ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    (parts,) = re.findall(r"part: \[(.*)\]", tested)
    made = [
        name
        for words in re.findall(r"run: make ([\w -]+)$", tested, re.MULTILINE)
        for name in words.split()
    ]
    assert {*parts.split(", "), *made} <= targets
    # What `make test` does is tested there, all of it.
    (recipe,) = re.findall(r"^test:\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    whole = targets.intersection(recipe.split()) - {"setup"}
    assert {"lint", "types", "docs", "unit-runs", "grpc-unit"} <= whole
    assert whole <= {*parts.split(", "), *made}


def test_one_version() -> None:
    (version,) = re.findall(
        r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
