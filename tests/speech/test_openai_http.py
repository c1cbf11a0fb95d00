"""The engine of remote servers, against one on a loopback port."""

import json
import logging
import socket
import time

import numpy as np
import pytest

from speech.engine import (
    ERRORS,
    BadOption,
    BadOutput,
    EngineError,
    EngineFailed,
    EngineInfo,
    EngineUnavailable,
    OutOfMemory,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedLanguage,
    UnsupportedText,
)
from speech.engines import openai_http
from speech.engines.openai_http import (
    ABOUT,
    ENGINE,
    MAX_EXTRA_BYTES,
    OpenAiHttpEngine,
    OpenAiHttpOptions,
    PcmReader,
    WavReader,
    listed,
    pieces,
)
from speech.host import EngineHost

from .speech_server import (
    RATE,
    UNKNOWN,
    Answer,
    SpeechServer,
    audio,
    chunk,
    cut,
    form,
    hang_up,
    pcm16,
    reply,
    streamed,
    tone,
    unmarked,
    wav,
)
from .test_host import plug

KEY = "sk-very/secret+key=1"
TEXT = "One two three, four five six."
TONE = tone()
WAV = wav(pcm16(TONE))
NO_ROUTE = reply(404, {"detail": "Not Found"})


def ask(text: str = TEXT, **members) -> SynthesisRequest:
    return SynthesisRequest(**{"text": text, "voice": "alloy", "language": "en", "seed": 0, **members})


def speak(engine: OpenAiHttpEngine, text: str = TEXT, **members) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *engine.synthesize(ask(text, **members))])


def read(reader: PcmReader | WavReader, *parts: bytes) -> np.ndarray:
    samples = np.concatenate([reader.feed(part) for part in parts])
    reader.finish()
    return samples


def refused(server: SpeechServer, **options: str) -> str:
    """Return what a load that fails says."""
    with pytest.raises(EngineUnavailable) as caught:
        ENGINE.load({"url": server.url, **options})
    return str(caught.value)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Wait a little between two attempts; `Retry-After` is as it is."""
    monkeypatch.setattr(openai_http, "BACKOFF_SECONDS", 0.01)


@pytest.fixture
def server():
    with SpeechServer(usual=audio(WAV), voices=NO_ROUTE) as server:
        yield server


@pytest.fixture
def load(server):
    engines = []

    def load(**options: str) -> OpenAiHttpEngine:
        engines.append(ENGINE.load({"url": server.url, **options}))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(load):
    return load()


class TestLoading:
    def test_it_learns_what_the_server_is(self, server, load):
        engine = load(model="kokoro", languages="en-US, de", max_chars="500")

        info = engine.info
        place = server.url.removeprefix("http://")
        assert (info.name, info.sample_rate, info.device, info.deterministic) == (
            "openai-http",
            RATE,
            "cpu",
            False,
        )
        assert (info.languages, info.max_chars) == (("en-US", "de"), 500)
        assert [voice.id for voice in info.voices] == ["alloy"]
        assert (info.weights, info.licence) == (f"kokoro at {place}", "LicenseRef-remote")
        assert (info.features.streaming, info.features.speed, info.features.design) == (True, True, True)
        assert not info.features.seed
        assert EngineInfo.from_json(info.to_json()) == info
        assert server.spoken == [
            {"model": "kokoro", "input": "Hello.", "voice": "alloy", "response_format": "wav"}
        ]

    def test_it_tells_of_itself_before_it_is_loaded(self):
        assert ENGINE.missing() is None
        assert ENGINE.about is ABOUT
        assert EngineInfo.from_json(ABOUT.to_json()) == ABOUT

    def test_another_model_server_or_format_is_another_revision(self, server, load):
        usual, model = load(), load(model="tts-2")
        with SpeechServer(usual=audio(WAV), voices=NO_ROUTE) as other:
            elsewhere = load(url=other.url)
            elsewhere.close()
        server.next = [audio(pcm16(TONE), "audio/pcm")]
        raw = load(response_format="pcm")

        assert len({engine.info.revision for engine in (usual, model, elsewhere, raw)}) == 4
        assert load().info.revision == usual.info.revision

    @pytest.mark.parametrize(
        "body",
        [
            {"voices": ["nova", {"id": "echo", "name": "Echo"}, {"name": "sage"}, "nova"]},
            {"data": ["nova", {"id": "echo"}, {"name": "sage", "language": "en"}], "object": "list"},
            ["nova", "echo", "sage"],
        ],
    )
    def test_the_server_lists_its_voices_in_any_of_three_forms(self, server, load, body):
        server.voices = reply(200, body)
        engine = load()
        assert [voice.id for voice in engine.info.voices] == ["nova", "echo", "sage"]
        assert engine.info.default_voice == "nova"
        assert server.spoken[0]["voice"] == "nova"

    def test_a_voice_keeps_the_name_that_the_server_gives_it(self, server, load):
        server.voices = reply(200, {"voices": [{"id": "af_sky", "name": "Sky"}]})
        assert load().info.voices[0].name == "Sky"

    @pytest.mark.parametrize(
        "answer", [NO_ROUTE, reply(405, b""), reply(501, b""), reply(200, {"voices": []})]
    )
    def test_a_server_that_lists_no_voices_has_the_usual_one(self, server, load, answer):
        server.voices = answer
        assert [voice.id for voice in load().info.voices] == ["alloy"]

    def test_voices_that_are_set_are_not_asked_for(self, server, load):
        engine = load(voices="M1, F1,M1", default_voice="F1")
        assert [voice.id for voice in engine.info.voices] == ["M1", "F1"]
        assert engine.info.default_voice == "F1"
        assert [asked.method for asked in server.asked] == ["POST"]

    @pytest.mark.parametrize(
        "answer",
        [
            reply(200, b"<html>hello</html>"),
            reply(200, {"voices": "nova"}),
            reply(200, {"voices": [1]}),
            reply(200, {"voices": [{"language": "en"}]}),
            reply(200, {"voices": ["a\nb"]}),
            reply(200, {"voices": ["a" * 129]}),
            reply(200, {"voices": [f"v{number}" for number in range(1001)]}),
            reply(200, b"[" * 100_000),
        ],
    )
    def test_a_list_of_voices_that_cannot_be_read_is_not_guessed(self, server, answer):
        server.voices = answer
        assert "set voices" in refused(server)

    def test_a_default_voice_that_the_server_lacks_is_refused(self, server):
        assert "no voice 'nova'" in refused(server, voices="M1", default_voice="nova")

    def test_a_voice_that_is_refused_says_what_to_set(self, server):
        server.usual = reply(400, {"error": {"message": "unknown voice 'alloy'", "code": "unknown_voice"}})
        assert "set voices" in refused(server)

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_key_that_is_refused_is_named_and_not_quoted(self, server, status):
        server.usual = reply(status, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
        said = refused(server, api_key=KEY)
        assert f"status {status}" in said
        assert "Incorrect" not in said

    def test_a_path_that_is_not_there_is_named(self, server):
        server.usual = NO_ROUTE
        assert "/v1/audio/speech answers with status 404: Not Found" in refused(server)

    def test_a_server_that_is_not_there_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            port = nobody.getsockname()[1]
        with pytest.raises(EngineUnavailable, match=rf"127\.0\.0\.1:{port}/v1.*refused"):
            ENGINE.load({"url": f"http://127.0.0.1:{port}/v1"})

    def test_a_server_that_speaks_no_tls_is_named(self, server):
        assert "SSLError" in refused(server, url=server.url.replace("http:", "https:"), retries="0")

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (audio(b"ID3" + bytes(1000), "audio/mpeg"), "no WAV file"),
            (
                reply(200, {"error": {"message": "the model is asleep"}}),
                "text in the place of audio: the model is asleep",
            ),
            (reply(200, b"<html>hello</html>", Content_Type="text/html"), "text in the place"),
            (audio(wav(b"")), "empty"),
            (audio(wav(pcm16(tone(peak=0.0)))), "silent"),
            (audio(wav(pcm16(tone(0.05)))), "believable"),
            (audio(wav(pcm16(tone(20.0)))), "believable"),
            (audio(wav(pcm16(TONE), rate=4000)), "4000 Hz"),
            (audio(b""), "before its audio begins"),
        ],
    )
    def test_an_answer_that_is_no_speech_is_named(self, server, answer, words):
        server.usual = answer
        with pytest.raises(EngineUnavailable, match=words):
            ENGINE.load({"url": server.url})

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"url": "ftp://host/v1"}, "url: .*http or https"),
            ({"url": "host:8000/v1"}, "url: .*http or https"),
            ({"url": "http://:80/v1"}, "url: .*http or https"),
            ({"url": "http://host:99999/v1"}, "url: .*http or https"),
            ({"url": "http://[::1/v1"}, "url: .*http or https"),
            ({"url": "http://host/v 1"}, "url: .*http or https"),
            ({"url": "http://me:hunter2@host/v1"}, "url: .*credentials"),
            ({"url": "http://host/v1?key=hunter2"}, "url: .*path"),
            ({"api_key": "hunter2\r\n"}, "api_key: .*printable"),
            ({"api_key": "hunter2 ü"}, "api_key: .*printable"),
            ({"languages": "en,"}, None),
            ({"languages": "deutsch!"}, "languages: .*BCP 47"),
            ({"languages": " , "}, "languages: .*BCP 47"),
            ({"response_format": "mp3"}, "response_format"),
            ({"max_chars": "4097"}, "max_chars"),
            ({"read_seconds": "0"}, "read_seconds"),
            ({"stream": "1"}, "no option stream"),
        ],
    )
    def test_a_wrong_option_is_named_and_its_value_is_not(self, server, load, options, words):
        if words is None:
            load(**options)
            return
        with pytest.raises(EngineUnavailable, match=words) as caught:
            ENGINE.load({"url": server.url, **options})
        assert "hunter2" not in str(caught.value)
        assert server.asked == []

    def test_the_url_is_required(self):
        with pytest.raises(EngineUnavailable, match="url: Field required"):
            ENGINE.load({})

    def test_every_setting_is_described(self):
        assert all(field.description for field in OpenAiHttpOptions.model_fields.values())


class TestSpeaking:
    def test_the_samples_are_those_of_the_server(self, engine):
        assert np.allclose(speak(engine), TONE, atol=1e-4)

    def test_the_server_is_asked_for_no_more_than_is_wanted(self, server, load):
        engine = load(model="m", voices="a,b")
        speak(engine, voice="b")
        speak(engine, voice="a", speed=1.5, style="whispering")

        plain = {"model": "m", "input": TEXT, "voice": "b", "response_format": "wav"}
        assert server.spoken[1] == plain
        assert server.spoken[2] == plain | {"voice": "a", "speed": 1.5, "instructions": "whispering"}

    def test_the_key_is_sent_when_there_is_one(self, server, load):
        load(api_key=KEY)
        load()
        load(api_key="")
        sent = [asked.headers.get("Authorization") for asked in server.asked if asked.method == "POST"]
        assert sent == [f"Bearer {KEY}", None, None]

    def test_a_slash_at_the_end_of_the_url_is_one_too_many(self, server, load):
        load(url=server.url + "/")
        assert {asked.path for asked in server.asked} == {"/v1/audio/voices", "/v1/audio/speech"}

    def test_text_that_is_no_unicode_arrives_as_it_is(self, server, engine):
        speak(engine, "\ud800 ä 語")
        assert server.spoken[-1]["input"] == "\ud800 ä 語"

    def test_a_proxy_of_the_environment_is_not_used(self, server, load, monkeypatch):
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        load()

    def test_calls_share_a_connection(self, server, engine, monkeypatch):
        opened = []
        monkeypatch.setattr(
            server._listener, "verify_request", lambda request, address: opened.append(address) or True
        )
        for answer in (audio(WAV), streamed([WAV]), audio(WAV)):
            server.next = [answer]
            speak(engine)
        assert opened == []

    def test_a_long_answer_comes_in_pieces_between_which_it_can_be_cancelled(self, server, engine):
        server.next = [audio(wav(pcm16(tone(3.0))))]
        sizes = [piece.size for piece in engine.synthesize(ask())]
        assert sum(sizes) == 3 * RATE
        assert max(sizes) <= 0.2 * RATE
        assert min(sizes[:-1]) >= 0.1 * RATE

    def test_audio_arrives_before_the_answer_is_over(self, server, engine):
        server.next = [server.endless(wav(pcm16(TONE), length=UNKNOWN), b"", pause=0.2)]
        calling = engine.synthesize(ask())
        first = next(calling)
        assert first.size >= 0.1 * RATE
        calling.close()

    def test_a_header_that_comes_byte_by_byte_is_a_header(self, server, engine):
        server.next = [streamed([*(WAV[n : n + 1] for n in range(60)), WAV[60:]])]
        assert np.allclose(speak(engine), TONE, atol=1e-4)

    def test_pcm_is_taken_at_the_rate_that_is_set(self, server, load):
        server.usual = audio(pcm16(TONE), "audio/pcm")
        engine = load(response_format="pcm", sample_rate="44100")
        assert engine.info.sample_rate == 44_100
        assert np.allclose(speak(engine), TONE, atol=1e-4)
        assert server.spoken[-1]["response_format"] == "pcm"

    def test_pcm_may_come_in_odd_parts(self, server, load):
        data = pcm16(TONE)
        server.usual = streamed([data[:1], data[1:2], data[2:101], data[101:]])
        assert np.allclose(speak(load(response_format="pcm")), TONE, atol=1e-4)

    @pytest.mark.parametrize(
        ("members", "error"),
        [
            ({"voice": "nova"}, UnknownVoice),
            ({"text": "a" * 301}, TextTooLong),
            ({"speed": 0.2}, BadOption),
            ({"speed": 5.0}, BadOption),
        ],
    )
    def test_what_cannot_be_asked_is_not(self, server, engine, members, error):
        before = len(server.asked)
        with pytest.raises(error):
            speak(engine, **members)
        assert len(server.asked) == before


class TestNothingHalfPassesAsWhole:
    @pytest.mark.parametrize(
        "answer",
        [
            cut(WAV[:-1000], promised=len(WAV)),
            cut(WAV[:20], promised=len(WAV)),
            cut(b"", promised=len(WAV)),
            cut(wav(pcm16(TONE), length=UNKNOWN)[:-1000], promised=len(WAV)),
            # The header of the file alone tells.
            audio(WAV[:-1000]),
            audio(WAV[:20]),
            streamed([WAV[:-2]]),
            streamed([wav(pcm16(TONE)[:-1], length=UNKNOWN)]),
            # The HTTP chunks alone tell.
            streamed([wav(pcm16(TONE), length=UNKNOWN)], end=b""),
            streamed([wav(pcm16(TONE), length=UNKNOWN)], end=b"ffff\r\nabc"),
            streamed([wav(pcm16(TONE), length=UNKNOWN)], end=b"oops\r\n"),
            streamed([wav(pcm16(TONE), length=0)], end=b""),
            # Nothing tells.
            unmarked(wav(pcm16(TONE), length=UNKNOWN)),
            unmarked(WAV),
        ],
    )
    def test_a_body_that_is_cut_is_an_error(self, server, engine, answer):
        server.next = [answer]
        with pytest.raises(EngineFailed):
            speak(engine)
        assert np.allclose(speak(engine), TONE, atol=1e-4)

    @pytest.mark.parametrize(
        "answer",
        [
            cut(pcm16(TONE)[:-1000], promised=2 * TONE.size, kind="audio/pcm"),
            audio(pcm16(TONE)[:-1], "audio/pcm"),
            audio(b"", "audio/pcm"),
            streamed([pcm16(TONE)], end=b""),
            unmarked(pcm16(TONE), "audio/pcm"),
        ],
    )
    def test_raw_samples_that_are_cut_are_an_error(self, server, load, answer):
        server.usual = audio(pcm16(TONE), "audio/pcm")
        engine = load(response_format="pcm")
        server.next = [answer]
        with pytest.raises(EngineFailed):
            speak(engine)

    def test_what_was_heard_before_the_cut_is_not_asked_for_again(self, server, engine):
        server.next = [streamed([WAV[:-1000]], end=b"")]
        with pytest.raises(EngineFailed):
            speak(engine)
        assert len(server.spoken) == 2

    @pytest.mark.parametrize("length", [UNKNOWN, 0, 0x7FFF_F000, 0x7FFF_FFFF, 0x8000_0000, UNKNOWN - 36])
    def test_a_header_that_does_not_know_the_length_is_taken_to_the_end(self, server, engine, length):
        server.next = [streamed([wav(pcm16(TONE), length=length)])]
        assert np.allclose(speak(engine), TONE, atol=1e-4)

    @pytest.mark.parametrize(
        "answer",
        [
            reply(200, {"error": {"message": "the model is asleep"}}),
            reply(200, {"detail": "no"}, Content_Type="application/problem+json"),
            reply(200, b"<html>hello</html>", Content_Type="text/html; charset=utf-8"),
            reply(200, b"data: {}\n\n", Content_Type="text/event-stream"),
            audio(b'{"error": "asleep"}' + b" " * 101),
            reply(200, WAV, Content_Type="audio/wav", Content_Encoding="gzip"),
            audio(b"RIFX" + WAV[4:]),
            reply(202, b""),
            reply(204, b""),
        ],
    )
    @pytest.mark.parametrize("response_format", ["wav", "pcm"])
    def test_a_success_that_is_no_audio_is_an_error(self, server, load, answer, response_format):
        server.next = [audio(WAV if response_format == "wav" else pcm16(TONE))]
        engine = load(response_format=response_format)
        server.next = [answer]
        with pytest.raises(EngineFailed):
            speak(engine)

    @pytest.mark.parametrize(
        ("body", "kind"),
        [(WAV, "audio/wav"), (b"OggS" + bytes(1000), ""), (pcm16(TONE), "audio/mpeg")],
    )
    def test_another_format_than_raw_samples_is_no_noise(self, server, load, body, kind):
        server.next = [audio(pcm16(TONE))]
        engine = load(response_format="pcm")
        server.next = [audio(body, kind)]
        with pytest.raises(EngineFailed, match="pcm"):
            speak(engine)

    def test_another_rate_than_while_loading_is_refused(self, server, engine):
        server.next = [audio(wav(pcm16(TONE), rate=44_100))]
        with pytest.raises(BadOutput, match=r"44100 Hz.*24000 Hz"):
            speak(engine)


class TestWhatHasNoEnd:
    def test_audio_without_end_is_refused(self, server, engine):
        server.next = [server.endless(wav(b"", length=UNKNOWN), pcm16(tone(1.0)))]
        heard: list[np.ndarray] = []
        with pytest.raises(BadOutput, match=r"more than the 6\.6 s"):
            heard.extend(engine.synthesize(ask("abc")))
        assert 0 < sum(piece.size for piece in heard) <= 6.6 * RATE
        assert server.left.wait(5)

    def test_slow_speech_may_be_longer(self, server, engine):
        server.next = [audio(wav(pcm16(tone(12.0)))), audio(wav(pcm16(tone(12.0))))]
        assert speak(engine, "abc", speed=0.5).size == 12 * RATE
        with pytest.raises(BadOutput):
            speak(engine, "abc", speed=2.0)

    @pytest.mark.parametrize(
        ("head", "part"),
        [
            (b"RIFF\0\0\0\0WAVE", chunk(b"LIST", bytes(50_000))),
            (b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\xff", bytes(50_000)),
            (b"RIFF\0\0\0\0WAVE", form()),
            (WAV, bytes(50_000)),
        ],
    )
    def test_what_is_no_audio_has_an_end_too(self, server, engine, head, part):
        server.next = [server.endless(head, part)]
        with pytest.raises(EngineFailed, match="no audio"):
            speak(engine)
        assert server.left.wait(5)

    def test_an_error_without_end_is_read_no_further(self, server, engine):
        def refuse(handler):
            handler.begin(400, Transfer_Encoding="chunked", Content_Type="text/plain")
            while not server.closing.is_set():
                handler.wfile.write(b"400\r\n" + b"x" * 1024 + b"\r\n")

        server.next = [refuse]
        with pytest.raises(EngineFailed, match=r"status 400: x{200}$"):
            speak(engine)
        assert server.left.wait(5)

    def test_the_server_notices_that_nobody_listens(self, server, engine):
        server.next = [server.endless(wav(b"", length=UNKNOWN), pcm16(tone(0.1)), pause=0.01)]
        calling = engine.synthesize(ask())
        next(calling)
        next(calling)
        assert not server.left.is_set()
        calling.close()
        assert server.left.wait(5)
        # The next call has a connection of its own.
        assert np.allclose(speak(engine), TONE, atol=1e-4)

    @pytest.mark.parametrize("head", [b"", WAV[:30], wav(pcm16(TONE), length=UNKNOWN)])
    def test_a_server_that_sends_nothing_more_is_left_in_time(self, server, load, head):
        engine = load(read_seconds="0.3")
        server.next = [server.stuck(head)]
        started = time.monotonic()
        with pytest.raises(EngineFailed, match=r"nothing for 0\.3 s"):
            speak(engine)
        assert time.monotonic() - started < 2
        assert len(server.spoken) == 2

    def test_a_server_that_does_not_answer_is_left_in_time_and_not_asked_again(self, server, load):
        engine = load(read_seconds="0.3")
        server.next = [server.late(10, audio(WAV))]
        started = time.monotonic()
        with pytest.raises(EngineFailed, match=r"nothing for 0\.3 s"):
            speak(engine)
        assert time.monotonic() - started < 2
        assert len(server.spoken) == 2

    def test_a_server_that_takes_no_connection_is_left_in_time(self):
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            waiting = [socket.socket() for _ in range(3)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
            options = {"url": f"http://127.0.0.1:{port}/v1", "connect_seconds": "0.2", "retries": "1"}
            started = time.monotonic()
            with pytest.raises(EngineUnavailable, match=r"cannot be reached within 0\.2 s"):
                ENGINE.load(options)
            assert 0.4 <= time.monotonic() - started < 2
            for one in waiting:
                one.close()


class TestTryingAgain:
    @pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
    def test_what_may_pass_is_tried_again(self, server, engine, status):
        server.next = [reply(status, b"busy"), reply(status, b"busy")]
        assert np.allclose(speak(engine), TONE, atol=1e-4)
        assert len(server.spoken) == 4

    @pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
    def test_what_does_not_pass_is_an_error(self, server, engine, status):
        server.next = [reply(status, b"busy")] * 3
        with pytest.raises(EngineFailed, match=f"status {status}: busy"):
            speak(engine)
        assert server.next == []
        assert speak(engine).size

    @pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500, 501])
    def test_what_stays_is_not_tried_again(self, server, engine, status):
        server.next = [reply(status, b"no")]
        with pytest.raises(EngineError):
            speak(engine)
        assert len(server.spoken) == 2

    def test_no_attempt_more_than_is_set(self, server, load):
        engine = load(retries="0")
        server.next = [reply(503, b"busy")]
        with pytest.raises(EngineFailed):
            speak(engine)
        assert server.next == []

    def test_a_connection_that_breaks_before_the_answer_is_tried_again(self, server, engine):
        server.next = [hang_up, hang_up]
        assert np.allclose(speak(engine), TONE, atol=1e-4)

    def test_a_server_that_only_hangs_up_is_an_error(self, server, engine):
        server.next = [hang_up] * 3
        with pytest.raises(EngineFailed, match="the connection broke: RemoteDisconnected"):
            speak(engine)

    def test_the_server_says_when_to_come_again(self, server, engine):
        server.next = [reply(429, b"", Retry_After="1")]
        started = time.monotonic()
        speak(engine)
        assert 1 <= time.monotonic() - started < 3

    @pytest.mark.parametrize(
        ("said", "waited"),
        [
            ("3600", 5.0),
            ("9" * 400, 5.0),
            ("Fri, 31 Dec 2999 23:59:59 GMT", 5.0),
            ("Fri, 31 Dec 1999 23:59:59 GMT", 0.01),
            ("soon", 0.01),
            ("-1", 0.01),
            ("", 0.01),
        ],
    )
    def test_nobody_waits_longer_than_five_seconds(self, server, engine, monkeypatch, said, waited):
        naps: list[float] = []
        monkeypatch.setattr(openai_http.time, "sleep", naps.append)
        server.next = [reply(503, b"", Retry_After=said)]
        speak(engine)
        assert naps == [waited]

    def test_memory_is_not_waited_for(self, server, engine):
        server.next = [reply(503, {"error": {"message": "CUDA out of memory. Tried to allocate 2 GiB"}})]
        with pytest.raises(OutOfMemory):
            speak(engine)
        assert server.next == []

    def test_an_engine_that_loads_tries_again_too(self, server, load):
        server.next = [reply(503, b"loading")]
        load()


def openai(message: str = "no", *, param: str | None = None, code: str | int | None = None) -> object:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def fastapi(member: str, kind: str, message: str) -> object:
    return {"detail": [{"loc": ["body", member], "msg": message, "type": kind}]}


class TestWhatTheServerMeans:
    @pytest.mark.parametrize(
        ("status", "body", "error"),
        [
            (401, openai(), EngineUnavailable),
            (403, b"", EngineUnavailable),
            (404, openai("The model `x` does not exist", code="model_not_found"), EngineUnavailable),
            (404, openai("Voice x is not there"), UnknownVoice),
            (404, openai("not there", param="voice"), UnknownVoice),
            (413, b"", TextTooLong),
            (400, openai("Invalid value: 'x'", param="voice", code="invalid_value"), UnknownVoice),
            # OpenAI's list of faults, as Python writes it.
            (
                400,
                openai("[{'type': 'enum', 'loc': ('body', 'voice'), 'msg': 'Input should be'}]"),
                UnknownVoice,
            ),
            # supertonic
            (400, {"error": {"message": "unknown voice 'x'", "code": "unknown_voice"}}, UnknownVoice),
            (
                400,
                {"error": {"message": "unsupported lang 'x'", "code": "unsupported_lang"}},
                UnsupportedLanguage,
            ),
            (400, {"error": {"message": "unsupported response_format 'pcm'"}}, EngineFailed),
            (
                500,
                {"error": {"message": "synthesis failed: Found 1 unsupported character(s): ['語']"}},
                UnsupportedText,
            ),
            # Kokoro-FastAPI
            (400, {"detail": {"error": "validation_error", "message": "Voice 'x' not found."}}, UnknownVoice),
            (500, {"detail": {"error": "processing_error", "message": "CUDA out of memory"}}, OutOfMemory),
            # vLLM
            (400, openai("Invalid speaker 'x'. Supported: vivian", code=400), UnknownVoice),
            (400, openai("Input text cannot be empty", code=400), UnsupportedText),
            (400, openai("This model's maximum context length is 4096 tokens", code=400), TextTooLong),
            (400, {"object": "error", "message": "Invalid language 'x'", "code": 400}, UnsupportedLanguage),
            # FastAPI
            (422, fastapi("voice", "enum", "Input should be 'nova'"), UnknownVoice),
            (422, fastapi("language", "enum", "Input should be 'English'"), UnsupportedLanguage),
            (
                422,
                fastapi("input", "string_too_short", "String should have at least 1 character"),
                UnsupportedText,
            ),
            (
                422,
                fastapi("input", "string_too_long", "String should have at most 9 characters"),
                TextTooLong,
            ),
            (422, fastapi("speed", "less_than_equal", "Input should be less than or equal to 2"), BadOption),
            (422, fastapi("model", "enum", "Input should be 'voice-1'"), EngineFailed),
            (422, {"detail": "There is no such voice"}, UnknownVoice),
            (400, openai("string too long", param="input", code="string_above_max_length"), TextTooLong),
            (400, b"the text holds characters that are not read", UnsupportedText),
            (400, b"", EngineFailed),
            (400, b"\xff\xfe", EngineFailed),
            (400, b"[" * 10_000, EngineFailed),
            (400, {"error": None, "detail": []}, EngineFailed),
            (400, {"error": []}, EngineFailed),
            (400, {"detail": [{"loc": []}]}, EngineFailed),
            (400, [7], EngineFailed),
            (409, openai("voice"), EngineFailed),
            (500, b"Internal Server Error", EngineFailed),
            (500, b"std::bad_alloc", OutOfMemory),
            (599, b"", EngineFailed),
            (301, b"", EngineUnavailable),
            (304, b"", EngineUnavailable),
        ],
    )
    def test_an_answer_means_one_error(self, server, engine, status, body, error):
        server.next = [reply(status, body)]
        with pytest.raises(EngineError, match=f"status {status}") as caught:
            speak(engine)
        assert type(caught.value) is error
        assert caught.value.code in ERRORS

    def test_the_words_of_the_text_itself_mean_nothing(self, server, engine):
        text = "A voice in a foreign language."
        server.next = [reply(400, openai(f"cannot speak: {text}"))]
        with pytest.raises(EngineFailed):
            speak(engine, text)

    def test_the_server_is_quoted_in_print_and_not_at_length(self, server, engine):
        server.next = [reply(400, openai("\x1b[31mred\r\n\u202e" + "x" * 500))]
        with pytest.raises(EngineFailed) as caught:
            speak(engine)
        said = str(caught.value).partition("status 400: ")[2]
        assert said.startswith("[31mred xxx")
        assert said.isprintable()
        assert len(said) == 200

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    def test_a_redirect_is_not_followed(self, server, load, status):
        engine = load(api_key=KEY)
        with SpeechServer(usual=audio(WAV), voices=NO_ROUTE) as other:
            server.next = [reply(status, b"", Location=f"{other.url}/audio/speech?{KEY}")]
            with pytest.raises(EngineUnavailable, match=f"status {status}$"):
                speak(engine)
            assert other.asked == []


class TestTheKeyIsASecret:
    ANSWERS: tuple[Answer, ...] = (
        reply(401, openai(f"Incorrect API key provided: {KEY}")),
        reply(400, openai(f"what is {KEY}?")),
        reply(400, f"what is {KEY}?".encode()),
        reply(500, b"x" * 195 + KEY.encode()),
        reply(200, openai(f"what is {KEY}?")),
        reply(200, b"hello", Content_Type=f"text/{KEY}"),
        reply(307, b"", Location=f"/v1/{KEY}"),
        reply(429, b"", Retry_After=KEY),
        reply(200, WAV, Content_Encoding=KEY),
        reply(200, WAV, Content_Length=KEY),
        cut(b"", promised=100),
        hang_up,
        lambda handler: handler.wfile.write(f"{KEY} {KEY}\r\n\r\n".encode()) and handler.drop(),
        streamed([WAV[:100]], end=f"{KEY}\r\n".encode()),
    )

    @pytest.mark.parametrize("answer", ANSWERS)
    def test_no_error_and_no_log_holds_it(self, server, load, caplog, answer):
        caplog.set_level(logging.DEBUG)
        engine = load(api_key=KEY, retries="0")
        server.next = [answer]
        with pytest.raises(EngineError) as caught:
            speak(engine)
        assert KEY not in str(caught.value)
        assert KEY not in caplog.text

        server.next = [answer]
        assert KEY not in refused(server, api_key=KEY, retries="0")
        assert KEY not in caplog.text

    def test_nothing_that_is_shown_holds_it(self, load):
        engine = load(api_key=KEY)
        options = OpenAiHttpOptions.model_validate({"url": "http://host/v1", "api_key": KEY})
        shown = [
            repr(engine),
            repr(engine.info),
            engine.info.to_json(),
            repr(options),
            options.model_dump_json(),
        ]
        assert not any(KEY in text for text in shown)


class TestWavFiles:
    @pytest.mark.parametrize("extensible", [False, True])
    @pytest.mark.parametrize(
        ("tag", "bits", "encode"),
        [
            (1, 16, lambda samples: np.round(samples * 2**15).astype("<i2").tobytes()),
            (
                1,
                24,
                lambda samples: (samples * 2.0**31).astype("<i4").view("u1").reshape(-1, 4)[:, 1:].tobytes(),
            ),
            (1, 32, lambda samples: (samples * 2.0**31).astype("<i4").tobytes()),
            (3, 32, lambda samples: samples.astype("<f4").tobytes()),
        ],
    )
    def test_the_usual_codings_are_read(self, tag, bits, encode, extensible):
        file = wav(encode(TONE), tag=tag, bits=bits, extensible=extensible)
        assert np.allclose(read(WavReader(), file), TONE, atol=1e-4 if bits == 16 else 1e-6)

    def test_the_ends_of_the_scale_are_the_ends_of_the_scale(self):
        data = np.array([-(2**15), 0, 2**15 - 1], "<i2").tobytes()
        samples = read(WavReader(), wav(data))
        assert samples.dtype == np.float32
        assert samples.tolist() == [-1.0, 0.0, np.float32((2**15 - 1) / 2**15)]

    def test_two_channels_are_mixed(self):
        both = np.stack([TONE, np.zeros_like(TONE)], axis=1)
        assert np.allclose(read(WavReader(), wav(pcm16(both), channels=2)), TONE / 2, atol=1e-4)

    def test_a_file_split_anywhere_is_the_same_file(self):
        file = wav(
            pcm16(TONE[:50]),
            before=chunk(b"LIST", b"INFOISFT\x05\0\0\0Lavf\0") + chunk(b"fact", b"abc"),
            after=chunk(b"id3 ", b"more"),
            extensible=True,
        )
        whole = read(WavReader(), file)
        assert whole.size == 50
        for at in range(len(file) + 1):
            assert np.array_equal(read(WavReader(), file[:at], file[at:]), whole)
        assert np.array_equal(read(WavReader(), *(file[n : n + 1] for n in range(len(file)))), whole)

    def test_a_file_that_ends_anywhere_before_its_end_is_an_error(self):
        file = wav(pcm16(TONE[:50]), before=chunk(b"LIST", b"abc"))
        for end in range(len(file)):
            with pytest.raises(EngineFailed):
                read(WavReader(), file[:end])

    @pytest.mark.parametrize(
        ("kind", "error"),
        [
            ({"tag": 6, "bits": 8}, EngineFailed),
            ({"bits": 8}, EngineFailed),
            ({"tag": 3, "bits": 64}, EngineFailed),
            ({"channels": 3}, EngineFailed),
            ({"channels": 0}, EngineFailed),
            ({"rate": 0}, BadOutput),
            ({"rate": 400_000}, BadOutput),
        ],
    )
    def test_an_unusual_coding_is_refused(self, kind, error):
        with pytest.raises(error):
            read(WavReader(), wav(bytes(1200), **kind))

    @pytest.mark.parametrize(
        "file",
        [
            b"RIFF\0\0\0\0WAVEdata\0\0\0\0",
            b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff" + bytes(100),
            b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", bytes(14)),
            b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", form(extensible=True)[8:32] + bytes(16)),
            wav(bytes(7)),
            b"RIFX" + WAV[4:],
            b"RIFF\0\0\0\0AVI " + WAV[12:],
        ],
    )
    def test_a_broken_header_is_refused(self, file):
        with pytest.raises(EngineFailed):
            read(WavReader(), file)

    def test_other_chunks_may_be_as_large_as_a_picture(self):
        picture = chunk(b"id3 ", bytes(MAX_EXTRA_BYTES // 2))
        assert read(WavReader(), wav(pcm16(TONE), before=picture)).size == TONE.size
        with pytest.raises(EngineFailed, match="no audio"):
            read(WavReader(), wav(pcm16(TONE), before=picture * 2))

    def test_what_is_no_number_stays_none(self):
        # `check_clip` refuses the clip.
        data = np.array([0.0, np.nan, np.inf], "<f4").tobytes()
        with np.errstate(invalid="raise"):
            assert not np.isfinite(read(WavReader(), wav(data, tag=3, bits=32))[1:]).any()


class TestPieces:
    def test_samples_are_collected_and_cut(self):
        parts = [pcm16(TONE)[start : start + 333] for start in range(0, 2 * TONE.size, 333)]
        got = list(pieces(parts, PcmReader(RATE), most_seconds=1.0))
        assert np.allclose(np.concatenate(got), TONE, atol=1e-4)
        assert all(0.1 * RATE <= piece.size <= 0.2 * RATE for piece in got[:-1])

    def test_exactly_the_longest_is_believable(self):
        data = pcm16(TONE)
        assert sum(piece.size for piece in pieces([data], PcmReader(RATE), most_seconds=0.5)) == TONE.size
        with pytest.raises(BadOutput):
            list(pieces([data, b"\0\0"], PcmReader(RATE), most_seconds=0.5))


def test_a_list_of_voices_is_bounded():
    assert listed(json.dumps([]).encode()) == []
    with pytest.raises(ValueError, match="no list"):
        listed(json.dumps([f"v{number}" for number in range(1001)]).encode())


@pytest.mark.slow
class TestInAChild:
    """The engine as a worker has it, in a process of its own."""

    @pytest.fixture
    def host(self, server, tmp_path):
        environ = plug(tmp_path, "remote", "from speech.engines.openai_http import ENGINE")
        options = {"url": server.url, "api_key": KEY}
        with EngineHost("remote", options, nice=0, chunk_seconds=30, environ=environ) as host:
            yield host

    def test_it_speaks(self, host):
        assert host.start().name == "openai-http"
        assert np.allclose(np.concatenate(list(host.synthesize(ask()))), TONE, atol=1e-4)

    def test_a_call_that_is_left_ends_at_the_server_and_the_child_lives_on(self, server, host):
        host.start()
        pid = host.pid
        server.next = [server.endless(wav(b"", length=UNKNOWN), pcm16(tone(0.1)), pause=0.01)]
        calling = host.synthesize(ask())
        next(calling)
        calling.close()
        assert server.left.wait(5)
        assert np.concatenate(list(host.synthesize(ask()))).size == TONE.size
        assert host.pid == pid

    def test_its_errors_arrive_as_what_they_are(self, server, host):
        host.start()
        server.next = [reply(500, b"CUDA out of memory"), cut(WAV[:-100], promised=len(WAV))]
        with pytest.raises(OutOfMemory):
            list(host.synthesize(ask()))
        with pytest.raises(EngineFailed, match="IncompleteRead"):
            list(host.synthesize(ask()))

    def test_a_server_that_is_away_is_named(self, server, host):
        server.usual = reply(401, openai(KEY))
        with pytest.raises(EngineUnavailable, match="status 401") as caught:
            host.start()
        assert KEY not in str(caught.value)
