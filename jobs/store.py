"""The job table: the truth about every job, in one SQL database."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, delete, exists, func, insert, select, text, update

from jobs import leases
from jobs.database import Database, storable
from jobs.events import COMPLETED, FAILED, event_payload
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
    JobWarning,
    NewJob,
    PublishedAudio,
    Stage,
    Status,
    TenantId,
    error_from,
    new_id,
)
from jobs.tables import clips, deliveries, events, jobs, objects

#: How many of the last errors a row keeps.
KEPT_ERRORS: Final = 5
#: How many lanes a claim tries when other workers are about to take their heads.
TRIED_LANES: Final = 8

#: A bare list of what `Job` shows, without the texts, which may be long.
_JOB_COLUMNS: Final = [
    column for column in jobs.c if column.name not in ("request", "spoken_text", "errors", "deadline")
]

_CLASS = text(
    """
    SELECT class FROM jobs WHERE queue = :queue AND class > :above AND visible_at <= :now
    ORDER BY class LIMIT 1
    """
)
# Skip-scan: one step of the index per tenant, however many jobs each has.
_LANES = text(
    """
    WITH RECURSIVE lane(tenant_id) AS (
        SELECT * FROM (
            SELECT tenant_id FROM jobs
            WHERE queue = :queue AND class = :class AND visible_at <= :now
            ORDER BY tenant_id LIMIT 1
        ) AS first
        UNION ALL
        SELECT (
            SELECT j.tenant_id FROM jobs AS j
            WHERE j.queue = :queue AND j.class = :class AND j.tenant_id > lane.tenant_id
              AND j.visible_at <= :now
            ORDER BY j.tenant_id LIMIT 1
        )
        FROM lane WHERE lane.tenant_id IS NOT NULL
    )
    SELECT
        lane.tenant_id,
        (SELECT count(*) FROM jobs AS h
         WHERE h.queue = :queue AND h.tenant_id = lane.tenant_id AND h.holder IS NOT NULL
           AND h.visible_at > :now) AS running,
        (SELECT j.queued_at FROM jobs AS j
         WHERE j.queue = :queue AND j.class = :class AND j.tenant_id = lane.tenant_id AND j.visible_at <= :now
         ORDER BY j.queued_at LIMIT 1) AS head
    FROM lane WHERE lane.tenant_id IS NOT NULL
    ORDER BY running, head LIMIT :lanes
    """
)
_HEAD = """
    SELECT * FROM jobs
    WHERE queue = :queue AND class = :class AND tenant_id = :tenant AND visible_at <= :now
    ORDER BY queued_at LIMIT 1 {locking}
"""
# Whatever is left of a class when others are about to take the heads of all tried lanes.
_ANY = """
    SELECT * FROM jobs
    WHERE queue = :queue AND class = :class AND visible_at <= :now
    ORDER BY tenant_id, queued_at LIMIT 1 {locking}
"""
_QUEUES = """
    WITH RECURSIVE asked(queue) AS (
        SELECT * FROM (SELECT queue FROM {table} WHERE queue IS NOT NULL ORDER BY queue LIMIT 1) AS first
        UNION ALL
        SELECT (SELECT t.queue FROM {table} AS t WHERE t.queue > asked.queue ORDER BY t.queue LIMIT 1)
        FROM asked WHERE asked.queue IS NOT NULL
    )
    SELECT queue FROM asked WHERE queue IS NOT NULL
"""
_READY = """
    SELECT count(*) FROM (
        SELECT 1 FROM {table} WHERE queue = :queue AND visible_at <= :now LIMIT :cap
    ) AS counted
"""


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
        webhook_queue: str = "cpu.webhooks",
    ) -> None:
        self._db = database
        self._public_url = public_url
        self._lease_seconds = lease_seconds
        self._max_failures = max_failures
        self._webhook_queue = webhook_queue

    # --- asking ------------------------------------------------------------------------------------

    def create(self, new: NewJob) -> Job:
        """Store a job; it is ready at once."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            values: dict[str, Any] = {
                "id": new_id("job", now=now),
                "tenant_id": new.tenant_id,
                "kind": "speech",
                "class": int(new.job_class),
                "status": Status.QUEUED.value,
                "model": new.model,
                "queue": new.queue,
                "visible_at": now,
                "queued_at": now,
                "voice": new.voice,
                "language": new.language,
                "response_format": new.response_format,
                "characters": len(new.input),
                "request": json.dumps(
                    {"input": new.input, "seed": new.seed, "webhook_url": new.webhook_url}, ensure_ascii=False
                ),
                "expires_in": new.expires_in,
                "metadata": json.dumps(dict(new.metadata), ensure_ascii=False),
                "created_at": now,
            }
            row = connection.execute(insert(jobs).values(values).returning(*_JOB_COLUMNS)).mappings().one()
            return _job(row)

    def get(self, job_id: str, tenant_id: str) -> Job:
        """Return a tenant's job.

        Raises:
            JobNotFound: there is none, or it is another tenant's.
        """
        if not job_id.isprintable():
            # PostgreSQL refuses to look for a NUL.
            raise JobNotFound(job_id)
        with self._db.read() as connection:
            row = (
                connection.execute(
                    select(*_JOB_COLUMNS).where(jobs.c.id == job_id, jobs.c.tenant_id == tenant_id)
                )
                .mappings()
                .one_or_none()
            )
        if row is None:
            raise JobNotFound(job_id)
        return _job(row)

    # --- working -----------------------------------------------------------------------------------

    def claim(self, queue: str, *, holder: str) -> Claim | None:
        """Take the best ready job of `queue`, or None: the most urgent class, then the tenant with the
        least running work, then the oldest.

        A job whose last holder fell silent has failed once more; at the limit it is failed for good, and
        the next best is taken.
        """
        while True:
            with self._db.write() as connection:
                now = self._db.now(connection)
                row = self._best(connection, queue, now)
                if row is None:
                    return None
                if row["holder"] is None:
                    return self._take(connection, row, holder, now, row["failures"])
                failures = row["failures"] + 1
                if failures < self._max_failures:
                    return self._take(connection, row, holder, now, failures)
                self._end(
                    connection,
                    row["id"],
                    row["epoch"],
                    now,
                    Status.FAILED,
                    error=JobError(
                        code="worker_lost",
                        message=f"{failures} workers in a row died or fell silent while they worked on it",
                    ),
                    failures=failures,
                )

    def renew(self, job_id: JobId, epoch: int) -> None:
        """Push the end of the lease on by its whole length."""
        with self._db.write() as connection:
            leases.write(connection, jobs, job_id, epoch, {"visible_at": self._until(connection)})

    def release(self, claim: Claim) -> None:
        """Let go of a job without blame: another worker may take it at once."""
        with self._db.write() as connection:
            self._write(connection, claim, leases.released(visible_at=self._db.now(connection)))

    def postpone(self, claim: Claim, error: JobError, *, seconds: float) -> None:
        """Let go of a job for a while, without blame: something that is not its fault is out of order."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            values = leases.released(visible_at=now + seconds) | self._with_error(
                connection, claim.job.id, error
            )
            self._write(connection, claim, values)

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
            if failures >= self._max_failures:
                return self._end(
                    connection,
                    claim.job.id,
                    claim.job.epoch,
                    now,
                    Status.FAILED,
                    error=error,
                    failures=failures,
                )
            values = leases.released(visible_at=now + leases.backoff(failures)) | {"failures": failures}
            self._write(connection, claim, values | self._with_error(connection, claim.job.id, error))
            return None

    def fail(self, claim: Claim, error: JobError) -> Job:
        """Fail a job for good: trying again would not help."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            return self._end(connection, claim.job.id, claim.job.epoch, now, Status.FAILED, error=error)

    def prepare(self, claim: Claim, *, spoken_text: str) -> None:
        """Record the text as it will be spoken, at the first claim; offsets of clips refer to it."""
        with self._db.write() as connection:
            values = {"spoken_text": spoken_text, "pipeline_version": PIPELINE_VERSION}
            self._write(connection, claim, values)

    def plan(self, claim: Claim, *, chunks_total: int) -> None:
        """Record how many chunks the whole text makes; a resumed job may be cut differently."""
        with self._db.write() as connection:
            self._write(connection, claim, {"chunks_total": chunks_total, "version": jobs.c.version + 1})

    def staging(self, claim: Claim) -> None:
        """Record that objects under the job's staged prefix may exist from now on."""
        with self._db.write() as connection:
            self._write(connection, claim, {"staged": True})

    def record(self, claim: Claim, clip: Clip) -> None:
        """Record a clip that lies in the object store: a checkpoint, and the end of a row of failures.

        Safe to say again after a lost answer.
        """
        with self._db.write() as connection:
            recorded = connection.execute(
                select(clips.c.key).where(clips.c.job == claim.job.id, clips.c.seq == clip.seq)
            ).scalar_one_or_none()
            if recorded == clip.key:
                self._write(connection, claim, {"visible_at": self._until(connection)})
                return
            values = {
                "chunks_done": jobs.c.chunks_done + 1,
                "failures": 0,
                "visible_at": self._until(connection),
                "version": jobs.c.version + 1,
            }
            self._write(connection, claim, values)
            row = asdict(clip) | {"job": claim.job.id, "seed": str(clip.seed)}
            connection.execute(insert(clips).values(row))

    def synthesized(self, claim: Claim, *, queue: str) -> None:
        """Hand a job whose text is all spoken to the encoders on `queue`."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            values = leases.released(visible_at=now) | {
                "queue": queue,
                "stage": Stage.ENCODING.value,
                "failures": 0,
                "version": jobs.c.version + 1,
            }
            self._write(connection, claim, values)

    def clips(self, job_id: JobId) -> list[Clip]:
        """Return the recorded clips in order."""
        with self._db.read() as connection:
            rows = connection.execute(
                select(clips).where(clips.c.job == job_id).order_by(clips.c.seq)
            ).mappings()
            return [_clip(row) for row in rows]

    def uploading(self, claim: Claim, *, key: str) -> None:
        """Enter `key` in the ledger, before its first byte is stored."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            self._write(
                connection,
                claim,
                {
                    "stage": Stage.UPLOADING.value,
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
            return self._end(
                connection,
                claim.job.id,
                claim.job.epoch,
                now,
                Status.COMPLETED,
                audio=audio,
                expires_at=expires_at,
            )

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
                queues = connection.execute(text(_QUEUES.format(table=table))).scalars().all()
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
                select(objects.c.key, objects.c.owner).where(objects.c.state == "deleting").limit(limit)
            )
            return [StoredKey(key=row.key, owner=JobId(row.owner)) for row in rows]

    def orphaned_objects(self, *, older_than: float) -> None:
        """Mark objects that were begun `older_than` seconds ago and never published as being deleted.

        One that its job holds, or may still publish under the same epoch, is left alone.
        """
        with self._db.write() as connection:
            now = self._db.now(connection)
            in_hand = exists().where(
                jobs.c.id == objects.c.owner, jobs.c.queue.is_not(None), jobs.c.epoch == objects.c.epoch
            )
            connection.execute(
                update(objects)
                .where(objects.c.state == "pending", objects.c.created_at < now - older_than, ~in_hand)
                .values(state="deleting")
            )

    def forget_object(self, key: str) -> None:
        """Strike an object from the ledger, once it is deleted."""
        with self._db.write() as connection:
            connection.execute(delete(objects).where(objects.c.key == key, objects.c.state == "deleting"))

    def staged_leftovers(self, *, limit: int) -> list[JobId]:
        """Return jobs that have ended and may still have staged objects."""
        with self._db.read() as connection:
            rows = connection.execute(
                select(jobs.c.id)
                .where(jobs.c.staged, jobs.c.queue.is_(None))
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

    # --- inside ------------------------------------------------------------------------------------

    def _best(self, connection: Connection, queue: str, now: float) -> RowMapping | None:
        """Return the row to claim, locked; the caller is in a write transaction."""
        head = text(_HEAD.format(locking=self._db.locking))
        leftover = text(_ANY.format(locking=self._db.locking))
        above = -1
        while True:
            asked: dict[str, Any] = {"queue": queue, "now": now, "above": above}
            urgent = connection.execute(_CLASS, asked).scalar_one_or_none()
            if urgent is None:
                return None
            asked["class"] = above = urgent
            for lane in connection.execute(_LANES, asked | {"lanes": TRIED_LANES}).all():
                row = connection.execute(head, asked | {"tenant": lane.tenant_id}).mappings().one_or_none()
                if row is not None:
                    return row
            row = connection.execute(leftover, asked).mappings().one_or_none()
            if row is not None:
                return row

    def _take(self, connection: Connection, row: RowMapping, holder: str, now: float, failures: int) -> Claim:
        status = Status(row["status"])
        values = leases.claimed(holder=holder, now=now, lease_seconds=self._lease_seconds) | {
            "epoch": row["epoch"] + 1,
            "failures": failures,
        }
        if status is Status.QUEUED:
            values |= {
                "status": Status.IN_PROGRESS.value,
                "stage": Stage.SYNTHESIZING.value,
                "started_at": now,
                "version": row["version"] + 1,
            }
        elif row["stage"] == Stage.UPLOADING.value:
            # The upload died with its holder: it starts over.
            values |= {"stage": Stage.ENCODING.value, "version": row["version"] + 1}
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
        made = connection.execute(
            select(func.count(), func.max(clips.c.text_end)).where(clips.c.job == row["id"])
        ).one()
        request = json.loads(row["request"])
        return Claim(
            job=_job(taken),
            input=request["input"],
            seed=request["seed"],
            webhook_url=request["webhook_url"],
            spoken_text=row["spoken_text"],
            pipeline_version=row["pipeline_version"],
            text_end=made[1] or 0,
            clips=made[0],
            errors=_codes(row["errors"], last=failures),
            lease_seconds=self._lease_seconds,
        )

    def _end(
        self,
        connection: Connection,
        job_id: JobId,
        epoch: int,
        now: float,
        status: Status,
        *,
        error: JobError | None = None,
        audio: PublishedAudio | None = None,
        expires_at: float | None = None,
        failures: int | None = None,
    ) -> Job:
        """Move a held job to a terminal status and write its event, in the caller's transaction."""
        values = leases.ENDED | {
            "status": status.value,
            "stage": None,
            "completed_at": now,
            "expires_at": expires_at,
            "error": None if error is None else json.dumps(_stored(error), ensure_ascii=False),
            "result": None if audio is None else json.dumps(asdict(audio)),
            "version": jobs.c.version + 1,
        }
        if failures is not None:
            values["failures"] = failures
        row = (
            connection.execute(
                update(jobs)
                .where(leases.fence(jobs, job_id, epoch))
                .values(values)
                .returning(*_JOB_COLUMNS, jobs.c.request)
            )
            .mappings()
            .one_or_none()
        )
        if row is None:
            raise Fenced(f"{job_id}: epoch {epoch} is over")
        job = _job(row)
        self._announce(connection, job, json.loads(row["request"])["webhook_url"], now)
        return job

    def _announce(self, connection: Connection, job: Job, webhook_url: str | None, now: float) -> None:
        event_id = new_id("evt", now=now)
        event_type = COMPLETED if job.status is Status.COMPLETED else FAILED
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

    def _with_error(self, connection: Connection, job_id: JobId, error: JobError) -> dict[str, Any]:
        stored = connection.execute(select(jobs.c.errors).where(jobs.c.id == job_id)).scalar_one_or_none()
        kept = [*json.loads(stored or "[]"), _stored(error)][-KEPT_ERRORS:]
        return {"errors": json.dumps(kept, ensure_ascii=False)}

    def _until(self, connection: Connection) -> float:
        return self._db.now(connection) + self._lease_seconds

    def _write(self, connection: Connection, claim: Claim, values: dict[str, Any]) -> None:
        leases.write(connection, jobs, claim.job.id, claim.job.epoch, values)


def _codes(stored: str, *, last: int) -> tuple[str, ...]:
    codes = tuple(str(error["code"]) for error in json.loads(stored))
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
        voice=row["voice"],
        language=row["language"],
        response_format=row["response_format"],
        characters=row["characters"],
        chunks_total=row["chunks_total"],
        chunks_done=row["chunks_done"],
        created_at=_time(row["created_at"]),
        started_at=_maybe_time(row["started_at"]),
        completed_at=_maybe_time(row["completed_at"]),
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
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _maybe_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else _time(seconds)
