"""What the storm's clients ask for: every order decided by the seed, before anything starts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Longest text of one engine call. No sentence is longer, so a chunk always begins with its own number.
MAX_CHARS: Final = 200
SHORT: Final = 200
MEDIUM: Final = 2_000
#: What a poisoned text does to the engine, and the code that its job fails by.
POISONS: Final[Mapping[str, str]] = {
    "segv": "engine_died",
    "oom": "engine_out_of_memory",
    "nan": "bad_output",
}
TENANTS: Final = 4

_WORDS: Final = (
    *("harbour", "pier", "lamp", "mast", "boat", "market", "apple", "honey", "bread", "stall", "violin"),
    *("fountain", "evening", "wind", "cloud", "hill", "basket", "rain", "river", "stone", "bridge"),
    *("letter", "window", "garden", "winter", "engine", "signal", "paper", "copper", "silver"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One job that a client is to ask for.

    Attributes:
        at: seconds after the start of the storm.
        tenant: whose key is used, 0 to `TENANTS` - 1.
        poison: one of `POISONS`, or None.
        hook: how its webhook receiver behaves (`honest`, `flaky`, `hanging`), or None for no webhook.
        deadline: seconds, or None.
        cancel_after: seconds after its acceptance, or None.
    """

    number: int
    size: str
    at: float
    tenant: int
    text: str
    job_class: str | None
    poison: str | None = None
    hook: str | None = None
    deadline: int | None = None
    cancel_after: float | None = None


def plan(dice: random.Random, count: int, *, seconds: float, longest: int) -> list[Order]:
    """Return `count` orders spread over so many seconds, in the order of their times.

    At least one of each kind of poison, size and receiver is among them.

    Args:
        longest: characters of the longest texts; the shortest of the long ones have half of it.
    """
    sizes = ["long"] * max(1, count // 40) + ["medium"] * (count // 5)
    sizes += ["short"] * (count - len(sizes) - len(POISONS) * max(1, count // 60))
    poisons: list[str | None] = [*POISONS] * max(1, count // 60)
    kinds = [(size, None) for size in sizes] + [("short", poison) for poison in poisons]
    dice.shuffle(kinds)
    hooks = (
        ["honest"] * max(1, count // 4) + ["flaky"] * max(1, count // 20) + ["hanging"] * (1 + count // 100)
    )
    cancels = max(1, count // 12)
    orders = []
    for number, (size, poison) in enumerate(kinds):
        honest = poison is None
        orders.append(
            Order(
                number=number,
                size=size,
                # Some at once, so that there is a queue from the beginning.
                at=0.0 if number % 5 == 0 else dice.uniform(0, seconds),
                tenant=dice.randrange(TENANTS),
                text=_text(dice, number, size, poison, longest),
                job_class=dice.choice([None, None, None, "low", "high", "live" if size == "short" else None]),
                poison=poison,
                hook=hooks[number] if number < len(hooks) else None,
                deadline=dice.choice([4, 3600]) if honest and dice.random() < 0.05 else None,
                cancel_after=dice.uniform(0, 8) if honest and number >= count - cancels else None,
            )
        )
    return sorted(orders, key=lambda order: (order.at, order.number))


def _text(dice: random.Random, number: int, size: str, poison: str | None, longest: int) -> str:
    if poison is not None:
        return f"Order {number} is poisoned: [[tone:{poison}]] and goes on."
    length = {"short": SHORT, "medium": MEDIUM, "long": dice.randint(longest // 2, longest)}[size]
    # A fifth more or less, so that they do not all take the same time.
    length = round(length * dice.uniform(0.8, 1.2)) if size != "long" else length
    text = ""
    sentence = 0
    while len(text) < length:
        words = " ".join(dice.choices(_WORDS, k=dice.randint(8, 18)))
        text += f"{' ' if text else ''}Order {number} part {sentence} tells of {words}."
        sentence += 1
    return text
