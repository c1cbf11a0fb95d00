"""The actors, declared on a broker. Nothing happens at import: every test gets a fresh broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import dramatiq

from actors.bell import DELIVER, ENCODE, MEDIA_QUEUE, SYNTHESIZE, WEBHOOK_QUEUE
from actors.deliver import Outbox, deliver
from actors.encode import Media, encode
from actors.making import Synthesis
from actors.synthesize import synthesize

#: An actor that takes no arguments: its message is a doorbell.
Ringable = dramatiq.Actor[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The actors of one worker; None for what this worker does not do."""

    synthesize: Ringable | None = None
    encode: Ringable | None = None
    deliver: Ringable | None = None


def declare_synthesis(broker: dramatiq.Broker, work: Synthesis) -> Fleet:
    """Declare the actor of a synthesis worker."""
    return Fleet(synthesize=_declare(broker, lambda: synthesize(work), name=SYNTHESIZE, queue=work.queue))


def declare_media(broker: dramatiq.Broker, work: Media) -> Fleet:
    """Declare the actor that encodes and publishes."""
    return Fleet(encode=_declare(broker, lambda: encode(work), name=ENCODE, queue=MEDIA_QUEUE))


def declare_outbox(broker: dramatiq.Broker, work: Outbox) -> Fleet:
    """Declare the actor that delivers webhooks."""
    return Fleet(deliver=_declare(broker, lambda: deliver(work), name=DELIVER, queue=WEBHOOK_QUEUE))


def _declare(broker: dramatiq.Broker, run: Callable[[], None], *, name: str, queue: str) -> Ringable:
    def bell() -> None:
        run()

    return dramatiq.Actor(bell, broker=broker, actor_name=name, queue_name=queue, priority=0, options={})
