"""The synthesis handler over a real job table: what is recorded, resumed, retried and refused."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from sqlalchemy import select, update

from actors.bell import MEDIA_QUEUE
from actors.departure import FINISH_SECONDS, LEAVE_SECONDS, Departure
from actors.making import Synthesis, chunk_seed
from actors.synthesize import synthesize, voiced
from jobs.database import Database, DatabaseUnavailable
from jobs.job import Claim, Clip, Job, Stage, Status
from jobs.store import JobStore
from jobs.tables import jobs as jobs_table
from speech.audio import pcm_s16le
from speech.chunks import Chunk
from speech.engine import (
    BadOutput,
    EngineDied,
    EngineFailed,
    EngineUnavailable,
    Samples,
    SynthesisRequest,
    UnsupportedText,
)
from speech.host import Interrupted

from .conftest import ask
from .doubles import Bells, FakeEngine, MemoryStore, rescue, sound_of

TEXT = "The first sentence is here. The second one follows it. And the third one ends it."


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def bells() -> Bells:
    return Bells()


@pytest.fixture
def work(jobs: JobStore, objects: MemoryStore, engine: FakeEngine, bells: Bells) -> Synthesis:
    return _work(jobs, objects, engine, bells)


def _work(
    jobs: JobStore,
    objects: MemoryStore,
    engine: FakeEngine,
    bells: Bells,
    departure: Departure | None = None,
    broken: Callable[[str], None] = lambda reason: None,
) -> Synthesis:
    return Synthesis(
        queue="cpu.fake",
        holder="w1",
        jobs=jobs,
        objects=objects,
        engine=engine,
        ring=bells,
        departure=departure or Departure(),
        broken=broken,
        rescue=rescue(jobs),
    )


def _let_go(database: Database) -> None:
    """Move every back-off into the past."""
    with database.write() as connection:
        connection.execute(update(jobs_table).values(visible_at=0.0))


def test_every_chunk_is_staged_and_recorded_and_the_job_is_handed_to_the_encoders(
    work: Synthesis, jobs: JobStore, objects: MemoryStore, engine: FakeEngine, bells: Bells
) -> None:
    job = ask(jobs, TEXT)

    synthesize(work)

    clips = jobs.clips(job.id)
    assert clips[0].text_start == 0
    assert clips[-1].text_end == len(TEXT)
    assert [request.text for request in engine.spoken] == [
        TEXT[clip.text_start : clip.text_end].strip() for clip in clips
    ]
    for clip, request in zip(clips, engine.spoken, strict=True):
        body, content_type = objects.objects[clip.key]
        assert body == pcm_s16le(sound_of(request.text))
        assert hashlib.sha256(body).hexdigest() == clip.sha256
        assert content_type == "audio/x-raw; format=S16LE; channels=1; rate=1000"
        assert clip.key.startswith(f"staged/{job.id}/1-{clip.seq}-")
    after = jobs.get(job.id, "ten_a")
    assert (after.status, after.stage, after.queue) == (Status.IN_PROGRESS, Stage.ENCODING, MEDIA_QUEUE)
    assert (after.chunks_total, after.chunks_done) == (len(clips), len(clips))
    assert bells.rung == [MEDIA_QUEUE]


def test_work_resumes_after_the_last_recorded_clip_even_when_chunks_are_cut_differently(
    work: Synthesis,
    jobs: JobStore,
    objects: MemoryStore,
    engine: FakeEngine,
    bells: Bells,
    database: Database,
) -> None:
    job = ask(jobs, TEXT)
    died = EngineDied("killed")
    engine.before = lambda request: engine.fails.append(died) if len(engine.spoken) == 2 else None
    synthesize(work)
    first = [request.text for request in engine.spoken]
    assert len(jobs.clips(job.id)) == 1
    _let_go(database)

    other = FakeEngine(max_chars=15)
    synthesize(_work(jobs, objects, other, bells))

    clips = jobs.clips(job.id)
    spoken = "".join(TEXT[clip.text_start : clip.text_end] for clip in clips)
    assert spoken == TEXT
    assert first[0] not in [request.text for request in other.spoken]
    assert [clip.epoch for clip in clips] == [1] + [2] * (len(clips) - 1)
    after = jobs.get(job.id, "ten_a")
    assert after.chunks_total == len(clips)
    assert after.failures == 0


@pytest.mark.parametrize("error", [EngineDied("x"), EngineFailed("x"), BadOutput("x")])
def test_a_failing_engine_is_tried_three_times_and_then_fails_the_job_by_name(
    error: EngineDied | EngineFailed | BadOutput,
    work: Synthesis,
    jobs: JobStore,
    engine: FakeEngine,
    database: Database,
) -> None:
    job = ask(jobs, TEXT)
    for _ in range(3):
        engine.fails = [error]
        synthesize(work)
        _let_go(database)
    synthesize(work)

    after = jobs.get(job.id, "ten_a")
    assert after.status is Status.FAILED
    assert after.error is not None
    assert after.error.code == error.code
    assert len(engine.spoken) == 3
    # Another seed after a bad clip, which the same one might give again; else the same sound as ever.
    seeds = {request.seed for request in engine.spoken}
    assert len(seeds) == (3 if isinstance(error, BadOutput) else 1)


def test_what_the_engine_cannot_speak_fails_at_once_and_says_whose_fault_it_is(
    work: Synthesis, jobs: JobStore, engine: FakeEngine
) -> None:
    job = ask(jobs, TEXT)
    engine.fails = [UnsupportedText("no sound for 'x'")]

    synthesize(work)

    after = jobs.get(job.id, "ten_a")
    assert after.status is Status.FAILED
    assert after.error is not None
    assert (after.error.code, after.error.type) == ("unsupported_text", "invalid_request_error")


def test_a_silent_clip_is_not_recorded(work: Synthesis, jobs: JobStore, objects: MemoryStore) -> None:
    class Silent(FakeEngine):
        def synthesize(self, request, *, stop=None, **others):  # type: ignore[no-untyped-def]
            yield np.zeros(100 * len(request.text), np.float32)

    job = ask(jobs, TEXT)

    synthesize(_work(jobs, objects, Silent(), Bells()))

    assert jobs.clips(job.id) == []
    assert objects.objects == {}
    assert jobs.get(job.id, "ten_a").failures == 1


def test_an_outage_of_the_store_is_not_the_jobs_fault_and_no_engine_works_for_nothing(
    work: Synthesis, jobs: JobStore, objects: MemoryStore, engine: FakeEngine, database: Database
) -> None:
    job = ask(jobs, TEXT)
    objects.down = True
    synthesize(work)
    begun = len(engine.spoken)
    for _ in range(5):
        _let_go(database)
        synthesize(work)
    assert jobs.get(job.id, "ten_a").failures == 0
    assert len(engine.spoken) == begun, "what it made would have been lost"

    objects.down = False
    synthesize(work)

    assert jobs.get(job.id, "ten_a").stage is Stage.ENCODING


def _until_recorded(jobs: JobStore, job: Job) -> None:
    end = time.monotonic() + 10
    while not jobs.clips(job.id):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_job_that_was_taken_by_another_worker_is_left_alone(
    work: Synthesis, jobs: JobStore, engine: FakeEngine, database: Database, bells: Bells
) -> None:
    job = ask(jobs, TEXT)

    def steal(_: object) -> None:
        if len(engine.spoken) == 2:
            # The first clip is staged while the second one is made.
            _until_recorded(jobs, job)
            _let_go(database)
            assert jobs.claim("cpu.fake", holder="w2") is not None

    engine.before = steal
    synthesize(work)

    assert [clip.epoch for clip in jobs.clips(job.id)] == [1]
    assert bells.rung == []
    assert jobs.get(job.id, "ten_a").epoch == 2


def test_a_leaving_worker_lets_go_at_the_border_of_a_chunk_and_rings(
    jobs: JobStore, objects: MemoryStore, engine: FakeEngine, bells: Bells, database: Database
) -> None:
    job = ask(jobs, TEXT)
    departure = Departure()
    engine.before = lambda request: departure.ask()

    synthesize(_work(jobs, objects, engine, bells, departure))

    assert len(jobs.clips(job.id)) == 1
    assert bells.rung == ["cpu.fake"]
    claim = jobs.claim("cpu.fake", holder="w2")
    assert claim is not None
    assert claim.job.failures == 0


def test_a_chunk_that_outlasts_the_time_to_leave_is_broken_off_without_blame(
    jobs: JobStore, objects: MemoryStore, bells: Bells
) -> None:
    class Endless(FakeEngine):
        def synthesize(
            self, request: SynthesisRequest, *, stop: Callable[[], bool] | None = None, **others: object
        ) -> Iterator[Samples]:
            assert stop is not None
            while not stop():
                now[0] += 1.0
                departure.ask()
            raise Interrupted("stopped")
            yield

    now = [0.0]
    departure = Departure(clock=lambda: now[0])
    job = ask(jobs, TEXT)

    synthesize(_work(jobs, objects, Endless(), bells, departure))

    assert FINISH_SECONDS < now[0] < LEAVE_SECONDS
    assert jobs.get(job.id, "ten_a").failures == 0
    assert jobs.claim("cpu.fake", holder="w2") is not None


def test_a_worker_whose_engine_cannot_be_loaded_any_more_says_so_and_blames_no_job(
    jobs: JobStore, objects: MemoryStore, engine: FakeEngine, bells: Bells
) -> None:
    job = ask(jobs, TEXT)
    engine.fails = [EngineUnavailable("the weights are gone")]
    reasons: list[str] = []

    synthesize(_work(jobs, objects, engine, bells, broken=reasons.append))

    assert reasons == ["the weights are gone"]
    after = jobs.get(job.id, "ten_a")
    assert (after.status, after.failures) == (Status.IN_PROGRESS, 0)


def test_a_database_that_is_away_for_a_moment_costs_no_clip_and_no_lease(
    objects: MemoryStore, engine: FakeEngine, bells: Bells, database: Database
) -> None:
    class Shaky(JobStore):
        away = 3

        def record(self, claim: Claim, clip: Clip) -> None:
            super().record(claim, clip)
            if self.away:
                self.away -= 1
                raise DatabaseUnavailable("the answer was lost")

    jobs = Shaky(database, public_url="http://api.test")
    job = ask(jobs, TEXT)

    synthesize(_work(jobs, objects, engine, bells))

    clips = jobs.clips(job.id)
    assert len(clips) == len(engine.spoken)
    after = jobs.get(job.id, "ten_a")
    assert (after.stage, after.chunks_done, after.epoch) == (Stage.ENCODING, len(clips), 1)


def test_an_unexpected_error_counts_and_names_no_internals(
    work: Synthesis, jobs: JobStore, engine: FakeEngine, database: Database
) -> None:
    job = ask(jobs, TEXT)

    def explode(_: object) -> None:
        raise ZeroDivisionError("secret detail")

    engine.before = explode
    for _ in range(3):
        synthesize(work)
        _let_go(database)

    after = jobs.get(job.id, "ten_a")
    assert after.error is not None
    assert after.error.code == "internal_error"
    assert "secret" not in after.error.message


def test_a_bell_without_work_does_nothing(work: Synthesis, engine: FakeEngine) -> None:
    synthesize(work)

    assert engine.spoken == []


def test_the_seed_of_a_chunk_depends_on_where_it_starts_alone() -> None:
    assert chunk_seed(7, 0, 0) == chunk_seed(7, 0, 0)
    assert len({chunk_seed(7, start, attempt) for start in range(50) for attempt in range(3)}) == 150


def test_the_spoken_text_is_stored_once(work: Synthesis, jobs: JobStore, database: Database) -> None:
    ask(jobs, "Zero\u200bwidth.\r\nNext line.")

    synthesize(work)

    with database.read() as connection:
        row = connection.execute(select(jobs_table.c.spoken_text, jobs_table.c.pipeline_version)).one()
    assert row.spoken_text == "Zerowidth.\nNext line."
    assert row.pipeline_version == 1


def test_spans_without_a_sound_go_to_a_neighbour_so_that_nothing_is_left_out() -> None:
    chunks = [Chunk(0, 4, "..."), Chunk(4, 9, "One."), Chunk(9, 14, "-----"), Chunk(14, 18, "Two.")]

    assert voiced(chunks) == [Chunk(0, 14, "One."), Chunk(14, 18, "Two.")]
