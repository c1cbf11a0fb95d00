"""Workers of the release before at the database of this one: a fleet is upgraded one worker at a time.

What goes on in a mixed fleet: everything that a worker of revision 0001 knows. What does not, until its last
worker is replaced:

- An old worker never gives way, and begins jobs whose deadline has passed.
- An old worker does not count what it speaks: such a job counts as short at its encoder, and as unspoken in
  the estimates, until a new worker goes on with it.
- A job that an old API stored counts as one without characters until it is begun, in the estimates and where
  a book gives way to a line.
- **An old synthesis worker resumes behind the last clip, so it does not speak a gap again**, which a new
  encoder makes when it sends a job back whose clip was lost; and an old encoder does not look for gaps. So
  synthesis workers are upgraded first, then encoders.
- An old sweeper deletes orphans once, not twice, and staged objects at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from jobs.database import Database
from jobs.job import Claim, Fenced, JobId, Stage, Status
from jobs.store import MAX_REMADE, JobStore
from jobs.workers import WorkerRegistry

from ..contracts.job_steps import (
    HOOK,
    LEASE,
    MEDIA,
    QUEUE,
    audio,
    begin,
    clip,
    job_store,
    key,
    new,
    speak,
    take,
)
from .databases import NOW, Clock, everything, rows
from .invariants import check

pytestmark = pytest.mark.slow
RELEASE: Final = Path(__file__).parent / "releases" / "jobs-0001.zip"
INPUT: Final = "One. Two. Three."
#: Runs under the package of the release before; it knows `jobs`, `outbox`, `workers` and a few steps.
OLD: Final = """
import json, sys
release, url, now = sys.argv[1:]
sys.path.insert(0, release)
import jobs.store
assert jobs.store.__file__.startswith(release), jobs.store.__file__
from jobs.database import Database
from jobs.deliveries import DeliveryStore
from jobs.job import Clip, Fenced, JobError, JobId, NewJob, PublishedAudio, TenantId
from jobs.store import JobStore
from jobs.workers import WorkerRegistry

database = Database(url, now=now)
jobs = JobStore(database, public_url="https://speech.example", lease_seconds=30.0, max_failures=3)
outbox = DeliveryStore(database)
workers = WorkerRegistry(database)
BROKEN = JobError(code="engine_failed", message="the engine gave no sound")
told = {}

def take(queue):
    claim = jobs.claim(queue, holder="old")
    assert claim is not None, queue
    return claim

def begin(claim, chunks=3):
    jobs.prepare(claim, spoken_text=claim.input)
    jobs.plan(claim, chunks_total=chunks)
    jobs.staging(claim)

def clip(claim, seq, start, end):
    return Clip(seq=seq, text_start=start, text_end=end, pause_ms=0, epoch=claim.job.epoch,
                key=f"staged/{claim.job.id}/{claim.job.epoch}-{seq}-old", sha256="ab" * 32,
                samples=24_000, sample_rate=24_000, seed=1, engine_revision="tone-1")

def rest(claim):
    # As its actor did: behind the last clip, with the next number.
    if claim.text_end < len(claim.input):
        jobs.record(claim, clip(claim, claim.clips, claim.text_end, len(claim.input)))
    jobs.synthesized(claim, queue="cpu.media")

def key(claim):
    return f"audio/1d/{claim.job.id}/{claim.job.epoch}.mp3"

def publish(claim):
    jobs.uploading(claim, key=key(claim))
    return jobs.complete(claim, PublishedAudio(
        key=key(claim), content_type="audio/mpeg", bytes=1, duration_ms=1, sample_rate=24_000,
        bitrate=64_000, channels=1, sha256="cd" * 32))

"""


def _old(url: str, script: str) -> dict[str, Any]:
    """Let a process of the release before do something; return what it tells."""
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-c"),
            f"{OLD}{script}\ndatabase.close()\nprint(json.dumps(told))",
            *(str(RELEASE), url, NOW),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=RELEASE.parent,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture
def store(database: Database) -> JobStore:
    """Give a store of this release."""
    return job_store(database)


def _encode(store: JobStore) -> None:
    encoder = take(store, MEDIA)
    store.uploading(encoder, key=key(encoder))
    store.complete(encoder, audio(encoder))


def _spans(store: JobStore, job_id: JobId) -> list[tuple[int, int]]:
    return [(each.text_start, each.text_end) for each in store.clips(job_id)]


def test_an_old_worker_takes_a_job_from_its_request_to_its_audio(
    store: JobStore, database: Database, url: str
) -> None:
    job = store.create(new(INPUT, webhook_url=HOOK, deadline=60))

    told = _old(
        url,
        """
claim = take("cpu.tone")
begin(claim)
jobs.record(claim, clip(claim, 0, 0, 5))
jobs.renew(claim.job.id, claim.job.epoch)
jobs.release(claim)
claim = take("cpu.tone")
told["resumes"] = [claim.text_end, claim.clips, claim.spoken_text]
rest(claim)
done = publish(take("cpu.media"))
told["status"] = done.status
told["seen"] = jobs.get(done.id, "ten_a").version
delivery = outbox.claim("cpu.webhooks", holder="old")
outbox.delivered(delivery, status=204)
workers.publish("old", queue="cpu.tone", model="tone", info={"voices": []}, rtf=0.5)
""",
    )

    assert told["resumes"] == [5, 1, INPUT]
    assert told["status"] == "completed"
    seen = store.get(job.id, "ten_a")
    assert (seen.status, seen.version) == (Status.COMPLETED, told["seen"])
    assert _spans(store, job.id) == [(0, 5), (5, 16)]
    assert [event["type"] for event in rows(database, "events")] == ["speech.job.completed"]
    assert [delivery["status"] for delivery in rows(database, "deliveries")] == ["delivered"]
    (served,) = WorkerRegistry(database).models()
    assert (served.model, served.rtf, served.seconds_per_char, served.alive) == ("tone", 0.5, None, True)


def test_an_old_worker_fails_jobs_and_loses_them(
    store: JobStore, database: Database, clock: Clock, url: str
) -> None:
    failed, poison = store.create(new()), store.create(new(tenant="ten_b"))

    _old(url, 'jobs.fail(take("cpu.tone"), BROKEN); jobs.retry_later(take("cpu.tone"), BROKEN)')

    ends = {store.get(failed.id, "ten_a").status, store.get(poison.id, "ten_b").status}
    assert ends == {Status.FAILED, Status.IN_PROGRESS}
    clock.advance(1)
    # It dies.
    _old(url, 'take("cpu.tone")')
    clock.advance(LEASE)
    claim = take(store)
    assert (claim.job.failures, claim.errors) == (2, ("engine_failed", "worker_lost"))
    check(database)


def test_an_old_sweeper_sweeps(store: JobStore, database: Database, clock: Clock, url: str) -> None:
    store.create(new(expires_in=60))
    speak(store, take(store))
    _encode(store)
    store.create(new())
    speak(store, take(store))
    orphan = take(store, MEDIA)
    store.uploading(orphan, key=key(orphan))
    store.cancel(orphan.job.id, "ten_a")
    store.create(new())
    clock.advance(7200)

    told = _old(
        url,
        """
told["ready"] = jobs.ready(cap=10)
jobs.orphaned_objects(older_than=3600)
told["keys"] = sorted(found.key for found in jobs.expired_objects(limit=10))
told["staged"] = jobs.staged_leftovers(limit=10)
""",
    )

    assert told["ready"] == {QUEUE: 1}
    assert len(told["keys"]) == 2
    assert key(orphan) in told["keys"]
    assert len(told["staged"]) == 2
    # It dies before it has deleted anything: a new one does it.
    assert sorted(found.key for found in store.expired_objects(limit=10)) == told["keys"]
    for name in told["keys"]:
        store.forget_object(name)
    assert rows(database, "objects") == []


def test_a_new_worker_goes_on_with_what_an_old_one_began(
    store: JobStore, database: Database, clock: Clock, url: str
) -> None:
    job = store.create(new(INPUT))
    _old(
        url,
        """
claim = take("cpu.tone")
begin(claim)
jobs.record(claim, clip(claim, 0, 0, 5))
""",
    )
    # It did not count them.
    assert store.get(job.id, "ten_a").audio_ms == 0
    clock.advance(LEASE)

    claim = take(store)

    assert (claim.recorded, claim.next_seq, claim.spoken_text) == (((0, 5),), 1, INPUT)
    assert claim.synthesis_queue == QUEUE
    begin(store, claim, chunks=2, left=11)
    assert store.get(job.id, "ten_a").characters_left == 11
    store.record(claim, clip(claim, seq=1, start=5, end=16))
    store.synthesized(claim, queue=MEDIA)
    # A lost clip of the old worker's is made again, and then everything is counted.
    encoder = take(store, MEDIA)
    store.remake(encoder, store.clips(job.id)[:1])
    assert store.get(job.id, "ten_a").audio_ms == 1_000
    again = take(store)
    store.record(again, clip(again, seq=again.next_seq, start=0, end=5))
    store.synthesized(again, queue=MEDIA)
    _encode(store)
    assert _spans(store, job.id) == [(0, 5), (5, 16)]
    check(database)


def test_an_old_worker_goes_on_with_what_a_new_one_began(
    store: JobStore, database: Database, clock: Clock, url: str
) -> None:
    job = store.create(new(INPUT))
    claim = take(store)
    begin(store, claim, chunks=3)
    store.record(claim, clip(claim, seq=0, start=0, end=5))
    store.record(claim, clip(claim, seq=1, start=5, end=10))
    clock.advance(LEASE)

    told = _old(
        url,
        """
claim = take("cpu.tone")
told["resumes"] = [claim.text_end, claim.clips, claim.spoken_text, claim.job.failures]
rest(claim)
publish(take("cpu.media"))
""",
    )

    assert told["resumes"] == [10, 2, INPUT, 1]
    assert store.get(job.id, "ten_a").status is Status.COMPLETED
    assert _spans(store, job.id) == [(0, 5), (5, 10), (10, 16)]
    with pytest.raises(Fenced):
        store.record(claim, clip(claim, seq=2, start=10, end=16))
    assert len(rows(database, "events")) == 1


def test_a_job_that_an_old_api_stored_is_spoken_by_a_new_worker(
    store: JobStore, database: Database, url: str
) -> None:
    told = _old(
        url,
        """
job = jobs.create(NewJob(tenant_id=TenantId("ten_a"), input="One. Two. Three.", model="tone",
    queue="cpu.tone", voice="sine", language="en", response_format="mp3", seed=7, expires_in=60))
told["id"] = job.id
""",
    )

    claim = take(store)

    assert (claim.job.id, claim.input, claim.synthesis_queue) == (told["id"], INPUT, QUEUE)
    speak(store, claim)
    _encode(store)
    assert store.get(told["id"], "ten_a").status is Status.COMPLETED
    check(database)


@pytest.mark.parametrize("end", ["cancel", "swap", "expire"])
def test_what_only_a_new_worker_does_fences_an_old_one(
    store: JobStore, database: Database, url: str, end: str
) -> None:
    job = store.create(new(INPUT))
    script = """
for write in (
    lambda: jobs.renew(claim.job.id, claim.job.epoch),
    lambda: jobs.release(claim),
    lambda: jobs.retry_later(claim, BROKEN),
    lambda: jobs.fail(claim, BROKEN),
    lambda: jobs.plan(claim, chunks_total=9),
    lambda: jobs.record(claim, clip(claim, 0, 0, 5)),
    lambda: jobs.synthesized(claim, queue="cpu.media"),
    lambda: publish(claim),
):
    try:
        write()
    except Fenced:
        pass
    else:
        told["not fenced"] = True
"""
    claim: Claim = take(store)
    match end:
        case "cancel":
            store.cancel(job.id, "ten_a")
        case "swap":
            store.create(new("x", tenant="ten_b"))
            assert store.swap(claim, holder="new", left=len(INPUT), turn_is_over=True) is not None
        case _:
            store.release(claim)
            store.create(new(tenant="ten_b", deadline=0))
            store.expire(limit=1)
    before = everything(database)

    # A claim of the same row and epoch, as the old worker would hold it.
    same = f"""
from types import SimpleNamespace
claim = SimpleNamespace(input={INPUT!r}, job=SimpleNamespace(
    id={job.id!r}, epoch={claim.job.epoch}, tenant_id="ten_a", expires_in=60))
"""
    assert _old(url, same + script) == {}

    assert everything(database) == before


def test_an_old_api_shows_how_a_job_ended(store: JobStore, clock: Clock, url: str) -> None:
    cancelled = store.cancel(store.create(new()).id, "ten_a")
    expired = store.create(new(deadline=1))
    clock.advance(1)
    store.expire(limit=1)

    told = _old(
        url,
        f"""
for job_id in ({cancelled.id!r}, {expired.id!r}):
    told[job_id] = jobs.get(job_id, "ten_a").status
""",
    )

    assert told == {cancelled.id: "cancelled", expired.id: "expired"}


# --- what does not work ----------------------------------------------------------------------------------


def test_an_old_worker_leaves_a_gap_and_a_new_encoder_never_publishes_it(
    store: JobStore, database: Database, url: str
) -> None:
    """Why synthesis workers are upgraded before encoders."""
    job = store.create(new(INPUT))
    claim = take(store)
    begin(store, claim, chunks=2)
    store.record(claim, clip(claim, seq=0, start=0, end=5))
    store.record(claim, clip(claim, seq=1, start=5, end=16))
    store.synthesized(claim, queue=MEDIA)
    encoder = take(store, MEDIA)
    store.remake(encoder, store.clips(job.id)[:1])

    _old(url, 'rest(take("cpu.tone"))')

    assert _spans(store, job.id) == [(5, 16)]
    back = take(store, MEDIA)
    assert back.recorded == ((5, 16),)
    # The encoder sees the gap, and sends it back until a new worker takes it, or says why it failed.
    for _ in range(MAX_REMADE - 1):
        assert store.remake(back, []) is None
        _old(url, 'rest(take("cpu.tone"))')
        back = take(store, MEDIA)
    failed = store.remake(back, [])
    assert failed is not None
    assert (failed.error and failed.error.code) == "clip_lost"
    check(database)


def test_an_old_worker_begins_a_job_whose_deadline_has_passed(
    store: JobStore, clock: Clock, url: str
) -> None:
    job = store.create(new(deadline=1))
    clock.advance(2)

    _old(url, 'take("cpu.tone")')

    assert store.get(job.id, "ten_a").stage is Stage.SYNTHESIZING
    # Begun is begun.
    assert store.expire(limit=1) == 0
