"""Any server with `POST /v1/audio/speech`: OpenAI's own, vLLM-Omni, Kokoro-FastAPI, `supertonic serve`.

What such a server sends is held to its own account of it: a body shorter than its `Content-Length`, a broken
chunk or a WAV file shorter than its header says is an error, and so is a body whose end nothing marks. Time
is bounded here between two bytes alone; the whole of a call is bounded by whoever makes it.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol
from urllib.parse import SplitResult, urlsplit

import numpy as np
import urllib3
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InvalidHeader,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
)

from speech.checks import check_clip
from speech.diagnosis import WORDS
from speech.engine import (
    ANY_LANGUAGE,
    BadOption,
    BadOutput,
    EngineError,
    EngineFailed,
    EngineInfo,
    EngineUnavailable,
    Features,
    OutOfMemory,
    Samples,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedLanguage,
    UnsupportedText,
    Voice,
    read_options,
)

USER_AGENT: Final = "voxfleet/0.1"
JSON_BODY: Final = {"Content-Type": "application/json"}
#: The voice of a server that lists none: OpenAI's first, which imitations map to one of theirs.
USUAL_VOICE: Final = "alloy"
#: Spoken once while loading; six characters cost next to nothing where they are paid for.
PROBE: Final = "Hello."

#: Below hibari's fastest, 0.04 for "through thought though", by half: the voice is not known here.
MIN_SECONDS_PER_CHAR: Final = 0.02
#: Hibari's, for the same text: prose 0.06, "777" 0.75, "^" 0.9.
MAX_SECONDS_PER_CHAR: Final = 1.2
#: A second more than hibari's: some servers pad with silence.
MAX_EXTRA_SECONDS: Final = 3.0
#: OpenAI's range; https://platform.openai.com/docs/api-reference/audio/createSpeech
SPEEDS: Final = (0.25, 4.0)
#: Samples per second that speech comes at, from telephones to studios.
RATES: Final = (8_000, 192_000)

#: Shorter pieces are collected: each costs a frame on the pipe and a look at it.
SHORTEST_PIECE_SECONDS: Final = 0.1
#: Between two pieces a call can be cancelled.
LONGEST_PIECE_SECONDS: Final = 0.2
READ_BYTES: Final = 65_536
#: All of a WAV file that is not audio: a cover picture fits, an endless header does not.
MAX_EXTRA_BYTES: Final = 1024 * 1024
#: A `fmt ` chunk has 16, 18 or 40 bytes.
MAX_FORMAT_BYTES: Final = 1024
#: What a server says beyond this, of an error, is not read.
MAX_ERROR_BYTES: Final = 16 * 1024
MAX_VOICES_BYTES: Final = 1024 * 1024
#: A voice of the API has an id of at most 128 characters.
MAX_VOICE_CHARS: Final = 128
MAX_VOICES: Final = 1_000
#: How much of a server's own words an error quotes.
QUOTE_CHARS: Final = 200

#: What may be otherwise in a moment. A 500 is not among them: most often the model fails at this text, and
#: would again; the job's own attempts remain.
PASSING: Final = frozenset({408, 429, 502, 503, 504})
#: Nothing was answered. A timeout of reading is not among them: the server may still be at work on the call.
UNANSWERED: Final = (NewConnectionError, ConnectTimeoutError, ProtocolError)
BACKOFF_SECONDS: Final = 0.25
#: The longest `Retry-After` that is obeyed; beyond it the job's own attempts are better placed to wait.
MAX_WAIT_SECONDS: Final = 5.0


class OpenAiHttpOptions(BaseModel):
    """Settings of the openai-http engine."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str = Field(
        description="Base URL of the server, up to and with its version: `http://127.0.0.1:8000/v1`. "
        "http or https, without credentials."
    )
    api_key: SecretStr | None = Field(
        default=None, description="Sent as a bearer token; not sent when empty."
    )
    model: str = Field(
        default="tts-1",
        min_length=1,
        max_length=256,
        description="Name of the model, as the server knows it.",
    )
    voices: str = Field(
        default="",
        description="Ids of the server's voices, with commas between them. Empty: the server is asked "
        f"(`GET /audio/voices`), and has `{USUAL_VOICE}` alone where it cannot say.",
    )
    default_voice: str = Field(default="", description="Id of one of its voices. Empty: the first.")
    languages: str = Field(
        default=ANY_LANGUAGE,
        description="Languages that the model speaks, BCP 47, with commas between them; `*` for any.",
    )
    response_format: Literal["wav", "pcm"] = Field(
        default="wav",
        description="What the server is asked for. `pcm` is 16-bit little endian mono without a header, at "
        "`sample_rate`.",
    )
    sample_rate: int = Field(
        default=24_000, ge=RATES[0], le=RATES[1], description="Hz; of `pcm` alone, a WAV file says its own."
    )
    max_chars: int = Field(
        default=300,
        ge=1,
        le=4_096,
        description="Longest text of one call, in code points. OpenAI takes 4,096.",
    )
    connect_seconds: float = Field(default=5.0, gt=0, le=60, description="How long a connection may take.")
    read_seconds: float = Field(
        default=30.0,
        gt=0,
        le=600,
        description="How long the server may send nothing. One that does not stream sends nothing until it "
        "has spoken the whole text.",
    )
    retries: int = Field(
        default=2,
        ge=0,
        le=10,
        description="How often a call is tried again that the server has not begun to answer with audio.",
    )

    @field_validator("url")
    @classmethod
    def _base(cls, url: str) -> str:
        # Its errors quote nothing: a URL may hold a password.
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            known = False
        if not known or not re.fullmatch(r"[\x21-\x7e]+", url):
            raise ValueError("must be an http or https URL such as http://127.0.0.1:8000/v1")
        if "@" in parts.netloc:
            raise ValueError("must not hold credentials; api_key does")
        if "?" in url or "#" in url:
            raise ValueError("must end with its path")
        return url.rstrip("/")

    @field_validator("api_key")
    @classmethod
    def _token(cls, key: SecretStr | None) -> SecretStr | None:
        # http.client quotes a header that it refuses.
        if key is not None and not re.fullmatch(r"[\x21-\x7e]*", key.get_secret_value()):
            raise ValueError("must be printable ASCII without spaces")
        return key

    @field_validator("languages")
    @classmethod
    def _tags(cls, languages: str) -> str:
        tags = items(languages)
        if not tags or not all(re.fullmatch(r"\*|[A-Za-z]{1,8}(-[A-Za-z0-9]{1,8})*", tag) for tag in tags):
            raise ValueError("must be BCP 47 tags with commas between them, or *")
        return languages


ABOUT: Final = EngineInfo(
    name="openai-http",
    version="1",
    # Which model on which server: known once it is loaded.
    revision="remote",
    sample_rate=24_000,
    languages=(ANY_LANGUAGE,),
    voices=(Voice(id=USUAL_VOICE, name=USUAL_VOICE, language=ANY_LANGUAGE),),
    default_voice=USUAL_VOICE,
    max_chars=300,
    # Of this process; the server's device is its own affair.
    device="cpu",
    deterministic=False,
    licence="LicenseRef-remote",
    min_seconds_per_char=MIN_SECONDS_PER_CHAR,
    max_seconds_per_char=MAX_SECONDS_PER_CHAR,
    max_extra_seconds=MAX_EXTRA_SECONDS,
    features=Features(streaming=True, design=True, speed=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of `TRANSLATION`.

    Attributes:
        params: names of the member of the request that the server finds at fault.
        words: in its error code, or in its message where it names no member.
    """

    statuses: Collection[int]
    params: frozenset[str] = frozenset()
    words: re.Pattern[str] | None = None
    error: type[EngineError]


#: What an answer other than 200 means: the first row that fits, else `EngineFailed`. Servers say it so:
#: OpenAI and vLLM `{"error": {"message", "type", "param", "code"}}`, supertonic the same without `param`,
#: FastAPI `{"detail": [{"loc", "msg", "type"}]}`, Kokoro-FastAPI `{"detail": {"error", "message"}}`.
TRANSLATION: Final[tuple[Row, ...]] = (
    # A redirect is not followed: the key would go where nobody sent it.
    Row(statuses=range(300, 400), error=EngineUnavailable),
    Row(statuses=(401, 403), error=EngineUnavailable),
    Row(statuses=(413,), error=TextTooLong),
    Row(
        statuses=(400, 422),
        words=re.compile(r"string_above_max_length|string_too_long|too.long|maximum context length"),
        error=TextTooLong,
    ),
    Row(
        statuses=(400, 404, 422),
        params=frozenset({"voice", "speaker"}),
        words=re.compile(r"voice|speaker"),
        error=UnknownVoice,
    ),
    Row(statuses=(404,), error=EngineUnavailable),
    Row(
        statuses=(400, 422),
        params=frozenset({"language", "lang", "lang_code"}),
        words=re.compile(r"language|\blang\b|_lang\b"),
        error=UnsupportedLanguage,
    ),
    Row(
        statuses=(400, 422),
        params=frozenset({"speed", "instructions"}),
        words=re.compile(r"\bspeed\b|\binstructions?\b"),
        error=BadOption,
    ),
    Row(
        statuses=(400, 422),
        params=frozenset({"input", "text"}),
        words=re.compile(r"\btext\b|\bcharacters?\b|\binput'"),
        error=UnsupportedText,
    ),
    # supertonic 1.3.1 has no other status for it.
    Row(statuses=(500,), words=re.compile(r"unsupported character"), error=UnsupportedText),
    Row(
        statuses=range(500, 600),
        words=re.compile("|".join(re.escape(words) for words, meaning in WORDS if meaning.memory)),
        error=OutOfMemory,
    ),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What a server says of a request that it refuses; empty where it does not say."""

    param: str = ""
    code: str = ""
    message: str = ""


class OpenAiHttpEngine:
    """One model of one server."""

    def __init__(self, remote: Remote, options: OpenAiHttpOptions, info: EngineInfo) -> None:
        self._remote = remote
        self._options = options
        self.info = info

    def synthesize(self, request: SynthesisRequest) -> Iterator[Samples]:
        """Yield the audio of `request.text` as its bytes come, in pieces of at most 200 ms.

        Whoever closes the generator early closes the connection: the server can tell that nobody listens.

        Raises:
            EngineError: by `TRANSLATION`; `EngineFailed` for whatever is not whole; `BadOutput` for another
                rate than while loading, or audio without end.
        """
        if request.voice not in (voice.id for voice in self.info.voices):
            raise UnknownVoice(f"openai-http has no voice {request.voice!r}")
        if len(request.text) > self.info.max_chars:
            raise TextTooLong(f"{len(request.text)} characters; {self.info.max_chars} are taken in one call")
        if not SPEEDS[0] <= request.speed <= SPEEDS[1]:
            raise BadOption(f"a speed of {request.speed:g}; it may be {SPEEDS[0]:g} to {SPEEDS[1]:g}")
        body = asked(request, self._options)
        with closing(self._remote.speech(body)) as data:
            yield from pieces(
                data,
                reader(self._options, sample_rate=self.info.sample_rate),
                most_seconds=longest(request.text, speed=request.speed),
            )

    def close(self) -> None:
        """Close the connection."""
        self._remote.close()


class OpenAiHttpFactory:
    """Connects to a server; needs nothing that voxfleet does not need."""

    options = OpenAiHttpOptions
    about = ABOUT

    def missing(self) -> str | None:
        """Nothing is ever missing here; the server is asked by `load`."""
        return None

    def load(self, options: Mapping[str, str]) -> OpenAiHttpEngine:
        """Learn the server's voices, and let it speak a word: that gives the rate, and shows that it works.

        Raises:
            EngineUnavailable: an option is wrong, or the server cannot be reached, refuses, or gives no
                audio.
        """
        read = read_options(OpenAiHttpOptions, options, engine="openai-http")
        remote = Remote(read)
        try:
            info = _learn(remote, read)
        except EngineError as error:
            remote.close()
            raise EngineUnavailable(str(error)) from error
        return OpenAiHttpEngine(remote, read, info)


def _learn(remote: Remote, options: OpenAiHttpOptions) -> EngineInfo:
    voices = tuple(
        Voice(id=voice, name=voice, language=ANY_LANGUAGE) for voice in items(options.voices)
    ) or tuple(remote.voices())
    default = options.default_voice.strip() or voices[0].id
    if default not in (voice.id for voice in voices):
        raise EngineUnavailable(f"default_voice: {remote.place} has no voice {default!r}")
    probe = SynthesisRequest(text=PROBE, voice=default, language="en", seed=0)
    source = reader(options, sample_rate=None)
    try:
        with closing(remote.speech(asked(probe, options))) as data:
            heard = list(pieces(data, source, most_seconds=longest(PROBE, speed=1.0)))
    except UnknownVoice as error:
        raise EngineUnavailable(f"{error}; set voices, or default_voice") from error
    address = f"{remote.place}\0{options.model}\0{options.response_format}"
    info = replace(
        ABOUT,
        revision=hashlib.sha256(address.encode()).hexdigest()[:12],
        sample_rate=source.sample_rate or 0,
        languages=items(options.languages),
        voices=voices,
        default_voice=default,
        max_chars=options.max_chars,
        weights=f"{options.model} at {remote.place}",
    )
    try:
        check_clip(np.concatenate([np.zeros(0, np.float32), *heard]), PROBE, info)
    except BadOutput as error:
        raise EngineUnavailable(f"{remote.place} answers {PROBE!r} with no speech: {error}") from error
    return info


def items(text: str) -> tuple[str, ...]:
    """Return what stands between the commas of a setting, each once."""
    return tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))


def asked(request: SynthesisRequest, options: OpenAiHttpOptions) -> Mapping[str, Any]:
    """Return the body that asks a server for `request`; what is as usual is left out."""
    body: dict[str, Any] = {
        "model": options.model,
        "input": request.text,
        "voice": request.voice,
        "response_format": options.response_format,
    }
    if request.speed != 1:
        body["speed"] = request.speed
    if request.style:
        body["instructions"] = request.style
    return body


def longest(text: str, *, speed: float) -> float:
    """Return how many seconds of audio are believable for a text."""
    return (MAX_SECONDS_PER_CHAR * len(text) + MAX_EXTRA_SECONDS) / min(speed, 1.0)


class Remote:
    """The server: asks it, asks again where that may help, and tells what is wrong in the port's errors."""

    def __init__(self, options: OpenAiHttpOptions) -> None:
        self._options = options
        self._key = "" if options.api_key is None else options.api_key.get_secret_value()
        url = urlsplit(options.url)
        #: Host, port and path; what errors call the server.
        self.place = _place(url)
        headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._path = url.path
        # It reads no proxy from the environment, and keeps one connection between calls. A `PoolManager`
        # would close it only when nothing refers to it any more, such as the traceback of an error.
        self._pool = urllib3.connection_from_url(
            options.url,
            maxsize=1,
            headers=headers,
            timeout=urllib3.Timeout(connect=options.connect_seconds, read=options.read_seconds),
        )

    def close(self) -> None:
        """Close the connection that is kept."""
        self._pool.close()

    def voices(self) -> list[Voice]:
        """Return the voices that the server lists; `USUAL_VOICE` alone where it lists none.

        Raises:
            EngineError: it cannot be asked, or its list cannot be read.
        """
        usual = [Voice(id=USUAL_VOICE, name=USUAL_VOICE, language=ANY_LANGUAGE)]
        response = self._ask("GET", "/audio/voices", expected=(200, 404, 405, 501))
        try:
            if response.status != 200:
                return usual
            body = self._all(response, MAX_VOICES_BYTES)
        finally:
            response.close()
        try:
            return listed(body) or usual
        except ValueError as error:
            raise EngineUnavailable(f"{self.place}/audio/voices is no list of voices; set voices") from error

    def speech(self, body: Mapping[str, Any]) -> Generator[bytes, None, None]:
        """Yield the bytes of a spoken text as they come, to their end.

        The connection of a generator that is closed before its end is closed, and not used again.

        Raises:
            EngineError: by `TRANSLATION`; `EngineFailed` where the body is no audio or is not whole.
        """
        text = str(body["input"])
        response = self._ask("POST", "/audio/speech", body=body, text=text)
        whole = False
        try:
            self._refuse_other(response)
            while data := self._read(response):
                yield data
            whole = True
        finally:
            if not whole:
                response.close()

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        text: str = "",
        expected: Collection[int] = (200,),
    ) -> urllib3.BaseHTTPResponse:
        """Return an answer with one of the expected statuses, its body not read."""
        tried = 0
        while True:
            last = tried == self._options.retries
            try:
                response = self._send(method, path, body)
            except UNANSWERED as error:
                if last:
                    raise EngineFailed(self._told(error)) from error
                wait = 0.0
            except HTTPError as error:
                raise EngineFailed(self._told(error)) from error
            else:
                if response.status in expected:
                    return response
                problem = self._refusal(response, path, text=text)
                if last or response.status not in PASSING or isinstance(problem, OutOfMemory):
                    raise problem
                wait = _retry_after(response)
            time.sleep(max(wait, BACKOFF_SECONDS * 2**tried))
            tried += 1

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> urllib3.BaseHTTPResponse:
        return self._pool.request(
            method,
            self._path + path,
            # In ASCII: even a lone surrogate passes.
            body=None if body is None else json.dumps(body).encode(),
            headers=self._pool.headers if body is None else {**self._pool.headers, **JSON_BODY},
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )

    def _refusal(self, response: urllib3.BaseHTTPResponse, path: str, *, text: str) -> EngineError:
        """Return what an answer other than the expected means. Closes it."""
        try:
            body = self._all(response, MAX_ERROR_BYTES)
        except EngineFailed:
            # The status says enough.
            body = b""
        finally:
            response.close()
        fault = read_fault(body)
        error = translate(response.status, fault, text=text)
        said = f"{self.place}{path} answers with status {response.status}"
        # OpenAI quotes half of a wrong key.
        told = f"{fault.param}: {fault.message}" if fault.param else fault.message
        if response.status not in (401, 403) and (quoted := self._quote(told)):
            said = f"{said}: {quoted}"
        return error(said)

    def _refuse_other(self, response: urllib3.BaseHTTPResponse) -> None:
        """Refuse a body that is no audio by its headers, and one whose end nothing marks."""
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind.startswith("text/") or kind.endswith(("json", "xml", "html")):
            said = self._quote(read_fault(self._all(response, MAX_ERROR_BYTES)).message)
            raise EngineFailed(f"{self.place} answers with text in the place of audio: {said}")
        if self._options.response_format == "pcm" and kind in COMPRESSED:
            raise EngineFailed(f"{self.place} answers with {kind} in the place of pcm")
        if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise EngineFailed(f"{self.place} answers with a Content-Encoding that nobody asked for")
        if response.length_remaining is None and not _is_chunked(response):
            # Where the connection's end is the body's, a server that dies looks like one that is done.
            raise EngineFailed(f"{self.place} marks no end of its audio: neither Content-Length nor chunks")

    def _all(self, response: urllib3.BaseHTTPResponse, most: int) -> bytes:
        body = b""
        while len(body) < most and (data := self._read(response)):
            body += data
        return body[:most]

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        try:
            return response.read1(READ_BYTES) or b""
        except HTTPError as error:
            raise EngineFailed(self._told(error)) from error

    def _told(self, error: HTTPError) -> str:
        if isinstance(error, ReadTimeoutError):
            return f"{self.place} sent nothing for {self._options.read_seconds:g} s"
        if isinstance(error, ConnectTimeoutError) and not isinstance(error, NewConnectionError):
            return f"{self.place} cannot be reached within {self._options.connect_seconds:g} s"
        if isinstance(error, ProtocolError):
            # Its words quote what came in the place of HTTP.
            cause = error.args[-1] if error.args else error
            return f"{self.place}: the connection broke: {type(cause).__name__}"
        return f"{self.place}: {type(error).__name__}: {self._quote(str(error))}"

    def _quote(self, text: str) -> str:
        if self._key:
            text = text.replace(self._key, "***")
        printable = "".join(character if character.isprintable() else " " for character in text)
        return " ".join(printable.split())[:QUOTE_CHARS]


def translate(status: int, fault: Fault, *, text: str) -> type[EngineError]:
    """Return what an answer means, by `TRANSLATION`.

    Args:
        text: what was to be spoken; its words in the server's message count for nothing.
    """
    said = fault.code if fault.param else f"{fault.code} {_without(fault.message, text)}"
    for row in TRANSLATION:
        if status not in row.statuses:
            continue
        if (row.words is None and not row.params) or fault.param in row.params:
            return row.error
        if row.words is not None and row.words.search(said.lower()):
            return row.error
    return EngineFailed


def read_fault(body: bytes) -> Fault:
    """Read what a server says of an error, in any of the forms that `TRANSLATION` names, or as plain text."""
    plain = body.decode("utf-8", "replace")
    try:
        said = json.loads(plain)
    except (ValueError, RecursionError):
        return Fault(message=plain)
    if isinstance(said, dict):
        said = next((said[name] for name in ("error", "detail") if said.get(name)), said)
    if isinstance(said, list) and said:
        said = said[0]
    if not isinstance(said, dict):
        return Fault(message=said if isinstance(said, str) else plain)
    location = said.get("loc")
    # ["body", "voice"], of a union ["body", "voice", "str"].
    where = location[min(1, len(location) - 1)] if isinstance(location, list) and location else ""
    return Fault(
        param=_first(said, "param") or str(where).lower(),
        code=_first(said, "code", "type", "error"),
        message=_first(said, "message", "msg", "detail", "error") or plain,
    )


def _first(members: Mapping[str, Any], *names: str) -> str:
    """Return the first of these members that says anything; vLLM's codes are numbers."""
    found = (members.get(name) for name in names)
    return next((str(value) for value in found if isinstance(value, str | int) and value), "")


def _without(message: str, text: str) -> str:
    return message.replace(text, " ") if text.strip() else message


def listed(body: bytes) -> list[Voice]:
    """Read a list of voices: `{"voices": [...]}`, `{"data": [...]}` or the list alone, of ids or of objects.

    Raises:
        ValueError: the body is something else.
    """
    try:
        said = json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if isinstance(said, dict):
        said = said.get("voices", said.get("data"))
    if not isinstance(said, list) or len(said) > MAX_VOICES:
        raise ValueError("no list of voices")
    voices: dict[str, Voice] = {}
    for entry in said:
        voice = {"id": entry} if isinstance(entry, str) else entry
        if not isinstance(voice, dict):
            raise ValueError("a voice that is neither a word nor an object")  # noqa: TRY004
        known = voice.get("id") or voice.get("name")
        if not isinstance(known, str) or not known.isprintable() or len(known) > MAX_VOICE_CHARS:
            raise ValueError("a voice without an id")
        name = voice.get("name") or known
        shown = name if isinstance(name, str) and name.isprintable() else known
        voices.setdefault(known, Voice(id=known, name=shown[:MAX_VOICE_CHARS], language=ANY_LANGUAGE))
    return list(voices.values())


def _place(url: SplitResult) -> str:
    return url.netloc.lower() + url.path


def _is_chunked(response: urllib3.BaseHTTPResponse) -> bool:
    return isinstance(response, urllib3.HTTPResponse) and response.chunked


def _retry_after(response: urllib3.BaseHTTPResponse) -> float:
    """Return how long the server asks to wait, in seconds, `MAX_WAIT_SECONDS` at most (RFC 9110 §10.2.3)."""
    try:
        asked_for = urllib3.Retry().parse_retry_after(response.headers.get("Retry-After", "0"))
    except (InvalidHeader, ValueError, OverflowError):
        return 0.0
    return min(asked_for, MAX_WAIT_SECONDS)


# Audio from bytes: nothing below knows HTTP.

#: Media types that are not `pcm`, whatever was asked for. WAV shows by its first bytes.
COMPRESSED: Final = frozenset(
    f"audio/{kind}" for kind in ("aac", "flac", "mp3", "mp4", "mpeg", "ogg", "opus", "webm")
)
#: First bytes of files that are not raw samples.
MAGIC: Final = (b"RIFF", b"RIFX", b"RF64", b"OggS", b"fLaC", b"ID3")
#: So many bytes of text in a row are no audio: half of a quiet sample is 0 or 255.
TEXT_BYTES: Final = 64
TEXT: Final = re.compile(rb"[\t\n\r\x20-\x7e]+")

CHUNK: Final = struct.Struct("<4sI")
#: Tag, channels, rate, bytes per second, bytes per frame, bits per sample.
FORMAT: Final = struct.Struct("<HHIIHH")
PCM: Final = 1
IEEE_FLOAT: Final = 3
EXTENSIBLE: Final = 0xFFFE
#: Where `EXTENSIBLE` keeps the tag, and what follows that there: KSDATAFORMAT_SUBTYPE_*.
SUBTYPE: Final = slice(24, 26)
SUBTYPE_TAIL: Final = bytes.fromhex("000000001000800000aa00389b71")
#: Tag and bits per sample: how to read them. 24 bits are read as the upper ones of 32.
CODINGS: Final[dict[tuple[int, int], str]] = {
    (PCM, 16): "<i2",
    (PCM, 24): "<i4",
    (PCM, 32): "<i4",
    (IEEE_FLOAT, 32): "<f4",
}
#: From here on the length of a `data` chunk is no length: who streams does not know it, and writes all ones,
#: or the largest signed number or a little below it (sox 0x7FFFF000); some write 0.
NO_LENGTH: Final = 0x7FFF_F000

NOTHING: Final = np.zeros(0, np.float32)


class Reader(Protocol):
    """Makes samples of bytes as they come."""

    @property
    def sample_rate(self) -> int | None:
        """Hz; None until it is known, before the first sample."""
        ...

    def feed(self, data: bytes) -> Samples:
        """Return the samples that are complete now.

        Raises:
            EngineFailed: these bytes are not what they should be.
            BadOutput: another rate than the expected.
        """
        ...

    def finish(self) -> None:
        """Note the end of the bytes.

        Raises:
            EngineFailed: there should be more.
        """
        ...


def reader(options: OpenAiHttpOptions, *, sample_rate: int | None) -> Reader:
    """Return the reader of what the server is asked for.

    Args:
        sample_rate: of the engine; None while it is being learnt.
    """
    if options.response_format == "pcm":
        return PcmReader(options.sample_rate)
    return WavReader(expected=sample_rate)


def pieces(data: Iterable[bytes], source: Reader, *, most_seconds: float) -> Iterator[Samples]:
    """Yield the samples of `data` in pieces of 100 to 200 ms, the last one shorter.

    Raises:
        EngineFailed: the bytes are no audio, or not whole.
        BadOutput: more than `most_seconds`.
    """
    held, heard = NOTHING, 0
    for part in data:
        samples = source.feed(part)
        if not samples.size:
            continue
        rate = source.sample_rate or 0
        heard += samples.size
        if heard > most_seconds * rate:
            raise BadOutput(f"more than the {most_seconds:.1f} s that are believable for this text")
        held = np.concatenate([held, samples])
        while held.size >= SHORTEST_PIECE_SECONDS * rate:
            size = min(held.size, int(LONGEST_PIECE_SECONDS * rate))
            yield held[:size]
            held = held[size:]
    source.finish()
    if held.size:
        yield held


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """How samples are written."""

    kind: str
    sample_bytes: int
    channels: int
    sample_rate: int

    @property
    def frame_bytes(self) -> int:
        """Of one sample of every channel."""
        return self.sample_bytes * self.channels

    def decode(self, data: bytes) -> Samples:
        """Return whole frames as samples, channels mixed."""
        if self.sample_bytes == 3:
            wide = np.zeros((len(data) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
            data = wide.tobytes()
        values = np.frombuffer(data, self.kind)
        scale = 1.0 if values.dtype.kind == "f" else 2.0 ** (8 * values.dtype.itemsize - 1)
        mono = values.reshape(-1, self.channels).mean(axis=1, dtype=np.float64) / scale
        return np.asarray(mono, dtype=np.float32)


@dataclass(slots=True)
class PcmReader:
    """Reads 16-bit little endian mono."""

    sample_rate: int
    _held: bytearray = field(default_factory=bytearray)
    _is_known: bool = False

    def feed(self, data: bytes) -> Samples:
        self._held += data
        if not self._is_known:
            if len(self._held) < TEXT_BYTES:
                return NOTHING
            self._look()
        return self._take()

    def finish(self) -> None:
        # A shorter body than `_look` wants is two milliseconds: no clip, and found to be none elsewhere.
        if not self._is_known or self._held:
            raise EngineFailed("the audio ends in the middle of a sample, or before it begins")

    def _look(self) -> None:
        start = bytes(self._held[:TEXT_BYTES])
        if start.startswith(MAGIC) or TEXT.fullmatch(start):
            raise EngineFailed("the audio is no raw pcm: it begins as another kind of file")
        self._is_known = True

    def _take(self) -> Samples:
        size = len(self._held) - len(self._held) % 2
        data = bytes(self._held[:size])
        del self._held[:size]
        return Coding(kind="<i2", sample_bytes=2, channels=1, sample_rate=self.sample_rate).decode(data)


class WavReader:
    """Reads a WAV file: PCM of 16, 24 or 32 bits or 32-bit floats, one channel or two.

    Args:
        expected: Hz; another rate is `BadOutput`.
    """

    def __init__(self, *, expected: int | None = None) -> None:
        self._expected = expected
        self._held = bytearray()
        self._coding: Coding | None = None
        self._is_riff = False
        self._is_audio = False
        #: Of a chunk that means nothing here, how many bytes are to come.
        self._skip = 0
        #: Of the `data` chunk, how many bytes are to come; None where the end of the body is its end.
        self._left: int | None = None
        #: Bytes that are no audio.
        self._extra = 0

    @property
    def sample_rate(self) -> int | None:
        return None if self._coding is None else self._coding.sample_rate

    def feed(self, data: bytes) -> Samples:
        self._held += data
        while not self._is_audio:
            if not self._advance():
                return NOTHING
        return self._take()

    def finish(self) -> None:
        if not self._is_audio:
            raise EngineFailed("the WAV file ends before its audio begins")
        if self._left:
            raise EngineFailed(f"the WAV file is cut short: {self._left - len(self._held)} bytes are missing")
        if self._held:
            raise EngineFailed("the WAV file ends in the middle of a sample")

    def _advance(self) -> bool:
        """Read one more part of what stands before the audio; False when it is not here yet."""
        if self._skip:
            cut = min(self._skip, len(self._held))
            del self._held[:cut]
            self._skip -= cut
            return not self._skip
        return self._chunk() if self._is_riff else self._riff()

    def _riff(self) -> bool:
        if len(self._held) < 12:
            return False
        if self._held[:4] != b"RIFF" or self._held[8:12] != b"WAVE":
            raise EngineFailed("the audio is no WAV file")
        del self._held[:12]
        self._is_riff = True
        return True

    def _chunk(self) -> bool:
        if len(self._held) < CHUNK.size:
            return False
        mark, size = CHUNK.unpack_from(self._held)
        if mark == b"data":
            self._begin(size)
            return True
        end = CHUNK.size
        if mark == b"fmt ":
            if size > MAX_FORMAT_BYTES:
                raise EngineFailed("the WAV file does not say its format")
            end += size
            if len(self._held) < end:
                return False
            self._coding = self._read_format(bytes(self._held[CHUNK.size : end]))
        # A chunk of odd length is followed by one byte more.
        whole = CHUNK.size + size + size % 2
        self._count_extra(whole)
        self._skip = whole - end
        del self._held[:end]
        return True

    def _begin(self, size: int) -> None:
        if self._coding is None:
            raise EngineFailed("the WAV file does not say its format")
        if 0 < size < NO_LENGTH:
            if size % self._coding.frame_bytes:
                raise EngineFailed("the WAV file does not hold whole samples")
            self._left = size
        del self._held[: CHUNK.size]
        self._is_audio = True

    def _read_format(self, chunk: bytes) -> Coding:
        if len(chunk) < FORMAT.size:
            raise EngineFailed("the WAV file does not say its format")
        tag, channels, rate, _, frame_bytes, bits = FORMAT.unpack_from(chunk)
        if tag == EXTENSIBLE and chunk[SUBTYPE.stop : SUBTYPE.stop + len(SUBTYPE_TAIL)] == SUBTYPE_TAIL:
            tag = int.from_bytes(chunk[SUBTYPE], "little")
        kind = CODINGS.get((tag, bits))
        if kind is None or channels not in (1, 2) or frame_bytes != channels * bits // 8:
            raise EngineFailed(
                f"a WAV file of format {tag}, {bits} bits, {channels} channels is not read here"
            )
        if not RATES[0] <= rate <= RATES[1]:
            raise BadOutput(f"a sample rate of {rate} Hz")
        if self._expected not in (None, rate):
            raise BadOutput(f"{rate} Hz, where it was {self._expected} Hz while loading")
        return Coding(kind=kind, sample_bytes=bits // 8, channels=channels, sample_rate=rate)

    def _take(self) -> Samples:
        coding = self._coding
        if coding is None:
            return NOTHING
        size = len(self._held) if self._left is None else min(len(self._held), self._left)
        size -= size % coding.frame_bytes
        data = bytes(self._held[:size])
        del self._held[:size]
        if self._left is not None:
            self._left -= size
            if not self._left:
                # Chunks after the audio.
                self._count_extra(len(self._held))
                self._held.clear()
        return coding.decode(data)

    def _count_extra(self, size: int) -> None:
        self._extra += size
        if self._extra > MAX_EXTRA_BYTES:
            raise EngineFailed(f"over {MAX_EXTRA_BYTES} bytes of the WAV file are no audio")


ENGINE: Final = OpenAiHttpFactory()
