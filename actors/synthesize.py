"""A synthesis bell rings: claim the best job of this queue, speak its chunks, record each, hand it on."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from actors.bell import MEDIA_QUEUE
from actors.departure import Leaving
from actors.making import InHand, Piece, Synthesis, make, say_voice_changed
from actors.renewal import Renewal
from actors.rescue import Late, LeftAlone, OutOfMeans
from actors.staging import Staging
from actors.turn import UNEXPECTED, Remedy, Turn, Verdict
from actors.urgency import Urgency
from jobs.database import DatabaseUnavailable
from jobs.job import Claim, JobClass, JobError
from speech.chunks import Chunk, split
from speech.engine import EngineError, EngineFailed, EngineUnavailable, OutOfMemory
from speech.host import NoAudioYet
from speech.ladder import Rung, climb, half
from speech.text import prepare, speakable
from storage.keys import is_voice_state
from storage.store import ObjectNotFound, StoreError, StoreUnavailable

log = logging.getLogger("voxfleet.actors")

#: After so long on one worker a job lets others of its class go first.
TURN_SECONDS: Final = 300.0
OUT_OF_MEMORY: Final = JobError(
    code=OutOfMemory.code, message="the engine ran out of memory, even for short pieces of the text"
)
#: The request member that an engine's error is about, where it is not the text.
PARAMS: Final = {
    "unknown_voice": "voice",
    "bad_reference": "voice",
    "unsupported_language": "language",
    "invalid_engine_option": "engine_options",
}


def synthesize(work: Synthesis) -> None:
    """Speak the jobs of the queue, the most urgent first, each from its last recorded clip on."""
    turn = Turn(
        queue=work.queue,
        jobs=work.jobs,
        ring=work.ring,
        claim=partial(_claim, work),
        go_on=lambda: not work.departure.asked(),
    )
    turn.take(lambda claim, lease: _speak(work, claim, lease), judge=partial(_judge, work))


def _claim(work: Synthesis) -> Claim | None:
    """Take the best job, unless its clips could not be stored, or its engine is left alone."""
    if work.habits.store_is_away:
        try:
            work.objects.check()
        except StoreError as error:
            # The sweeper rings again.
            log.debug("nothing is claimed: %s", error)
            return None
        work.habits.store_is_away = False
    if not work.breaker.is_closed:
        standing = work.rescue.standing
        if standing.has_peer():
            return None
        # Only for what can be done without the engine.
        if not (standing.has_fallback() or work.jobs.urgent(work.queue)):
            return None
    return work.jobs.claim(work.queue, holder=work.holder)


def _speak(work: Synthesis, claim: Claim, lease: Renewal) -> Claim | None:
    """Speak what is not recorded yet; return the job that this one gave way to, if it did."""
    begun = work.clock()
    job = claim.job
    spoken = prepare(claim.input) if claim.spoken_text is None else claim.spoken_text
    chunks = unspoken(spoken, claim.recorded, max_chars=_longest(work, claim), language=claim.language)
    left = sum(chunk.end - chunk.start for chunk in chunks)
    log.info("job %s epoch %d: %d of %d characters to speak", job.id, job.epoch, left, len(spoken))
    urgency = Urgency(partial(work.jobs.urgent, work.queue), wanted=job.job_class is not JobClass.LIVE)
    with urgency, Staging(claim, lease, jobs=work.jobs, objects=work.objects) as staging:
        hand = InHand(
            claim=claim,
            lease=lease,
            urgency=urgency,
            staging=staging,
            text=spoken,
            begun=begun,
            pieces=deque(Piece(chunk=chunk) for chunk in chunks),
            left=left,
        )
        _begin(work, hand)
        if not work.breaker.is_closed:
            _give_up(work, hand, LeftAlone("the engine ran out of memory too often"))
            return None
        _go_on_in_its_voice(work, hand)
        cut = False
        while hand.pieces:
            lease.check()
            if work.departure.asked():
                raise Leaving
            # At least one chunk of each turn is made, so that no job is only ever put off.
            if hand.made or cut:
                turn_is_over = work.clock() - hand.begun >= TURN_SECONDS
                better = _give_way(work, hand, turn_is_over=turn_is_over)
                if better is not None:
                    return better
            _fit(work, hand)
            try:
                made = make(work, hand, hand.pieces[0])
            except OutOfMemory as error:
                if _climb(work, hand):
                    continue
                work.learned.hopeless()
                work.breaker.failed()
                _give_up(work, hand, OutOfMeans(str(error)))
                return None
            except NoAudioYet as error:
                try:
                    _give_up(work, hand, Late(str(error)))
                finally:
                    work.engine.settle()
                return None
            # None when it was cut for a live job, which somebody else may have taken since.
            cut = made is None
            if made is not None:
                done = hand.pieces.popleft().chunk
                hand.left -= done.end - done.start
                hand.made += 1
                staging.put(made)
        staging.flush()
        _hand_on(work, hand)
        return None


def _begin(work: Synthesis, hand: InHand) -> None:
    """Record what is about to be done."""
    total = len(hand.claim.recorded) + hand.made + len(hand.pieces)
    begin = partial(
        work.jobs.begin,
        hand.claim,
        spoken_text=hand.text,
        chunks_total=total,
        characters_left=hand.left,
    )
    hand.lease.persist(begin)


def _hand_on(work: Synthesis, hand: InHand) -> None:
    """Give a job that is all spoken, and recorded, to the encoders."""
    hand.lease.persist(partial(work.jobs.synthesized, hand.claim, queue=MEDIA_QUEUE))
    work.ring(MEDIA_QUEUE)


def _give_up(work: Synthesis, hand: InHand, why: OutOfMeans | LeftAlone | Late) -> None:
    """Have another model speak the job, or whoever listens hear a notice.

    Raises:
        The reason: neither can be.
    """
    claim, lease, staging = hand.claim, hand.lease, hand.staging
    if work.rescue.hand_over(claim, lease, staging, reason=why.told):
        return
    rest = [piece.chunk for piece in hand.pieces]
    seq, rate = claim.next_seq + hand.made, work.engine.info.sample_rate
    if not work.rescue.play_notice(claim, lease, staging, rest, seq=seq, rate=rate):
        raise why
    staging.flush()
    _hand_on(work, hand)


def _longest(work: Synthesis, claim: Claim) -> int:
    return work.learned.within(work.engine.info.preferred(claim.language))


def _fit(work: Synthesis, hand: InHand) -> None:
    """Cut the next piece, if it is longer than what was learned since it was cut."""
    chunk, longest = hand.pieces[0].chunk, _longest(work, hand.claim)
    if len(chunk.text) > longest:
        _cut(work, hand, longest)


def _cut(work: Synthesis, hand: InHand, longest: int) -> bool:
    """Cut the next piece into shorter ones; say whether it could be."""
    piece = hand.pieces[0]
    start, end = piece.chunk.start, piece.chunk.end
    parts = [
        Chunk(start + part.start, start + part.end, part.text)
        for part in voiced(split(hand.text[start:end], max_chars=longest, language=hand.claim.language))
    ]
    if len(parts) < 2:
        return False
    hand.pieces.popleft()
    hand.pieces.extendleft(Piece(chunk=part, tried=piece.tried) for part in reversed(parts))
    _begin(work, hand)
    return True


def _climb(work: Synthesis, hand: InHand) -> bool:
    """Do what helps against too little memory for the next piece; say whether anything was left to do."""
    piece = hand.pieces[0]
    chars = len(piece.chunk.text)
    can_spare = bool(work.engine.info.thrift)
    rung = climb(piece.tried, chars=chars, can_spare=can_spare)
    if rung is Rung.SPLIT:
        work.learned.too_long(chars)
        if not _cut(work, hand, half(chars)):
            rung = climb(piece.tried, chars=0, can_spare=can_spare)
    if rung is None or (rung is Rung.RESTARTED and rung in hand.told):
        # One restart a turn: a load may take a minute.
        return False
    if rung is not Rung.SPLIT:
        hand.pieces[0] = Piece(chunk=piece.chunk, tried=piece.tried | {rung})
    if rung is Rung.RESTARTED:
        work.engine.restart()
    log.warning("job %s: out of memory at %d characters: %s", hand.claim.job.id, chars, rung.value)
    work.rescue.tell(hand.claim, hand.lease, rung, again=rung in hand.told)
    hand.told.add(rung)
    return True


def _go_on_in_its_voice(work: Synthesis, hand: InHand) -> None:
    """Fetch what the recorded clips were made with, where the engine draws a voice for each job."""
    key = hand.claim.voice_state_key
    if key is None or not work.engine.info.features.continuation:
        return
    try:
        body = b"".join(work.objects.get(key))
    except ObjectNotFound:
        body = b""
    if is_voice_state(key, body):
        hand.voice_state, hand.voice_state_key = body, key
    else:
        say_voice_changed(work, hand)


def _give_way(work: Synthesis, hand: InHand, *, turn_is_over: bool) -> Claim | None:
    """Return a better job, claimed in place of the one in hand, if one waits."""
    job, left = hand.claim.job, hand.left
    try:
        if not work.jobs.better(hand.claim, left=left, turn_is_over=turn_is_over):
            return None
        # What is made stays made.
        hand.staging.flush()
        better = work.jobs.swap(hand.claim, holder=work.holder, left=left, turn_is_over=turn_is_over)
    except DatabaseUnavailable as error:
        # Nobody knows whether it was done; if it was, the next write is fenced.
        log.warning("job %s does not look for a better one: %s", job.id, error)
        return None
    if better is not None:
        log.info("job %s gives way to %s with %d characters left", job.id, better.job.id, left)
        work.ring(work.queue)
    return better


def unspoken(text: str, recorded: Iterable[tuple[int, int]], *, max_chars: int, language: str) -> list[Chunk]:
    """Return the chunks of all that no clip holds, in order.

    That is the end of the text after a death, a gap where a clip was lost, or both; each piece is cut by
    itself, so it does not matter how the clips were cut, or by whom.
    """
    chunks: list[Chunk] = []
    at = 0
    for start, end in (*recorded, (len(text), len(text))):
        if start > at:
            piece = split(text[:start], start=at, max_chars=max_chars, language=language)
            chunks += voiced(piece)
        at = max(at, end)
    return chunks


def voiced(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Return the chunks that an engine has a sound for; the spans still tile the text.

    A line of dots or emoji that fits into no neighbour has no sound: its span goes to the chunk before it,
    or after it at the start of the text.
    """
    found: list[Chunk] = []
    start: int | None = None
    for chunk in chunks:
        if speakable(chunk.text):
            found.append(chunk if start is None else replace(chunk, start=start))
            start = None
        elif found:
            found[-1] = replace(found[-1], end=chunk.end)
        elif start is None:
            start = chunk.start
    return found


def _judge(work: Synthesis, _claim: Claim, error: Exception) -> Verdict:
    """Say what an error of `_speak` means to its job."""
    match error:
        case LeftAlone():
            reason = JobError(code=OutOfMemory.code, message=str(error))
            return Verdict(error=reason, remedy=Remedy.WAIT, seconds=work.breaker.seconds_left())
        case OutOfMeans():
            # Another worker may have more of it.
            remedy = Remedy.RETRY if work.rescue.standing.has_peer() else Remedy.NONE
            return Verdict(error=OUT_OF_MEMORY, remedy=remedy)
        case EngineError():
            return _judge_engine(work, error)
        case StoreError():
            reason = JobError(code="storage_error", message="the object store did not take a clip")
            waits = work.habits.store_is_away = isinstance(error, StoreUnavailable)
            return Verdict(error=reason, remedy=Remedy.WAIT if waits else Remedy.RETRY)
        case _:
            return Verdict(error=UNEXPECTED, remedy=Remedy.RETRY)


def _judge_engine(work: Synthesis, error: EngineError) -> Verdict:
    match error:
        case EngineUnavailable():
            # It is this worker that is broken, not the text: another one may have the job at once.
            work.broken(str(error))
            reason = JobError(code=error.code, message="the engine cannot be loaded")
            return Verdict(error=reason, remedy=Remedy.WAIT)
        case EngineFailed():
            # Its own words may tell of the worker's machine.
            reason = JobError(code=error.code, message="the engine failed; the worker's log says how")
            return Verdict(error=reason, remedy=Remedy.RETRY)
        case EngineError(transient=True):
            return Verdict(error=JobError(code=error.code, message=str(error)), remedy=Remedy.RETRY)
        case _:
            param = PARAMS.get(error.code, "input")
            reason = JobError(code=error.code, message=str(error), type="invalid_request_error", param=param)
            return Verdict(error=reason, remedy=Remedy.NONE)
