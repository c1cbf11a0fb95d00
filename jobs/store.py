"""The job table: the truth about every job, in one SQL database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    RowMapping,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from jobs import leases
from jobs.database import Database, storable
from jobs.events import ENDINGS, event_payload
from jobs.job import (
    MOVES,
    PIPELINE_VERSION,
    SYNTHESIZING,
    TERMINAL,
    Claim,
    Clip,
    Fenced,
    Job,
    JobClass,
    JobEnded,
    JobError,
    JobId,
    JobNotFound,
    JobUnended,
    JobWarning,
    Manner,
    Move,
    NewJob,
    PublishedAudio,
    Stage,
    State,
    Status,
    Substitute,
    TenantId,
    TooManyQueued,
    error_from,
    new_id,
)
from jobs.lanes import Lanes
from jobs.tables import clips, deliveries, events, jobs, objects

#: How many of the last errors a row keeps.
KEPT_ERRORS: Final = 5
#: A lane of encoders: seconds that a job is put behind others for each second of its audio. Shorter audio is
#: first, and a book of ten hours waits for an hour of newcomers at most.
LENGTH_WEIGHT: Final = 0.1
#: A tenant's jobs are counted without a lock until so few are left of the limit.
NEAR_LIMIT: Final = 64
#: How often lost clips may send a job back to the engine.
MAX_REMADE: Final = 3
#: Staged objects of a job that ended may still be on their way while its last holder does not know.
ZOMBIE_SECONDS: Final = 120.0
#: What is begun under an epoch that is over is deleted at once, and once more after this: no upload that
#: began then is still under way.
ORPHAN_SECONDS: Final = 3600.0

#: A bare list of what `Job` shows, without the texts, which may be long.
_JOB_COLUMNS: Final = [column for column in jobs.c if column.name not in ("request", "spoken_text", "errors")]
#: Its job holds it, or may still publish it under the same epoch.
_IN_HAND: Final = exists().where(
    jobs.c.id == objects.c.owner, jobs.c.queue.is_not(None), jobs.c.epoch == objects.c.epoch
)

_READY = """
    SELECT count(*) FROM (
        SELECT 1 FROM {table} WHERE queue = :queue AND visible_at <= :now LIMIT :cap
    ) AS counted
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What one tenant has to be spoken in one class."""

    queue: str
    job_class: JobClass
    tenant_id: TenantId
    jobs: int
    #: Code points that are still to be spoken.
    characters: int
    #: Seconds for which the oldest has waited or worked.
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job that some worker holds."""

    queue: str
    job_class: JobClass
    tenant_id: TenantId
    #: Code points that are still to be spoken.
    characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """An object whose time is over."""

    key: str
    owner: JobId


class JobStore:
    """Jobs, their clips and the ledger of their objects. Thread-safe.

    Every method is one transaction. Those that write to a claimed job raise `Fenced` when it is no longer
    ours, and every method raises `DatabaseUnavailable`.
    """

    def __init__(
        self,
        database: Database,
        *,
        public_url: str,
        lease_seconds: float = 30.0,
        max_failures: int = 3,
        max_running: int | None = None,
        webhook_queue: str = "cpu.webhooks",
    ) -> None:
        """Nothing is connected yet.

        Args:
            max_failures: failures in a row, without a new clip in between, that fail a job for good.
            max_running: how many jobs of one tenant are worked on at once in one queue; None is no limit.
            webhook_queue: the queue of deliveries.
        """
        self._db = database
        self._public_url = public_url
        self._lease_seconds = lease_seconds
        self._max_failures = max_failures
        self._lanes = Lanes(database, max_running=max_running)
        self._webhook_queue = webhook_queue

    # --- asking ------------------------------------------------------------------------------------

    def create(self, new: NewJob, *, max_queued: int | None = None) -> Job:
        """Store a job; it is ready at once.

        Args:
            max_queued: how many jobs of this tenant may wait; None is no limit.

        Raises:
            TooManyQueued: so many do; nothing is stored.
        """
        with self._db.write() as connection:
            self._check_queued(connection, new.tenant_id, max_queued)
            now = self._db.now(connection)
            request = {
                "input": new.input,
                "seed": new.seed,
                "webhook_url": new.webhook_url,
                "manner": asdict(new.manner),
                "fallback": new.fallback,
                "substitute": None if new.substitute is None else asdict(new.substitute),
            }
            values: dict[str, Any] = {
                "class": int(new.job_class),
                "model": new.model,
                "voice": new.voice,
                "language": new.language,
                "response_format": new.response_format,
                "characters": len(new.input),
                "request": json.dumps(request, ensure_ascii=False),
                "expires_in": new.expires_in,
                "metadata": json.dumps(dict(new.metadata), ensure_ascii=False),
                "deadline": None if new.deadline is None else now + new.deadline,
                "degraded": new.substitute is not None,
                "warnings": _warnings(new.warnings),
            }
            queue = new.queue if new.substitute is None else new.substitute.queue
            return self._store(connection, values, new.tenant_id, queue, now)

    def retry(self, job_id: str, tenant_id: TenantId, *, queue: str, max_queued: int | None = None) -> Job:
        """Store a new job that asks for the same as one that ended without audio. It has no deadline.

        Args:
            queue: where the model's work is asked for now.

        Raises:
            JobNotFound: there is none, or it is another tenant's.
            JobUnended: it is still being worked on.
            JobEnded: it is completed.
            TooManyQueued: see `create`.
        """
        same = ("model", "voice", "language", "response_format", "characters", "request", "expires_in")
        with self._db.write() as connection:
            row = self._owned(connection, job_id, tenant_id)
            status = Status(row["status"])
            if status not in TERMINAL:
                raise JobUnended(job_id)
            if status is Status.COMPLETED:
                raise JobEnded(job_id, status)
            self._check_queued(connection, tenant_id, max_queued)
            asked = row["class"] if row["aged_from"] is None else row["aged_from"]
            values = {name: row[name] for name in (*same, "metadata")}
            request = json.loads(row["request"]) | {"substitute": None}
            values |= {
                "class": asked,
                "retry_of": row["id"],
                "request": json.dumps(request, ensure_ascii=False),
            }
            return self._store(connection, values, tenant_id, queue, self._db.now(connection))

    def cancel(self, job_id: str, tenant_id: str) -> Job:
        """End a job that its owner does not want any more; whoever works on it is fenced.

        Safe to say again.

        Raises:
            JobNotFound: there is none, or it is another tenant's.
            JobEnded: it ended before, in another way.
        """
        with self._db.write() as connection:
            row = self._owned(connection, job_id, tenant_id)
            if row["status"] == Status.CANCELLED.value:
                return _job(row)
            ended = self._end(
                connection,
                JobId(row["id"]),
                self._db.now(connection),
                Move.CANCEL,
                values={"cancel_requested": True},
            )
            if ended is not None:
                return ended
            # It ended between the two statements, or before.
            job = _job(self._owned(connection, job_id, tenant_id, columns=_JOB_COLUMNS))
            if job.status is not Status.CANCELLED:
                raise JobEnded(job_id, job.status)
            return job

    def get(self, job_id: str, tenant_id: str) -> Job:
        """Return a tenant's job.

        Raises:
            JobNotFound: there is none, or it is another tenant's.
        """
        with self._db.read() as connection:
            return _job(self._owned(connection, job_id, tenant_id, columns=_JOB_COLUMNS))

    def ahead(self, job: Job, *, cap: int = 1000) -> int:
        """Return how many code points of the same lane are to be spoken before this job, looking at no more
        than `cap` jobs.
        """
        before = (
            select(jobs.c.characters_left)
            .where(
                jobs.c.queue == job.queue,
                jobs.c["class"] == int(job.job_class),
                jobs.c.tenant_id == job.tenant_id,
                jobs.c.queued_at < job.queued_at.timestamp(),
                jobs.c.id != job.id,
            )
            .order_by(jobs.c.queued_at)
            .limit(cap)
            .subquery()
        )
        with self._db.read() as connection:
            return int(connection.execute(select(func.coalesce(func.sum(before.c[0]), 0))).scalar_one())

    def backlog(self) -> list[Backlog]:
        """Return how much is to be done in each queue, class and tenant's lane: one walk of an index over
        all jobs that have not ended.
        """
        lane = (jobs.c.queue, jobs.c["class"], jobs.c.tenant_id)
        with self._db.read() as connection:
            now = self._db.now(connection)
            rows = connection.execute(
                select(*lane, func.count(), func.sum(jobs.c.characters_left), func.min(jobs.c.queued_at))
                .where(jobs.c.queue.is_not(None))
                .group_by(*lane)
            )
            return [
                Backlog(
                    queue=row[0],
                    job_class=JobClass(row[1]),
                    tenant_id=TenantId(row[2]),
                    jobs=row[3],
                    characters=int(row[4]),
                    age=max(0.0, now - row[5]),
                )
                for row in rows
            ]

    def running(self) -> list[Running]:
        """Return what is being worked on."""
        with self._db.read() as connection:
            now = self._db.now(connection)
            rows = connection.execute(
                select(jobs.c.queue, jobs.c["class"], jobs.c.tenant_id, jobs.c.characters_left).where(
                    jobs.c.queue.is_not(None), jobs.c.holder.is_not(None), jobs.c.visible_at > now
                )
            )
            return [
                Running(
                    queue=row[0], job_class=JobClass(row[1]), tenant_id=TenantId(row[2]), characters=row[3]
                )
                for row in rows
            ]

    # --- working -----------------------------------------------------------------------------------

    def claim(self, queue: str, *, holder: str, longest_ms: int | None = None) -> Claim | None:
        """Take the best ready job of `queue`, or None: the most urgent class, then the tenant with the
        least running work, then the oldest.

        A job whose last holder fell silent has failed once more; at the limit it is failed for good, and
        the next best is taken. So is one whose deadline has passed.

        Args:
            longest_ms: leave jobs with more recorded audio to others.
        """
        while True:
            with self._db.write() as connection:
                now = self._db.now(connection)
                row = self._lanes.best(connection, queue, now, longest_ms=longest_ms)
                if row is None:
                    return None
                claim = self._take(connection, row, holder, now)
                if claim is not None:
                    return claim

    def better(self, claim: Claim, *, left: int, turn_is_over: bool) -> bool:
        """Whether a job waits for which this one should give way; see `swap`. Locks nothing."""
        with self._db.read() as connection:
            now = self._db.now(connection)
            return (
                self._lanes.better(
                    connection, claim.job, now, left=left, turn_is_over=turn_is_over, locking=False
                )
                is not None
            )

    def urgent(self, queue: str) -> bool:
        """Whether a live job waits in `queue`."""
        with self._db.read() as connection:
            return self._lanes.urgent(connection, queue, self._db.now(connection))

    def swap(self, claim: Claim, *, holder: str, left: int, turn_is_over: bool) -> Claim | None:
        """Let go of a job in favour of a better one, which is claimed in the same transaction; or keep it.

        Better is: a more urgent class; in the same class, a job that needs a quarter of what this one still
        needs; and when this one's turn is over, any job of its class. Of several workers that could give
        way, as many do as jobs wait.

        Args:
            left: code points of this job that are still to be spoken.
            turn_is_over: whether this job has had its share for now; it is put behind a few others of its
                tenant then.

        Returns:
            The better job, or None: this one is still ours, its lease renewed.
        """
        while True:
            with self._db.write() as connection:
                now = self._db.now(connection)
                # Ours first: no two workers come to wait for each other, and it is not ready itself.
                leases.write(
                    connection, jobs, claim.job.id, claim.job.epoch, {"visible_at": now + self._lease_seconds}
                )
                row = self._lanes.better(
                    connection, claim.job, now, left=left, turn_is_over=turn_is_over, locking=True
                )
                if row is None:
                    return None
                better = self._take(connection, row, holder, now)
                if better is None:
                    continue
                values = leases.released(visible_at=now)
                if turn_is_over:
                    values |= {"queued_at": self._lanes.behind(connection, claim.job, now)}
                self._write(connection, claim, Move.LET_GO, values)
                return better

    def renew(self, job_id: JobId, epoch: int) -> None:
        """Push the end of the lease on by its whole length."""
        with self._db.write() as connection:
            leases.write(connection, jobs, job_id, epoch, {"visible_at": self._until(connection)})

    def release(self, claim: Claim) -> None:
        """Let go of a job without blame: another worker may take it at once."""
        with self._db.write() as connection:
            values = leases.released(visible_at=self._db.now(connection))
            self._write(connection, claim, Move.LET_GO, values)

    def postpone(self, claim: Claim, error: JobError, *, seconds: float) -> None:
        """Let go of a job for a while, without blame: something that is not its fault is out of order."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            values = leases.released(visible_at=now + seconds) | self._with_error(
                connection, claim.job.id, error, blamed=False
            )
            self._write(connection, claim, Move.LET_GO, values)

    def retry_later(self, claim: Claim, error: JobError) -> Job | None:
        """Count a failure: the job is tried again after a while, or failed for good at the limit.

        Returns:
            The failed job, or None when it will be tried again.
        """
        with self._db.write() as connection:
            now = self._db.now(connection)
            failures = connection.execute(
                select(jobs.c.failures).where(leases.fence(jobs, claim.job.id, claim.job.epoch))
            ).scalar_one_or_none()
            if failures is None:
                raise Fenced(claim.job.id)
            failures += 1
            kept = self._with_error(connection, claim.job.id, error)
            if failures >= self._max_failures:
                told = _last_words(error, kept["errors"], failures)
                return self._failed(connection, claim, now, told, kept | {"failures": failures})
            values = leases.released(visible_at=now + leases.backoff(failures)) | {"failures": failures}
            self._write(connection, claim, Move.LET_GO, values | kept)
            return None

    def fail(self, claim: Claim, error: JobError) -> Job:
        """Fail a job for good: trying again would not help."""
        with self._db.write() as connection:
            return self._failed(connection, claim, self._db.now(connection), error, {})

    def begin(self, claim: Claim, *, spoken_text: str, chunks_total: int, characters_left: int) -> None:
        """Record what is about to be done.

        From now on objects under the job's staged prefix may exist.

        Args:
            spoken_text: the text as it is spoken, to which the offsets of clips refer; the first that is
                recorded stays.
            chunks_total: how many chunks the whole text makes; a resumed job may be cut differently.
            characters_left: code points of it that no clip holds.
        """
        with self._db.write() as connection:
            values: dict[str, Any] = {
                "chunks_total": chunks_total,
                "characters_left": characters_left,
                "staged": True,
                "version": jobs.c.version + 1,
            }
            if claim.spoken_text is None:
                values |= {"spoken_text": spoken_text, "pipeline_version": PIPELINE_VERSION}
            self._write(connection, claim, Move.RECORD, values)

    def record(self, claim: Claim, clip: Clip) -> None:
        """Record a clip that lies in the object store: a checkpoint, and the end of a row of failures.

        Safe to say again after a lost answer.
        """
        with self._db.write() as connection:
            recorded = connection.execute(
                select(clips.c.key).where(clips.c.job == claim.job.id, clips.c.seq == clip.seq)
            ).scalar_one_or_none()
            if recorded == clip.key:
                self._write(connection, claim, Move.RECORD, {"visible_at": self._until(connection)})
                return
            left = jobs.c.characters_left - (clip.text_end - clip.text_start)
            values = {
                "chunks_done": jobs.c.chunks_done + 1,
                # Not `max`: PostgreSQL calls that of two values `greatest`.
                "characters_left": case((left > 0, left), else_=0),
                "audio_ms": jobs.c.audio_ms + clip.milliseconds,
                "failures": 0,
                "visible_at": self._until(connection),
                "version": jobs.c.version + 1,
            }
            self._write(connection, claim, Move.RECORD, values)
            row = asdict(clip) | {"job": claim.job.id, "seed": str(clip.seed)}
            connection.execute(insert(clips).values(row))

    def synthesized(self, claim: Claim, *, queue: str) -> None:
        """Hand a job whose text is all spoken to the encoders on `queue`: short audio first."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            values = leases.released(visible_at=now) | {
                "queue": queue,
                "queued_at": now + jobs.c.audio_ms * (LENGTH_WEIGHT / 1000),
                "characters_left": 0,
                "failures": 0,
                "version": jobs.c.version + 1,
            }
            self._write(connection, claim, Move.SPEAK_OUT, values)

    def remake(self, claim: Claim, lost: Sequence[Clip]) -> Job | None:
        """Send a job back to its engine: clips were lost, or pieces of the text have none.

        Returns:
            The failed job, where it was sent back too often already; None when it will be spoken again.
        """
        with self._db.write() as connection:
            now = self._db.now(connection)
            row = connection.execute(
                select(jobs.c.remade, jobs.c.synthesis_queue).where(
                    leases.fence(jobs, claim.job.id, claim.job.epoch)
                )
            ).one_or_none()
            if row is None:
                raise Fenced(claim.job.id)
            error = JobError(code="clip_lost", message="recorded audio was lost from the object store")
            kept = self._with_error(connection, claim.job.id, error, blamed=False)
            if row.remade >= MAX_REMADE or row.synthesis_queue is None:
                return self._failed(connection, claim, now, error, kept)
            numbers = [clip.seq for clip in lost]
            connection.execute(delete(clips).where(clips.c.job == claim.job.id, clips.c.seq.in_(numbers)))
            left = connection.execute(select(clips).where(clips.c.job == claim.job.id)).mappings().all()
            values = leases.released(visible_at=now) | kept
            values |= {
                "queue": row.synthesis_queue,
                # It has waited its turn once.
                "queued_at": jobs.c.created_at,
                "characters_left": sum(clip.text_end - clip.text_start for clip in lost),
                # Workers of the release before did not add them up.
                "audio_ms": sum(_clip(clip).milliseconds for clip in left),
                "chunks_done": len(left),
                "remade": jobs.c.remade + 1,
                "version": jobs.c.version + 1,
            }
            self._write(connection, claim, Move.REMAKE, values)
            return None

    def hand_over(self, claim: Claim, to: Substitute, warning: JobWarning) -> None:
        """Give the whole job to another engine; its recorded clips are dropped, so that one voice speaks all.

        Safe to say again after a lost answer: the row is no longer ours then.
        """
        with self._db.write() as connection:
            now = self._db.now(connection)
            connection.execute(delete(clips).where(clips.c.job == claim.job.id))
            stored = connection.execute(
                select(jobs.c.request, jobs.c.warnings, jobs.c.spoken_text, jobs.c.characters).where(
                    leases.fence(jobs, claim.job.id, claim.job.epoch)
                )
            ).one_or_none()
            if stored is None:
                raise Fenced(claim.job.id)
            request = json.loads(stored.request) | {"substitute": asdict(to)}
            characters = stored.characters if stored.spoken_text is None else len(stored.spoken_text)
            values = leases.released(visible_at=now) | {
                "queue": to.queue,
                "synthesis_queue": to.queue,
                # It has waited its turn once.
                "queued_at": jobs.c.created_at,
                "request": json.dumps(request, ensure_ascii=False),
                "characters_left": characters,
                "audio_ms": 0,
                "chunks_total": None,
                "chunks_done": 0,
                "failures": 0,
                "degraded": True,
                "warnings": _with_warnings(stored.warnings, (warning,)),
                "version": jobs.c.version + 1,
            }
            self._write(connection, claim, Move.HAND_OVER, values)

    def warn(self, claim: Claim, warning: JobWarning, *, degraded: bool) -> None:
        """Tell the owner of a job in hand something, once for each code."""
        with self._db.write() as connection:
            stored = connection.execute(
                select(jobs.c.warnings).where(leases.fence(jobs, claim.job.id, claim.job.epoch))
            ).scalar_one_or_none()
            if stored is None:
                raise Fenced(claim.job.id)
            values: dict[str, Any] = {
                "warnings": _with_warnings(stored, (warning,)),
                "version": jobs.c.version + 1,
            }
            if degraded:
                values["degraded"] = True
            self._write(connection, claim, Move.RECORD, values)

    def clips(self, job_id: JobId) -> list[Clip]:
        """Return the recorded clips in the order of the text."""
        with self._db.read() as connection:
            rows = connection.execute(
                select(clips).where(clips.c.job == job_id).order_by(clips.c.text_start, clips.c.seq)
            ).mappings()
            return [_clip(row) for row in rows]

    def uploading(self, claim: Claim, *, key: str) -> None:
        """Enter `key` in the ledger, before its first byte is stored."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            self._write(
                connection,
                claim,
                Move.UPLOAD,
                {
                    "visible_at": now + self._lease_seconds,
                    "version": jobs.c.version + 1,
                },
            )
            connection.execute(delete(objects).where(objects.c.key == key))
            connection.execute(
                insert(objects).values(
                    key=key,
                    tenant_id=claim.job.tenant_id,
                    owner=claim.job.id,
                    epoch=claim.job.epoch,
                    state="pending",
                    created_at=now,
                )
            )

    def complete(self, claim: Claim, audio: PublishedAudio) -> Job:
        """Publish: the job, its ledger entry, its event and its deliveries, all or none.

        A caller whose answer was lost asks `published` before it does anything else.
        """
        with self._db.write() as connection:
            now = self._db.now(connection)
            expires_at = now + claim.job.expires_in
            connection.execute(
                update(objects)
                .where(objects.c.key == audio.key)
                .values(state="live", delete_after=expires_at)
            )
            values = {"result": json.dumps(asdict(audio)), "expires_at": expires_at}
            return self._ended(connection, claim, now, Move.COMPLETE, values)

    def published(self, claim: Claim, *, key: str) -> bool:
        """Whether the job is completed with exactly this object."""
        with self._db.read() as connection:
            result = connection.execute(
                select(jobs.c.result).where(
                    jobs.c.id == claim.job.id, jobs.c.status == Status.COMPLETED.value
                )
            ).scalar_one_or_none()
        return result is not None and json.loads(result)["key"] == key

    # --- sweeping ----------------------------------------------------------------------------------

    def ready(self, *, cap: int) -> dict[str, int]:
        """Return for each queue how many rows are ready, counting no further than `cap`."""
        counts: dict[str, int] = {}
        with self._db.read() as connection:
            now = self._db.now(connection)
            for table in (jobs.name, deliveries.name):
                queues = self._lanes.queues(connection, table)
                for queue in queues:
                    count = connection.execute(
                        text(_READY.format(table=table)), {"queue": queue, "now": now, "cap": cap}
                    ).scalar_one()
                    if count:
                        counts[queue] = min(cap, counts.get(queue, 0) + count)
        return counts

    def expired_objects(self, *, limit: int) -> list[StoredKey]:
        """Mark objects whose time is over as being deleted, and return them, with those of earlier calls."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            connection.execute(
                update(objects)
                .where(objects.c.state == "live", objects.c.delete_after <= now)
                .values(state="deleting")
            )
            rows = connection.execute(
                select(objects.c.key, objects.c.owner)
                # Sweepers of the release before gave orphans no time.
                .where(objects.c.state == "deleting", func.coalesce(objects.c.delete_after, 0.0) <= now)
                .limit(limit)
            )
            return [StoredKey(key=row.key, owner=JobId(row.owner)) for row in rows]

    def orphaned_objects(self, *, limit: int) -> list[StoredKey]:
        """Return objects that were begun under an epoch that is over: nobody can publish them any more.

        Whoever deletes one says so by `abandon`.
        """
        with self._db.read() as connection:
            rows = connection.execute(
                select(objects.c.key, objects.c.owner)
                .where(objects.c.state == "pending", ~_IN_HAND)
                .limit(limit)
            )
            return [StoredKey(key=row.key, owner=JobId(row.owner)) for row in rows]

    def abandon(self, key: str) -> None:
        """Record that an object was deleted whose epoch is over.

        It stays in the ledger, to be deleted again when no upload of that time can be under way any more.
        """
        with self._db.write() as connection:
            again = self._db.now(connection) + ORPHAN_SECONDS
            connection.execute(
                update(objects)
                .where(objects.c.key == key, objects.c.state == "pending", ~_IN_HAND)
                .values(state="deleting", delete_after=again)
            )

    def forget_object(self, key: str) -> None:
        """Strike an object from the ledger, once it is deleted."""
        with self._db.write() as connection:
            connection.execute(delete(objects).where(objects.c.key == key, objects.c.state == "deleting"))

    def staged_leftovers(self, *, limit: int) -> list[JobId]:
        """Return jobs that ended a while ago and may still have staged objects."""
        with self._db.read() as connection:
            settled = self._db.now(connection) - ZOMBIE_SECONDS
            rows = connection.execute(
                select(jobs.c.id)
                .where(jobs.c.staged, jobs.c.queue.is_(None), jobs.c.completed_at < settled)
                .order_by(jobs.c.id)
                .limit(limit)
            )
            return [JobId(row.id) for row in rows]

    def staged_gone(self, job_id: JobId) -> None:
        """Record that an ended job has no staged objects any more."""
        with self._db.write() as connection:
            connection.execute(
                update(jobs).where(jobs.c.id == job_id, jobs.c.queue.is_(None)).values(staged=False)
            )

    def expire(self, *, limit: int) -> int:
        """End jobs whose deadline passed before they were started; return how many."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            due = connection.execute(
                select(jobs.c.id)
                .where(jobs.c.status == Status.QUEUED.value, jobs.c.deadline <= now)
                .limit(limit)
                .with_for_update(skip_locked=True)
            ).scalars()
            return sum(
                self._end(connection, JobId(job_id), now, Move.EXPIRE) is not None for job_id in due.all()
            )

    def promote(self) -> int:
        """Move the oldest job of each lane up by one class, where it has waited for `AGEING_SECONDS` in its
        own: so the lowest class never starves. Return how many.
        """
        promoted = 0
        with self._db.write() as connection:
            now = self._db.now(connection)
            for queue in self._lanes.queues(connection, jobs.name):
                for job_class in (JobClass.NORMAL, JobClass.LOW):
                    for job_id in self._lanes.aged(connection, queue, job_class, now):
                        promoted += connection.execute(
                            update(jobs)
                            .where(jobs.c.id == job_id, jobs.c["class"] == int(job_class))
                            .where(jobs.c.holder.is_(None), jobs.c.queue == queue)
                            .values(
                                {
                                    "class": int(job_class) - 1,
                                    "aged_from": func.coalesce(jobs.c.aged_from, jobs.c["class"]),
                                    "version": jobs.c.version + 1,
                                }
                            )
                        ).rowcount
        return promoted

    # --- inside ------------------------------------------------------------------------------------

    def _check_queued(self, connection: Connection, tenant_id: TenantId, limit: int | None) -> None:
        if limit is None or self._queued(connection, tenant_id, limit) + NEAR_LIMIT <= limit:
            return
        if self._db.dialect == "postgresql":
            # Two requests of one tenant must not both take the last place.
            connection.execute(
                text("SELECT pg_advisory_xact_lock(hashtextextended(:tenant, 0))"), {"tenant": tenant_id}
            )
        if self._queued(connection, tenant_id, limit) >= limit:
            raise TooManyQueued(limit)

    def _queued(self, connection: Connection, tenant_id: TenantId, limit: int) -> int:
        waiting = (
            select(jobs.c.id)
            .where(jobs.c.tenant_id == tenant_id, jobs.c.status == Status.QUEUED.value)
            .limit(limit)
            .subquery()
        )
        return int(connection.execute(select(func.count()).select_from(waiting)).scalar_one())

    def _store(
        self, connection: Connection, values: dict[str, Any], tenant_id: TenantId, queue: str, now: float
    ) -> Job:
        row = connection.execute(
            insert(jobs)
            .values(
                values
                | {
                    "id": new_id("job", now=now),
                    "tenant_id": tenant_id,
                    "kind": "speech",
                    "status": Status.QUEUED.value,
                    "queue": queue,
                    "synthesis_queue": queue,
                    "characters_left": values["characters"],
                    "visible_at": now,
                    "queued_at": now,
                    "created_at": now,
                }
            )
            .returning(*_JOB_COLUMNS)
        )
        return _job(row.mappings().one())

    def _owned(
        self,
        connection: Connection,
        job_id: str,
        tenant_id: str,
        *,
        columns: Sequence[Column[Any]] = tuple(jobs.c),
    ) -> RowMapping:
        if not job_id.isprintable():
            # PostgreSQL refuses to look for a NUL.
            raise JobNotFound(job_id)
        row = (
            connection.execute(select(*columns).where(jobs.c.id == job_id, jobs.c.tenant_id == tenant_id))
            .mappings()
            .one_or_none()
        )
        if row is None:
            raise JobNotFound(job_id)
        return row

    def _take(self, connection: Connection, row: RowMapping, holder: str, now: float) -> Claim | None:
        """Claim a ready row; or end it, where its time or its luck has run out."""
        state = State(Status(row["status"]), None if row["stage"] is None else Stage(row["stage"]))
        failures, errors = row["failures"], row["errors"]
        if state.status is Status.QUEUED and row["deadline"] is not None and row["deadline"] <= now:
            self._end(connection, row["id"], now, Move.EXPIRE)
            return None
        if row["holder"] is not None:
            failures += 1
            lost = JobError(code="worker_lost", message="the worker died or fell silent")
            errors = _kept(errors, lost)
            if failures >= self._max_failures:
                told = _last_words(lost, errors, failures)
                values = {"failures": failures, "errors": errors, "error": _json(told)}
                self._end(connection, row["id"], now, Move.FAIL, epoch=row["epoch"], values=values)
                return None
        after = MOVES[Move.CLAIM][state]
        values = leases.claimed(holder=holder, now=now, lease_seconds=self._lease_seconds) | {
            "epoch": row["epoch"] + 1,
            "failures": failures,
            "errors": errors,
            "status": after.status.value,
            "stage": after.stage,
        }
        if after != state:
            values["version"] = row["version"] + 1
        if row["started_at"] is None:
            values["started_at"] = now
        if row["synthesis_queue"] is None and after == SYNTHESIZING:
            # An older release stored it.
            values["synthesis_queue"] = row["queue"]
        taken = (
            connection.execute(
                update(jobs)
                .where(jobs.c.id == row["id"], jobs.c.epoch == row["epoch"])
                .values(values)
                .returning(*_JOB_COLUMNS)
            )
            .mappings()
            .one()
        )
        spans = connection.execute(
            select(clips.c.text_start, clips.c.text_end, clips.c.seq, clips.c.voice_state_key)
            .where(clips.c.job == row["id"])
            .order_by(clips.c.text_start, clips.c.seq)
        ).all()
        request = json.loads(row["request"])
        substitute = request.get("substitute")
        spoken_by = substitute or {
            "voice": row["voice"],
            "language": row["language"],
            # A job that an older release stored has none.
            "manner": request.get("manner", {}),
        }
        return Claim(
            job=_job(taken),
            manner=Manner(**spoken_by["manner"]),
            voice=spoken_by["voice"],
            language=spoken_by["language"],
            fallback=request.get("fallback"),
            substitute=None if substitute is None else substitute["model"],
            voice_state_key=next(
                (span.voice_state_key for span in spans if span.voice_state_key is not None), None
            ),
            input=request["input"],
            seed=request["seed"],
            webhook_url=request["webhook_url"],
            spoken_text=row["spoken_text"],
            pipeline_version=row["pipeline_version"],
            recorded=tuple((span.text_start, span.text_end) for span in spans),
            next_seq=1 + max((span.seq for span in spans), default=-1),
            synthesis_queue=values.get("synthesis_queue", row["synthesis_queue"]),
            errors=_codes(errors, last=failures),
            lease_seconds=self._lease_seconds,
        )

    def _end(
        self,
        connection: Connection,
        job_id: JobId,
        now: float,
        move: Move,
        *,
        epoch: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Job | None:
        """End a job and write its event, in the caller's transaction; None where the move cannot be made.

        Args:
            epoch: whoever works on it acts under this epoch; None where nobody needs to.
        """
        whose = jobs.c.id == job_id if epoch is None else leases.fence(jobs, job_id, epoch)
        row = (
            connection.execute(
                update(jobs)
                .where(whose, jobs.c.queue.is_not(None), _sources(move))
                .values(
                    leases.ENDED
                    | {"completed_at": now, "version": jobs.c.version + 1}
                    | _target(move)
                    | dict(values or {})
                )
                .returning(*_JOB_COLUMNS, jobs.c.request)
            )
            .mappings()
            .one_or_none()
        )
        if row is None:
            return None
        job = _job(row)
        self._announce(connection, job, json.loads(row["request"])["webhook_url"], now)
        return job

    def _ended(
        self, connection: Connection, claim: Claim, now: float, move: Move, values: Mapping[str, Any]
    ) -> Job:
        epoch = claim.job.epoch
        job = self._end(connection, claim.job.id, now, move, epoch=epoch, values=values)
        if job is None:
            raise Fenced(f"{claim.job.id}: epoch {epoch} is over")
        return job

    def _failed(
        self, connection: Connection, claim: Claim, now: float, error: JobError, values: Mapping[str, Any]
    ) -> Job:
        return self._ended(connection, claim, now, Move.FAIL, {**values, "error": _json(error)})

    def _announce(self, connection: Connection, job: Job, webhook_url: str | None, now: float) -> None:
        event_id = new_id("evt", now=now)
        event_type = ENDINGS[job.status]
        payload = event_payload(
            event_id, event_type, job, at=datetime.fromtimestamp(now, UTC), public_url=self._public_url
        )
        connection.execute(
            insert(events).values(
                id=event_id,
                job=job.id,
                tenant_id=job.tenant_id,
                type=event_type,
                terminal=True,
                created_at=now,
                payload=payload,
            )
        )
        if webhook_url is not None:
            connection.execute(
                insert(deliveries).values(
                    id=new_id("dlv", now=now),
                    event=event_id,
                    tenant_id=job.tenant_id,
                    url=webhook_url,
                    status="pending",
                    queue=self._webhook_queue,
                    visible_at=now,
                    created_at=now,
                )
            )

    def _with_error(
        self, connection: Connection, job_id: JobId, error: JobError, *, blamed: bool = True
    ) -> dict[str, Any]:
        stored = connection.execute(select(jobs.c.errors).where(jobs.c.id == job_id)).scalar_one_or_none()
        return {"errors": _kept(stored or "[]", error, blamed=blamed)}

    def _until(self, connection: Connection) -> float:
        return self._db.now(connection) + self._lease_seconds

    def _write(self, connection: Connection, claim: Claim, move: Move, values: dict[str, Any]) -> None:
        job = claim.job
        leases.write(connection, jobs, job.id, job.epoch, values | _target(move), only_if=_sources(move))


def _sources(move: Move) -> ColumnElement[bool]:
    """Return the condition that a job stands where `move` may be made."""
    return or_(
        *(
            and_(jobs.c.status == state.status.value, jobs.c.stage.is_(state.stage))
            if state.stage is None
            else and_(jobs.c.status == state.status.value, jobs.c.stage == state.stage.value)
            for state in MOVES[move]
        )
    )


def _target(move: Move) -> dict[str, Any]:
    """Return where `move` leads, as values of the row; nothing where it leads nowhere else."""
    steps = MOVES[move]
    if all(before == after for before, after in steps.items()):
        return {}
    (after,) = set(steps.values())
    return {"status": after.status.value, "stage": after.stage}


def _kept(stored: str, error: JobError, *, blamed: bool = True) -> str:
    """Return the last errors, with one more that counts as a failure, or does not."""
    told = _stored(error) if blamed else _stored(error) | {"blamed": False}
    return json.dumps([*json.loads(stored), told][-KEPT_ERRORS:], ensure_ascii=False)


def _last_words(error: JobError, errors: str, failures: int) -> JobError:
    """Return the error that ended a job, with the names of those before it in the same row."""
    before = ", ".join(_codes(errors, last=failures))
    return replace(error, message=f"{error.message} ({failures} failures in a row: {before})")


def _json(error: JobError) -> str:
    return json.dumps(_stored(error), ensure_ascii=False)


def _codes(stored: str, *, last: int) -> tuple[str, ...]:
    codes = tuple(str(error["code"]) for error in json.loads(stored) if error.get("blamed", True))
    return codes[-last:] if last else ()


def _job(row: RowMapping) -> Job:
    error = error_from(json.loads(row["error"])) if row["error"] else None
    return Job(
        id=JobId(row["id"]),
        tenant_id=TenantId(row["tenant_id"]),
        kind=row["kind"],
        job_class=JobClass(row["class"]),
        status=Status(row["status"]),
        stage=Stage(row["stage"]) if row["stage"] else None,
        model=row["model"],
        queue=row["queue"],
        held=row["holder"] is not None,
        queued_at=_time(row["queued_at"]),
        voice=row["voice"],
        language=row["language"],
        response_format=row["response_format"],
        characters=row["characters"],
        characters_left=row["characters_left"],
        audio_ms=row["audio_ms"],
        chunks_total=row["chunks_total"],
        chunks_done=row["chunks_done"],
        created_at=_time(row["created_at"]),
        started_at=_maybe_time(row["started_at"]),
        completed_at=_maybe_time(row["completed_at"]),
        deadline=_maybe_time(row["deadline"]),
        retry_of=None if row["retry_of"] is None else JobId(row["retry_of"]),
        expires_at=_maybe_time(row["expires_at"]),
        expires_in=row["expires_in"],
        degraded=bool(row["degraded"]),
        warnings=tuple(JobWarning(**warning) for warning in json.loads(row["warnings"])),
        metadata=json.loads(row["metadata"]),
        error=error,
        audio=PublishedAudio(**json.loads(row["result"])) if row["result"] else None,
        version=row["version"],
        epoch=row["epoch"],
        failures=row["failures"],
    )


def _stored(error: JobError) -> dict[str, Any]:
    return asdict(error) | {"message": storable(error.message)}


def _clip(row: RowMapping) -> Clip:
    return Clip(
        seq=row["seq"],
        text_start=row["text_start"],
        text_end=row["text_end"],
        pause_ms=row["pause_ms"],
        epoch=row["epoch"],
        key=row["key"],
        sha256=row["sha256"],
        samples=row["samples"],
        sample_rate=row["sample_rate"],
        seed=int(row["seed"]),
        engine_revision=row["engine_revision"],
        voice_state_key=row["voice_state_key"],
    )


def _warnings(warnings: Sequence[JobWarning]) -> str:
    return json.dumps([asdict(warning) for warning in warnings], ensure_ascii=False)


def _with_warnings(stored: str, warnings: Sequence[JobWarning]) -> str:
    """Return the warnings of a row and those of `warnings` whose codes it does not have yet."""
    kept = tuple(JobWarning(**warning) for warning in json.loads(stored))
    codes = {warning.code for warning in kept}
    return _warnings((*kept, *(warning for warning in warnings if warning.code not in codes)))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _maybe_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else _time(seconds)
