"""The diagram of a job's life shows the table that the store obeys."""

from __future__ import annotations

from jobs.job import MOVES, STATES, Move

from .diagram import PAGE, draw, drawn


def test_the_page_shows_the_table_of_moves() -> None:
    assert drawn() == draw(), "run: python -m tests.docs.diagram"


def test_every_state_and_every_move_is_drawn() -> None:
    diagram = draw()

    assert [move.value for move in Move if move.value not in diagram] == []
    assert [state for state in STATES if (state.stage or state.status).value not in diagram] == []
    arrows = {(before, after) for steps in MOVES.values() for before, after in steps.items()}
    ends = diagram.count("[*]")
    assert diagram.count(" --> ") == len(arrows) + ends


def test_the_page_tells_of_every_move() -> None:
    prose = PAGE.read_text(encoding="utf-8").replace(drawn(), "")

    assert [move.value for move in Move if f"**{move.value}**" not in prose] == []
