"""Too little memory: what is cut, spared, handed over, heard instead, or failed. No word is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from sqlalchemy import select, update

from actors.bell import MEDIA_QUEUE
from actors.counts import Counts
from actors.departure import Departure
from actors.making import SEEDS, Synthesis
from actors.rescue import NOTICE_REVISION
from actors.standing import Fleet
from actors.synthesize import synthesize
from jobs.database import Database
from jobs.job import NO_FALLBACK, Job, JobClass, Stage, Status
from jobs.store import JobStore
from jobs.tables import jobs as jobs_table
from jobs.workers import OPEN, WorkerRegistry
from speech.breaker import Breaker
from speech.chunks import Chunk
from speech.engine import BadOutput, EngineInfo, Features, OutOfMemory, Samples, SynthesisRequest
from speech.host import NoAudioYet
from speech.ladder import FLOOR_CHARS, Learned
from storage.keys import is_voice_state

from .conftest import ask
from .doubles import Bells, FakeEngine, MemoryStore, rescue, sound_of

#: 118 characters without punctuation.
RUN_ON = (
    "river stones amber window quiet ladder river stones amber window "
    "quiet ladder river stone amber window quiets ladder a"
)


@dataclass
class Small(FakeEngine):
    """Has memory for so many characters, less with more steps."""

    fits: int = 55
    restarts: int = 0
    after_restart: int | None = None
    thrift: dict[str, int] = field(default_factory=dict)
    max_chars: int = 120

    @property
    def info(self) -> EngineInfo:
        return replace(FakeEngine.info.fget(self), features=Features(seed=True), thrift=self.thrift)  # type: ignore[attr-defined]

    def synthesize(
        self, request: SynthesisRequest, *, stop: Callable[[], bool] | None = None, **others: object
    ) -> Iterator[Samples]:
        self.spoken.append(request)
        fits = self.fits * (2 if request.options.get("steps") == 5 else 1)
        if len(request.text) > fits:
            raise OutOfMemory("CUDA out of memory")
        yield sound_of(request.text)

    def restart(self) -> None:
        self.restarts += 1
        if self.after_restart is not None:
            self.fits = self.after_restart


@dataclass
class Desk:
    """A worker and what it works with."""

    jobs: JobStore
    objects: MemoryStore
    workers: WorkerRegistry
    database: Database
    bells: Bells = field(default_factory=Bells)
    counts: Counts = field(default_factory=Counts)
    learned: Learned = field(default_factory=Learned)
    breaker: Breaker = field(default_factory=Breaker)
    fallback: str | None = None

    def work(self, engine: FakeEngine, **more: object) -> None:
        standing = Fleet(self.workers, worker_id="w1", model="fake", queue="cpu.fake", fallback=self.fallback)
        synthesize(
            Synthesis(
                queue="cpu.fake",
                holder="w1",
                jobs=self.jobs,
                objects=self.objects,
                engine=engine,
                ring=self.bells,
                departure=Departure(),
                broken=lambda reason: None,
                rescue=rescue(self.jobs, ring=self.bells, standing=standing, counts=self.counts),
                breaker=self.breaker,
                learned=self.learned,
                **more,  # type: ignore[arg-type]
            )
        )

    def serve(self, model: str, **more: object) -> None:
        """Let a worker of another model say that it is there."""
        info = {
            "languages": ["en"],
            "voices": [{"id": "heart", "language": "en"}],
            "default_voice": "heart",
            "features": {"speed": True},
            "options": {"properties": {"steps": {}}},
            **more,
        }
        self.workers.publish(f"w-{model}", queue=f"cpu.{model}", model=model, info=info)

    def spoken(self, job: Job) -> list[str]:
        return (
            [job_text[clip.text_start : clip.text_end] for clip in self.jobs.clips(job.id)]
            if (job_text := self.text(job))
            else []
        )

    def text(self, job: Job) -> str:
        with self.database.read() as connection:
            return str(
                connection.execute(
                    select(jobs_table.c.spoken_text).where(jobs_table.c.id == job.id)
                ).scalar_one()
            )

    def get(self, job: Job) -> Job:
        return self.jobs.get(job.id, job.tenant_id)


@pytest.fixture
def desk(jobs: JobStore, database: Database) -> Desk:
    return Desk(jobs=jobs, objects=MemoryStore(), workers=WorkerRegistry(database), database=database)


def codes(job: Job) -> list[str]:
    return [warning.code for warning in job.warnings]


def test_a_chunk_that_does_not_fit_is_cut_at_spaces_until_it_does(desk: Desk) -> None:
    assert len(RUN_ON) == 118
    job = ask(desk.jobs, RUN_ON)
    engine = Small()

    desk.work(engine)

    pieces = desk.spoken(job)
    assert "".join(pieces) == RUN_ON
    assert " ".join(piece.strip() for piece in pieces).split() == RUN_ON.split()
    assert max(len(piece.strip()) for piece in pieces) <= 55
    after = desk.get(job)
    assert (after.stage, after.degraded, codes(after)) == (
        Stage.ENCODING,
        False,
        ["memory_retried", "memory_split"],
    )
    assert (after.chunks_total, after.chunks_done) == (len(pieces), len(pieces))
    assert desk.learned.limit is not None
    assert desk.learned.limit <= 59
    counted = desk.counts.all()
    assert counted["rung.retried"] == 1
    assert counted["rung.split"] >= 1


def test_what_was_learned_spares_the_next_chunks_the_climb(desk: Desk) -> None:
    job = ask(desk.jobs, " ".join([RUN_ON] * 6))
    engine = Small()

    desk.work(engine)

    failed = [request for request in engine.spoken if len(request.text) > 55]
    assert len(failed) <= 3
    assert "".join(desk.spoken(job)) == desk.text(job)
    assert desk.counts.all()["rung.retried"] <= 2


def test_a_failure_that_passes_costs_nothing_but_a_second_call(desk: Desk) -> None:
    job = ask(desk.jobs, "A short line of text.")
    engine = FakeEngine(fails=[OutOfMemory("once")])

    desk.work(engine)

    assert codes(desk.get(job)) == ["memory_retried"]
    assert desk.learned.limit is None
    assert [request.text for request in engine.spoken] == ["A short line of text."] * 2
    assert len({request.seed for request in engine.spoken}) == 1


def test_fewer_steps_come_before_a_restart_and_are_told(desk: Desk) -> None:
    job = ask(desk.jobs, "A short line of text.")
    engine = Small(fits=11, thrift={"steps": 5})

    desk.work(engine)

    after = desk.get(job)
    assert "".join(desk.spoken(job)) == "A short line of text."
    assert after.degraded
    assert codes(after) == ["memory_retried", "memory_split", "memory_spared"]
    assert engine.restarts == 0


def test_a_fresh_child_is_the_last_that_this_engine_can_do(desk: Desk) -> None:
    job = ask(desk.jobs, "A short line of text.")
    engine = Small(fits=3, after_restart=200)

    desk.work(engine)

    after = desk.get(job)
    assert (engine.restarts, after.stage, after.degraded) == (1, Stage.ENCODING, False)
    assert codes(after) == ["memory_retried", "memory_split", "engine_restarted"]
    assert "".join(desk.spoken(job)) == "A short line of text."


def test_a_turn_restarts_its_engine_once(desk: Desk) -> None:
    job = ask(desk.jobs, "A short line of text. And here comes another one.")

    class Relapsing(Small):
        def synthesize(self, request: SynthesisRequest, **more: object) -> Iterator[Samples]:  # type: ignore[override]
            yield from Small.synthesize(self, request, **more)  # type: ignore[arg-type]
            self.fits = 3

    engine = Relapsing(fits=3, after_restart=200)
    desk.work(engine)

    assert engine.restarts == 1
    assert desk.get(job).status is Status.FAILED


def test_a_batch_job_that_nothing_helps_fails_by_name_and_keeps_no_one_waiting(desk: Desk) -> None:
    job = ask(desk.jobs, RUN_ON)
    engine = Small(fits=0)

    desk.work(engine)

    after = desk.get(job)
    assert (after.status, after.error and after.error.code) == (Status.FAILED, "engine_out_of_memory")
    assert engine.restarts == 1
    assert desk.learned.limit is None, "length was not what was wrong"
    assert len(engine.spoken) < 12
    assert min(len(request.text) for request in engine.spoken) <= FLOOR_CHARS


def test_a_worker_with_a_healthy_peer_leaves_the_job_to_it(desk: Desk) -> None:
    desk.workers.publish("w2", queue="cpu.fake", model="fake", info={})
    job = ask(desk.jobs, "A short line of text.")

    desk.work(Small(fits=0))

    after = desk.get(job)
    assert (after.status, after.failures) == (Status.IN_PROGRESS, 1)


def test_the_whole_job_goes_to_the_fallback_model_in_one_voice(desk: Desk) -> None:
    desk.fallback = "other"
    desk.serve("other")
    text = "The first sentence is here. The second one follows it."
    job = ask(desk.jobs, text)
    engine = Small(fits=200, max_chars=30)
    done = [0]

    def fail_at_the_second(request: SynthesisRequest) -> None:
        done[0] += 1
        if done[0] > 1:
            engine.fits = 0

    plain = engine.synthesize
    engine.synthesize = lambda request, **more: (fail_at_the_second(request), plain(request, **more))[1]  # type: ignore[method-assign]

    desk.work(engine)

    after = desk.get(job)
    assert (after.queue, after.stage, after.model) == ("cpu.other", Stage.SYNTHESIZING, "fake")
    assert after.degraded
    assert codes(after)[-1] == "fallback_model"
    assert "other" in after.warnings[-1].message
    assert (after.chunks_done, after.audio_ms, after.characters_left) == (0, 0, len(text))
    assert desk.jobs.clips(job.id) == []
    assert "cpu.other" in desk.bells.rung
    claim = desk.jobs.claim("cpu.other", holder="w2")
    assert claim is not None
    assert (claim.voice, claim.language, claim.substitute) == ("heart", "en", "other")
    assert (claim.spoken_text, claim.recorded) == (text, ())


@pytest.mark.parametrize("wanted", [NO_FALLBACK, "fake", "nobody"])
def test_a_request_may_forbid_or_name_a_fallback_that_is_not_there(desk: Desk, wanted: str) -> None:
    desk.fallback = "other"
    desk.serve("other")
    job = _ask(desk, "A short line of text.", fallback=wanted)

    desk.work(Small(fits=0))

    assert desk.get(job).status is Status.FAILED


def test_a_fallback_that_does_not_speak_the_language_is_none(desk: Desk) -> None:
    desk.fallback = "other"
    desk.serve("other", languages=["ko"])
    job = ask(desk.jobs, "A short line of text.")

    desk.work(Small(fits=0))

    assert desk.get(job).status is Status.FAILED


def test_a_job_is_passed_on_once(desk: Desk) -> None:
    desk.fallback = "other"
    desk.serve("other")
    job = ask(desk.jobs, "A short line of text.")
    desk.work(Small(fits=0))
    desk.workers.publish(
        "w-fake", queue="cpu.fake", model="fake", info={"languages": ["*"], "voices": [], "default_voice": ""}
    )

    claim = desk.jobs.claim("cpu.other", holder="w-other")

    assert claim is not None
    other = Fleet(desk.workers, worker_id="x", model="other", queue="cpu.other", fallback="fake")
    assert other.substitute(claim) is None
    assert desk.get(job).status is Status.IN_PROGRESS


def test_whoever_listens_hears_the_notice_in_place_of_the_rest(desk: Desk) -> None:
    text = "One sentence that fits. Another sentence is there that does not."
    job = ask(desk.jobs, text, job_class=JobClass.LIVE)
    engine = Small(max_chars=30)
    engine.fits = 24

    class Worse(Small):
        def synthesize(self, request: SynthesisRequest, **more: object) -> Iterator[Samples]:  # type: ignore[override]
            self.fits = 24 if request.text.startswith("One") else 0
            return Small.synthesize(self, request, **more)  # type: ignore[arg-type]

    desk.work(Worse(max_chars=30))

    clips = desk.jobs.clips(job.id)
    after = desk.get(job)
    assert (after.stage, after.degraded) == (Stage.ENCODING, True)
    assert codes(after)[-1] == "notice_played"
    assert clips[-1].engine_revision == NOTICE_REVISION
    assert (clips[-1].text_end, clips[-1].samples, clips[-1].sample_rate) == (len(text), 333, 1000)
    assert "".join(desk.spoken(job)) == text
    assert [clip.seq for clip in clips] == list(range(len(clips)))
    assert MEDIA_QUEUE in desk.bells.rung


@dataclass
class Silent(FakeEngine):
    """Gives nothing in time."""

    allowed: list[float | None] = field(default_factory=list)
    settled: int = 0

    def synthesize(  # type: ignore[override]
        self, request: SynthesisRequest, *, first_audio_seconds: float | None = None, **others: object
    ) -> Iterator[Samples]:
        self.spoken.append(request)
        self.allowed.append(first_audio_seconds)
        if first_audio_seconds is not None:
            raise NoAudioYet("no audio within 3 s")
        yield sound_of(request.text)

    def settle(self) -> None:
        self.settled += 1


def test_a_live_job_waits_so_long_for_its_first_sound(desk: Desk) -> None:
    live = ask(desk.jobs, "A short line of text.", job_class=JobClass.LIVE)
    batch = ask(desk.jobs, "Another line of text.")
    engine = Silent()

    desk.work(engine, clock=lambda: 0.0)

    assert engine.allowed == [3.0, None]
    assert engine.settled == 1
    assert codes(desk.get(live)) == ["notice_played"]
    assert desk.breaker.is_closed
    assert (desk.get(batch).stage, codes(desk.get(batch))) == (Stage.ENCODING, [])


def test_a_live_job_that_was_heard_before_is_not_hurried(desk: Desk) -> None:
    live = ask(desk.jobs, TEXT, job_class=JobClass.LIVE)
    desk.work(Drawing(dies_at=1))
    assert len(desk.jobs.clips(live.id)) == 1
    with desk.database.write() as connection:
        connection.execute(update(jobs_table).values(visible_at=0.0))
    engine = Silent()

    desk.work(engine, clock=lambda: 0.0)

    assert set(engine.allowed) == {None}
    assert "notice_played" not in codes(desk.get(live))


def test_a_late_live_job_gets_the_fallback_where_there_is_one(desk: Desk) -> None:
    desk.fallback = "other"
    desk.serve("other")
    live = ask(desk.jobs, "A short line of text.", job_class=JobClass.LIVE)

    desk.work(Silent(), clock=lambda: 0.0)

    assert (desk.get(live).queue, codes(desk.get(live))) == ("cpu.other", ["fallback_model"])


def test_the_breaker_opens_after_three_and_the_engine_is_left_alone(desk: Desk) -> None:
    stored = [ask(desk.jobs, f"Line number {n} of text.") for n in range(8)]
    engine = Small(fits=0)

    desk.work(engine)
    asked = len(engine.spoken)
    desk.work(engine)

    assert [desk.get(job).status for job in stored] == [Status.FAILED] * 3 + [Status.QUEUED] * 5
    assert not desk.breaker.is_closed
    assert len(engine.spoken) == asked

    engine.fits = 200
    desk.breaker.tried(well=True)
    desk.work(engine)

    assert [desk.get(job).stage for job in stored[3:]] == [Stage.ENCODING] * 5


def test_an_open_breaker_gives_live_jobs_the_notice_without_asking_the_engine(desk: Desk) -> None:
    _open(desk)
    live = ask(desk.jobs, "A short line of text.", job_class=JobClass.LIVE)
    waits = ask(desk.jobs, "Another line of text.")
    engine = Small(fits=0)

    desk.work(engine)

    assert (codes(desk.get(live)), engine.spoken) == (["notice_played"], [])
    assert desk.get(waits).status in (Status.QUEUED, Status.IN_PROGRESS)
    assert desk.get(waits).failures == 0


def test_an_open_breaker_hands_waiting_jobs_to_the_fallback(desk: Desk) -> None:
    desk.fallback = "other"
    desk.serve("other")
    _open(desk)
    stored = [ask(desk.jobs, f"Line number {n} of text.") for n in range(3)]
    kept = _ask(desk, "This one wants no other.", fallback=NO_FALLBACK)
    engine = Small(fits=0)

    desk.work(engine)

    assert [desk.get(job).queue for job in stored] == ["cpu.other"] * 3
    assert (desk.get(kept).queue, desk.get(kept).failures) == ("cpu.fake", 0)
    assert engine.spoken == []


def test_an_open_breaker_leaves_everything_to_a_healthy_peer(desk: Desk) -> None:
    _open(desk)
    desk.workers.publish("w2", queue="cpu.fake", model="fake", info={})
    live = ask(desk.jobs, "A short line of text.", job_class=JobClass.LIVE)

    desk.work(Small(fits=0))
    assert desk.get(live).status is Status.QUEUED

    desk.workers.publish("w2", queue="cpu.fake", model="fake", info={}, breaker=OPEN)
    desk.work(Small(fits=0))
    assert codes(desk.get(live)) == ["notice_played"]


def test_a_bad_clip_is_made_again_at_once_with_other_seeds(desk: Desk) -> None:
    job = ask(desk.jobs, "A short line of text.")
    engine = Small(fits=200)

    class Poor(Small):
        def synthesize(self, request: SynthesisRequest, **more: object) -> Iterator[Samples]:  # type: ignore[override]
            self.spoken.append(request)
            good = len(self.spoken) == SEEDS
            yield sound_of(request.text) if good else np.full(5, 0.5, np.float32)

    engine = Poor(fits=200)
    desk.work(engine)

    assert len({request.seed for request in engine.spoken}) == SEEDS
    after = desk.get(job)
    assert (after.stage, after.failures) == (Stage.ENCODING, 0)
    assert desk.counts.all()["engine.bad_output"] == SEEDS - 1


def test_a_clip_that_stays_bad_fails_by_name_after_nine_seeds(desk: Desk) -> None:
    job = ask(desk.jobs, "A short line of text.")

    class Bad(Small):
        def synthesize(self, request: SynthesisRequest, **more: object) -> Iterator[Samples]:  # type: ignore[override]
            self.spoken.append(request)
            raise BadOutput("silence")
            yield

    engine = Bad()
    for _ in range(3):
        with desk.database.write() as connection:
            connection.execute(update(jobs_table).values(visible_at=0.0))
        desk.work(engine)

    assert len({request.seed for request in engine.spoken}) == 3 * SEEDS
    after = desk.get(job)
    assert (after.status, after.error and after.error.code) == (Status.FAILED, "bad_output")


@dataclass
class Drawing(FakeEngine):
    """Draws a voice in the first call, and goes on in it."""

    max_chars: int = 30
    states: list[bytes | None] = field(default_factory=list)
    dies_at: int | None = None

    @property
    def info(self) -> EngineInfo:
        return replace(FakeEngine.info.fget(self), features=Features(continuation=True))  # type: ignore[attr-defined]

    def synthesize(  # type: ignore[override]
        self, request: SynthesisRequest, *, keep: Callable[[bytes], None], **others: object
    ) -> Iterator[Samples]:
        if len(self.spoken) == self.dies_at:
            raise OSError("the worker dies")
        self.spoken.append(request)
        self.states.append(request.voice_state)
        yield sound_of(request.text)
        if request.keeps_voice:
            keep(b"the voice of " + request.text.encode())


TEXT = "The first sentence is here. The second one follows it. And the third one ends it."


def test_a_drawn_voice_is_staged_once_and_goes_on_on_another_worker(desk: Desk) -> None:
    job = ask(desk.jobs, TEXT)
    desk.work(Drawing(dies_at=2))
    keys = {clip.voice_state_key for clip in desk.jobs.clips(job.id)}
    assert len(keys) == 1
    (key,) = keys
    assert key is not None
    assert is_voice_state(key, desk.objects.objects[key][0])
    with desk.database.write() as connection:
        connection.execute(update(jobs_table).values(visible_at=0.0))

    other = Drawing()
    desk.work(other)

    assert set(other.states) == {b"the voice of The first sentence is here."}
    assert {clip.voice_state_key for clip in desk.jobs.clips(job.id)} == {key}
    assert "".join(desk.spoken(job)) == TEXT
    assert codes(desk.get(job)) == []


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_a_voice_that_is_lost_is_told_and_drawn_anew(desk: Desk, harm: str) -> None:
    job = ask(desk.jobs, TEXT)
    desk.work(Drawing(dies_at=2))
    key = desk.jobs.clips(job.id)[0].voice_state_key
    assert key is not None
    if harm == "gone":
        desk.objects.delete(key)
    else:
        desk.objects.objects[key] = (b"something else", "")
    with desk.database.write() as connection:
        connection.execute(update(jobs_table).values(visible_at=0.0))

    other = Drawing()
    desk.work(other)

    after = desk.get(job)
    assert (after.stage, after.degraded, codes(after)) == (Stage.ENCODING, True, ["voice_changed"])
    assert other.states[0] is None


def _open(desk: Desk) -> None:
    for _ in range(3):
        desk.breaker.failed()
    assert not desk.breaker.is_closed


def _ask(desk: Desk, text: str, *, fallback: str) -> Job:
    return ask(desk.jobs, text, fallback=fallback)


def test_the_chunks_of_a_gap_are_heard_as_one_notice() -> None:
    from actors.rescue import _gaps

    chunks = [Chunk(0, 5, "a"), Chunk(5, 9, "b"), Chunk(20, 25, "c")]

    assert [(gap.start, gap.end) for gap in _gaps(chunks)] == [(0, 9), (20, 25)]
