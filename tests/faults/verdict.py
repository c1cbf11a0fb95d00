"""What must be true after the storm, whatever was in it. Each check yields what it found to be wrong."""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import standardwebhooks

from actors.encode import CROSSFADE_MS
from actors.making import SEEDS, chunk_seed
from jobs.events import ENDINGS
from jobs.job import MOVES, Move, Stage, State, Status
from speech import ffmpeg
from speech.audio import overlap_between
from speech.engines.tone import SAMPLES_PER_CHAR, tone
from speech.text import prepare, speakable
from tests.faults.arena import BUCKET, Arena
from tests.faults.clients import TERMINAL, Clients, Receipt, Request
from tests.faults.orders import POISONS, Order

#: What a job may fail by that was not poisoned: each is what one of the faults does to it, three times in a
#: row. A full disk and a store that is away are waited for, so neither is among them.
EXPLAINED: Final = frozenset({"worker_lost", "engine_died", "encoder_failed"})
#: What a job may meet and only waits for: a worker whose engine was killed while it loaded leaves.
WAITED_FOR: Final = frozenset({"storage_error", "disk_full", "engine_unavailable"})
#: Of a hundred jobs that were not poisoned so many may fail by them.
MOST_FAILED: Final = 5
#: Seeds that a chunk may have been given: one more for each clip that was refused.
ATTEMPTS: Final = 8 * SEEDS
#: A call may have been logged a moment after the worker was let go on.
THAW_SECONDS: Final = 2.0
#: So long after the database was away, or an answer of it was lost, a lease may run out for that.
DATABASE_SECONDS: Final = 8.0
#: Chunks that a worker has in hand when it dies: one that is made, one that is stored.
IN_HAND: Final = 2
RATE: Final = 44_100
_TRACEBACK: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:^[ \t].*\n|^\n)*(^\S.*)$", re.M)

Row = dict[str, Any]
Findings = Iterator[str]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is left of a storm."""

    receipts: Sequence[Receipt]
    complaints: Sequence[str]
    jobs: Mapping[str, Row]
    events: Sequence[Row]
    deliveries: Sequence[Row]
    clips: Mapping[str, Sequence[Row]]
    objects: Sequence[Row]
    moves: Mapping[str, Sequence[Row]]
    #: When clips were recorded, and when they were struck off again.
    recordings: Sequence[Row]
    calls: Sequence[Row]
    #: Keys of the bucket and their sizes.
    audio: Mapping[str, int]
    staged: Mapping[str, int]
    requests: Sequence[Request]
    webhook_secret: str
    struck: Sequence[tuple[float, str, int | None]]
    thawed: Sequence[tuple[int, float]]
    logs: Mapping[str, str]
    read: Callable[[str], bytes]
    dice: random.Random
    folder: Path
    #: How many MP3s to listen to.
    listened: int
    #: What the checks counted on their way.
    counts: Counter[str] = field(default_factory=Counter)

    @cached_property
    def orders(self) -> Mapping[int, Receipt]:
        return {receipt.order.number: receipt for receipt in self.receipts}

    @cached_property
    def of_order(self) -> Mapping[int, Sequence[Row]]:
        """The jobs of each order: more than one where an answer was lost."""
        found: dict[int, list[Row]] = defaultdict(list)
        for job in self.jobs.values():
            found[self.order(job).number].append(job)
        return found

    def order(self, job: Row) -> Order:
        return self.orders[int(json.loads(job["metadata"])["order"])].order

    def spoken(self, job: Row) -> str:
        return str(job["spoken_text"] if job["spoken_text"] is not None else prepare(_input(job)))


def gather(
    arena: Arena,
    clients: Clients,
    requests: Sequence[Request],
    *,
    bucket: Any,
    dice: random.Random,
    listened: int,
) -> Evidence:
    """Collect the evidence; nothing is at work any more. The bucket's client must stay open."""
    clips: dict[str, list[Row]] = defaultdict(list)
    for clip in arena.rows("SELECT * FROM clips ORDER BY job, text_start, seq"):
        clips[clip["job"]].append(clip)
    moves: dict[str, list[Row]] = defaultdict(list)
    for move in arena.rows("SELECT * FROM chaos_moves ORDER BY n"):
        moves[move["job"]].append(move)

    def body(key: str) -> bytes:
        return bytes(bucket.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    calls = arena.calls_log.read_text(encoding="utf-8").splitlines() if arena.calls_log.exists() else []
    return Evidence(
        receipts=clients.receipts,
        complaints=clients.complaints,
        jobs={row["id"]: row for row in arena.rows("SELECT * FROM jobs")},
        events=arena.rows("SELECT * FROM events"),
        deliveries=arena.rows("SELECT * FROM deliveries"),
        clips=clips,
        objects=arena.rows("SELECT * FROM objects"),
        moves=moves,
        recordings=arena.rows("SELECT * FROM chaos_clips ORDER BY at"),
        calls=[json.loads(line) for line in calls],
        audio=arena.keys("audio/"),
        staged=arena.keys("staged/"),
        requests=requests,
        webhook_secret=(arena.fleet.data_dir / "webhook-secret").read_text().strip(),
        struck=arena.struck,
        thawed=arena.thawed,
        logs=arena.logs(),
        read=body,
        dice=dice,
        folder=arena.folder,
        listened=listened,
    )


def _input(job: Row) -> str:
    return str(json.loads(job["request"])["input"])


# --- the checks --------------------------------------------------------------------------------------------


def clients_saw_nothing_strange(seen: Evidence) -> Findings:
    """No 5xx but 503, no version that falls, no end that changes, no accepted job that is not found."""
    yield from seen.complaints


def every_accepted_job_is_there_and_ended(seen: Evidence) -> Findings:
    """A 202 is a promise; a request whose answer was lost may have made a job, which ends like any other."""
    rows = Counter(seen.order(job).number for job in seen.jobs.values())
    for receipt in seen.receipts:
        number = receipt.order.number
        if receipt.job_id is None:
            yield f"order {number} was never accepted"
        elif receipt.job_id not in seen.jobs:
            yield f"{receipt.job_id} (order {number}) was accepted and is not in the table"
        if rows[number] > receipt.attempts:
            yield f"order {number}: {rows[number]} jobs of {receipt.attempts} requests"
    seen.counts["jobs of requests whose answer was lost"] = sum(rows.values()) - len(
        {receipt.job_id for receipt in seen.receipts if receipt.job_id}
    )
    for job in seen.jobs.values():
        if job["status"] not in TERMINAL or job["queue"] is not None or job["holder"] is not None:
            yield (
                f"{job['id']} has not ended: {job['status']}/{job['stage']}, epoch {job['epoch']}, "
                f"failures {job['failures']}, holder {job['holder']}, queue {job['queue']}, "
                f"errors {job['errors']}"
            )


def every_job_ended_as_it_should(seen: Evidence) -> Findings:
    """Completed; or failed, cancelled or expired for a reason that the storm gave."""
    accepted = {receipt.job_id: receipt for receipt in seen.receipts}
    failed = 0
    for job in seen.jobs.values():
        order = seen.order(job)
        receipt = accepted.get(job["id"])
        cancel = receipt.cancel_status if receipt else None
        match job["status"]:
            case "completed":
                if order.poison is not None:
                    yield f"{job['id']} is completed, though its text kills engines ({order.poison})"
                if cancel == 200:
                    yield f"{job['id']} is completed, though its cancellation was confirmed"
            case "cancelled":
                if order.cancel_after is None or receipt is None or cancel == 409:
                    yield f"{job['id']} is cancelled, and nobody asked for it (answered {cancel})"
            case "expired":
                if order.deadline is None:
                    yield f"{job['id']} is expired, and had no deadline"
                if job["started_at"] is not None:
                    yield f"{job['id']} is expired, though it was started"
            case "failed":
                failed += order.poison is None
                yield from _failed(seen, job, order)
                if cancel == 200:
                    yield f"{job['id']} is failed, though its cancellation was confirmed"
    most = max(2, len(seen.jobs) * MOST_FAILED // 100)
    seen.counts["jobs without poison that failed"] = failed
    if failed > most:
        yield f"{failed} jobs failed that were not poisoned, more than {most}"


def _failed(seen: Evidence, job: Row, order: Order) -> Findings:
    error = json.loads(job["error"])
    code = error["code"]
    allowed = EXPLAINED | ({POISONS[order.poison]} if order.poison else set())
    if code not in allowed:
        yield f"{job['id']} failed by {code} ({error['message']}); allowed: {sorted(allowed)}"
    elif order.poison is not None and code != POISONS[order.poison]:
        seen.counts[f"poison {order.poison} that ended by {code}"] += 1


def nothing_unforeseen_was_met(seen: Evidence) -> Findings:
    """No worker came upon an error that it has no name for, even where the job was completed after it."""
    for job in seen.jobs.values():
        for error in json.loads(job["errors"]):
            seen.counts[f"error on the way: {error['code']}"] += 1
            if error["code"] not in EXPLAINED | {*POISONS.values()} | WAITED_FOR:
                yield f"{job['id']} ({job['status']}) met {error['code']}: {error['message']}"
            if error["code"] in WAITED_FOR and error.get("blamed", True):
                yield f"{job['id']} ({job['status']}) was blamed for {error['code']}: {error['message']}"


def no_traceback_was_logged(seen: Evidence) -> Findings:
    """What is out of order outside is said in a line; a traceback is for what nobody has foreseen."""
    found: Counter[tuple[str, str]] = Counter()
    for name, log in seen.logs.items():
        for traceback in _TRACEBACK.finditer(log):
            found[name, traceback[1][:200]] += 1
    for (name, last), times in found.items():
        yield f"{name}: {times} tracebacks: {last}"


def every_end_has_one_event(seen: Evidence) -> Findings:
    """One terminal event per job, of the right type, with the same state inside."""
    of_job: dict[str, list[Row]] = defaultdict(list)
    for event in seen.events:
        if event["terminal"]:
            of_job[event["job"]].append(event)
    for job in seen.jobs.values():
        events = of_job[job["id"]]
        if job["status"] not in TERMINAL:
            continue
        if len(events) != 1:
            yield f"{job['id']} ({job['status']}) has {len(events)} terminal events"
            continue
        told = json.loads(events[0]["payload"])
        if events[0]["type"] != ENDINGS[Status(job["status"])] or told["data"]["status"] != job["status"]:
            yield f"{job['id']} is {job['status']}; its event says {events[0]['type']}"


def every_move_was_allowed(seen: Evidence) -> Findings:
    """The database's own account: only moves of the table, epochs by one, nothing after the end."""
    allowed = {(before, after) for moves in MOVES.values() for before, after in moves.items()}
    claims = set(MOVES[Move.CLAIM].items())
    for job_id, moves in seen.moves.items():
        for move in moves:
            before, after = (
                _state(move["status"], move["stage"]),
                _state(move["new_status"], move["new_stage"]),
            )
            step = move["new_epoch"] - move["epoch"]
            line = f"{job_id}: {before} epoch {move['epoch']} -> {after} epoch {move['new_epoch']}"
            if before.status in TERMINAL:
                yield f"{line}, after its end"
            elif (before, after) not in allowed:
                yield f"{line} is no move"
            elif step not in (0, 1) or (step == 1 and (before, after) not in claims):
                yield f"{line}: the epoch must rise by one, with a claim"
            elif step == 0 and move["holder"] is None and after.status not in TERMINAL and before != after:
                yield f"{line}: moved by nobody who holds it"
        for move, next_one in pairwise(moves):
            if (move["new_status"], move["new_epoch"]) != (next_one["status"], next_one["epoch"]):
                yield f"{job_id}: a change between {move} and {next_one} was not told"


def _state(status: str, stage: str | None) -> State:
    return State(Status(status), None if stage is None else Stage(stage))


def whoever_left_in_order_let_go(seen: Evidence) -> Findings:
    """A lease runs out only where its holder was killed, held up, or could not reach the database."""
    for job_id, moves in seen.moves.items():
        for move in moves:
            if move["holder"] is None or move["new_epoch"] == move["epoch"]:
                continue
            pid, at = int(move["holder"].split(":")[1]), move["at"]
            kinds = {kind for _, kind, hit in seen.struck if hit == pid}
            cut_off = any(
                at - DATABASE_SECONDS < hit_at < at and "database" in kind for hit_at, kind, _ in seen.struck
            )
            seen.counts["leases that ran out"] += 1
            if not cut_off and all(kind.startswith("end ") for kind in kinds):
                yield (
                    f"{job_id}: {move['holder']} held epoch {move['epoch']} until its lease ran out; "
                    f"all that was done to it: {sorted(kinds) or 'nothing'}"
                )


def every_completed_job_is_whole(seen: Evidence) -> Findings:
    """Its clips tile its text, each sounds as long as its text, and the length is theirs less overlaps."""
    for job in _completed(seen):
        text, clips = seen.spoken(job), seen.clips[job["id"]]
        if text != prepare(_input(job)):
            yield f"{job['id']}: the spoken text is not the input"
        at = 0
        for clip in clips:
            if clip["text_start"] != at:
                what = "gap" if clip["text_start"] > at else "overlap"
                yield f"{job['id']}: a {what} in its text at {at}: clip {clip['seq']} is {_span(clip)}"
            at = clip["text_end"]
            length = len(text[clip["text_start"] : clip["text_end"]].strip())
            if clip["samples"] != SAMPLES_PER_CHAR * length:
                yield f"{job['id']}: clip {clip['seq']} of {length} characters has {clip['samples']} samples"
        if speakable(text[at:]):
            yield f"{job['id']}: no clip after {at} of {len(text)}"
        if [clip["epoch"] for clip in clips] != sorted(clip["epoch"] for clip in clips) and not job["remade"]:
            yield f"{job['id']}: a later clip is of an earlier epoch: {[clip['epoch'] for clip in clips]}"
        milliseconds = round(_joined(clips) * 1000 / clips[0]["sample_rate"])
        audio = json.loads(job["result"])
        if abs(audio["duration_ms"] - milliseconds) > 1:
            yield f"{job['id']} says {audio['duration_ms']} ms; its clips make {milliseconds} ms"
        if job["chunks_done"] != len(clips) or job["chunks_total"] != len(clips):
            yield (
                f"{job['id']} counts {job['chunks_done']} of {job['chunks_total']} chunks; "
                f"there are {len(clips)} clips"
            )


def _completed(seen: Evidence) -> list[Row]:
    return [job for job in seen.jobs.values() if job["status"] == "completed"]


def _span(clip: Row) -> str:
    return f"{clip['text_start']}-{clip['text_end']}"


def _joined(clips: Sequence[Row]) -> int:
    samples = sum(clip["samples"] for clip in clips)
    for before, after in pairwise(clips):
        samples -= overlap_between(before["samples"], after["samples"], before["sample_rate"], CROSSFADE_MS)
    return int(samples)


def the_bucket_is_the_ledger(seen: Evidence) -> Findings:
    """Each completed job's object is there once, byte for byte, and nothing else is."""
    live = {row["key"]: row for row in seen.objects if row["state"] == "live"}
    for row in seen.objects:
        if row["state"] == "pending":
            yield f"{row['key']} is still pending in the ledger"
    seen.counts["objects to be deleted once more"] = sum(row["state"] == "deleting" for row in seen.objects)
    for key in sorted(seen.audio.keys() - live.keys()):
        states = [row["state"] for row in seen.objects if row["key"] == key]
        yield f"{key} is in the bucket; in the ledger it is {states or 'unknown'}"
    for key in sorted(live.keys() - seen.audio.keys()):
        yield f"{key} is live in the ledger and not in the bucket"
    owners = Counter(row["owner"] for row in live.values())
    for job in _completed(seen):
        audio = json.loads(job["result"])
        if owners.pop(job["id"], 0) != 1 or live.get(audio["key"], {}).get("owner") != job["id"]:
            yield f"{job['id']} is completed and does not own exactly its object {audio['key']}"
        elif audio["key"] in seen.audio:
            body = seen.read(audio["key"])
            if len(body) != audio["bytes"] or hashlib.sha256(body).hexdigest() != audio["sha256"]:
                yield f"{audio['key']} is not as the job says: {len(body)} bytes of {audio['bytes']}"
    for owner in owners:
        yield f"{owner} is {seen.jobs[owner]['status']} and owns a live object"


def what_is_heard_is_what_was_asked(seen: Evidence) -> Findings:
    """Some files, decoded: as long as the job says, and each clip's own frequency in its place."""
    completed = sorted(_completed(seen), key=lambda job: str(job["id"]))
    # Those that were taken up most often first: they have the most seams.
    completed.sort(key=lambda job: -job["epoch"])
    half = seen.listened // 2
    chosen = completed[:half] + seen.dice.sample(
        completed[half:], min(len(completed[half:]), seen.listened - half)
    )
    for job in chosen:
        yield from _listen(seen, job)
    seen.counts["files listened to"] = len(chosen)


def _listen(seen: Evidence, job: Row) -> Findings:
    audio = json.loads(job["result"])
    if audio["key"] not in seen.audio:
        return
    path = seen.folder / "heard.mp3"
    path.write_bytes(seen.read(audio["key"]))
    decoded = subprocess.run(
        [ffmpeg.find(None), "-v", "error", "-nostdin", "-i", str(path), "-f", "s16le", "-ac", "1", "-"],
        capture_output=True,
        check=False,
        timeout=120,
    )
    heard = np.frombuffer(decoded.stdout, np.int16)
    if decoded.stderr or decoded.returncode:
        yield f"{job['id']} does not decode cleanly: {decoded.stderr.decode()[:200]}"
    if abs(len(heard) * 1000 / RATE - audio["duration_ms"]) > 5:
        yield f"{job['id']} is {len(heard) * 1000 / RATE:.0f} ms of {audio['duration_ms']}"
    text, at = seen.spoken(job), 0
    clips = seen.clips[job["id"]]
    for index, clip in enumerate(clips):
        if index:
            before = clips[index - 1]
            at -= overlap_between(before["samples"], clip["samples"], clip["sample_rate"], CROSSFADE_MS)
        chunk = text[clip["text_start"] : clip["text_end"]].strip()
        expected = _pitch(tone(chunk, seed=int(clip["seed"])), clip["sample_rate"])
        start = round(at * RATE / clip["sample_rate"])
        end = start + round(clip["samples"] * RATE / clip["sample_rate"])
        found = _pitch(heard[start:end], RATE)
        if abs(expected - found) > 5:
            yield f"{job['id']}: clip {clip['seq']} ({_span(clip)}) is {found:.0f} Hz, not {expected:.0f}"
            return
        at += clip["samples"]


def _pitch(samples: Any, rate: int) -> float:
    """Return the strongest frequency in the middle half second, in Hz."""
    middle, half = len(samples) // 2, rate // 4
    piece = np.asarray(samples[max(0, middle - half) : middle + half], np.float64)
    if not len(piece):
        return 0.0
    return float(np.argmax(np.abs(np.fft.rfft(piece * np.hanning(len(piece))))) * rate / len(piece))


def no_recorded_chunk_was_made_again(seen: Evidence) -> Findings:
    """Every call of the engine for a chunk came before that chunk was recorded; and what was made more than
    once was in hand when somebody died.
    """
    recorded: dict[tuple[str, int], list[tuple[float, bool]]] = defaultdict(list)
    for row in seen.recordings:
        recorded[row["job"], row["text_start"]].append((row["at"], bool(row["gone"])))
    made: Counter[tuple[str, int]] = Counter()
    for call in seen.calls:
        chunk = _chunk(seen, call)
        if chunk is None:
            yield f"the engine was called for no job: {call}"
            continue
        made[chunk] += 1
        before = [gone for at, gone in recorded[chunk] if at < call["t"]]
        if not before or before[-1]:
            continue
        if any(0 <= call["t"] - at < THAW_SECONDS for _, at in seen.thawed):
            seen.counts["calls of workers that had been frozen"] += 1
            continue
        late = call["t"] - max(at for at, _ in recorded[chunk] if at < call["t"])
        yield f"{chunk[0]}: the chunk at {chunk[1]} was made again {late:.3f} s after it was recorded: {call}"
    again: Counter[str] = Counter()
    for (job_id, _), times in made.items():
        again[job_id] += times - 1
    seen.counts["calls of the engine"] = len(seen.calls)
    seen.counts["chunks made more than once"] = sum(times > 1 for times in made.values())
    # A killed engine costs its chunk a second call, in the same claim.
    kills = sum("kill engine" in kind for _, kind, _ in seen.struck)
    for job_id, times in again.items():
        if seen.order(seen.jobs[job_id]).poison is not None:
            # It was tried in every way before it was given up.
            continue
        claims = _claims(seen, job_id, "synthesizing")
        if times > IN_HAND * (claims - 1) + kills:
            yield f"{job_id}: {times} chunks too many in {claims} claims"


def _claims(seen: Evidence, job_id: str, stage: str) -> int:
    return sum(
        move["new_epoch"] > move["epoch"] and move["new_stage"] == stage for move in seen.moves[job_id]
    )


def _chunk(seen: Evidence, call: Row) -> tuple[str, int] | None:
    """Return the job that a call was for, and where its chunk begins; the seed tells twins apart."""
    number = re.match(r"Order (\d+) ", call["text"])
    # Without one it is a piece of a chunk that was cut for want of memory.
    for job in seen.jobs.values() if number is None else seen.of_order.get(int(number[1]), ()):
        seed = int(json.loads(job["request"])["seed"])
        for found in re.finditer(re.escape(call["text"]), seen.spoken(job)):
            start = found.start()
            if call["seed"] in {chunk_seed(seed, start, attempt) for attempt in range(ATTEMPTS)}:
                return job["id"], start
    return None


def every_webhook_arrived(seen: Evidence) -> Findings:
    """Each event reaches an honest receiver, signed, under one id; no job ends twice for any receiver."""
    told: dict[str, set[str]] = defaultdict(set)
    bodies: dict[str, set[bytes]] = defaultdict(set)
    reached: set[str] = set()
    sender = standardwebhooks.Webhook(seen.webhook_secret)
    for request in seen.requests:
        event_id = request.headers["webhook-id"]
        sent_at = datetime.fromtimestamp(int(request.headers["webhook-timestamp"]), UTC)
        if request.headers["webhook-signature"] != sender.sign(event_id, sent_at, request.body.decode()):
            yield f"{request.path}: the signature of {event_id} is wrong"
        body = json.loads(request.body)
        told[body["data"]["id"]].add(event_id)
        bodies[event_id].add(request.body)
        if request.answered == 200:
            reached.add(event_id)
    seen.counts["webhooks received"] = len(seen.requests)
    seen.counts["webhooks received more than once"] = len(seen.requests) - len(bodies)
    for job_id, ids in told.items():
        if len(ids) != 1:
            yield f"receivers were told of {len(ids)} ends of {job_id}: {sorted(ids)}"
    for event_id, variants in bodies.items():
        if len(variants) != 1:
            yield f"event {event_id} came with {len(variants)} bodies"
    deliveries: dict[str, list[Row]] = defaultdict(list)
    for delivery in seen.deliveries:
        deliveries[delivery["event"]].append(delivery)
    for event in seen.events:
        job = seen.jobs[event["job"]]
        order = seen.order(job)
        found = deliveries[event["id"]]
        if len(found) != (order.hook is not None):
            yield f"{event['id']} of {job['id']} has {len(found)} deliveries"
        for delivery in found:
            yield from _delivered(seen, order, event, delivery, arrived=event["id"] in reached)


def _delivered(seen: Evidence, order: Order, event: Row, delivery: Row, *, arrived: bool) -> Findings:
    line = (
        f"{event['id']} of {event['job']} to a receiver that is {order.hook}: {delivery['status']} after "
        f"{delivery['attempts']} attempts ({delivery['error']})"
    )
    if delivery["status"] == "delivered" and not arrived:
        yield f"{line}, and it never arrived"
    elif delivery["status"] != "delivered":
        if order.hook == "honest" and not arrived:
            yield line
        # The third attempt is five minutes after the second.
        seen.counts[f"deliveries under way to receivers that are {order.hook}"] += 1


#: Every check, in the order in which what it finds is worth reading.
CHECKS: Final[Sequence[Callable[[Evidence], Findings]]] = (
    every_accepted_job_is_there_and_ended,
    every_job_ended_as_it_should,
    every_completed_job_is_whole,
    the_bucket_is_the_ledger,
    every_end_has_one_event,
    every_move_was_allowed,
    whoever_left_in_order_let_go,
    no_recorded_chunk_was_made_again,
    what_is_heard_is_what_was_asked,
    every_webhook_arrived,
    clients_saw_nothing_strange,
    nothing_unforeseen_was_met,
    no_traceback_was_logged,
)


def judge(seen: Evidence) -> list[str]:
    """Return all that is wrong."""
    return [f"{check.__name__}: {finding}" for check in CHECKS for finding in check(seen)]
