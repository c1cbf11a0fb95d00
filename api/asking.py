"""Several questions at once, and none is waited for longer than a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Answer = TypeVar("Answer")


def ask_all(
    questions: Mapping[str, Callable[[], Answer]], *, limit_seconds: float
) -> dict[str, Answer | Exception]:
    """Return what each question was answered, or the error that it met; one that took too long is left out,
    and ends by itself.
    """
    answers: dict[str, Answer | Exception] = {}

    def ask(name: str, question: Callable[[], Answer]) -> None:
        try:
            answers[name] = question()
        except Exception as error:  # noqa: BLE001 - the top of a thread: the error is its answer
            answers[name] = error

    threads = [threading.Thread(target=ask, args=item, daemon=True) for item in questions.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(answers)
