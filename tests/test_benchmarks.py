"""The benchmarks that need nothing but a database still run, in a tiny form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def _run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_claims_prints_every_question_and_the_plans_of_both_databases() -> None:
    table = _run("claims.py", "--rows", "2000")

    for database in ("sqlite", "postgresql"):
        for question in ("claim", "better", "swap", "backlog", "promote"):
            assert [line.split()[2:4] for line in table.splitlines() if line.startswith(database)].count(
                ["2000", question]
            ) == 1
    assert "jobs_ready" in table
    assert "Seq Scan on jobs" not in table


def test_memory_prints_a_row_for_each_engine() -> None:
    table = _run("memory.py", "--chunks", "200", "--engine", "tone leaking", "--engine", "supertonic-3")

    rows = {line[:14].strip(): line[14:].split() for line in table.splitlines()[1:]}
    assert set(rows) == {"tone leaking", "supertonic-3"}
    assert int(rows["tone leaking"][-1]) >= 1
    assert rows["supertonic-3"][-1] == "0"


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_scale_completes_what_comes_in(database: str) -> None:
    table = _run("scale.py", "--database", database, "--minutes", "0.2", "--workers", "20", "--rtf", "0.01")

    (counts,) = [line for line in table.splitlines() if line.startswith("submitted")]
    submitted, completed = (int(word.rstrip(",")) for word in counts.split()[1:4:2])
    assert submitted > 50
    assert completed > submitted / 2
    assert "in all" in table
