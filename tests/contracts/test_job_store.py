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
from typing import Any, Final

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
    NewJob,
    PublishedAudio,
    Stage,
    Status,
    TenantId,
)
from jobs.leases import BACKOFF
from jobs.store import KEPT_ERRORS, TRIED_LANES, JobStore, StoredKey

from ..jobs.databases import NOW, START, Clock, everything, execute, rows

QUEUE: Final = "cpu.tone"
MEDIA: Final = "cpu.media"
WEBHOOKS: Final = "cpu.webhooks"
LEASE: Final = 30.0
BROKEN: Final = JobError(code="engine_failed", message="the engine gave no sound")


@pytest.fixture
def store(database: Database) -> JobStore:
    return _store(database)


def _store(database: Database) -> JobStore:
    return JobStore(database, public_url="https://speech.example", lease_seconds=LEASE, max_failures=3)


def _new(text: str = "Hello there.", *, tenant: str = "ten_a", **changes: Any) -> NewJob:
    new = NewJob(
        tenant_id=TenantId(tenant),
        input=text,
        model="tone",
        queue=QUEUE,
        voice="sine",
        language="en",
        response_format="mp3",
        seed=7,
        expires_in=86_400,
    )
    return replace(new, **changes)


def _clip(claim: Claim, *, seq: int = 0, start: int = 0, end: int = 12) -> Clip:
    return Clip(
        seq=seq,
        text_start=start,
        text_end=end,
        pause_ms=250,
        epoch=claim.job.epoch,
        key=f"staged/{claim.job.id}/{claim.job.epoch}-{seq}-x",
        sha256="ab" * 32,
        samples=24_000,
        sample_rate=24_000,
        seed=2**63,
        engine_revision="tone-1",
    )


def _audio(claim: Claim) -> PublishedAudio:
    return PublishedAudio(
        key=_key(claim),
        content_type="audio/mpeg",
        bytes=16_000,
        duration_ms=1_000,
        sample_rate=44_100,
        bitrate=128_000,
        channels=1,
        sha256="cd" * 32,
    )


def _key(claim: Claim) -> str:
    return f"audio/1d/{claim.job.id}/{claim.job.epoch}.mp3"


def _claim(store: JobStore, queue: str = QUEUE, *, holder: str = "worker") -> Claim:
    claim = store.claim(queue, holder=holder)
    assert claim is not None
    return claim


def _encoding(store: JobStore, new: NewJob | None = None) -> Claim:
    """Bring one job as far as its encoder."""
    store.create(new or _new())
    claim = _claim(store)
    store.staging(claim)
    store.plan(claim, chunks_total=1)
    store.record(claim, _clip(claim))
    store.synthesized(claim, queue=MEDIA)
    return _claim(store, MEDIA, holder="encoder")


def _completed(store: JobStore, new: NewJob | None = None) -> tuple[Claim, Job]:
    claim = _encoding(store, new)
    store.uploading(claim, key=_key(claim))
    return claim, store.complete(claim, _audio(claim))


# --- a new job -------------------------------------------------------------------------------------------


def test_a_new_job_is_queued_and_its_owner_sees_it(store: JobStore) -> None:
    created = store.create(_new("Héllo 🎧", metadata={"book": "Ж"}))

    assert created.status is Status.QUEUED
    assert created.stage is None
    assert created.progress == 0
    assert created.characters == 7
    assert created.version == 1
    assert created.metadata == {"book": "Ж"}
    assert created.created_at == datetime.fromtimestamp(START, UTC)
    assert created.id.startswith("job_")
    assert store.get(created.id, "ten_a") == created


@pytest.mark.parametrize("job_id", ["job_unknown", "", "job_\u00e9", "job_\x00", "\ud800", "' OR 1=1 --"])
def test_an_unknown_job_is_not_found(store: JobStore, job_id: str) -> None:
    store.create(_new())

    with pytest.raises(JobNotFound):
        store.get(job_id, "ten_a")


def test_another_tenants_job_is_not_found(store: JobStore) -> None:
    created = store.create(_new())

    with pytest.raises(JobNotFound):
        store.get(created.id, "ten_b")


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
def test_any_text_comes_back_as_it_went_in(store: JobStore, spoken: str) -> None:
    job = store.create(_new(spoken, metadata={"note": spoken[:500]}))

    claim = _claim(store)

    assert claim.input == spoken
    assert claim.job.characters == len(spoken)
    assert store.get(job.id, "ten_a").metadata == {"note": spoken[:500]}


def test_a_claim_knows_the_request(store: JobStore) -> None:
    job = store.create(_new("Hello.", webhook_url="https://hooks.example/é?a=1"))

    claim = _claim(store)

    assert claim.job.id == job.id
    assert claim.input == "Hello."
    assert claim.seed == 7
    assert claim.webhook_url == "https://hooks.example/é?a=1"
    assert claim.spoken_text is None
    assert claim.pipeline_version is None
    assert (claim.text_end, claim.clips, claim.lease_seconds) == (0, 0, LEASE)
    assert (claim.job.status, claim.job.stage) == (Status.IN_PROGRESS, Stage.SYNTHESIZING)
    assert claim.job.started_at == datetime.fromtimestamp(START, UTC)
    assert claim.job.version == job.version + 1
    assert claim.job.epoch == 1


# --- claiming --------------------------------------------------------------------------------------------


def test_a_job_is_claimed_once(store: JobStore) -> None:
    store.create(_new())
    _claim(store)

    assert store.claim(QUEUE, holder="another") is None


def test_a_queue_gives_its_own_jobs_only(store: JobStore) -> None:
    store.create(_new())

    assert store.claim("cpu.other", holder="worker") is None
    assert store.claim(MEDIA, holder="worker") is None


@pytest.mark.slow
def test_many_claimers_at_once_get_each_job_once_and_all_of_them(store: JobStore, database: Database) -> None:
    made = [
        store.create(_new(tenant=f"ten_{number % 5}", job_class=JobClass(number % 4))).id
        for number in range(100)
    ]
    taken: list[str] = []
    failed: list[BaseException] = []
    start = threading.Barrier(8)

    def work(holder: str) -> None:
        try:
            start.wait()
            while (claim := store.claim(QUEUE, holder=holder)) is not None:
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
def test_several_processes_share_the_jobs_out(store: JobStore, url: str) -> None:
    made = [store.create(_new(tenant=f"ten_{number % 3}")).id for number in range(60)]
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


def test_the_most_urgent_class_comes_first(store: JobStore, clock: Clock) -> None:
    order = [JobClass.LOW, JobClass.NORMAL, JobClass.LIVE, JobClass.HIGH]
    for job_class in order:
        store.create(_new(job_class=job_class))
        clock.advance(1)

    assert [_claim(store).job.job_class for _ in order] == sorted(order)


def test_the_tenant_with_the_least_running_work_comes_first(store: JobStore, clock: Clock) -> None:
    for tenant in ["ten_a"] * 3 + ["ten_b"] * 2 + ["ten_c"]:
        store.create(_new(tenant=tenant))
        clock.advance(0.001)

    assert [_claim(store).job.tenant_id for _ in range(6)] == [
        *("ten_a", "ten_b", "ten_c"),
        *("ten_a", "ten_b"),
        "ten_a",
    ]


def test_the_oldest_job_of_a_tenant_comes_first(store: JobStore, clock: Clock) -> None:
    made = []
    for _ in range(4):
        made.append(store.create(_new()).id)
        clock.advance(1)

    assert [_claim(store).job.id for _ in made] == made


def test_work_that_fell_silent_does_not_count_as_running(store: JobStore, clock: Clock) -> None:
    store.create(_new(tenant="ten_a"))
    silent = _claim(store)
    clock.advance(LEASE)
    store.create(_new(tenant="ten_b"))

    assert _claim(store).job.id == silent.job.id


def test_what_waits_or_is_held_is_passed_over(store: JobStore, clock: Clock) -> None:
    for _ in range(3):
        store.create(_new())
        clock.advance(1)
    held, backing_off = _claim(store), _claim(store)
    store.retry_later(backing_off, BROKEN)

    assert _claim(store).job.id not in (held.job.id, backing_off.job.id)
    assert store.claim(QUEUE, holder="worker") is None


def test_a_released_job_goes_back_to_its_old_place(store: JobStore, clock: Clock) -> None:
    for _ in range(3):
        store.create(_new())
        clock.advance(1)
    first = _claim(store)
    clock.advance(1)

    store.release(first)

    again = _claim(store)
    assert again.job.id == first.job.id
    assert again.job.epoch == first.job.epoch + 1
    assert again.job.failures == 0
    assert again.job.started_at == first.job.started_at


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_claim_passes_over_rows_that_others_are_about_to_take(
    store: JobStore, database: Database, clock: Clock
) -> None:
    live = store.create(_new(job_class=JobClass.LIVE))
    normal = store.create(_new(job_class=JobClass.NORMAL))
    lock = text("SELECT id FROM jobs WHERE id = :id FOR UPDATE")

    with database.write() as another:
        another.execute(lock, {"id": live.id})
        assert _claim(store).job.id == normal.id
        assert store.claim(QUEUE, holder="worker") is None

    assert _claim(store).job.id == live.id


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_claim_finds_the_one_tenant_whose_rows_are_free(store: JobStore, database: Database) -> None:
    taken = [store.create(_new(tenant=f"ten_{number:02}")).id for number in range(TRIED_LANES + 2)]
    free = store.create(_new(tenant="ten_99"))

    with database.write() as another:
        another.execute(text("SELECT id FROM jobs WHERE id = ANY(:ids) FOR UPDATE"), {"ids": taken})
        assert _claim(store).job.id == free.id


# --- the fence -------------------------------------------------------------------------------------------

Write = Callable[[JobStore, Claim], object]
WRITES: Final[dict[str, Write]] = {
    "renew": lambda store, claim: store.renew(claim.job.id, claim.job.epoch),
    "release": lambda store, claim: store.release(claim),
    "postpone": lambda store, claim: store.postpone(claim, BROKEN, seconds=5),
    "retry_later": lambda store, claim: store.retry_later(claim, BROKEN),
    "fail": lambda store, claim: store.fail(claim, BROKEN),
    "prepare": lambda store, claim: store.prepare(claim, spoken_text="Hello"),
    "plan": lambda store, claim: store.plan(claim, chunks_total=3),
    "staging": lambda store, claim: store.staging(claim),
    "record": lambda store, claim: store.record(claim, _clip(claim, seq=claim.clips)),
    "synthesized": lambda store, claim: store.synthesized(claim, queue=MEDIA),
    "uploading": lambda store, claim: store.uploading(claim, key=_key(claim)),
    "complete": lambda store, claim: store.complete(claim, _audio(claim)),
}


def _claimed_again(store: JobStore, claim: Claim, clock: Clock) -> None:
    clock.advance(LEASE)
    assert _claim(store, claim.job.queue or "", holder="another").job.id == claim.job.id


def _let_go(store: JobStore, claim: Claim, clock: Clock) -> None:
    store.release(claim)


def _backed_off(store: JobStore, claim: Claim, clock: Clock) -> None:
    store.retry_later(claim, BROKEN)


def _handed_on(store: JobStore, claim: Claim, clock: Clock) -> None:
    store.synthesized(claim, queue=MEDIA)


def _failed(store: JobStore, claim: Claim, clock: Clock) -> None:
    store.fail(claim, BROKEN)


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("lose", [_claimed_again, _let_go, _backed_off, _handed_on, _failed])
def test_whoever_lost_a_job_changes_nothing_of_it(
    store: JobStore,
    database: Database,
    clock: Clock,
    name: str,
    lose: Callable[[JobStore, Claim, Clock], None],
) -> None:
    store.create(_new(webhook_url="https://hooks.example"))
    claim = _claim(store)
    store.uploading(claim, key=_key(claim))
    lose(store, claim, clock)
    before = everything(database)

    with pytest.raises(Fenced):
        WRITES[name](store, claim)

    assert everything(database) == before


@pytest.mark.parametrize("name", WRITES)
def test_a_holder_whose_lease_ran_out_may_go_on_while_nobody_took_the_job(
    store: JobStore, clock: Clock, name: str
) -> None:
    store.create(_new())
    claim = _claim(store)
    clock.advance(LEASE * 10)

    WRITES[name](store, claim)


@pytest.mark.parametrize("name", ["renew", "record", "uploading"])
def test_a_renewed_lease_lasts_its_whole_length_again(store: JobStore, clock: Clock, name: str) -> None:
    store.create(_new())
    claim = _claim(store)
    clock.advance(LEASE - 1)

    WRITES[name](store, claim)

    clock.advance(LEASE - 1)
    assert store.claim(QUEUE, holder="another") is None
    clock.advance(1)
    assert store.claim(QUEUE, holder="another") is not None


# --- failures --------------------------------------------------------------------------------------------


def test_a_holder_that_fell_silent_is_a_failure(store: JobStore, clock: Clock) -> None:
    store.create(_new())
    assert _claim(store).job.failures == 0

    clock.advance(LEASE)
    assert _claim(store).job.failures == 1
    clock.advance(LEASE)
    assert _claim(store).job.failures == 2


def test_at_the_limit_the_job_fails_and_the_same_call_takes_the_next(
    store: JobStore, database: Database, clock: Clock
) -> None:
    poison = store.create(_new(webhook_url="https://hooks.example"))
    for _ in range(3):
        assert _claim(store).job.id == poison.id
        clock.advance(LEASE)
    healthy = store.create(_new())

    assert _claim(store).job.id == healthy.id

    failed = store.get(poison.id, "ten_a")
    assert failed.status is Status.FAILED
    assert failed.failures == 3
    assert failed.error is not None
    assert failed.error.code == "worker_lost"
    assert failed.error.type == "server_error"
    assert failed.queue is None
    assert failed.stage is None
    assert [event["job"] for event in rows(database, "events")] == [poison.id]
    assert len(rows(database, "deliveries")) == 1


def test_at_the_limit_without_another_job_nothing_is_claimed(store: JobStore, clock: Clock) -> None:
    poison = store.create(_new())
    for _ in range(3):
        _claim(store)
        clock.advance(LEASE)

    assert store.claim(QUEUE, holder="worker") is None
    assert store.get(poison.id, "ten_a").status is Status.FAILED


def test_a_released_job_does_not_count_as_failed(store: JobStore) -> None:
    store.create(_new())
    for _ in range(10):
        store.release(_claim(store))

    assert _claim(store).job.failures == 0


def test_a_recorded_clip_ends_a_row_of_failures(store: JobStore, clock: Clock) -> None:
    store.create(_new())
    for _ in range(2):
        _claim(store)
        clock.advance(LEASE)
    claim = _claim(store)
    assert claim.job.failures == 2

    store.record(claim, _clip(claim))

    clock.advance(LEASE)
    assert _claim(store).job.failures == 1


def test_a_failed_attempt_waits_longer_each_time_and_then_fails_the_job(
    store: JobStore, database: Database, clock: Clock
) -> None:
    job = store.create(_new(webhook_url="https://hooks.example"))
    for number in range(2):
        assert store.retry_later(_claim(store), replace(BROKEN, message=f"attempt {number}")) is None
        clock.advance(BACKOFF[number] - 0.5)
        assert store.claim(QUEUE, holder="worker") is None
        clock.advance(0.5)

    failed = store.retry_later(_claim(store), JobError(code="disk_full", message="no space"))

    assert failed is not None
    assert failed == store.get(job.id, "ten_a")
    assert (failed.status, failed.failures) == (Status.FAILED, 3)
    assert failed.error == JobError(code="disk_full", message="no space")
    assert failed.completed_at == datetime.fromtimestamp(START + sum(BACKOFF[:2]), UTC)
    (row,) = rows(database, "jobs")
    assert [error["message"] for error in json.loads(row["errors"])] == ["attempt 0", "attempt 1"]
    assert [event["type"] for event in rows(database, "events")] == ["speech.job.failed"]


def test_postponing_counts_nothing_however_often_and_keeps_the_last_errors(
    store: JobStore, database: Database, clock: Clock
) -> None:
    job = store.create(_new())
    for number in range(KEPT_ERRORS + 3):
        store.postpone(_claim(store), JobError(code="store_down", message=f"{number}\x00"), seconds=2)
        assert store.claim(QUEUE, holder="worker") is None
        clock.advance(2)

    assert _claim(store).job.failures == 0
    (row,) = rows(database, "jobs")
    assert [error["message"] for error in json.loads(row["errors"])] == [f"{n}?" for n in range(3, 8)]
    assert store.get(job.id, "ten_a").error is None


@pytest.mark.parametrize("end", ["retry_later", "postpone", "fail"])
def test_an_error_that_tells_of_bytes_is_written_down(store: JobStore, clock: Clock, end: str) -> None:
    # Python names a file of undecodable bytes by surrogates, and no database takes those.
    error = JobError(code="disk_full", message="no space for 'a\udce9\x00b'")
    job = store.create(_new(webhook_url="https://hooks.example"))
    for _ in range(3):
        if (claim := store.claim(QUEUE, holder="worker")) is not None:
            _write(store, claim, end, error)
        clock.advance(60)

    stored = store.get(job.id, "ten_a").error
    assert stored is None or stored.message == "no space for 'a??b'"
    assert (stored is None) == (end == "postpone")


def _write(store: JobStore, claim: Claim, end: str, error: JobError) -> None:
    match end:
        case "fail":
            store.fail(claim, error)
        case "postpone":
            store.postpone(claim, error, seconds=5)
        case _:
            store.retry_later(claim, error)


def test_a_job_that_cannot_succeed_fails_at_once(store: JobStore, database: Database) -> None:
    store.create(_new())
    error = JobError(code="unsayable", message="no words", type="invalid_request_error", param="input")

    failed = store.fail(_claim(store), error)

    assert (failed.status, failed.error, failed.failures) == (Status.FAILED, error, 0)
    assert store.claim(QUEUE, holder="worker") is None
    (event,) = rows(database, "events")
    payload = json.loads(event["payload"])
    assert (payload["type"], payload["data"]["error"]["param"]) == ("speech.job.failed", "input")
    assert rows(database, "deliveries") == []


# --- checkpoints -----------------------------------------------------------------------------------------


def test_work_resumes_behind_the_last_recorded_clip(store: JobStore, clock: Clock) -> None:
    job = store.create(_new())
    claim = _claim(store)
    store.prepare(claim, spoken_text="One. Two. Three. 안녕.")
    store.plan(claim, chunks_total=4)
    store.staging(claim)
    made = [_clip(claim, seq=0, start=0, end=5), _clip(claim, seq=1, start=5, end=10)]
    for clip in made:
        store.record(claim, clip)
    clock.advance(LEASE)

    resumed = _claim(store, holder="another")

    assert resumed.spoken_text == "One. Two. Three. 안녕."
    assert resumed.pipeline_version == PIPELINE_VERSION
    assert (resumed.text_end, resumed.clips) == (10, 2)
    assert store.clips(job.id) == made
    assert (resumed.job.chunks_done, resumed.job.chunks_total) == (2, 4)
    assert resumed.job.progress == 45


def test_clips_come_in_order_and_belong_to_one_job(store: JobStore) -> None:
    first, second = store.create(_new()), store.create(_new(tenant="ten_b"))
    claims = {claim.job.id: claim for claim in (_claim(store), _claim(store))}
    for seq in (2, 0, 1):
        store.record(claims[first.id], _clip(claims[first.id], seq=seq, start=seq, end=seq + 1))
    store.record(claims[second.id], _clip(claims[second.id]))

    assert [clip.seq for clip in store.clips(first.id)] == [0, 1, 2]
    assert [clip.key for clip in store.clips(second.id)] == [_clip(claims[second.id]).key]
    assert store.clips(JobId("job_unknown")) == []


def test_a_clip_that_is_recorded_again_after_a_lost_answer_is_recorded_once(store: JobStore) -> None:
    job = store.create(_new())
    claim = _claim(store)
    clip = _clip(claim)
    store.record(claim, clip)

    store.record(claim, clip)

    assert store.clips(job.id) == [clip]
    assert store.get(job.id, "ten_a").chunks_done == 1


def test_another_clip_in_the_place_of_a_recorded_one_is_refused(store: JobStore, database: Database) -> None:
    store.create(_new())
    claim = _claim(store)
    store.record(claim, _clip(claim))
    before = everything(database)

    with pytest.raises(IntegrityError):
        store.record(claim, replace(_clip(claim), key="staged/other"))

    assert everything(database) == before


def test_the_owner_sees_every_step(store: JobStore) -> None:
    job = store.create(_new())
    versions = [job.version]
    claim = _claim(store)

    def seen() -> Job:
        now = store.get(job.id, "ten_a")
        versions.append(now.version)
        return now

    assert seen().stage is Stage.SYNTHESIZING
    store.plan(claim, chunks_total=1)
    assert seen().progress == 0
    store.record(claim, _clip(claim))
    assert seen().progress == 90
    store.synthesized(claim, queue=MEDIA)
    assert seen().stage is Stage.ENCODING
    encoder = _claim(store, MEDIA)
    store.uploading(encoder, key=_key(encoder))
    assert (seen().stage, seen().progress) == (Stage.UPLOADING, 95)
    store.complete(encoder, _audio(encoder))
    assert (seen().stage, seen().progress) == (None, 100)
    assert sorted(set(versions)) == [1, 2, 3, 4, 5, 6, 7]


# --- publishing ------------------------------------------------------------------------------------------


def test_completing_writes_the_job_the_ledger_the_event_and_its_delivery(
    store: JobStore, database: Database, clock: Clock
) -> None:
    claim = _encoding(store, _new("안녕 🎧", webhook_url="https://hooks.example/x", metadata={"a": "é/"}))
    store.uploading(claim, key=_key(claim))
    clock.advance(3)

    job = store.complete(claim, _audio(claim))

    assert job == store.get(job.id, "ten_a")
    assert (job.status, job.stage, job.queue, job.error) == (Status.COMPLETED, None, None, None)
    assert job.audio == _audio(claim)
    assert job.completed_at == datetime.fromtimestamp(START + 3, UTC)
    assert job.expires_at == datetime.fromtimestamp(START + 3 + 86_400, UTC)

    (entry,) = rows(database, "objects")
    assert (entry["key"], entry["owner"], entry["tenant_id"]) == (_key(claim), job.id, "ten_a")
    assert (entry["state"], entry["delete_after"]) == ("live", START + 3 + 86_400)

    (event,) = rows(database, "events")
    assert (event["job"], event["type"], bool(event["terminal"])) == (job.id, "speech.job.completed", True)
    payload = json.loads(event["payload"])
    assert payload["id"] == event["id"]
    assert payload["data"]["status"] == "completed"
    assert payload["data"]["version"] == job.version
    assert payload["data"]["progress"] == 100
    assert payload["data"]["metadata"] == {"a": "é/"}
    audio = payload["data"]["result"]["audio"]
    assert audio["url"] == f"https://speech.example/v1/speech/jobs/{job.id}/audio"
    assert audio["url_expires_at"] is None
    assert "key" not in audio

    (delivery,) = rows(database, "deliveries")
    assert (delivery["event"], delivery["url"]) == (event["id"], "https://hooks.example/x")
    assert (delivery["queue"], delivery["status"], delivery["attempts"]) == (WEBHOOKS, "pending", 0)
    assert delivery["visible_at"] == START + 3


def test_without_a_webhook_there_is_an_event_and_no_delivery(store: JobStore, database: Database) -> None:
    _completed(store)

    assert len(rows(database, "events")) == 1
    assert rows(database, "deliveries") == []


@pytest.mark.parametrize("name", ["complete", "fail"])
def test_the_database_refuses_a_second_terminal_event_and_then_nothing_is_written(
    store: JobStore, database: Database, name: str
) -> None:
    claim = _encoding(store, _new(webhook_url="https://hooks.example"))
    store.uploading(claim, key=_key(claim))
    execute(
        database,
        "INSERT INTO events (id, job, tenant_id, type, terminal, created_at, payload)"
        " VALUES ('evt_other', :job, 'ten_a', 'speech.job.failed', true, 0, '{}')",
        job=claim.job.id,
    )
    before = everything(database)

    with pytest.raises(IntegrityError):
        WRITES[name](store, claim)

    assert everything(database) == before


def test_completing_twice_leaves_one_event(store: JobStore, database: Database) -> None:
    claim, job = _completed(store)

    with pytest.raises(Fenced):
        store.complete(claim, _audio(claim))

    assert len(rows(database, "events")) == 1
    assert store.get(job.id, "ten_a") == job


def test_a_publisher_that_lost_the_answer_can_ask(store: JobStore) -> None:
    claim = _encoding(store)
    store.uploading(claim, key=_key(claim))
    assert not store.published(claim, key=_key(claim))

    store.complete(claim, _audio(claim))

    assert store.published(claim, key=_key(claim))
    assert not store.published(claim, key="audio/1d/another.mp3")


def test_a_failed_job_was_not_published(store: JobStore) -> None:
    claim = _encoding(store)
    store.uploading(claim, key=_key(claim))
    store.fail(claim, BROKEN)

    assert not store.published(claim, key=_key(claim))


def test_announcing_the_same_key_again_starts_its_ledger_entry_anew(
    store: JobStore, database: Database, clock: Clock
) -> None:
    claim = _encoding(store)
    store.uploading(claim, key=_key(claim))
    clock.advance(5)
    store.uploading(claim, key=_key(claim))

    (entry,) = rows(database, "objects")
    assert (entry["state"], entry["created_at"]) == ("pending", START + 5)


# --- sweeping --------------------------------------------------------------------------------------------


def test_ready_work_is_counted_by_queue_up_to_a_cap(store: JobStore, clock: Clock) -> None:
    assert store.ready(cap=10) == {}
    _completed(store, _new(webhook_url="https://hooks.example"))
    for _ in range(5):
        store.create(_new())
    store.create(_new(queue="gpu.other"))
    _claim(store)

    assert store.ready(cap=10) == {QUEUE: 4, "gpu.other": 1, WEBHOOKS: 1}
    assert store.ready(cap=3) == {QUEUE: 3, "gpu.other": 1, WEBHOOKS: 1}
    clock.advance(LEASE)
    assert store.ready(cap=10)[QUEUE] == 5


def test_jobs_and_deliveries_of_one_queue_are_counted_together(database: Database) -> None:
    store = JobStore(database, public_url="https://speech.example", webhook_queue=MEDIA)
    _completed(store, _new(webhook_url="https://hooks.example"))
    store.create(_new(queue=MEDIA))

    assert store.ready(cap=10) == {MEDIA: 2}


def test_audio_is_deleted_when_its_time_is_over(store: JobStore, database: Database, clock: Clock) -> None:
    claim, job = _completed(store, _new(expires_in=60))
    clock.advance(59)
    assert store.expired_objects(limit=10) == []

    clock.advance(1)

    due = [StoredKey(key=_key(claim), owner=job.id)]
    assert store.expired_objects(limit=10) == due
    # Whoever was to delete it died: the next call names it again.
    assert store.expired_objects(limit=10) == due
    store.forget_object(_key(claim))
    assert store.expired_objects(limit=10) == []
    assert rows(database, "objects") == []


def test_no_more_is_named_than_asked_for(store: JobStore, clock: Clock) -> None:
    for _ in range(3):
        _completed(store, _new(expires_in=60))
    clock.advance(61)

    assert len(store.expired_objects(limit=2)) == 2


def test_live_and_pending_entries_are_not_forgotten(store: JobStore, database: Database) -> None:
    claim, _ = _completed(store)
    pending = _encoding(store)
    store.uploading(pending, key=_key(pending))

    store.forget_object(_key(claim))
    store.forget_object(_key(pending))

    assert {entry["state"] for entry in rows(database, "objects")} == {"live", "pending"}
    assert len(rows(database, "objects")) == 2


def test_an_upload_in_hand_is_not_an_orphan_however_old(store: JobStore, clock: Clock) -> None:
    claim = _encoding(store)
    store.uploading(claim, key=_key(claim))
    clock.advance(7200)

    store.orphaned_objects(older_than=3600)

    assert store.expired_objects(limit=10) == []
    store.complete(claim, _audio(claim))
    assert store.published(claim, key=_key(claim))


@pytest.mark.parametrize("end", ["claimed again", "failed"])
def test_an_upload_that_nobody_will_publish_is_deleted(store: JobStore, clock: Clock, end: str) -> None:
    claim = _encoding(store)
    store.uploading(claim, key=_key(claim))
    if end == "failed":
        store.fail(claim, BROKEN)
    else:
        clock.advance(LEASE)
        again = _claim(store, MEDIA)
        store.uploading(again, key=_key(again))
    store.orphaned_objects(older_than=3600)
    assert store.expired_objects(limit=10) == []
    clock.advance(3601)

    store.orphaned_objects(older_than=3600)

    assert store.expired_objects(limit=10) == [StoredKey(key=_key(claim), owner=claim.job.id)]


def test_published_audio_is_never_an_orphan(store: JobStore, clock: Clock) -> None:
    _completed(store, _new(expires_in=864_000))
    clock.advance(7200)

    store.orphaned_objects(older_than=3600)

    assert store.expired_objects(limit=10) == []


def test_staged_objects_are_left_over_once_their_job_has_ended(store: JobStore, clock: Clock) -> None:
    _, completed = _completed(store)
    working = _encoding(store)
    store.create(_new())
    unstaged = store.fail(_claim(store), BROKEN)
    assert store.staged_leftovers(limit=10) == [completed.id]

    store.staged_gone(working.job.id)
    failed = store.fail(working, BROKEN)

    assert store.staged_leftovers(limit=10) == sorted([completed.id, failed.id])
    assert len(store.staged_leftovers(limit=1)) == 1
    store.staged_gone(completed.id)
    assert store.staged_leftovers(limit=10) == [failed.id]
    assert unstaged.id not in store.staged_leftovers(limit=10)


# --- two stores over one database ------------------------------------------------------------------------


def test_what_one_process_commits_another_sees(store: JobStore, url: str) -> None:
    job = store.create(_new())

    with closing(Database(url, now=NOW)) as another:
        assert _store(another).get(job.id, "ten_a") == job
        claim = _claim(_store(another), holder="elsewhere")

    store.release(claim)
    assert _claim(store).job.epoch == 2
