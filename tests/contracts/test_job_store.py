"""What every job store promises, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from jobs.database import Database
from jobs.job import (
    PIPELINE_VERSION,
    Claim,
    Clip,
    Fenced,
    Job,
    JobClass,
    JobError,
    JobId,
    JobNotFound,
    Stage,
    Status,
)
from jobs.lanes import TRIED_LANES
from jobs.leases import BACKOFF
from jobs.store import KEPT_ERRORS, MAX_REMADE, JobStore

from ..jobs.databases import NOW, START, Clock, everything, execute, rows
from .job_steps import (
    BROKEN,
    HOOK,
    LEASE,
    MEDIA,
    QUEUE,
    WEBHOOKS,
    audio,
    begin,
    clip,
    completed,
    encoding,
    job_store,
    key,
    new,
    speak,
    take,
    uploading,
)

# --- a new job -------------------------------------------------------------------------------------------


def test_a_new_job_is_queued_and_its_owner_sees_it(jobs: JobStore) -> None:
    created = jobs.create(new("Héllo 🎧", metadata={"book": "Ж"}))

    assert created.status is Status.QUEUED
    assert created.stage is None
    assert created.progress == 0
    assert created.characters == 7
    assert created.version == 1
    assert (created.characters_left, created.audio_ms, created.held) == (7, 0, False)
    assert (created.deadline, created.retry_of) == (None, None)
    assert created.queued_at == created.created_at
    assert created.metadata == {"book": "Ж"}
    assert created.created_at == datetime.fromtimestamp(START, UTC)
    assert created.id.startswith("job_")
    assert jobs.get(created.id, "ten_a") == created


@pytest.mark.parametrize("job_id", ["job_unknown", "", "job_\u00e9", "job_\x00", "\ud800", "' OR 1=1 --"])
def test_an_unknown_job_is_not_found(jobs: JobStore, job_id: str) -> None:
    jobs.create(new())

    with pytest.raises(JobNotFound):
        jobs.get(job_id, "ten_a")


def test_another_tenants_job_is_not_found(jobs: JobStore) -> None:
    created = jobs.create(new())

    with pytest.raises(JobNotFound):
        jobs.get(created.id, "ten_b")


@pytest.mark.parametrize(
    "spoken",
    [
        "a\x00b",
        "\x00",
        "안녕하세요. 你好。 Привет!",
        "👩🏽‍🚀 e\u0301 \u202e \ufeff \U0010ffff",
        "quotes \" ' \\ and /slashes/ %s :name {curly} $1",
        "x" * 200_000,
        "🎧" * 200_000,
    ],
    ids=["a NUL", "only a NUL", "scripts", "emoji", "syntax", "long", "long emoji"],
)
def test_any_text_comes_back_as_it_went_in(jobs: JobStore, spoken: str) -> None:
    job = jobs.create(new(spoken, metadata={"note": spoken[:500]}))

    claim = take(jobs)

    assert claim.input == spoken
    assert claim.job.characters == len(spoken)
    assert jobs.get(job.id, "ten_a").metadata == {"note": spoken[:500]}


def test_a_claim_knows_the_request(jobs: JobStore) -> None:
    job = jobs.create(new("Hello.", webhook_url="https://hooks.example/é?a=1"))

    claim = take(jobs)

    assert claim.job.id == job.id
    assert claim.input == "Hello."
    assert claim.seed == 7
    assert claim.webhook_url == "https://hooks.example/é?a=1"
    assert claim.spoken_text is None
    assert claim.pipeline_version is None
    assert (claim.recorded, claim.next_seq, claim.lease_seconds) == ((), 0, LEASE)
    assert (claim.synthesis_queue, claim.errors) == (QUEUE, ())
    assert (claim.job.status, claim.job.stage) == (Status.IN_PROGRESS, Stage.SYNTHESIZING)
    assert claim.job.started_at == datetime.fromtimestamp(START, UTC)
    assert claim.job.version == job.version + 1
    assert claim.job.epoch == 1
    assert claim.job.held
    assert claim.job == jobs.get(job.id, "ten_a")


# --- claiming --------------------------------------------------------------------------------------------


def test_a_job_is_claimed_once(jobs: JobStore) -> None:
    jobs.create(new())
    take(jobs)

    assert jobs.claim(QUEUE, holder="another") is None


def test_a_queue_gives_its_own_jobs_only(jobs: JobStore) -> None:
    jobs.create(new())

    assert jobs.claim("cpu.other", holder="worker") is None
    assert jobs.claim(MEDIA, holder="worker") is None


@pytest.mark.slow
def test_many_claimers_at_once_get_each_job_once_and_all_of_them(jobs: JobStore, database: Database) -> None:
    made = [
        jobs.create(new(tenant=f"ten_{number % 5}", job_class=JobClass(number % 4))).id
        for number in range(100)
    ]
    taken: list[str] = []
    failed: list[BaseException] = []
    start = threading.Barrier(8)

    def work(holder: str) -> None:
        try:
            start.wait()
            while (claim := jobs.claim(QUEUE, holder=holder)) is not None:
                taken.append(claim.job.id)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failed
    assert Counter(taken) == Counter(made)
    assert {row["epoch"] for row in rows(database, "jobs")} == {1}


CLAIM_ALL: Final = """
import sys
from jobs.database import Database
from jobs.store import JobStore
database = Database(sys.argv[1], now=sys.argv[2])
store = JobStore(database, public_url="https://speech.example")
print("ready", flush=True)
sys.stdin.readline()
while (claim := store.claim(sys.argv[3], holder=sys.argv[4])) is not None:
    print(claim.job.id)
database.close()
"""


@pytest.mark.slow
def test_several_processes_share_the_jobs_out(jobs: JobStore, url: str) -> None:
    made = [jobs.create(new(tenant=f"ten_{number % 3}")).id for number in range(60)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", CLAIM_ALL, url, NOW, QUEUE, f"worker-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"

    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [worker.communicate(timeout=60) for worker in workers]

    assert [error for _, error in answers] == [""] * 4
    assert Counter("".join(out for out, _ in answers).split()) == Counter(made)


def test_the_most_urgent_class_comes_first(jobs: JobStore, clock: Clock) -> None:
    order = [JobClass.LOW, JobClass.NORMAL, JobClass.LIVE, JobClass.HIGH]
    for job_class in order:
        jobs.create(new(job_class=job_class))
        clock.advance(1)

    assert [take(jobs).job.job_class for _ in order] == sorted(order)


def test_the_tenant_with_the_least_running_work_comes_first(jobs: JobStore, clock: Clock) -> None:
    for tenant in ["ten_a"] * 3 + ["ten_b"] * 2 + ["ten_c"]:
        jobs.create(new(tenant=tenant))
        clock.advance(0.001)

    assert [take(jobs).job.tenant_id for _ in range(6)] == [
        *("ten_a", "ten_b", "ten_c"),
        *("ten_a", "ten_b"),
        "ten_a",
    ]


def test_the_oldest_job_of_a_tenant_comes_first(jobs: JobStore, clock: Clock) -> None:
    made = []
    for _ in range(4):
        made.append(jobs.create(new()).id)
        clock.advance(1)

    assert [take(jobs).job.id for _ in made] == made


def test_work_that_fell_silent_does_not_count_as_running(jobs: JobStore, clock: Clock) -> None:
    jobs.create(new(tenant="ten_a"))
    silent = take(jobs)
    clock.advance(LEASE)
    jobs.create(new(tenant="ten_b"))

    assert take(jobs).job.id == silent.job.id


def test_what_waits_or_is_held_is_passed_over(jobs: JobStore, clock: Clock) -> None:
    for _ in range(3):
        jobs.create(new())
        clock.advance(1)
    held, backing_off = take(jobs), take(jobs)
    jobs.retry_later(backing_off, BROKEN)

    assert take(jobs).job.id not in (held.job.id, backing_off.job.id)
    assert jobs.claim(QUEUE, holder="worker") is None


def test_a_released_job_goes_back_to_its_old_place(jobs: JobStore, clock: Clock) -> None:
    for _ in range(3):
        jobs.create(new())
        clock.advance(1)
    first = take(jobs)
    clock.advance(1)

    jobs.release(first)

    again = take(jobs)
    assert again.job.id == first.job.id
    assert again.job.epoch == first.job.epoch + 1
    assert again.job.failures == 0
    assert again.job.started_at == first.job.started_at


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_claim_passes_over_rows_that_others_are_about_to_take(
    jobs: JobStore, database: Database, clock: Clock
) -> None:
    live = jobs.create(new(job_class=JobClass.LIVE))
    normal = jobs.create(new(job_class=JobClass.NORMAL))
    lock = text("SELECT id FROM jobs WHERE id = :id FOR UPDATE")

    with database.write() as another:
        another.execute(lock, {"id": live.id})
        assert take(jobs).job.id == normal.id
        assert jobs.claim(QUEUE, holder="worker") is None

    assert take(jobs).job.id == live.id


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_claim_finds_the_one_tenant_whose_rows_are_free(jobs: JobStore, database: Database) -> None:
    taken = [jobs.create(new(tenant=f"ten_{number:02}")).id for number in range(TRIED_LANES + 2)]
    free = jobs.create(new(tenant="ten_99"))

    with database.write() as another:
        another.execute(text("SELECT id FROM jobs WHERE id = ANY(:ids) FOR UPDATE"), {"ids": taken})
        assert take(jobs).job.id == free.id


# --- the fence -------------------------------------------------------------------------------------------

Write = Callable[[JobStore, Claim], object]
WRITES: Final[dict[str, Write]] = {
    "renew": lambda jobs, claim: jobs.renew(claim.job.id, claim.job.epoch),
    "swap": lambda jobs, claim: jobs.swap(claim, holder="worker", left=12, turn_is_over=True),
    "release": lambda jobs, claim: jobs.release(claim),
    "postpone": lambda jobs, claim: jobs.postpone(claim, BROKEN, seconds=5),
    "retry_later": lambda jobs, claim: jobs.retry_later(claim, BROKEN),
    "fail": lambda jobs, claim: jobs.fail(claim, BROKEN),
    "begin": lambda jobs, claim: begin(jobs, claim, chunks=3),
    "record": lambda jobs, claim: jobs.record(claim, clip(claim, seq=claim.next_seq)),
    "synthesized": lambda jobs, claim: jobs.synthesized(claim, queue=MEDIA),
    "remake": lambda jobs, claim: jobs.remake(claim, jobs.clips(claim.job.id)),
    "uploading": lambda jobs, claim: jobs.uploading(claim, key=key(claim)),
    "complete": lambda jobs, claim: jobs.complete(claim, audio(claim)),
}
ANYWHERE: Final = {"renew", "swap", "release", "postpone", "retry_later", "fail"}
#: Which writes a holder may do, where its job stands: all others are refused.
ALLOWED: Final = {
    Stage.SYNTHESIZING: ANYWHERE | {"begin", "record", "synthesized"},
    Stage.ENCODING: ANYWHERE | {"remake", "uploading"},
    Stage.UPLOADING: ANYWHERE | {"complete"},
}


def _held_at(jobs: JobStore, stage: Stage) -> Claim:
    """Return a job that is held at a stage, with a webhook; nothing else may be ready."""
    request = new(webhook_url=HOOK)
    if stage is Stage.ENCODING:
        return encoding(jobs, request)
    if stage is Stage.UPLOADING:
        return uploading(jobs, request)
    jobs.create(request)
    claim = take(jobs)
    begin(jobs, claim)
    return claim


def _claimed_again(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    clock.advance(LEASE)
    assert take(jobs, claim.job.queue or "", holder="another").job.id == claim.job.id


def _let_go(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    jobs.release(claim)


def _backed_off(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    jobs.retry_later(claim, BROKEN)


def _gave_way(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    jobs.create(new(job_class=JobClass.LIVE, queue=claim.job.queue))
    assert jobs.swap(claim, holder="worker", left=12, turn_is_over=False) is not None


def _handed_on(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    match claim.job.stage:
        case Stage.SYNTHESIZING:
            jobs.synthesized(claim, queue=MEDIA)
        case _ if jobs.get(claim.job.id, "ten_a").stage is Stage.ENCODING:
            jobs.remake(claim, jobs.clips(claim.job.id))
        case _:
            jobs.complete(claim, audio(claim))


def _failed(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    jobs.fail(claim, BROKEN)


def _cancelled(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    jobs.cancel(claim.job.id, "ten_a")


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize(
    "lose", [_claimed_again, _let_go, _backed_off, _gave_way, _handed_on, _failed, _cancelled]
)
def test_whoever_lost_a_job_changes_nothing_of_it(
    jobs: JobStore,
    database: Database,
    clock: Clock,
    stage: Stage,
    lose: Callable[[JobStore, Claim, Clock], None],
) -> None:
    claim = _held_at(jobs, stage)
    lose(jobs, claim, clock)
    before = everything(database)

    for name, write in WRITES.items():
        with pytest.raises(Fenced):
            write(jobs, claim)
        assert everything(database) == before, name


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("name", WRITES)
def test_a_holder_does_only_what_may_happen_to_its_job_there(
    jobs: JobStore, database: Database, stage: Stage, name: str
) -> None:
    claim = _held_at(jobs, stage)
    before = everything(database)

    if name in ALLOWED[stage]:
        WRITES[name](jobs, claim)
        return

    with pytest.raises(Fenced):
        WRITES[name](jobs, claim)
    assert everything(database) == before


@pytest.mark.parametrize(("stage", "name"), [(stage, name) for stage in Stage for name in ALLOWED[stage]])
def test_a_holder_whose_lease_ran_out_may_go_on_while_nobody_took_the_job(
    jobs: JobStore, clock: Clock, stage: Stage, name: str
) -> None:
    claim = _held_at(jobs, stage)
    clock.advance(LEASE * 10)

    WRITES[name](jobs, claim)


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        (Stage.SYNTHESIZING, "renew"),
        (Stage.SYNTHESIZING, "record"),
        (Stage.SYNTHESIZING, "swap"),
        (Stage.ENCODING, "uploading"),
        (Stage.UPLOADING, "renew"),
    ],
)
def test_a_renewed_lease_lasts_its_whole_length_again(
    jobs: JobStore, clock: Clock, stage: Stage, name: str
) -> None:
    claim = _held_at(jobs, stage)
    queue = claim.job.queue or ""
    clock.advance(LEASE - 1)

    WRITES[name](jobs, claim)

    clock.advance(LEASE - 1)
    assert jobs.claim(queue, holder="another") is None
    clock.advance(1)
    assert jobs.claim(queue, holder="another") is not None


# --- failures --------------------------------------------------------------------------------------------


def test_a_holder_that_fell_silent_is_a_failure(jobs: JobStore, clock: Clock) -> None:
    jobs.create(new())
    assert take(jobs).job.failures == 0

    clock.advance(LEASE)
    assert take(jobs).job.failures == 1
    clock.advance(LEASE)
    assert take(jobs).job.failures == 2


def test_at_the_limit_the_job_fails_and_the_same_call_takes_the_next(
    jobs: JobStore, database: Database, clock: Clock
) -> None:
    poison = jobs.create(new(webhook_url=HOOK))
    for _ in range(3):
        assert take(jobs).job.id == poison.id
        clock.advance(LEASE)
    healthy = jobs.create(new())

    assert take(jobs).job.id == healthy.id

    failed = jobs.get(poison.id, "ten_a")
    assert failed.status is Status.FAILED
    assert failed.failures == 3
    assert failed.error is not None
    assert failed.error.code == "worker_lost"
    assert failed.error.type == "server_error"
    assert "3 failures in a row: worker_lost, worker_lost, worker_lost" in failed.error.message
    assert failed.queue is None
    assert failed.stage is None
    assert [event["job"] for event in rows(database, "events")] == [poison.id]
    assert len(rows(database, "deliveries")) == 1


def test_at_the_limit_without_another_job_nothing_is_claimed(jobs: JobStore, clock: Clock) -> None:
    poison = jobs.create(new())
    for _ in range(3):
        take(jobs)
        clock.advance(LEASE)

    assert jobs.claim(QUEUE, holder="worker") is None
    assert jobs.get(poison.id, "ten_a").status is Status.FAILED


def test_a_released_job_does_not_count_as_failed(jobs: JobStore) -> None:
    jobs.create(new())
    for _ in range(10):
        jobs.release(take(jobs))

    assert take(jobs).job.failures == 0


def test_a_recorded_clip_ends_a_row_of_failures(jobs: JobStore, clock: Clock) -> None:
    jobs.create(new())
    for _ in range(2):
        take(jobs)
        clock.advance(LEASE)
    claim = take(jobs)
    assert claim.job.failures == 2

    jobs.record(claim, clip(claim))

    clock.advance(LEASE)
    assert take(jobs).job.failures == 1


def test_a_failed_attempt_waits_longer_each_time_and_then_fails_the_job(
    jobs: JobStore, database: Database, clock: Clock
) -> None:
    job = jobs.create(new(webhook_url=HOOK))
    for number in range(2):
        assert jobs.retry_later(take(jobs), replace(BROKEN, message=f"attempt {number}")) is None
        clock.advance(BACKOFF[number] - 0.5)
        assert jobs.claim(QUEUE, holder="worker") is None
        clock.advance(0.5)

    failed = jobs.retry_later(take(jobs), JobError(code="disk_full", message="no space"))

    assert failed is not None
    assert failed == jobs.get(job.id, "ten_a")
    assert (failed.status, failed.failures) == (Status.FAILED, 3)
    told = "no space (3 failures in a row: engine_failed, engine_failed, disk_full)"
    assert failed.error == JobError(code="disk_full", message=told)
    assert failed.completed_at == datetime.fromtimestamp(START + sum(BACKOFF[:2]), UTC)
    (row,) = rows(database, "jobs")
    assert [error["message"] for error in json.loads(row["errors"])] == ["attempt 0", "attempt 1", "no space"]
    assert [event["type"] for event in rows(database, "events")] == ["speech.job.failed"]


def test_postponing_counts_nothing_however_often_and_keeps_the_last_errors(
    jobs: JobStore, database: Database, clock: Clock
) -> None:
    job = jobs.create(new())
    for number in range(KEPT_ERRORS + 3):
        jobs.postpone(take(jobs), JobError(code="store_down", message=f"{number}\x00"), seconds=2)
        assert jobs.claim(QUEUE, holder="worker") is None
        clock.advance(2)

    assert take(jobs).job.failures == 0
    (row,) = rows(database, "jobs")
    assert [error["message"] for error in json.loads(row["errors"])] == [f"{n}?" for n in range(3, 8)]
    assert jobs.get(job.id, "ten_a").error is None


def test_a_claim_knows_the_failures_since_the_last_clip_and_the_row_keeps_the_last_few(
    jobs: JobStore, database: Database, clock: Clock
) -> None:
    jobs.create(new())
    jobs.retry_later(take(jobs), BROKEN)
    clock.advance(BACKOFF[0])
    # Nobody's failure, however late it comes.
    jobs.postpone(take(jobs), JobError(code="store_down", message="away"), seconds=1)
    clock.advance(1)
    take(jobs)
    clock.advance(LEASE)

    claim = take(jobs)

    assert (claim.errors, claim.job.failures) == (("engine_failed", "worker_lost"), 2)
    begin(jobs, claim)
    jobs.record(claim, clip(claim))
    jobs.release(claim)
    assert take(jobs).errors == ()
    (row,) = rows(database, "jobs")
    assert [error["code"] for error in json.loads(row["errors"])] == [
        *("engine_failed", "store_down", "worker_lost")
    ]


def test_no_more_than_the_last_errors_are_kept(jobs: JobStore, database: Database, clock: Clock) -> None:
    patient = job_store(database, max_failures=KEPT_ERRORS + 5)
    patient.create(new())
    for number in range(KEPT_ERRORS + 2):
        patient.retry_later(take(patient), replace(BROKEN, code=f"error_{number}"))
        clock.advance(BACKOFF[-1])

    last = tuple(f"error_{number}" for number in range(2, KEPT_ERRORS + 2))
    assert take(patient).errors == last
    (row,) = rows(database, "jobs")
    assert tuple(error["code"] for error in json.loads(row["errors"])) == last


def test_a_failure_of_the_last_worker_names_those_before_it(jobs: JobStore, clock: Clock) -> None:
    job = jobs.create(new())
    for _ in range(2):
        jobs.retry_later(take(jobs), BROKEN)
        clock.advance(BACKOFF[-1])
    take(jobs)
    clock.advance(LEASE)

    assert jobs.claim(QUEUE, holder="worker") is None

    error = jobs.get(job.id, "ten_a").error
    assert error is not None
    assert error.code == "worker_lost"
    assert "engine_failed, engine_failed, worker_lost" in error.message


@pytest.mark.parametrize("end", ["retry_later", "postpone", "fail"])
def test_an_error_that_tells_of_bytes_is_written_down(jobs: JobStore, clock: Clock, end: str) -> None:
    # Python names a file of undecodable bytes by surrogates, and no database takes those.
    error = JobError(code="disk_full", message="no space for 'a\udce9\x00b'")
    job = jobs.create(new(webhook_url=HOOK))
    for _ in range(3):
        if (claim := jobs.claim(QUEUE, holder="worker")) is not None:
            _write(jobs, claim, end, error)
        clock.advance(60)

    stored = jobs.get(job.id, "ten_a").error
    assert stored is None or stored.message.startswith("no space for 'a??b'")
    assert (stored is None) == (end == "postpone")


def _write(jobs: JobStore, claim: Claim, end: str, error: JobError) -> None:
    match end:
        case "fail":
            jobs.fail(claim, error)
        case "postpone":
            jobs.postpone(claim, error, seconds=5)
        case _:
            jobs.retry_later(claim, error)


def test_a_job_that_cannot_succeed_fails_at_once(jobs: JobStore, database: Database) -> None:
    jobs.create(new())
    error = JobError(code="unsayable", message="no words", type="invalid_request_error", param="input")

    failed = jobs.fail(take(jobs), error)

    assert (failed.status, failed.error, failed.failures) == (Status.FAILED, error, 0)
    assert jobs.claim(QUEUE, holder="worker") is None
    (event,) = rows(database, "events")
    payload = json.loads(event["payload"])
    assert (payload["type"], payload["data"]["error"]["param"]) == ("speech.job.failed", "input")
    assert rows(database, "deliveries") == []


# --- checkpoints -----------------------------------------------------------------------------------------


def test_work_resumes_where_nothing_is_recorded(jobs: JobStore, clock: Clock) -> None:
    spoken = "One. Two. Three. 안녕."
    job = jobs.create(new(spoken))
    claim = take(jobs)
    begin(jobs, claim, chunks=4)
    made = [clip(claim, seq=0, start=0, end=5), clip(claim, seq=1, start=5, end=10, seconds=0.5)]
    for each in made:
        jobs.record(claim, each)
    clock.advance(LEASE)

    resumed = take(jobs, holder="another")

    assert resumed.spoken_text == spoken
    assert resumed.pipeline_version == PIPELINE_VERSION
    assert (resumed.recorded, resumed.next_seq) == (((0, 5), (5, 10)), 2)
    assert jobs.clips(job.id) == made
    assert (resumed.job.chunks_done, resumed.job.chunks_total) == (2, 4)
    assert (resumed.job.characters_left, resumed.job.audio_ms) == (len(spoken) - 10, 1_500)
    assert resumed.job.progress == 45


def test_the_text_that_was_prepared_first_is_the_one_that_is_spoken(jobs: JobStore) -> None:
    jobs.create(new("1 a."))
    claim = take(jobs)
    jobs.begin(claim, spoken_text="one a.", chunks_total=1, characters_left=6)
    jobs.release(claim)
    resumed = take(jobs)

    # Another release would say it in another way, and cuts it in another.
    jobs.begin(resumed, spoken_text="a single a.", chunks_total=3, characters_left=5)

    jobs.release(resumed)
    again = take(jobs)
    assert again.spoken_text == "one a."
    assert (again.job.chunks_total, again.job.characters_left) == (3, 5)


def test_clips_come_in_the_order_of_the_text_and_belong_to_one_job(jobs: JobStore) -> None:
    first, second = jobs.create(new()), jobs.create(new(tenant="ten_b"))
    claims = {claim.job.id: claim for claim in (take(jobs), take(jobs))}
    for seq, start in ((2, 0), (0, 1), (1, 2)):
        jobs.record(claims[first.id], clip(claims[first.id], seq=seq, start=start, end=start + 1))
    jobs.record(claims[second.id], clip(claims[second.id]))

    assert [each.seq for each in jobs.clips(first.id)] == [2, 0, 1]
    assert [each.key for each in jobs.clips(second.id)] == [clip(claims[second.id]).key]
    assert jobs.clips(JobId("job_unknown")) == []


def test_a_clip_that_is_recorded_again_after_a_lost_answer_is_recorded_once(jobs: JobStore) -> None:
    job = jobs.create(new())
    claim = take(jobs)
    begin(jobs, claim, left=20)
    made = clip(claim)
    jobs.record(claim, made)

    jobs.record(claim, made)

    assert jobs.clips(job.id) == [made]
    seen = jobs.get(job.id, "ten_a")
    assert (seen.chunks_done, seen.characters_left, seen.audio_ms) == (1, 8, 1_000)


def test_another_clip_in_the_place_of_a_recorded_one_is_refused(jobs: JobStore, database: Database) -> None:
    jobs.create(new())
    claim = take(jobs)
    jobs.record(claim, clip(claim))
    before = everything(database)

    with pytest.raises(IntegrityError):
        jobs.record(claim, replace(clip(claim), key="staged/other"))

    assert everything(database) == before


def test_no_fewer_than_no_characters_are_left(jobs: JobStore) -> None:
    job = jobs.create(new())
    claim = take(jobs)
    begin(jobs, claim, left=3)

    jobs.record(claim, clip(claim, end=12))

    assert jobs.get(job.id, "ten_a").characters_left == 0


def test_the_owner_sees_every_step(jobs: JobStore) -> None:
    job = jobs.create(new())
    versions = [job.version]
    claim = take(jobs)

    def seen() -> Job:
        now = jobs.get(job.id, "ten_a")
        versions.append(now.version)
        return now

    assert seen().stage is Stage.SYNTHESIZING
    begin(jobs, claim)
    assert seen().progress == 0
    jobs.record(claim, clip(claim))
    assert seen().progress == 90
    jobs.synthesized(claim, queue=MEDIA)
    assert seen().stage is Stage.ENCODING
    encoder = take(jobs, MEDIA)
    jobs.uploading(encoder, key=key(encoder))
    assert (seen().stage, seen().progress) == (Stage.UPLOADING, 95)
    jobs.complete(encoder, audio(encoder))
    assert (seen().stage, seen().progress) == (None, 100)
    assert sorted(set(versions)) == [1, 2, 3, 4, 5, 6, 7]


# --- lost clips ------------------------------------------------------------------------------------------


def _three_clips(jobs: JobStore) -> tuple[Claim, list[Clip]]:
    """Return a job at its encoder, spoken as three clips of 1, 2 and 3 seconds."""
    jobs.create(new("One. Two. Three."))
    claim = take(jobs)
    begin(jobs, claim, chunks=3)
    spans = ((0, 5), (5, 10), (10, 16))
    made = [
        clip(claim, seq=seq, start=start, end=end, seconds=seq + 1) for seq, (start, end) in enumerate(spans)
    ]
    for each in made:
        jobs.record(claim, each)
    jobs.synthesized(claim, queue=MEDIA)
    return take(jobs, MEDIA), made


def test_lost_clips_are_made_again_and_nothing_else(jobs: JobStore, database: Database, clock: Clock) -> None:
    clock.advance(60)
    claim, made = _three_clips(jobs)
    clock.advance(5)

    assert jobs.remake(claim, [made[0], made[2]]) is None

    back = jobs.get(claim.job.id, "ten_a")
    assert (back.status, back.stage, back.queue) == (Status.IN_PROGRESS, Stage.SYNTHESIZING, QUEUE)
    assert (back.held, back.failures) == (False, 0)
    assert back.queued_at == back.created_at
    assert (back.chunks_done, back.characters_left, back.audio_ms) == (1, 11, 2_000)
    assert back.version == claim.job.version + 1
    assert jobs.clips(back.id) == [made[1]]
    assert jobs.claim(MEDIA, holder="encoder") is None

    resumed = take(jobs)

    assert (resumed.recorded, resumed.next_seq) == (((5, 10),), 2)
    jobs.begin(resumed, spoken_text=resumed.input, chunks_total=3, characters_left=11)
    again = [clip(resumed, seq=2, start=0, end=5), clip(resumed, seq=3, start=10, end=16)]
    for each in again:
        jobs.record(resumed, each)
    jobs.synthesized(resumed, queue=MEDIA)
    assert jobs.clips(back.id) == [again[0], made[1], again[1]]
    encoder = take(jobs, MEDIA)
    assert (encoder.job.chunks_done, encoder.job.audio_ms) == (3, 4_000)
    jobs.uploading(encoder, key=key(encoder))
    assert jobs.complete(encoder, audio(encoder)).status is Status.COMPLETED
    (row,) = rows(database, "jobs")
    assert [error["code"] for error in json.loads(row["errors"])] == ["clip_lost"]


def test_a_text_with_a_gap_that_no_clip_was_lost_from_goes_back_as_well(jobs: JobStore) -> None:
    claim, made = _three_clips(jobs)

    assert jobs.remake(claim, []) is None

    resumed = take(jobs)
    assert resumed.job.stage is Stage.SYNTHESIZING
    assert len(resumed.recorded) == len(made)


def test_a_job_whose_clips_are_lost_again_and_again_fails(jobs: JobStore, database: Database) -> None:
    claim, _ = _three_clips(jobs)
    for _ in range(MAX_REMADE):
        assert jobs.remake(claim, jobs.clips(claim.job.id)) is None
        speak(jobs, take(jobs))
        claim = take(jobs, MEDIA)

    failed = jobs.remake(claim, jobs.clips(claim.job.id))

    assert failed is not None
    assert (failed.status, failed.error and failed.error.code) == (Status.FAILED, "clip_lost")
    assert [event["type"] for event in rows(database, "events")] == ["speech.job.failed"]
    (row,) = rows(database, "jobs")
    assert [error["code"] for error in json.loads(row["errors"])] == ["clip_lost"] * (MAX_REMADE + 1)


def test_a_job_of_which_nobody_knows_where_it_is_spoken_fails_by_name(
    jobs: JobStore, database: Database
) -> None:
    claim, made = _three_clips(jobs)
    # The release before wrote none, and handed it to the encoders.
    execute(database, "UPDATE jobs SET synthesis_queue = NULL")

    failed = jobs.remake(claim, made[:1])

    assert failed is not None
    assert (failed.status, failed.error and failed.error.code) == (Status.FAILED, "clip_lost")


def test_where_a_job_of_the_release_before_is_spoken_is_learned_when_it_is_claimed(
    jobs: JobStore, database: Database
) -> None:
    jobs.create(new())
    execute(database, "UPDATE jobs SET synthesis_queue = NULL")

    claim = take(jobs)

    assert claim.synthesis_queue == QUEUE
    speak(jobs, claim)
    encoder = take(jobs, MEDIA)
    assert encoder.synthesis_queue == QUEUE
    assert jobs.remake(encoder, jobs.clips(encoder.job.id)) is None


# --- publishing ------------------------------------------------------------------------------------------


def test_completing_writes_the_job_the_ledger_the_event_and_its_delivery(
    jobs: JobStore, database: Database, clock: Clock
) -> None:
    claim = encoding(jobs, new("안녕 🎧", webhook_url="https://hooks.example/x", metadata={"a": "é/"}))
    jobs.uploading(claim, key=key(claim))
    clock.advance(3)

    job = jobs.complete(claim, audio(claim))

    assert job == jobs.get(job.id, "ten_a")
    assert (job.status, job.stage, job.queue, job.error) == (Status.COMPLETED, None, None, None)
    assert job.audio == audio(claim)
    assert job.completed_at == datetime.fromtimestamp(START + 3, UTC)
    assert job.expires_at == datetime.fromtimestamp(START + 3 + 86_400, UTC)

    (entry,) = rows(database, "objects")
    assert (entry["key"], entry["owner"], entry["tenant_id"]) == (key(claim), job.id, "ten_a")
    assert (entry["state"], entry["delete_after"]) == ("live", START + 3 + 86_400)

    (event,) = rows(database, "events")
    assert (event["job"], event["type"], bool(event["terminal"])) == (job.id, "speech.job.completed", True)
    payload = json.loads(event["payload"])
    assert payload["id"] == event["id"]
    assert payload["data"]["status"] == "completed"
    assert payload["data"]["version"] == job.version
    assert payload["data"]["progress"] == 100
    assert payload["data"]["metadata"] == {"a": "é/"}
    published = payload["data"]["result"]["audio"]
    assert published["url"] == f"https://speech.example/v1/speech/jobs/{job.id}/audio"
    assert published["url_expires_at"] is None
    assert "key" not in published

    (delivery,) = rows(database, "deliveries")
    assert (delivery["event"], delivery["url"]) == (event["id"], "https://hooks.example/x")
    assert (delivery["queue"], delivery["status"], delivery["attempts"]) == (WEBHOOKS, "pending", 0)
    assert delivery["visible_at"] == START + 3


def test_without_a_webhook_there_is_an_event_and_no_delivery(jobs: JobStore, database: Database) -> None:
    completed(jobs)

    assert len(rows(database, "events")) == 1
    assert rows(database, "deliveries") == []


@pytest.mark.parametrize("name", ["complete", "fail", "cancel"])
def test_the_database_refuses_a_second_terminal_event_and_then_nothing_is_written(
    jobs: JobStore, database: Database, name: str
) -> None:
    claim = uploading(jobs, new(webhook_url=HOOK))
    execute(
        database,
        "INSERT INTO events (id, job, tenant_id, type, terminal, created_at, payload)"
        " VALUES ('evt_other', :job, 'ten_a', 'speech.job.failed', true, 0, '{}')",
        job=claim.job.id,
    )
    before = everything(database)

    with pytest.raises(IntegrityError):
        (WRITES | {"cancel": _cancel})[name](jobs, claim)

    assert everything(database) == before


def _cancel(jobs: JobStore, claim: Claim) -> Job:
    return jobs.cancel(claim.job.id, "ten_a")


def test_completing_twice_leaves_one_event(jobs: JobStore, database: Database) -> None:
    claim, job = completed(jobs)

    with pytest.raises(Fenced):
        jobs.complete(claim, audio(claim))

    assert len(rows(database, "events")) == 1
    assert jobs.get(job.id, "ten_a") == job


def test_a_publisher_that_lost_the_answer_can_ask(jobs: JobStore) -> None:
    claim = encoding(jobs)
    jobs.uploading(claim, key=key(claim))
    assert not jobs.published(claim, key=key(claim))

    jobs.complete(claim, audio(claim))

    assert jobs.published(claim, key=key(claim))
    assert not jobs.published(claim, key="audio/1d/another.mp3")


def test_a_failed_job_was_not_published(jobs: JobStore) -> None:
    claim = encoding(jobs)
    jobs.uploading(claim, key=key(claim))
    jobs.fail(claim, BROKEN)

    assert not jobs.published(claim, key=key(claim))


def test_a_key_is_announced_once_in_each_epoch(jobs: JobStore, database: Database) -> None:
    claim = uploading(jobs)
    before = everything(database)

    with pytest.raises(Fenced):
        jobs.uploading(claim, key=key(claim))

    assert everything(database) == before


def test_an_upload_that_was_let_go_starts_over(jobs: JobStore, database: Database) -> None:
    claim = uploading(jobs)
    jobs.release(claim)
    assert jobs.get(claim.job.id, "ten_a").stage is Stage.UPLOADING

    again = take(jobs, MEDIA)

    assert again.job.stage is Stage.ENCODING
    assert again.job.version == claim.job.version + 2
    jobs.uploading(again, key=key(again))
    assert jobs.complete(again, audio(again)).audio == audio(again)
    assert {(row["epoch"], row["state"]) for row in rows(database, "objects")} == {
        (claim.job.epoch, "pending"),
        (again.job.epoch, "live"),
    }


# --- two stores over one database ------------------------------------------------------------------------


def test_what_one_process_commits_another_sees(jobs: JobStore, url: str) -> None:
    job = jobs.create(new())

    with closing(Database(url, now=NOW)) as another:
        assert job_store(another).get(job.id, "ten_a") == job
        claim = take(job_store(another), holder="elsewhere")

    jobs.release(claim)
    assert take(jobs).job.epoch == 2
