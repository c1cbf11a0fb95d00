"""Draws the state table into its page: `python -m tests.docs.diagram`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from jobs.job import MOVES, QUEUED, STATES, TERMINAL, State, Status

PAGE: Final = Path(__file__).parents[2] / "docs/explanation/job-life.md"
_BLOCK: Final = re.compile(r"(?<=^```mermaid\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def draw() -> str:
    """Return the table `MOVES` as a Mermaid diagram, the stages of a job in progress together."""
    lines = [
        "stateDiagram-v2",
        f"    [*] --> {_name(QUEUED)}: ask",
        f"    state {Status.IN_PROGRESS.value} {{",
    ]
    lines += [f"        {_name(state)}" for state in STATES if state.stage is not None]
    lines += ["    }"]
    for before in STATES:
        for after in STATES:
            moves = [move.value for move, steps in MOVES.items() if steps.get(before) == after]
            if moves:
                lines.append(f"    {_name(before)} --> {_name(after)}: {', '.join(moves)}")
    lines += [f"    {_name(state)} --> [*]" for state in STATES if state.status in TERMINAL]
    return "\n".join(lines) + "\n"


def drawn() -> str:
    """Return the diagram as the page has it."""
    (block,) = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    return str(block)


def _name(state: State) -> str:
    return state.status.value if state.stage is None else state.stage.value


if __name__ == "__main__":
    PAGE.write_text(_BLOCK.sub(lambda _: draw(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
