"""A job's life as a state machine: Hypothesis walks the table of moves, with a simple model beside the store.

Several workers, tenants and sweepers do at random what each may do, and what none may. Every claim that was
ever given goes on to be used, so most of them are old ones: whoever uses such a one must change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobs.database import Database
from jobs.job import (
    CANCELLED,
    ENCODING,
    EXPIRED,
    FAILED,
    MOVES,
    QUEUED,
    SYNTHESIZING,
    TERMINAL,
    UPLOADING,
    Claim,
    Clip,
    Fenced,
    JobClass,
    JobEnded,
    JobError,
    JobId,
    JobNotFound,
    JobUnended,
    JobWarning,
    Move,
    NewJob,
    PublishedAudio,
    State,
    Status,
    Substitute,
    TenantId,
    TooManyQueued,
)
from jobs.lanes import AGEING_SECONDS, ROTATION, SHORTER
from jobs.leases import backoff
from jobs.store import LENGTH_WEIGHT, MAX_REMADE, ORPHAN_SECONDS, ZOMBIE_SECONDS, JobStore
from jobs.views import job_body

from .databases import START, Clock, everything, execute
from .invariants import check

QUEUE: Final = "cpu.tone"
MEDIA: Final = "cpu.media"
LEASE: Final = 30.0
MAX_FAILURES: Final = 3
MAX_QUEUED: Final = 6
TENANTS: Final = ("ten_a", "ten_b", "ten_c")
BROKEN: Final = JobError(code="engine_failed", message="the engine gave no sound")
#: A walk for a night: `VOXFLEET_WALKS=2000 pytest tests/jobs/test_life.py`. Read here, before any test runs.
WALKS: Final = int(os.environ.get("VOXFLEET_WALKS", "0"))
#: Which states may follow which, in one step.
STEPS: Final = {(before, after) for steps in MOVES.values() for before, after in steps.items()}


@dataclass(kw_only=True)
class Model:
    """A job, as simply as it can be told."""

    id: JobId
    tenant: str
    length: int
    job_class: int
    queue: str
    created_at: float
    deadline: float | None
    state: State = QUEUED
    epoch: int = 0
    failures: int = 0
    held: bool = False
    visible_at: float
    queued_at: float
    aged_from: int | None = None
    #: (start, end, milliseconds) of each recorded clip, by its number.
    clips: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    left: int
    remade: int = 0
    staged: bool = False
    ended_at: float | None = None

    @property
    def spans(self) -> list[tuple[int, int]]:
        """What is recorded, in the order of the text."""
        return sorted((start, end) for start, end, _ in self.clips.values())

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """What is not."""
        found, at = [], 0
        for start, end in [*self.spans, (self.length, self.length)]:
            if start > at:
                found.append((at, start))
            at = max(at, end)
        return found

    @property
    def audio_ms(self) -> int:
        """Length of the recorded clips."""
        return sum(milliseconds for _, _, milliseconds in self.clips.values())

    @property
    def ended(self) -> bool:
        """Whether nothing follows."""
        return self.state.status in TERMINAL

    def move(self, move: Move) -> None:
        """Go where the table says."""
        self.state = MOVES[move][self.state]

    def let_go(self, visible_at: float) -> None:
        """Let others have it."""
        self.held, self.visible_at = False, visible_at

    def end(self, state: State, now: float) -> None:
        """End."""
        assert (self.state, state) in STEPS
        self.state, self.held, self.ended_at = state, False, now

    def ready(self, now: float) -> bool:
        """Whether a worker may take it."""
        return not self.ended and self.visible_at <= now


class Life(RuleBasedStateMachine):
    """Jobs, their owners, workers and sweepers, in moved time."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.clock = Clock(database)
        self.jobs = JobStore(
            database, public_url="https://speech.example", lease_seconds=LEASE, max_failures=MAX_FAILURES
        )
        _empty(database)
        self.now = START
        self.models: dict[JobId, Model] = {}
        self.claims: list[Claim] = []
        self.objects: dict[str, tuple[JobId, int, str, float | None]] = {}
        self.seen: dict[str, dict[str, Any]] = {}
        self.views: dict[str, dict[str, Any]] = {}

    @initialize(
        asked=st.lists(
            st.tuples(
                st.sampled_from(TENANTS),
                st.sampled_from(JobClass),
                st.sampled_from([12, 40, 1000]),
                st.lists(st.integers(1, 1000), max_size=6),
                st.booleans(),
            ),
            max_size=5,
        )
    )
    def set_the_scene(self, asked: list[tuple[str, JobClass, int, list[int], bool]]) -> None:
        """Begin with jobs that have come more or less far."""
        for tenant, job_class, length, sizes, goes_far in asked:
            self.ask(tenant, job_class, length, None, hook=False)
            if not sizes:
                continue
            self.work(QUEUE, [*sizes, *([1000] * 4 if goes_far else [])])
            if goes_far:
                self.work(MEDIA, sizes[:2])

    # --- owners --------------------------------------------------------------------------------------

    @rule(
        tenant=st.sampled_from(TENANTS),
        job_class=st.sampled_from(JobClass),
        length=st.sampled_from([1, 3, 12, 40, 1000]),
        deadline=st.none() | st.sampled_from([1, 60]),
        hook=st.booleans(),
    )
    def ask(self, tenant: str, job_class: JobClass, length: int, deadline: int | None, hook: bool) -> None:
        """Ask for speech."""
        # So that no two jobs are of the same age.
        self._pass(0.001)
        request = NewJob(
            tenant_id=TenantId(tenant),
            input="x" * length,
            model="tone",
            queue=QUEUE,
            voice="sine",
            language="en",
            response_format="mp3",
            seed=7,
            expires_in=120,
            webhook_url="https://hooks.example" if hook else None,
            job_class=job_class,
            deadline=deadline,
        )
        if self._waiting(tenant) >= MAX_QUEUED:
            self._refused(TooManyQueued, lambda: self.jobs.create(request, max_queued=MAX_QUEUED))
            return
        job = self.jobs.create(request, max_queued=MAX_QUEUED)
        self._born(job.id, tenant, length, int(job_class), deadline)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), who=st.integers(0, 5))
    def cancel(self, data: st.DataObject, who: int) -> None:
        """Cancel a job, or somebody else's; not so often that nothing else comes to happen."""
        job = self._any(data)
        if who > 2 and not job.ended:
            return
        if who == 0:
            self._refused(JobNotFound, lambda: self.jobs.cancel(job.id, "ten_z"))
        elif job.ended and job.state is not CANCELLED:
            self._refused(JobEnded, lambda: self.jobs.cancel(job.id, job.tenant))
        else:
            cancelled = self.jobs.cancel(job.id, job.tenant)
            assert cancelled.status is Status.CANCELLED
            if not job.ended:
                job.end(CANCELLED, self.now)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """Ask for the same once more."""
        self._pass(0.001)
        job = self._any(data)

        def again() -> Any:
            return self.jobs.retry(job.id, TenantId(job.tenant), queue=QUEUE, max_queued=MAX_QUEUED)

        if not job.ended:
            self._refused(JobUnended, again)
        elif job.state.status is Status.COMPLETED:
            self._refused(JobEnded, again)
        elif self._waiting(job.tenant) >= MAX_QUEUED:
            self._refused(TooManyQueued, again)
        else:
            asked = job.job_class if job.aged_from is None else job.aged_from
            new = again()
            assert (new.retry_of, new.job_class, new.deadline) == (job.id, asked, None)
            self._born(new.id, job.tenant, job.length, asked, None)

    # --- time ----------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 1, 5, 29, 30, 31, 61, 121, 600, 3601]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._pass(seconds)

    # --- workers -------------------------------------------------------------------------------------

    @rule(
        queue=st.sampled_from([QUEUE, MEDIA]),
        longest_ms=st.sampled_from([None, None, 0, 2_000]),
        seconds=st.sampled_from([0, LEASE + 1]),
    )
    def claim(self, queue: str, longest_ms: int | None, seconds: float) -> None:
        """Take the best job, now or when leases have run out."""
        self._pass(seconds)
        self._claim(queue, longest_ms)

    def _claim(self, queue: str, longest_ms: int | None) -> None:
        def best() -> list[Model]:
            return self._best(queue, most=JobClass.LOW, longest_ms=longest_ms)

        expected, claim = self._taking(
            best, lambda: self.jobs.claim(queue, holder="worker", longest_ms=longest_ms)
        )
        assert (claim is None) == (expected is None)
        if claim is not None and expected is not None:
            self._took(claim, expected)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), left=st.none() | st.integers(0, 200), turn_is_over=st.booleans())
    def swap(self, data: st.DataObject, left: int | None, turn_is_over: bool) -> None:
        """Give way, if anything better waits."""
        claim = self._claimed(data, Move.LET_GO)
        job = self.models[claim.job.id]
        left = job.left if left is None else left

        def do() -> Claim | None:
            return self.jobs.swap(claim, holder="worker", left=left, turn_is_over=turn_is_over)

        if not self._mine(claim):
            self._refused(Fenced, do)
            return
        job.visible_at = self.now + LEASE

        def best() -> list[Model]:
            most = claim.job.job_class if turn_is_over else claim.job.job_class - 1
            found = self._best(claim.job.queue or "", most=most, mine=job)
            if found or turn_is_over or left < SHORTER:
                return found
            return self._short(claim.job.queue or "", int(claim.job.job_class), left // SHORTER, job)

        expected, better = self._taking(best, do)
        assert (better is None) == (expected is None)
        if better is None or expected is None:
            return
        assert expected is not job
        self._took(better, expected)
        if turn_is_over:
            lane = sorted(each.queued_at for each in self._lane(job) if each is not expected)
            place = lane[ROTATION - 2] + 1e-6 if len(lane) > ROTATION - 2 else self.now
            job.queued_at = min(self.now, place)
        job.let_go(self.now)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        """Hold on to a job."""
        claim = self._claimed(data, None)
        if self._write(claim, None, lambda: self.jobs.renew(claim.job.id, claim.job.epoch)):
            self.models[claim.job.id].visible_at = self.now + LEASE

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Let go of a job."""
        claim = self._claimed(data, Move.LET_GO)
        if self._write(claim, Move.LET_GO, lambda: self.jobs.release(claim)):
            self.models[claim.job.id].let_go(self.now)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), seconds=st.sampled_from([1, 40]))
    def postpone(self, data: st.DataObject, seconds: float) -> None:
        """Let go of a job for a while."""
        claim = self._claimed(data, Move.LET_GO)
        if self._write(claim, Move.LET_GO, lambda: self.jobs.postpone(claim, BROKEN, seconds=seconds)):
            self.models[claim.job.id].let_go(self.now + seconds)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def retry_later(self, data: st.DataObject) -> None:
        """Fail once."""
        claim = self._claimed(data, Move.LET_GO)
        if not self._write(claim, Move.LET_GO, lambda: self.jobs.retry_later(claim, BROKEN)):
            return
        job = self.models[claim.job.id]
        job.failures += 1
        if job.failures >= MAX_FAILURES:
            job.end(FAILED, self.now)
        else:
            job.let_go(self.now + backoff(job.failures))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), really=st.integers(0, 4))
    def fail(self, data: st.DataObject, really: int) -> None:
        """Fail for good; not so often that nothing else comes to happen."""
        claim = self._claimed(data, Move.FAIL)
        if (really == 0 or not self._mine(claim)) and self._write(
            claim, Move.FAIL, lambda: self.jobs.fail(claim, BROKEN)
        ):
            self.models[claim.job.id].end(FAILED, self.now)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Say what is about to be spoken."""
        self._begin(self._claimed(data, Move.RECORD))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), size=st.integers(1, 30))
    def record(self, data: st.DataObject, size: int) -> None:
        """Record a clip in a gap, or the last one once more."""
        self._record(self._claimed(data, Move.RECORD), size)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def synthesized(self, data: st.DataObject) -> None:
        """Hand a job to the encoders."""
        self._hand_over(self._claimed(data, Move.SPEAK_OUT))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def remake(self, data: st.DataObject) -> None:
        """Send a job back to its engine."""
        claim = self._claimed(data, Move.REMAKE)
        recorded = self.jobs.clips(claim.job.id)
        chosen = data.draw(st.sets(st.sampled_from(recorded)) if recorded else st.just(set()), "lost")
        self._remake(claim, [clip for clip in recorded if clip in chosen])

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def pass_on(self, data: st.DataObject) -> None:
        """Have another model speak it."""
        claim = self._claimed(data, Move.HAND_OVER)
        job = self.models[claim.job.id]
        to = Substitute(model="other", queue=QUEUE, voice="v", language="en")
        said = JobWarning(code="fallback_model", message="spoken by other")
        if self._write(claim, Move.HAND_OVER, lambda: self.jobs.hand_over(claim, to, said)):
            job.move(Move.HAND_OVER)
            job.let_go(self.now)
            job.queue, job.queued_at = QUEUE, job.created_at
            job.left, job.failures = job.length, 0
            job.clips.clear()

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def upload(self, data: st.DataObject) -> None:
        """Announce the object."""
        self._upload(self._claimed(data, Move.UPLOAD))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """Publish."""
        self._complete(self._claimed(data, Move.COMPLETE))

    @precondition(lambda self: any(self._mine(claim) for claim in self.claims))
    @rule(data=st.data(), sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=5))
    def go_on(self, data: st.DataObject, sizes: list[int]) -> None:
        """Do what comes next."""
        claim = data.draw(st.sampled_from([each for each in self.claims if self._mine(each)]), "claim")
        self._go_on(claim, sizes)

    @rule(queue=st.sampled_from([QUEUE, MEDIA]), sizes=st.lists(st.integers(1, 1000), max_size=5))
    def work(self, queue: str, sizes: list[int]) -> None:
        """Take a job and go on with it: else few jobs would get far."""
        self._claim(queue, longest_ms=None)
        self.nothing_goes_back()
        if self.claims:
            self._go_on(self.claims[-1], sizes)

    def _go_on(self, claim: Claim, sizes: list[int]) -> None:
        job = self.models[claim.job.id]
        for size in sizes:
            if not self._mine(claim):
                return
            if job.state == ENCODING and size % 5 == 0:
                # Every other clip is lost.
                self._remake(claim, self.jobs.clips(job.id)[::2])
            elif job.state == ENCODING:
                self._upload(claim)
            elif job.state == UPLOADING:
                self._complete(claim)
            elif not job.staged:
                self._begin(claim)
            elif job.gaps:
                self._record(claim, size)
            else:
                self._hand_over(claim)
            self.nothing_goes_back()

    def _begin(self, claim: Claim) -> None:
        job = self.models[claim.job.id]
        left = sum(end - start for start, end in job.gaps)
        if self._write(
            claim,
            Move.RECORD,
            lambda: self.jobs.begin(
                claim, spoken_text=claim.input, chunks_total=1 + len(job.clips), characters_left=left
            ),
        ):
            job.staged, job.left = True, left

    def _record(self, claim: Claim, size: int) -> None:
        job = self.models[claim.job.id]
        start, end = job.gaps[0] if job.gaps else (job.length, job.length)
        mine = [seq for seq in job.clips if seq >= claim.next_seq]
        clip = Clip(
            seq=max(mine, default=claim.next_seq - 1) + 1,
            text_start=start,
            text_end=min(end, start + size),
            pause_ms=0,
            epoch=claim.job.epoch,
            key=f"staged/{job.id}/{claim.job.epoch}-{start}-{size}",
            sha256="ab" * 32,
            samples=240 * size,
            sample_rate=24_000,
            seed=1,
            engine_revision="tone-1",
        )
        # A worker begins before it records: so objects are known to be staged.
        if self._mine(claim) and job.state == SYNTHESIZING and not job.staged:
            self._begin(claim)
        if self._write(claim, Move.RECORD, lambda: self.jobs.record(claim, clip)):
            job.clips[clip.seq] = (clip.text_start, clip.text_end, clip.milliseconds)
            job.left = max(0, job.left - (clip.text_end - clip.text_start))
            job.failures, job.visible_at = 0, self.now + LEASE
            # Its answer was lost.
            self.jobs.record(claim, clip)

    def _hand_over(self, claim: Claim) -> None:
        job = self.models[claim.job.id]
        if self._write(claim, Move.SPEAK_OUT, lambda: self.jobs.synthesized(claim, queue=MEDIA)):
            job.move(Move.SPEAK_OUT)
            job.let_go(self.now)
            job.queue, job.left, job.failures = MEDIA, 0, 0
            job.queued_at = self.now + job.audio_ms * LENGTH_WEIGHT / 1000

    def _remake(self, claim: Claim, lost: list[Clip]) -> None:
        job = self.models[claim.job.id]
        if not self._write(claim, Move.REMAKE, lambda: self.jobs.remake(claim, lost)):
            return
        if job.remade >= MAX_REMADE:
            job.end(FAILED, self.now)
            return
        job.remade += 1
        job.move(Move.REMAKE)
        job.let_go(self.now)
        job.queue, job.queued_at = QUEUE, job.created_at
        job.left = sum(clip.text_end - clip.text_start for clip in lost)
        for clip in lost:
            del job.clips[clip.seq]

    def _upload(self, claim: Claim) -> None:
        job = self.models[claim.job.id]
        key = _key(claim)
        if self._write(claim, Move.UPLOAD, lambda: self.jobs.uploading(claim, key=key)):
            job.move(Move.UPLOAD)
            job.visible_at = self.now + LEASE
            self.objects[key] = (job.id, claim.job.epoch, "pending", None)

    def _complete(self, claim: Claim) -> None:
        job = self.models[claim.job.id]
        audio = PublishedAudio(
            key=_key(claim),
            content_type="audio/mpeg",
            bytes=1,
            duration_ms=job.audio_ms,
            sample_rate=24_000,
            bitrate=64_000,
            channels=1,
            sha256="cd" * 32,
        )
        if self._write(claim, Move.COMPLETE, lambda: self.jobs.complete(claim, audio)):
            job.end(State(Status.COMPLETED), self.now)
            self.objects[audio.key] = (job.id, claim.job.epoch, "live", self.now + 120)
            assert self.jobs.published(claim, key=audio.key)
        else:
            completed = job.state.status is Status.COMPLETED
            mine = completed and claim.job.epoch == job.epoch
            assert self.jobs.published(claim, key=audio.key) == mine

    # --- sweepers ------------------------------------------------------------------------------------

    @rule(limit=st.sampled_from([1, 100]))
    def expire(self, limit: int) -> None:
        """End what nobody began in time."""
        late = [job for job in self.models.values() if self._late(job)]
        ended = self.jobs.expire(limit=limit)
        assert ended == min(limit, len(late))
        found = {row["id"] for row in everything(self.database)["jobs"] if row["status"] == "expired"}
        for job in late:
            if job.id in found:
                job.end(EXPIRED, self.now)

    @rule(seconds=st.sampled_from([0, AGEING_SECONDS + 1]))
    def promote(self, seconds: float) -> None:
        """Let the oldest move up."""
        self._pass(seconds)
        promoted = 0
        for queue in (MEDIA, QUEUE):
            for job_class in (JobClass.NORMAL, JobClass.LOW):
                # What is moved up from a class was there before the call; in the next class it is too young.
                for job in self._aged(queue, job_class):
                    job.aged_from = job.job_class if job.aged_from is None else job.aged_from
                    job.job_class -= 1
                    promoted += 1
        assert self.jobs.promote() == promoted

    @rule()
    def delete(self) -> None:
        """Delete what nobody can publish, and what has been heard long enough."""
        orphans = {key for key in self.objects if self._orphan(key)}
        assert {found.key for found in self.jobs.orphaned_objects(limit=100)} == orphans
        for key in self.objects:
            # Only those are abandoned; the others stay as they are.
            self.jobs.abandon(key)
        for key in orphans:
            owner, epoch, _, _ = self.objects[key]
            self.objects[key] = (owner, epoch, "deleting", self.now + ORPHAN_SECONDS)
        due = {
            key
            for key, (_, _, state, after) in self.objects.items()
            if state != "pending" and after is not None and after <= self.now
        }
        assert {found.key for found in self.jobs.expired_objects(limit=100)} == due
        for key in due:
            self.jobs.forget_object(key)
            del self.objects[key]
        staged = {
            job.id
            for job in self.models.values()
            if job.staged and job.ended_at is not None and job.ended_at < self.now - ZOMBIE_SECONDS
        }
        assert set(self.jobs.staged_leftovers(limit=100)) == staged
        for job_id in staged:
            self.jobs.staged_gone(job_id)
            self.models[job_id].staged = False

    # --- what is always true -------------------------------------------------------------------------

    @invariant()
    def the_rows_are_as_the_model(self) -> None:
        """Compare every job with its model."""
        tables = everything(self.database)
        found = {row["id"]: row for row in tables["jobs"]}
        assert set(found) == set(self.models)
        for job in self.models.values():
            row = found[job.id]
            expected = {
                "status": job.state.status,
                "stage": job.state.stage,
                "queue": None if job.ended else job.queue,
                "class": job.job_class,
                "aged_from": job.aged_from,
                "epoch": job.epoch,
                "failures": job.failures,
                "visible_at": pytest.approx(job.visible_at, abs=1e-5),
                "queued_at": pytest.approx(job.queued_at, abs=1e-5),
                "characters_left": job.left,
                "audio_ms": job.audio_ms,
                "chunks_done": len(job.clips),
                "remade": job.remade,
                "staged": job.staged,
            }
            assert {name: row[name] for name in expected} == expected
            assert (row["holder"] is not None) == job.held
        ledger = {row["key"]: (row["owner"], row["epoch"], row["state"]) for row in tables["objects"]}
        # An object whose time is over is marked by whoever looks for it.
        assert ledger == {key: entry[:3] for key, entry in self.objects.items()}
        check(self.database)

    @invariant()
    def nothing_goes_back(self) -> None:
        """Compare every job with itself a step before."""
        for job_id, job in self.models.items():
            now = self.jobs.get(job_id, job.tenant)
            view = job_body(now, public_url="https://speech.example")
            version = view.pop("version")
            before = self.seen.get(job_id)
            if before is not None:
                assert (before["state"], job.state) in STEPS or before["state"] == job.state
                assert now.epoch >= before["epoch"]
                assert version >= before["version"]
                assert version > before["version"] or view == self.views[job_id]
            self.seen[job_id] = {"state": job.state, "epoch": now.epoch, "version": version}
            self.views[job_id] = view

    @invariant()
    def what_is_ready_is_counted(self) -> None:
        """Compare the counts that bells are made from."""
        counts = self.jobs.ready(cap=1000)
        for queue in (QUEUE, MEDIA):
            ready = sum(job.ready(self.now) for job in self.models.values() if job.queue == queue)
            assert counts.get(queue, 0) == ready
        live = any(
            job.ready(self.now) and job.queue == QUEUE and job.job_class == JobClass.LIVE
            for job in self.models.values()
        )
        assert self.jobs.urgent(QUEUE) == live
        backlog = self.jobs.backlog()
        assert sum(lane.jobs for lane in backlog) == sum(not job.ended for job in self.models.values())
        assert sum(lane.characters for lane in backlog) == sum(
            job.left for job in self.models.values() if not job.ended
        )
        held = [job for job in self.models.values() if job.held and job.visible_at > self.now]
        assert len(self.jobs.running()) == len(held)

    # --- inside --------------------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.now = self._time()

    def _time(self) -> float:
        with self.database.read() as connection:
            return self.database.now(connection)

    def _waiting(self, tenant: str) -> int:
        return sum(job.tenant == tenant and job.state == QUEUED for job in self.models.values())

    def _born(self, job_id: JobId, tenant: str, length: int, job_class: int, deadline: int | None) -> None:
        self.models[job_id] = Model(
            id=job_id,
            tenant=tenant,
            length=length,
            job_class=job_class,
            queue=QUEUE,
            created_at=self.now,
            deadline=None if deadline is None else self.now + deadline,
            visible_at=self.now,
            queued_at=self.now,
            left=length,
        )

    def _any(self, data: st.DataObject) -> Model:
        return self.models[data.draw(st.sampled_from(list(self.models)), "job")]

    def _claimed(self, data: st.DataObject, move: Move | None) -> Claim:
        """Draw a claim under which the move may be made, where there is one, or any of the last few."""
        mine = [claim for claim in self.claims if self._mine(claim)]
        may = [claim for claim in mine if move is None or self.models[claim.job.id].state in MOVES[move]]
        return data.draw(st.sampled_from([*may, *may, *self.claims[-2:]]), "claim")

    def _mine(self, claim: Claim) -> bool:
        job = self.models[claim.job.id]
        return job.held and job.epoch == claim.job.epoch

    def _write(self, claim: Claim, move: Move | None, do: Callable[[], object]) -> bool:
        """Do it; whether it may be done. Where it may not, nothing may change."""
        job = self.models[claim.job.id]
        if self._mine(claim) and (move is None or job.state in MOVES[move]):
            do()
            return True
        self._refused(Fenced, do)
        return False

    def _refused(self, why: type[Exception], do: Callable[[], object]) -> None:
        before = everything(self.database)
        with pytest.raises(why):
            do()
        assert everything(self.database) == before

    def _late(self, job: Model) -> bool:
        return job.state == QUEUED and job.deadline is not None and job.deadline <= self.now

    def _lane(self, job: Model) -> list[Model]:
        """The ready jobs of the same lane."""
        lane = (job.queue, job.job_class, job.tenant)
        return [
            each
            for each in self.models.values()
            if each.ready(self.now) and (each.queue, each.job_class, each.tenant) == lane
        ]

    def _running(self, queue: str, tenant: str, mine: Model | None) -> int:
        """How many of a tenant's jobs are in hand, but for the one that would be let go of."""
        return sum(
            job.held and job.visible_at > self.now and (job.queue, job.tenant) == (queue, tenant)
            for job in self.models.values()
            if job is not mine
        )

    def _best(
        self, queue: str, *, most: int, longest_ms: int | None = None, mine: Model | None = None
    ) -> list[Model]:
        """The jobs that may be claimed next: one, but for ties."""
        ready = [
            job
            for job in self.models.values()
            if job.queue == queue
            and job.ready(self.now)
            and job.job_class <= most
            and (longest_ms is None or job.audio_ms <= longest_ms)
        ]
        urgent = min((job.job_class for job in ready), default=None)
        ready = [job for job in ready if job.job_class == urgent]
        return _least(ready, lambda job: (self._running(queue, job.tenant, mine), job.queued_at))

    def _short(self, queue: str, job_class: int, most: int, mine: Model) -> list[Model]:
        """The jobs of a class that are short enough to be given way to: the shortest of each tenant."""
        heads: list[Model] = []
        for tenant in TENANTS:
            lane = [
                job
                for job in self.models.values()
                if (job.queue, job.job_class, job.tenant) == (queue, job_class, tenant)
                and job.ready(self.now)
                and job.left <= most
            ]
            heads += _least(lane, lambda job: job.left)
        # Which of several that are equally short stands for its tenant is anybody's choice.
        least = min((self._running(queue, job.tenant, mine) for job in heads), default=0)
        return [job for job in heads if self._running(queue, job.tenant, mine) == least]

    def _taking(
        self, best: Callable[[], list[Model]], take: Callable[[], Claim | None]
    ) -> tuple[Model | None, Claim | None]:
        """Take a job, and say which it should be, ending in the model those that end on the way."""
        claim = take()
        rows = {row["id"]: row for row in everything(self.database)["jobs"]}
        while candidates := best():
            # Of several that are equally good, whichever the store took.
            touched = [
                job
                for job in candidates
                if rows[job.id]["epoch"] != job.epoch or Status(rows[job.id]["status"]) in TERMINAL
            ]
            assert touched, "the store passed over the best"
            job = touched[0]
            if self._late(job):
                job.end(EXPIRED, self.now)
            elif job.held and job.failures + 1 >= MAX_FAILURES:
                job.failures += 1
                job.end(FAILED, self.now)
            else:
                return job, claim
        return None, claim

    def _took(self, claim: Claim, job: Model) -> None:
        assert claim.job.id == job.id
        job.failures += job.held
        job.move(Move.CLAIM)
        job.held, job.visible_at = True, self.now + LEASE
        job.epoch += 1
        assert (claim.job.epoch, claim.job.failures) == (job.epoch, job.failures)
        assert list(claim.recorded) == job.spans
        assert claim.next_seq == max(job.clips, default=-1) + 1
        assert claim.input == "x" * job.length
        assert (claim.job.status, claim.job.stage) == job.state
        self.claims.append(claim)

    def _aged(self, queue: str, job_class: int) -> Iterator[Model]:
        for tenant in TENANTS:
            lane = [
                job
                for job in self.models.values()
                if (job.queue, job.job_class, job.tenant) == (queue, job_class, tenant)
                and job.ready(self.now)
            ]
            promoted = [
                job
                for job in self.models.values()
                if job.aged_from is not None and (job.queue, job.tenant) == (queue, tenant) and not job.ended
            ]
            for job in _least(lane, lambda job: job.queued_at)[:1]:
                asked = job.job_class if job.aged_from is None else job.aged_from
                patience = AGEING_SECONDS * (1 + asked - job.job_class)
                others = [other for other in promoted if other is not job]
                if not job.held and not others and job.queued_at <= self.now - patience:
                    yield job

    def _orphan(self, key: str) -> bool:
        owner, epoch, state, _ = self.objects[key]
        job = self.models[owner]
        return state == "pending" and (job.ended or job.epoch != epoch)


def _least(found: list[Model], by: Callable[[Model], Any]) -> list[Model]:
    least = min((by(job) for job in found), default=None)
    return [job for job in found if by(job) == least]


def _key(claim: Claim) -> str:
    return f"audio/1d/{claim.job.id}/{claim.job.epoch}.mp3"


def _empty(database: Database) -> None:
    for table in ("deliveries", "events", "clips", "jobs", "objects"):
        execute(database, f"DELETE FROM {table}")  # noqa: S608 - our own names
    execute(database, "UPDATE clock SET at = :start", start=START)


@pytest.mark.slow
def test_a_job_lives_by_the_table(database: Database) -> None:
    run_state_machine_as_test(
        lambda: Life(database),
        settings=settings(
            max_examples=WALKS or 60,
            stateful_step_count=50,
            deadline=None,
            derandomize=not WALKS,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
