"""How long a job waits and takes, from what waits before it and how fast the workers are. No clock, no SQL.

A fluid picture of the rule that shares workers (`jobs.lanes`): more urgent classes first; in a class, every
tenant with work gets the same share; a job gives way at the border of a chunk to a more urgent one, and in
its class to one that needs a quarter of what it still needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from jobs.job import JobClass, TenantId
from jobs.lanes import SHORTER

#: About half a chunk: how far the border is at which a running job gives way.
HALF_CHUNK: Final = 150
#: After this a job shares its worker with others of its class, in turns.
TURN_SECONDS: Final = 300.0
#: Encoding, verifying and storing a short piece of audio.
MEDIA_SECONDS: Final = 0.5
#: Encoding seconds per second of audio, before anybody has measured it.
MEDIA_RTF: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What one tenant has in one class of one queue, in hand or waiting."""

    job_class: JobClass
    tenant_id: TenantId
    jobs: int
    #: Code points that are still to be spoken.
    characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InHand:
    """A job that a worker speaks now; it is in its lane as well."""

    job_class: JobClass
    tenant_id: TenantId
    characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Who serves a queue."""

    count: int
    #: Processing seconds per code point, and per second of audio.
    seconds_per_char: float
    rtf: float
    #: Encoding seconds per second of audio; None before anybody has measured it.
    media_rtf: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job that waits, or would.

    Attributes:
        characters: code points that are still to be spoken.
        ahead: code points of its own lane that come before it.
    """

    job_class: JobClass
    tenant_id: TenantId
    characters: int
    ahead: int


def until_start(asked: Asked, lanes: Iterable[Lane], in_hand: Sequence[InHand], workers: Workers) -> float:
    """Return in how many seconds a worker takes the job."""
    waiting = _waiting(lanes, in_hand)
    may_jump = any(_gives_way(running, asked) for running in in_hand)
    rivals = [
        lane
        for lane in waiting
        if lane.job_class == asked.job_class
        and lane.tenant_id != asked.tenant_id
        # Of those that cannot jump as well, none comes before one that can.
        and not (may_jump and lane.characters > SHORTER * asked.characters * lane.jobs)
    ]
    before = float(asked.ahead)
    before += sum(lane.characters for lane in waiting if lane.job_class < asked.job_class)
    before += sum(min(lane.characters, asked.ahead + lane.characters / max(1, lane.jobs)) for lane in rivals)
    stay = [running.characters for running in in_hand if not _gives_way(running, asked)]
    if len(in_hand) < workers.count:
        slot, held = 0.0, 0.0
    elif may_jump:
        slot, held = min(float(HALF_CHUNK), min(stay, default=HALF_CHUNK)), 0.0
    else:
        slot, held = float(min(stay)), float(sum(stay))
    # What is in hand and stays there is worked on beside what waits.
    fluid = (before + (held if before else 0.0)) / max(1, workers.count)
    return max(slot, fluid) * workers.seconds_per_char


def until_done(asked: Asked, lanes: Iterable[Lane], in_hand: Sequence[InHand], workers: Workers) -> float:
    """Return in how many seconds the job is completed."""
    lanes = list(lanes)
    waiting = _waiting(lanes, in_hand)
    others = {lane.tenant_id for lane in waiting if lane.job_class <= asked.job_class} - {asked.tenant_id}
    own = spoken_in(asked.characters, sharing=len(others), workers=workers)
    audio = audio_seconds(asked.characters, workers)
    return until_start(asked, lanes, in_hand, workers) + own + encoded_in(audio, workers)


def spoken_in(characters: int, *, sharing: int, workers: Workers) -> float:
    """Return how long a worker speaks so much text, where `sharing` other tenants want their turns."""
    own = characters * workers.seconds_per_char
    if own <= TURN_SECONDS:
        return own
    return own * max(1.0, (1 + sharing) / max(1, workers.count))


def audio_seconds(characters: int, workers: Workers) -> float:
    """Return how long so much text sounds."""
    return characters * workers.seconds_per_char / workers.rtf if workers.rtf > 0 else 0.0


def encoded_in(audio: float, workers: Workers) -> float:
    """Return how long so many seconds of audio take to be encoded and stored."""
    rtf = MEDIA_RTF if workers.media_rtf is None else workers.media_rtf
    return audio * rtf + MEDIA_SECONDS


def until_below(limit: int, lanes: Iterable[Lane], workers: Workers) -> float:
    """Return in how many seconds fewer than `limit` jobs are left."""
    lanes = list(lanes)
    jobs = sum(lane.jobs for lane in lanes)
    if jobs < limit:
        return 0.0
    mean = sum(lane.characters for lane in lanes) / max(1, jobs)
    return (jobs - limit + 1) * mean * workers.seconds_per_char / max(1, workers.count)


def _waiting(lanes: Iterable[Lane], in_hand: Sequence[InHand]) -> list[Lane]:
    """Return the lanes without what is in hand."""
    waiting = []
    for lane in lanes:
        mine = [
            running.characters
            for running in in_hand
            if (running.job_class, running.tenant_id) == (lane.job_class, lane.tenant_id)
        ]
        left = Lane(
            job_class=lane.job_class,
            tenant_id=lane.tenant_id,
            jobs=max(0, lane.jobs - len(mine)),
            characters=max(0, lane.characters - sum(mine)),
        )
        if left.jobs:
            waiting.append(left)
    return waiting


def _gives_way(running: InHand, asked: Asked) -> bool:
    return running.job_class > asked.job_class or (
        running.job_class == asked.job_class and asked.characters * SHORTER <= running.characters
    )
