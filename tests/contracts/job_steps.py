"""The steps of a job's life, as the contracts of the job store take them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from jobs.database import Database
from jobs.job import Claim, Clip, Job, JobError, NewJob, PublishedAudio, TenantId
from jobs.store import JobStore

QUEUE: Final = "cpu.tone"
MEDIA: Final = "cpu.media"
WEBHOOKS: Final = "cpu.webhooks"
LEASE: Final = 30.0
BROKEN: Final = JobError(code="engine_failed", message="the engine gave no sound")
HOOK: Final = "https://hooks.example"

_T = TypeVar("_T")


def job_store(database: Database, **options: Any) -> JobStore:
    """Return a store whose jobs fail for good at the third failure."""
    fixed = {"public_url": "https://speech.example", "lease_seconds": LEASE, "max_failures": 3}
    return JobStore(database, **(fixed | options))


def new(text: str = "Hello there.", *, tenant: str = "ten_a", **changes: Any) -> NewJob:
    """Return a request for speech."""
    request = NewJob(
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
    return replace(request, **changes)


def clip(claim: Claim, *, seq: int = 0, start: int = 0, end: int = 12, seconds: float = 1.0) -> Clip:
    """Return a clip of a claimed job, as it lies in the object store."""
    return Clip(
        seq=seq,
        text_start=start,
        text_end=end,
        pause_ms=250,
        epoch=claim.job.epoch,
        key=f"staged/{claim.job.id}/{claim.job.epoch}-{seq}-x",
        sha256="ab" * 32,
        samples=int(24_000 * seconds),
        sample_rate=24_000,
        seed=2**63,
        engine_revision="tone-1",
    )


def key(claim: Claim) -> str:
    """Return where a claimed job is published."""
    return f"audio/1d/{claim.job.id}/{claim.job.epoch}.mp3"


def audio(claim: Claim) -> PublishedAudio:
    """Return the published audio of a claimed job."""
    return PublishedAudio(
        key=key(claim),
        content_type="audio/mpeg",
        bytes=16_000,
        duration_ms=1_000,
        sample_rate=44_100,
        bitrate=128_000,
        channels=1,
        sha256="cd" * 32,
    )


def take(store: JobStore, queue: str = QUEUE, *, holder: str = "worker", **options: Any) -> Claim:
    """Claim a job, which must be there."""
    claim = store.claim(queue, holder=holder, **options)
    assert claim is not None
    return claim


def begin(store: JobStore, claim: Claim, *, chunks: int = 1, left: int | None = None) -> None:
    """Say what is about to be spoken: by default the whole input, in one chunk."""
    left = len(claim.input) if left is None else left
    store.begin(claim, spoken_text=claim.input, chunks_total=chunks, characters_left=left)


def speak(store: JobStore, claim: Claim, *, seconds: float = 1.0) -> Clip:
    """Speak the whole text of a claimed job as one clip, and hand it to the encoders."""
    made = clip(claim, end=len(claim.input), seconds=seconds)
    begin(store, claim)
    store.record(claim, made)
    store.synthesized(claim, queue=MEDIA)
    return made


def encoding(store: JobStore, request: NewJob | None = None, *, seconds: float = 1.0) -> Claim:
    """Bring one job as far as its encoder; nothing else may be ready."""
    store.create(request or new())
    speak(store, take(store), seconds=seconds)
    return take(store, MEDIA, holder="encoder")


def uploading(store: JobStore, request: NewJob | None = None) -> Claim:
    """Bring one job as far as its upload; nothing else may be ready."""
    claim = encoding(store, request)
    store.uploading(claim, key=key(claim))
    return claim


def completed(store: JobStore, request: NewJob | None = None) -> tuple[Claim, Job]:
    """Complete one job; nothing else may be ready."""
    claim = uploading(store, request)
    return claim, store.complete(claim, audio(claim))


def at_once(*todo: Callable[[], _T]) -> list[_T | Exception]:
    """Do all of it at the same moment, in a thread each; return what each gave or raised, in order."""
    start = threading.Barrier(len(todo))
    answers: list[_T | Exception] = [AssertionError("it did not end")] * len(todo)

    def work(number: int, do: Callable[[], _T]) -> None:
        start.wait()
        try:
            answers[number] = do()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            answers[number] = error

    threads = [threading.Thread(target=work, args=item) for item in enumerate(todo)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
