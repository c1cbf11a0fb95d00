"""What is true of every job at every moment, whatever happened to it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final

from jobs.database import Database
from jobs.events import ENDINGS
from jobs.job import STATES, TERMINAL, Stage, State, Status

from .databases import everything

_ENDINGS: Final = {status.value: name for status, name in ENDINGS.items()}


def check(database: Database) -> None:
    """Raise `AssertionError` where a job, its clips, its event or its ledger contradict each other."""
    tables = everything(database)
    for row in tables["jobs"]:
        check_job(
            row,
            clips=[clip for clip in tables["clips"] if clip["job"] == row["id"]],
            events=[event for event in tables["events"] if event["job"] == row["id"]],
            objects=[entry for entry in tables["objects"] if entry["owner"] == row["id"]],
        )


def check_job(
    row: dict[str, Any],
    *,
    clips: list[dict[str, Any]],
    events: list[dict[str, Any]],
    objects: list[dict[str, Any]],
) -> None:
    """Check one job with all that belongs to it."""
    told = f"{row['id']} {row['status']} {row['stage']}"
    state = State(Status(row["status"]), None if row["stage"] is None else Stage(row["stage"]))
    assert state in STATES, told
    ended = state.status in TERMINAL
    assert (row["queue"] is None) == ended, told
    assert (row["completed_at"] is not None) == ended, told
    assert row["holder"] is None or state.status is Status.IN_PROGRESS, told
    assert (row["started_at"] is None) == (row["epoch"] == 0), told
    if state.status is Status.QUEUED or state.status is Status.EXPIRED:
        assert row["epoch"] == 0, told

    # One event for each end, and none before.
    assert [event["type"] for event in events] == ([_ENDINGS[row["status"]]] if ended else []), told
    for event in events:
        payload = json.loads(event["payload"])
        assert payload["data"]["version"] == row["version"], told
        assert payload["data"]["status"] == row["status"], told

    # What is counted is what is recorded.
    assert row["chunks_done"] == len(clips), told
    assert row["audio_ms"] == sum(round(c["samples"] * 1000 / c["sample_rate"]) for c in clips), told
    spans = sorted((clip["text_start"], clip["text_end"]) for clip in clips)
    assert all(before[1] <= after[0] for before, after in pairwise(spans)), (told, spans)
    assert all(clip["epoch"] <= row["epoch"] for clip in clips), told
    assert row["characters_left"] >= 0, told
    assert not clips or row["staged"] or row["queue"] is None, told

    # One object may be heard, and it is the one that the job names.
    live = [entry["key"] for entry in objects if entry["state"] == "live"]
    if state.status is Status.COMPLETED:
        assert row["result"] is not None, told
        key = json.loads(row["result"])["key"]
        # None any more, where its time is over.
        assert live in ([key], []), told
    else:
        assert (row["result"], live) == (None, []), told
    assert (row["error"] is not None) == (state.status is Status.FAILED), told
