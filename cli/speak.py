"""`voxfleet speak`: a client of the API that fits in a pipe."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn
from urllib.parse import urljoin

import click

from cli.environment import BadInput, Failed, settings

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

FIRST_POLL: Final = 0.2
LONGEST_POLL: Final = 1.0
#: How long a server that does not answer is asked again, once it has taken the job.
PATIENCE_SECONDS: Final = 30.0
TERMINAL: Final = frozenset({"completed", "failed", "cancelled", "expired"})
BAR: Final = 30


@click.command()
@click.argument("text", required=False)
@click.option(
    "-f", "--file", "source", metavar="FILE", help="Read the text from FILE (UTF-8); - is standard input."
)
@click.option("-o", "--output", metavar="FILE", help="Write the audio to FILE; - is standard output.")
@click.option("--voice", help="Voice to speak with.")
@click.option("--model", help="Model to speak with.")
@click.option("--language", help="Language of the text, e.g. en-US.")
@click.option("--url", envvar="VOXFLEET_URL", help="Where the API is. [VOXFLEET_URL, else this fleet]")
@click.option("--key", envvar="VOXFLEET_API_KEY", help="API key. [VOXFLEET_API_KEY, else the fleet's first]")
def speak(  # noqa: PLR0917 - click passes all by keyword
    text: str | None,
    source: str | None,
    output: str | None,
    voice: str | None,
    model: str | None,
    language: str | None,
    url: str | None,
    key: str | None,
) -> None:
    """Speak TEXT, a file, or standard input, and save the audio.

    Without -o the audio goes to standard output, or on a terminal to speech-JOB.mp3.
    """
    try:
        words = _text(text, source)
        api = Api.connect(url, key)
        wishes = {"voice": voice, "model": model, "language": language}
        job = api.post(
            "/v1/speech/jobs", {"input": words} | {k: v for k, v in wishes.items() if v is not None}
        )
        try:
            job = _wait(api, job)
            with api.audio(f"/v1/speech/jobs/{job['id']}/audio") as pieces:
                _save(pieces, output, name=f"speech-{job['id']}.mp3")
        except KeyboardInterrupt:
            click.echo(f"\nvoxfleet: left; the fleet goes on with {job['id']}", err=True)
            sys.exit(130)
    except BrokenPipeError:
        # Nobody reads on: end as `cat` would, and do not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt:
        sys.exit(130)


def _text(text: str | None, source: str | None) -> str:
    if text is not None and source is not None:
        raise BadInput("give the text or --file, not both")
    if text is None:
        if source is None and sys.stdin.isatty():
            raise BadInput(
                'nothing to speak: voxfleet speak "Hello", or --file FILE, or text on standard input'
            )
        try:
            raw = sys.stdin.buffer.read() if source in (None, "-") else Path(str(source)).read_bytes()
            text = raw.decode("utf-8-sig")
        except OSError as error:
            raise BadInput(f"{source}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"{source or 'standard input'} is not UTF-8 (byte {error.start})") from error
    if not text.strip():
        raise BadInput("input: there is no text")
    return text.removesuffix("\n")


@dataclass(frozen=True, slots=True)
class Api:
    """The API, as one key sees it."""

    url: str
    key: str
    pool: PoolManager

    @classmethod
    def connect(cls, url: str | None, key: str | None) -> Api:
        """Find the API: what was given, else the fleet of this data folder."""
        import urllib3

        if url is None or key is None:
            from cli.prepare import FIRST_KEY

            values = settings()
            url = url or values.external_url
            if key is None:
                try:
                    key = (values.data_dir / FIRST_KEY).read_text(encoding="ascii").strip()
                except (OSError, UnicodeDecodeError) as error:
                    raise BadInput(
                        f"give --key or VOXFLEET_API_KEY: no API key in {values.data_dir / FIRST_KEY}"
                    ) from error
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"--url must start with http:// or https://; it is {url!r}")
        # A job must not be posted twice, so nothing is tried again down here.
        pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=5, read=30))
        return cls(url.rstrip("/"), key, pool)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post JSON; return the JSON of the answer."""
        from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError

        try:
            response = self.pool.request(
                "POST",
                self.url + path,
                body=json.dumps(body).encode(),
                headers=self._headers() | {"Content-Type": "application/json"},
            )
        except (ProtocolError, ReadTimeoutError) as error:
            raise Failed(
                f"the answer of {self.url} was lost ({_reason(error)}): the job may have been accepted, "
                "and then it will be spoken; to post it again may speak it twice"
            ) from error
        except HTTPError as error:
            raise Failed(f"{self.url} does not answer ({_reason(error)}); is the fleet up?") from error
        return _job(response)

    def get(self, path: str) -> tuple[dict[str, Any], float | None]:
        """Return a resource, and how long the server says to wait before asking again.

        A server that is restarting is asked again for a while.
        """
        from urllib3.exceptions import HTTPError

        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                response = self.pool.request("GET", self.url + path, headers=self._headers())
            except HTTPError as error:
                if time.monotonic() >= end:
                    raise Failed(f"{self.url} stopped answering ({_reason(error)})") from error
            else:
                if response.status < 500 or time.monotonic() >= end:
                    return _job(response), _retry_after(response)
            time.sleep(LONGEST_POLL)

    @contextlib.contextmanager
    def audio(self, path: str) -> Iterator[Iterator[bytes]]:
        """Give the bytes of a finished job; the link it redirects to never sees the key."""
        from urllib3.exceptions import HTTPError

        try:
            response = self.pool.request(
                "GET", self.url + path, headers=self._headers(), redirect=False, preload_content=False
            )
            if response.status in (301, 302, 303, 307, 308):
                link = urljoin(self.url + path, response.headers["Location"])
                response.drain_conn()
                response = self.pool.request("GET", link, redirect=False, preload_content=False)
                if response.status != 200:
                    raise Failed(f"the object store answers {response.status} for the audio")
            elif response.status != 200:
                _refuse(response)
            try:
                yield response.stream(1 << 16)
            finally:
                response.close()
        except HTTPError as error:
            raise Failed(f"the audio broke off ({_reason(error)})") from error

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", "Accept": "application/json"}


def _wait(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    poll = FIRST_POLL
    with _bar() as show:
        while job["status"] not in TERMINAL:
            show(job)
            time.sleep(poll)
            job, asked = api.get(f"/v1/speech/jobs/{job['id']}")
            # A hint, not an order: one's own job may be looked at every second.
            poll = min(max(poll * 1.3, asked or 0.0), LONGEST_POLL)
        show(job)
    for warning in job.get("warnings") or ():
        click.echo(f"voxfleet: note: {warning['message']}", err=True)
    if job["status"] != "completed":
        error = job.get("error") or {}
        why = f": {error['message']} ({error.get('code')})" if error.get("message") else ""
        raise Failed(f"{job['id']} {job['status']}{why}")
    return job


@contextlib.contextmanager
def _bar() -> Iterator[Any]:
    """Give a function that draws a job's progress on a terminal's standard error, and on nothing else."""
    if not sys.stderr.isatty():
        yield lambda _job: None
        return

    def show(job: Mapping[str, Any]) -> None:
        done = int(job.get("progress") or 0)
        chunks = job.get("chunks") or {}
        made = f"  {chunks['done']}/{chunks['total']}" if chunks.get("total") else ""
        filled = "#" * (BAR * done // 100)
        click.echo(
            f"\r\x1b[K[{filled:<{BAR}}] {done:3}%  {job.get('stage') or job['status']}{made}",
            err=True,
            nl=False,
        )

    try:
        yield show
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)


def _save(pieces: Iterator[bytes], output: str | None, *, name: str) -> None:
    if output == "-" or (output is None and not sys.stdout.isatty()):
        _copy(pieces, sys.stdout.buffer)
        return
    target = Path(output or name)
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            with target.open("wb") as device:
                _copy(pieces, device)
            return
        draft = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with draft.open("wb") as file:
                _copy(pieces, file)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failed(f"{target}: {error.strerror or error}") from error
    click.echo(f"{target} ({target.stat().st_size:,} bytes)", err=True)


def _copy(pieces: Iterator[bytes], file: BinaryIO) -> None:
    for piece in pieces:
        file.write(piece)
    file.flush()


def _job(response: BaseHTTPResponse) -> dict[str, Any]:
    if not 200 <= response.status < 300:
        _refuse(response)
    try:
        found = response.json()
    except ValueError as error:
        raise Failed(
            f"the answer is not JSON (status {response.status}); is --url a voxfleet API?"
        ) from error
    if not isinstance(found, dict) or not {"id", "status"} <= found.keys():
        raise Failed("the answer is no job; is --url a voxfleet API?")
    return found


def _refuse(response: BaseHTTPResponse) -> NoReturn:
    """Say what the server said, each of its complaints as `field: detail`."""
    kind = (
        BadInput if 400 <= response.status < 500 and response.status not in (408, 409, 410, 429) else Failed
    )
    try:
        problem = json.loads(response.data)
        errors = problem.get("errors") or []
        lines = [f"{_field(str(found.get('pointer', '')))}: {found.get('detail', '')}" for found in errors]
        if not lines:
            lines = [str(problem.get("detail") or problem["title"])]
    except (ValueError, AttributeError, KeyError):
        lines = [f"the server answers {response.status} {response.reason or ''}".rstrip()]
    if (seconds := _retry_after(response)) is not None:
        lines.append(f"try again in {seconds:g} s")
    raise kind("\n".join(lines))


def _field(pointer: str) -> str:
    """Return a JSON pointer as people write fields: `#/metadata/a` is `metadata.a`."""
    return pointer.lstrip("#/").replace("/", ".") or "request"


def _retry_after(response: BaseHTTPResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None


def _reason(error: Exception) -> str:
    text = str(error.args[0] if error.args else "")
    return text.rpartition(": ")[2].rstrip(".") or type(error).__name__
