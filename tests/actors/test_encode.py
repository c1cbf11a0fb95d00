"""The media handler over a real job table and a real ffmpeg: what is published, and what is not."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from sqlalchemy import delete, func, select, update

from actors.bell import WEBHOOK_QUEUE
from actors.departure import FINISH_SECONDS, Departure
from actors.encode import DISK_SECONDS, LONG_MS, TOLD, Media, encode
from actors.making import Synthesis
from actors.synthesize import synthesize
from jobs.database import Database, DatabaseUnavailable
from jobs.job import Claim, Job, PublishedAudio, Stage, Status
from jobs.store import MAX_REMADE, JobStore
from jobs.tables import clips as clips_table
from jobs.tables import events
from jobs.tables import jobs as jobs_table
from jobs.tables import objects as ledger
from speech import ffmpeg
from speech.audio import Audio
from speech.encode import ERRORS, DiskFull, Encoded, Mp3Encoder

from .conftest import PUBLIC_URL, ask
from .doubles import Bells, FakeEngine, MemoryStore, rescue

TEXT = "The first sentence is here. The second one follows it. And the third one ends it."


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def bells() -> Bells:
    return Bells()


@pytest.fixture
def work(jobs: JobStore, objects: MemoryStore, bells: Bells, tmp_path: Path) -> Media:
    return _work(jobs, objects, bells, tmp_path, Mp3Encoder(ffmpeg.find(None)))


def _work(
    jobs: JobStore,
    objects: MemoryStore,
    bells: Bells,
    tmp_path: Path,
    encoder: Mp3Encoder,
    departure: Departure | None = None,
) -> Media:
    folder = tmp_path / "tmp"
    folder.mkdir(exist_ok=True)
    return Media(
        holder="m",
        jobs=jobs,
        objects=objects,
        encoder=encoder,
        temp_dir=folder,
        ring=bells,
        departure=departure or Departure(),
        long_slots=threading.BoundedSemaphore(1),
    )


def _speak(jobs: JobStore, objects: MemoryStore, bells: Bells | None = None) -> FakeEngine:
    """Have everything spoken that waits for it."""
    engine = FakeEngine()
    synthesize(
        Synthesis(
            queue="cpu.fake",
            holder="w",
            jobs=jobs,
            objects=objects,
            engine=engine,
            ring=bells or Bells(),
            departure=Departure(),
            broken=lambda reason: None,
            rescue=rescue(jobs),
        )
    )
    return engine


def _spoken(jobs: JobStore, objects: MemoryStore, *, webhook_url: str | None = None) -> Job:
    """Leave a job whose clips are recorded."""
    job = ask(jobs, TEXT, webhook_url=webhook_url)
    _speak(jobs, objects)
    return job


def _let_go(database: Database) -> None:
    with database.write() as connection:
        connection.execute(update(jobs_table).values(visible_at=0.0))


def _count(database: Database, table: object) -> int:
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())  # type: ignore[arg-type]


def test_the_audio_is_published_with_its_checksum_and_the_clips_are_gone(
    work: Media, jobs: JobStore, objects: MemoryStore, bells: Bells
) -> None:
    job = _spoken(jobs, objects, webhook_url="https://example.org/hook")

    encode(work)

    after = jobs.get(job.id, "ten_a")
    assert after.status is Status.COMPLETED
    assert after.audio is not None
    assert list(objects.objects) == [after.audio.key] == [f"audio/1d/{job.id}/2.mp3"]
    body, content_type = objects.objects[after.audio.key]
    assert content_type == "audio/mpeg"
    assert hashlib.sha256(body).hexdigest() == after.audio.sha256
    # A hundred samples for each character, less two overlaps of 50 ms, at 1 kHz.
    spoken = sum(clip.samples for clip in jobs.clips(job.id))
    assert after.audio.duration_ms == spoken - 50 * (len(jobs.clips(job.id)) - 1)
    assert after.expires_at is not None
    assert after.completed_at is not None
    assert (after.expires_at - after.completed_at).total_seconds() == pytest.approx(86_400)
    assert bells.rung == [WEBHOOK_QUEUE]
    assert list(work.temp_dir.iterdir()) == []


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_lost_clips_are_made_again_all_at_once_and_the_audio_is_as_if_nothing_had_happened(
    harm: str, work: Media, jobs: JobStore, objects: MemoryStore, bells: Bells, database: Database
) -> None:
    unharmed = _spoken(jobs, objects)
    encode(work)
    job = _spoken(jobs, objects)
    recorded = jobs.clips(job.id)
    assert len(recorded) >= 3
    for clip in (recorded[0], recorded[2]):
        body, content_type = objects.objects.pop(clip.key)
        if harm == "damaged":
            objects.objects[clip.key] = (body[:-2] + b"\x00\x01", content_type)

    encode(work)
    assert bells.rung == ["cpu.fake"]
    engine = _speak(jobs, objects)
    encode(work)

    assert [request.text for request in engine.spoken] == [
        TEXT[clip.text_start : clip.text_end].strip() for clip in (recorded[0], recorded[2])
    ]
    after, before = jobs.get(job.id, "ten_a"), jobs.get(unharmed.id, "ten_a")
    assert after.status is Status.COMPLETED
    assert after.audio is not None
    assert before.audio is not None
    assert after.audio.sha256 == before.audio.sha256
    assert after.chunks_done == after.chunks_total == len(recorded)
    assert list(work.temp_dir.iterdir()) == []


def test_a_store_that_loses_every_clip_fails_the_job_in_the_end_and_nothing_is_published(
    work: Media, jobs: JobStore, objects: MemoryStore
) -> None:
    job = _spoken(jobs, objects)

    for _ in range(MAX_REMADE + 1):
        assert jobs.get(job.id, "ten_a").status is Status.IN_PROGRESS
        objects.objects.clear()
        encode(work)
        _speak(jobs, objects)

    after = jobs.get(job.id, "ten_a")
    assert after.status is Status.FAILED
    assert after.error is not None
    assert after.error.code == "clip_lost"
    assert objects.objects == {}
    assert list(work.temp_dir.iterdir()) == []


def test_text_without_a_clip_is_spoken_before_anything_is_published(
    work: Media, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    job = _spoken(jobs, objects)
    with database.write() as connection:
        connection.execute(delete(clips_table).where(clips_table.c.job == job.id, clips_table.c.seq == 1))

    encode(work)
    assert jobs.get(job.id, "ten_a").stage is Stage.SYNTHESIZING
    _speak(jobs, objects)
    encode(work)

    assert jobs.get(job.id, "ten_a").status is Status.COMPLETED
    spans = [(clip.text_start, clip.text_end) for clip in jobs.clips(job.id)]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(TEXT)


def test_a_long_encode_leaves_an_encoder_to_short_audio(
    work: Media, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    long, other_long, short = (_spoken(jobs, objects) for _ in range(3))
    with database.write() as connection:
        connection.execute(
            update(jobs_table)
            .where(jobs_table.c.id.in_([long.id, other_long.id]))
            .values(audio_ms=LONG_MS + 1, queued_at=0.0)
        )
    order: list[str] = []
    objects_put = objects.after_put

    def meanwhile(key: str) -> None:
        order.append(key.split("/")[2])
        if len(order) == 1:
            # The other encoder, while this one is at work on the first book.
            encode(work)

    objects.after_put = meanwhile
    encode(work)
    objects.after_put = objects_put

    assert order == [long.id, short.id, other_long.id]


def test_a_job_waits_for_room_on_the_disk_and_fails_by_name_when_it_never_comes(
    jobs: JobStore, objects: MemoryStore, bells: Bells, tmp_path: Path, database: Database
) -> None:
    class Full(Mp3Encoder):
        def encode(
            self, pieces: Iterable[Audio], path: Path, *, check: Callable[[], None] = lambda: None
        ) -> Encoded:
            raise DiskFull("no room")

    job = _spoken(jobs, objects)
    work = _work(jobs, objects, bells, tmp_path, Full(ffmpeg.find(None)))
    for _ in range(5):
        encode(work)
        _let_go(database)
    after = jobs.get(job.id, "ten_a")
    assert (after.status, after.failures) == (Status.IN_PROGRESS, 0)

    with database.write() as connection:
        connection.execute(update(jobs_table).values(queued_at=jobs_table.c.queued_at - DISK_SECONDS - 60))
    encode(work)

    after = jobs.get(job.id, "ten_a")
    assert after.status is Status.FAILED
    assert after.error is not None
    assert after.error.code == "disk_full"


def test_an_outage_of_the_store_is_not_the_jobs_fault(
    work: Media, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    job = _spoken(jobs, objects)
    objects.down = True
    for _ in range(5):
        encode(work)
        _let_go(database)
    assert jobs.get(job.id, "ten_a").failures == 0
    objects.down = False

    encode(work)

    assert jobs.get(job.id, "ten_a").status is Status.COMPLETED


def test_a_job_that_was_taken_while_it_was_uploaded_is_committed_by_the_new_holder_alone(
    work: Media, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    job = _spoken(jobs, objects)

    def steal(key: str) -> None:
        objects.after_put = lambda key: None
        _let_go(database)
        encode(work)

    objects.after_put = steal
    encode(work)

    after = jobs.get(job.id, "ten_a")
    assert after.audio is not None
    assert after.audio.key == f"audio/1d/{job.id}/3.mp3"
    assert _count(database, events) == 1
    assert list(objects.objects) == [after.audio.key]
    # The loser has deleted its object; it is deleted once more when no upload can be under way.
    with database.read() as connection:
        states = {row.key: row.state for row in connection.execute(select(ledger.c.key, ledger.c.state))}
    assert states == {f"audio/1d/{job.id}/2.mp3": "deleting", f"audio/1d/{job.id}/3.mp3": "live"}


def test_a_job_that_was_cancelled_while_it_was_uploaded_leaves_no_object(
    work: Media, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    job = _spoken(jobs, objects)

    def cancel(key: str) -> None:
        jobs.cancel(job.id, "ten_a")

    objects.after_put = cancel
    encode(work)

    assert jobs.get(job.id, "ten_a").status is Status.CANCELLED
    assert [key for key in objects.objects if key.startswith("audio/")] == []
    assert _count(database, events) == 1


def test_a_commit_whose_answer_was_lost_is_recognised(
    objects: MemoryStore, bells: Bells, tmp_path: Path, database: Database
) -> None:
    class Cut(JobStore):
        def complete(self, claim: Claim, audio: PublishedAudio) -> Job:
            super().complete(claim, audio)
            raise DatabaseUnavailable("the connection broke after the commit")

    jobs = Cut(database, public_url=PUBLIC_URL)
    job = _spoken(jobs, objects)

    encode(_work(jobs, objects, bells, tmp_path, Mp3Encoder(ffmpeg.find(None))))

    after = jobs.get(job.id, "ten_a")
    assert after.status is Status.COMPLETED
    assert after.audio is not None
    assert list(objects.objects) == [after.audio.key]


def test_a_bell_without_work_does_nothing(work: Media, bells: Bells) -> None:
    encode(work)

    assert bells.rung == []


def test_every_error_of_the_encoder_is_told_without_the_machines_paths() -> None:
    assert set(TOLD) == set(ERRORS)
    assert [text for text in TOLD.values() if "/" in text] == []


@pytest.mark.parametrize("moment", ["while clips are read", "while the file is decoded", "while it goes up"])
def test_an_encode_that_outlasts_the_time_to_leave_is_broken_off_without_blame(
    moment: str, jobs: JobStore, objects: MemoryStore, bells: Bells, tmp_path: Path
) -> None:
    now = [0.0]
    departure = Departure(clock=lambda: now[0])
    departure.ask()

    def late() -> None:
        now[0] = FINISH_SECONDS + 1

    class Late(Mp3Encoder):
        def encode(
            self, pieces: Iterable[Audio], path: Path, *, check: Callable[[], None] = lambda: None
        ) -> Encoded:
            if moment == "while clips are read":
                pieces = (late() or piece for piece in pieces)  # type: ignore[func-returns-value]
            made = super().encode(pieces, path, check=check)
            if moment == "while the file is decoded":
                late()
                check()
            return made

    class Slow(JobStore):
        def uploading(self, claim: Claim, *, key: str) -> None:
            super().uploading(claim, key=key)
            if moment == "while it goes up":
                late()

    job = _spoken(jobs, objects)
    slow = Slow(jobs._db, public_url=PUBLIC_URL)
    encode(_work(slow, objects, bells, tmp_path, Late(ffmpeg.find(None)), departure))

    after = jobs.get(job.id, "ten_a")
    assert (after.status, after.failures) == (Status.IN_PROGRESS, 0)
    assert bells.rung == ["cpu.media"]
    assert [key for key in objects.objects if key.startswith("audio/")] == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert jobs.claim("cpu.media", holder="m2") is not None


def test_audio_that_lost_a_clip_on_the_way_to_the_file_is_never_published(
    jobs: JobStore, objects: MemoryStore, bells: Bells, tmp_path: Path, database: Database
) -> None:
    class Forgetful(Mp3Encoder):
        def encode(
            self, pieces: Iterable[Audio], path: Path, *, check: Callable[[], None] = lambda: None
        ) -> Encoded:
            return super().encode(list(pieces)[:-1], path, check=check)

    job = _spoken(jobs, objects)
    work = _work(jobs, objects, bells, tmp_path, Forgetful(ffmpeg.find(None)))
    for _ in range(3):
        encode(work)
        _let_go(database)

    after = jobs.get(job.id, "ten_a")
    assert after.status is Status.FAILED
    assert after.error is not None
    assert after.error.code == "encoder_failed"
    assert [key for key in objects.objects if key.startswith("audio/")] == []
