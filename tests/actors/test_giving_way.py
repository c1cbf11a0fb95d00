"""How one worker shares itself: lines before books, live jobs before all, equal books in turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from sqlalchemy import update

from actors.departure import Departure
from actors.making import CUT_SECONDS, Habits, Synthesis
from actors.pace import Pace
from actors.synthesize import TURN_SECONDS, synthesize, unspoken
from actors.urgency import Urgency
from jobs.database import Database, DatabaseUnavailable
from jobs.job import Claim, Job, JobClass, Stage
from jobs.lanes import ROTATION
from jobs.store import JobStore
from jobs.tables import jobs as jobs_table
from speech.engine import Samples, SynthesisRequest
from speech.host import Interrupted

from .conftest import PUBLIC_URL, ask
from .doubles import Bells, FakeEngine, MemoryStore, rescue, sound_of

BOOK = " ".join(f"Sentence number {number:02d} of the book." for number in range(12))
LINE = "One line."


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


def _work(
    jobs: JobStore,
    objects: MemoryStore,
    engine: FakeEngine,
    clock: Callable[[], float] | None = None,
    bells: Bells | None = None,
) -> Synthesis:
    return Synthesis(
        queue="cpu.fake",
        holder="w1",
        jobs=jobs,
        objects=objects,
        engine=engine,
        ring=bells or Bells(),
        departure=Departure(),
        broken=lambda reason: None,
        rescue=rescue(jobs),
        clock=clock or (lambda: 0.0),
    )


def _spoken(engine: FakeEngine) -> list[str]:
    return [request.text for request in engine.spoken]


def _whole(jobs: JobStore, job: Job, text: str) -> None:
    """Every piece of the text has one clip, and the job is with the encoders."""
    spans = [(clip.text_start, clip.text_end) for clip in jobs.clips(job.id)]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(text)
    assert jobs.get(job.id, job.tenant_id).stage is Stage.ENCODING


@pytest.mark.parametrize("tenant", ["ten_a", "ten_b"])
@pytest.mark.parametrize("job_class", [JobClass.LIVE, JobClass.HIGH, JobClass.NORMAL])
def test_a_line_starts_within_one_chunk_of_a_book(
    jobs: JobStore, objects: MemoryStore, tenant: str, job_class: JobClass
) -> None:
    engine = FakeEngine()
    book = ask(jobs, BOOK)
    lines: list[Job] = []

    def during(request: SynthesisRequest) -> None:
        if len(engine.spoken) == 3:
            lines.append(ask(jobs, LINE, tenant=tenant, job_class=job_class))

    engine.before = during
    synthesize(_work(jobs, objects, engine))

    # The third chunk of the book was in hand.
    assert _spoken(engine)[3] == LINE
    assert len(engine.spoken) == len(jobs.clips(book.id)) + 1, "no chunk was made twice"
    _whole(jobs, book, BOOK)
    _whole(jobs, lines[0], LINE)
    assert {clip.epoch for clip in jobs.clips(book.id)} == {1, 2}


def test_a_low_job_does_not_hold_up_a_book(jobs: JobStore, objects: MemoryStore) -> None:
    engine = FakeEngine()
    ask(jobs, BOOK)

    def during(request: SynthesisRequest) -> None:
        if len(engine.spoken) == 3:
            ask(jobs, LINE, job_class=JobClass.LOW)

    engine.before = during
    synthesize(_work(jobs, objects, engine))

    assert _spoken(engine)[-1] == LINE


def test_equal_books_take_turns_of_five_minutes(jobs: JobStore, objects: MemoryStore) -> None:
    engine = FakeEngine()
    first, second = ask(jobs, BOOK), ask(jobs, BOOK.replace("book", "tale"), tenant="ten_b")
    now = [0.0]

    def during(request: SynthesisRequest) -> None:
        now[0] += TURN_SECONDS / 4

    engine.before = during
    synthesize(_work(jobs, objects, engine, clock=lambda: now[0]))

    told = ["book" if "book" in text else "tale" for text in _spoken(engine)]
    assert told == [*(["book"] * 4 + ["tale"] * 4) * 3]
    _whole(jobs, first, BOOK)
    _whole(jobs, second, BOOK)


def test_a_shelf_of_one_tenant_is_not_all_begun_before_any_of_it_is_done(
    jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    engine = FakeEngine()
    shelf = [ask(jobs, f"Volume {number:02d}. " + BOOK) for number in range(12)]
    with database.write() as connection:
        # A minute apart.
        for number, job in enumerate(shelf):
            earlier = jobs_table.c.queued_at - 60 * (12 - number)
            connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(queued_at=earlier))
    now = [0.0]

    def during(request: SynthesisRequest) -> None:
        now[0] += TURN_SECONDS / 4

    engine.before = during
    synthesize(_work(jobs, objects, engine, clock=lambda: now[0]))

    begun = [text[:9] for text in _spoken(engine) if text.startswith("Volume")]
    assert begun == [f"Volume {number:02d}" for number in range(12)]
    first_done = _spoken(engine).index("Sentence number 11 of the book.")
    assert sum(text.startswith("Volume") for text in _spoken(engine)[:first_done]) == ROTATION + 1
    for job in shelf:
        assert jobs.get(job.id, "ten_a").stage is Stage.ENCODING


def test_a_book_alone_goes_on_when_its_turn_is_over(jobs: JobStore, objects: MemoryStore) -> None:
    engine = FakeEngine()
    book = ask(jobs, BOOK)
    now = [0.0]

    def during(request: SynthesisRequest) -> None:
        now[0] += TURN_SECONDS

    engine.before = during
    synthesize(_work(jobs, objects, engine, clock=lambda: now[0]))

    assert {clip.epoch for clip in jobs.clips(book.id)} == {1}
    _whole(jobs, book, BOOK)


@dataclass
class Streaming(FakeEngine):
    """Gives each clip in ten pieces, and looks at `stop` before each."""

    before_piece: Callable[[SynthesisRequest, int], None] = lambda request, number: None
    whole: list[str] = field(default_factory=list)

    def synthesize(
        self, request: SynthesisRequest, *, stop: Callable[[], bool] | None = None, **others: object
    ) -> Iterator[Samples]:
        assert stop is not None
        self.spoken.append(request)
        for number, piece in enumerate(np.array_split(sound_of(request.text), 10)):
            self.before_piece(request, number)
            if stop():
                raise Interrupted("stopped")
            yield piece
        self.whole.append(request.text)


def _slow(now: list[float]) -> Pace:
    """A second for each code point."""
    pace = Pace()
    pace.made(seconds=100, audio_seconds=100, characters=100)
    now[0] = 0.0
    return pace


@pytest.mark.parametrize("cut", [0, 1], ids=["the first chunk", "a later chunk"])
def test_a_live_job_cuts_the_chunk_in_hand_and_the_chunk_is_made_again_whole(
    jobs: JobStore, objects: MemoryStore, cut: int
) -> None:
    engine = Streaming()
    now = [0.0]
    book = ask(jobs, BOOK)
    asked = threading.Event()
    live: list[Job] = []

    class Heard(JobStore):
        def urgent(self, queue: str) -> bool:
            waits = super().urgent(queue)
            if waits:
                asked.set()
            return waits

    def at(request: SynthesisRequest, number: int) -> None:
        if len(engine.spoken) == cut + 1 and number == 3:
            live.append(ask(jobs, LINE, tenant="ten_b", job_class=JobClass.LIVE))
            assert asked.wait(10), "nobody asked for live jobs"
            # What asks and what it sets are two steps.
            threading.Event().wait(0.2)

    engine.before_piece = at
    work = Synthesis(
        queue="cpu.fake",
        holder="w1",
        jobs=Heard(jobs._db, public_url=PUBLIC_URL),
        objects=objects,
        engine=engine,
        ring=Bells(),
        departure=Departure(),
        broken=lambda reason: None,
        rescue=rescue(jobs),
        pace=_slow(now),
        habits=Habits(streams=True),
        clock=lambda: now[0],
    )
    synthesize(work)

    assert _spoken(engine)[cut + 1] == LINE
    assert _spoken(engine)[cut] not in engine.whole[: cut + 1], "it was cut"
    assert _spoken(engine)[cut + 2] == _spoken(engine)[cut], "and made again, whole"
    assert engine.spoken[cut + 2].seed == engine.spoken[cut].seed
    _whole(jobs, book, BOOK)
    _whole(jobs, live[0], LINE)


@pytest.mark.parametrize(
    ("streams", "elapsed"), [(True, 39 - CUT_SECONDS), (False, 0.0)], ids=["nearly done", "one piece"]
)
def test_a_chunk_that_is_nearly_done_or_cannot_be_stopped_is_not_cut(
    jobs: JobStore, objects: MemoryStore, streams: bool, elapsed: float
) -> None:
    engine = Streaming(max_chars=40)
    now = [0.0]
    text = "Thirty-nine code points are in this one."[:39]
    ask(jobs, text)
    work = Synthesis(
        queue="cpu.fake",
        holder="w1",
        jobs=jobs,
        objects=objects,
        engine=engine,
        ring=Bells(),
        departure=Departure(),
        broken=lambda reason: None,
        rescue=rescue(jobs),
        pace=_slow(now),
        habits=Habits(streams=streams),
        clock=lambda: now[0],
    )

    def at(request: SynthesisRequest, number: int) -> None:
        if number == 3 and len(engine.spoken) == 1:
            ask(jobs, LINE, tenant="ten_b", job_class=JobClass.LIVE)
            now[0] += elapsed
            threading.Event().wait(0.6)

    engine.before_piece = at
    synthesize(work)

    assert engine.whole == [text, LINE]


def test_the_next_chunk_is_made_while_the_last_clip_is_staged(jobs: JobStore, objects: MemoryStore) -> None:
    engine = FakeEngine()
    book = ask(jobs, BOOK)
    made_second = threading.Event()

    def stored(key: str) -> None:
        # Staging the first clip ends only when the second is being made.
        assert made_second.wait(10)

    def during(request: SynthesisRequest) -> None:
        if len(engine.spoken) == 2:
            made_second.set()

    objects.after_put, engine.before = stored, during
    synthesize(_work(jobs, objects, engine))

    _whole(jobs, book, BOOK)


def test_what_was_made_before_a_failure_is_recorded(jobs: JobStore, objects: MemoryStore) -> None:
    engine = FakeEngine()
    book = ask(jobs, BOOK)
    failed = threading.Event()

    def during(request: SynthesisRequest) -> None:
        if len(engine.spoken) == 2:
            failed.set()
            raise RuntimeError("the second chunk fails while the first clip is on its way")

    def stored(key: str) -> None:
        assert failed.wait(10)

    engine.before, objects.after_put = during, stored
    synthesize(_work(jobs, objects, engine))

    assert len(jobs.clips(book.id)) == 1
    assert jobs.get(book.id, "ten_a").failures == 1


def test_a_database_that_is_away_at_a_border_stops_no_work(
    jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    class Deaf(JobStore):
        def better(self, claim: Claim, *, left: int, turn_is_over: bool) -> bool:
            raise DatabaseUnavailable("away")

    engine = FakeEngine()
    book = ask(jobs, BOOK)

    synthesize(_work(Deaf(database, public_url=PUBLIC_URL), objects, engine))

    _whole(jobs, book, BOOK)


def test_urgency_asks_nothing_where_the_answer_changes_nothing() -> None:
    asked: list[int] = []

    def ask_() -> bool:
        asked.append(1)
        return True

    with Urgency(ask_, wanted=False, look_seconds=0.001) as urgency:
        threading.Event().wait(0.05)
        assert not urgency.waits()
    assert asked == []


def test_what_no_clip_holds_is_cut_anew_whatever_the_clips_were_cut_by() -> None:
    recorded = [(10, 30), (30, 55)]

    chunks = unspoken(BOOK, recorded, max_chars=25, language="en")

    covered = sorted([*recorded, *((chunk.start, chunk.end) for chunk in chunks)])
    assert [start for start, _ in covered] == [0, *(end for _, end in covered[:-1])]
    assert covered[-1][1] == len(BOOK)
    assert all(len(chunk.text) <= 25 for chunk in chunks)
    assert unspoken(BOOK, [(0, len(BOOK))], max_chars=25, language="en") == []
