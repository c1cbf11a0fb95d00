"""The frames, and a real child that is spoken to frame by frame."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech import wire
from speech.engine import SynthesisRequest
from speech.engines.tone import tone
from speech.wire import Frame, FrameReader, Kind, WireClosed, WireCorrupt

FRAMES = st.builds(Frame, st.sampled_from(Kind), st.binary(max_size=200))
#: 18 s of audio, 1.7 MB: more than a pipe holds.
LONG = "a" * 300


@given(frames=st.lists(FRAMES, max_size=8), cuts=st.lists(st.integers(1, 100), min_size=1))
def test_frames_are_read_as_they_were_written_however_the_stream_is_cut(frames, cuts):
    read, write = os.pipe()
    try:
        kept, keep = os.pipe()
        for frame in frames:
            wire.write(keep, frame)
        os.close(keep)
        stream = b"".join(iter(lambda: os.read(kept, 1 << 16), b""))
        os.close(kept)
        reader, heard, at = FrameReader(read), [], 0
        while at < len(stream):
            size = cuts[at % len(cuts)]
            os.write(write, stream[at : at + size])
            at += size
            while (frame := reader.read(timeout=0)) is not None:
                heard.append(frame)
        assert heard == frames
    finally:
        os.close(read)
        os.close(write)


@given(number=st.integers(1, 10**6), other=st.integers(1, 10**6))
def test_a_cancellation_means_the_request_that_it_names(number, other):
    assert wire.cancels(wire.cancel(number), other) == (number == other)


def test_nothing_else_cancels_a_request():
    assert not wire.cancels(Frame(Kind.CANCEL), 1)
    assert not wire.cancels(Frame(Kind.REQUEST, b"1"), 1)


@pytest.mark.parametrize("stream", [b"?\0\0\0\0", b"P\xff\0\0\0"])
def test_what_is_no_frame_is_named(stream):
    read, write = os.pipe()
    try:
        os.write(write, stream)
        with pytest.raises(WireCorrupt):
            FrameReader(read).read(timeout=0)
    finally:
        os.close(read)
        os.close(write)


# --- a child ----------------------------------------------------------------------------------------------


class Child:
    """A child of the tone engine, without a host."""

    def __init__(self, options: bytes = b"{}") -> None:
        request_out, self.requests = os.pipe()
        self.answers, answer_in = os.pipe()
        fds = (request_out, answer_in)
        command = [sys.executable, "-P", "-m", "speech.child", "tone", "--parent", str(os.getpid())]
        self.process = subprocess.Popen(
            [*command, "--fds", *map(str, fds)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for fd in fds:
            os.close(fd)
        self.reader = FrameReader(self.answers)
        wire.write(self.requests, Frame(Kind.OPTIONS, options))
        assert self.reader.read(timeout=60).kind is Kind.READY

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.leave()
        self.process.kill()
        self.process.communicate()
        os.close(self.answers)

    def leave(self) -> None:
        """End its input."""
        if self.requests >= 0:
            os.close(self.requests)
            self.requests = -1

    def send(self, *frames: Frame) -> None:
        """Write frames at once, so that the child finds them side by side."""
        read, write = os.pipe()
        for frame in frames:
            wire.write(write, frame)
        os.close(write)
        os.write(self.requests, os.read(read, 1 << 16))
        os.close(read)

    def hear(self) -> tuple[np.ndarray, Kind]:
        """Return the audio of one answer, and how it ended."""
        heard = [np.zeros(0, np.float32)]
        while (frame := self.reader.read(timeout=60)).kind is Kind.PCM:
            heard.append(wire.samples(frame))
        return np.concatenate(heard), frame.kind

    def is_quiet(self) -> bool:
        """Whether nothing follows."""
        return self.reader.read(timeout=0.2) is None


@pytest.fixture
def child():
    with Child() as child:
        yield child


def request(text: str) -> Frame:
    asked = SynthesisRequest(text=text, voice="sine", language="en", seed=0)
    return Frame(Kind.REQUEST, asked.to_json().encode())


def whole(text: str) -> np.ndarray:
    return tone(text, seed=0)


@pytest.mark.slow
def test_a_child_that_waits_for_room_in_the_pipe_sees_a_cancellation_once_it_has_it(child):
    child.send(request(LONG))
    time.sleep(0.5)
    child.send(wire.cancel(1))

    clip, end = child.hear()
    assert end is Kind.DONE
    assert 0 < clip.size < whole(LONG).size
    assert np.array_equal(clip, whole(LONG)[: clip.size])
    child.send(request("next"))
    clip, end = child.hear()
    assert (np.array_equal(clip, whole("next")), end) == (True, Kind.DONE)


@pytest.mark.slow
def test_a_cancellation_ends_only_the_request_that_it_names(child):
    # Before any request; of one that is over, and again; of one that has not come yet.
    child.send(wire.cancel(1))
    for number, text in enumerate(("one", "two", "three"), start=1):
        over = [wire.cancel(number - 1)] * 2
        child.send(*over, request(text), *over, wire.cancel(number + 1))
        clip, end = child.hear()
        assert (np.array_equal(clip, whole(text)), end) == (True, Kind.DONE), text
    assert child.is_quiet()


@pytest.mark.slow
def test_a_request_that_is_cancelled_twice_is_answered_once(child):
    child.send(request(LONG), wire.cancel(1), wire.cancel(1))
    clip, end = child.hear()
    assert end is Kind.DONE
    assert clip.size == 5760, "one piece"
    assert child.is_quiet()

    child.send(wire.cancel(1), request("next"))
    clip, end = child.hear()
    assert (np.array_equal(clip, whole("next")), end) == (True, Kind.DONE)


@pytest.mark.slow
def test_a_request_that_fails_and_is_cancelled_is_answered_once():
    with Child(b'{"faults": "1"}') as child:
        child.send(request("[[tone:fail]]"), wire.cancel(1))
        assert child.hear()[1] is Kind.ERROR
        assert child.is_quiet()
        child.send(request("next"))
        assert np.array_equal(child.hear()[0], whole("next"))


@pytest.mark.slow
def test_a_child_whose_worker_leaves_in_the_middle_of_a_request_leaves_as_well():
    with Child(b'{"rtf": "3"}') as child:
        child.send(request(LONG))
        assert child.reader.read(timeout=60).kind is Kind.PCM
        child.leave()
        # To finish would have taken a minute.
        assert child.process.wait(timeout=20) == 0


@pytest.mark.slow
def test_a_child_does_not_go_on_when_a_request_comes_in_the_middle_of_another_one(child):
    child.send(request(LONG), request("next"))
    with pytest.raises(WireClosed):
        child.hear()
    _, said = child.process.communicate(timeout=20)
    assert child.process.returncode == 1
    assert b"REQUEST in the middle of a request" in said
