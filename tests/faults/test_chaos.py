"""A short storm: every kind of fault once, sixty jobs, and every promise checked afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.faults import verdict
from tests.faults.chaos import Outcome, Scale, run
from tests.faults.verdict import CHECKS, Evidence

pytestmark = pytest.mark.slow

#: Another one: `CHAOS_SEED=7 pytest tests/faults/test_chaos.py`.
SEED: Final = int(os.environ.get("CHAOS_SEED", "20261201"))


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Let one storm pass, once the settings of whoever runs the tests are out of the way."""
    return run(Scale(seed=SEED, jobs=60, rounds=1), tmp_path_factory.mktemp("chaos"))


def test_what_a_fleet_accepted_in_a_storm_it_keeps(storm: Outcome) -> None:
    print(storm.report)  # noqa: T201
    assert not storm.findings, storm.report


def _some(seen: Evidence, status: str) -> dict[str, Any]:
    """Return the longest job that ended so."""
    return max((job for job in seen.jobs.values() if job["status"] == status), key=lambda j: j["characters"])


def _changed(seen: Evidence, **values: object) -> dict[str, Any]:
    job = _some(seen, "completed")
    return {"jobs": {**seen.jobs, job["id"]: job | values}}


def _without_a_clip(seen: Evidence) -> dict[str, Any]:
    job = _some(seen, "completed")["id"]
    return {"clips": {**seen.clips, job: [*seen.clips[job][:1], *seen.clips[job][2:]]}}


def _moved_on(seen: Evidence) -> dict[str, Any]:
    job = _some(seen, "completed")["id"]
    last = seen.moves[job][-1]
    again = last | {"status": "completed", "stage": None, "new_status": "failed", "new_stage": None}
    return {"moves": {**seen.moves, job: [*seen.moves[job], again]}}


def _made_again(seen: Evidence) -> dict[str, Any]:
    text = seen.spoken(_some(seen, "completed"))
    call = next(call for call in seen.calls if call["text"] in text)
    return {"calls": [*seen.calls, call | {"t": seen.calls[-1]["t"] + 60}]}


def _told_twice(seen: Evidence) -> dict[str, Any]:
    first = seen.requests[0]
    again = replace(first, headers=first.headers | {"webhook-id": "evt_another"})
    return {"requests": [*seen.requests, again]}


#: What each check must not overlook.
WRONGS: Final[Mapping[str, Callable[[Evidence], dict[str, Any]]]] = {
    "every_accepted_job_is_there_and_ended": lambda seen: {"jobs": dict(list(seen.jobs.items())[:-3])},
    "every_job_ended_as_it_should": lambda seen: _changed(
        seen, status="failed", error='{"code": "internal_error", "message": ""}'
    ),
    "every_completed_job_is_whole": _without_a_clip,
    "the_bucket_is_the_ledger": lambda seen: {"audio": {**seen.audio, "audio/7d/job_x/1.mp3": 1}},
    "every_end_has_one_event": lambda seen: {"events": [*seen.events, seen.events[0]]},
    "every_move_was_allowed": _moved_on,
    "whoever_left_in_order_let_go": lambda seen: {"struck": []},
    "no_recorded_chunk_was_made_again": _made_again,
    "what_is_heard_is_what_was_asked": lambda seen: {"read": lambda _: b""},
    "every_webhook_arrived": _told_twice,
    "clients_saw_nothing_strange": lambda seen: {"complaints": ["a 500"]},
    "nothing_unforeseen_was_met": lambda seen: _changed(
        seen, errors='[{"code": "internal_error", "message": ""}]'
    ),
    "no_traceback_was_logged": lambda seen: {
        "logs": {"x.log": "Traceback (most recent call last):\n  File x\n    y\nKeyError: 1\n"}
    },
}


def test_every_check_has_a_wrong_to_see() -> None:
    assert {check.__name__ for check in CHECKS} == set(WRONGS)


@pytest.mark.parametrize("check", WRONGS)
def test_the_verdict_sees_a_wrong(storm: Outcome, check: str) -> None:
    assert storm.seen is not None
    wrong = replace(storm.seen, **WRONGS[check](storm.seen))

    # The first finding will do: the bucket is gone by now.
    assert next(getattr(verdict, check)(wrong), None) is not None
