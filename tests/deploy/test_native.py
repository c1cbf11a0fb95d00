"""The compose file's services, run as it says, without containers.

Each service's own command, image environment and settings, with the servers of the tests behind the host
names: what cannot be seen here is the container around it.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import urllib3

from tests import servers

from . import files

pytestmark = pytest.mark.slow

ONE_SHOT_SECONDS: Final = 60
READY_SECONDS: Final = 60.0
JOB_SECONDS: Final = 60.0
TEXT: Final = "The harbour was quiet before dawn. A small lamp swung from the mast of the nearest boat."


@dataclass
class Deployment:
    """The fleet of the compose file, on this machine.

    Attributes:
        folder: holds a folder for each volume, the home, the work folder, and the logs.
        places: what the compose file calls a server, and where it is here.
    """

    folder: Path
    services: Mapping[str, Any]
    places: Mapping[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def here(self, text: str) -> str:
        """Return a value of the compose file with the places of this machine."""
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a service: the machine's, the image's, the service's own."""
        service = self.services[name]
        image = files.dockerfile_of(service).environment()
        image.pop("PATH")
        given = image | service["environment"] | {"HOME": self.path("home"), "TMPDIR": self.path("home")}
        mounts = {inner: outer for outer, _, inner in (v.partition(":") for v in service.get("volumes", []))}
        # Without a volume `/data` is a folder of the read-only image.
        given["VOXFLEET_DATA_DIR"] = self.path(f"volume-{mounts.get('/data', 'none')}")
        binaries = Path(sys.executable).parent
        return {
            **os.environ,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            **{variable: self.here(value) for variable, value in given.items()},
        }

    def path(self, name: str) -> str:
        """Return a folder of the deployment."""
        (self.folder / name).mkdir(exist_ok=True)
        return str(self.folder / name)

    def start(self, name: str) -> None:
        """Start a service, as its container does."""
        service = self.services[name]
        entrypoint = files.dockerfile_of(service).last("ENTRYPOINT").words()
        program = str(Path(sys.executable).with_name(entrypoint[0]))
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [program, *entrypoint[1:], *service["command"]],
                env=self.environment(name),
                cwd=self.path("app"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def finish(self, name: str) -> None:
        """Run a one-shot service to its end."""
        self.start(name)
        code = self.running.pop(name).wait(ONE_SHOT_SECONDS)
        assert code == 0, self.log(name)

    def stop(self, name: str) -> int:
        """End a service as `docker compose stop` does; return its exit code, or that of the kill."""
        process = self.running[name]
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(int(self.services[name]["stop_grace_period"].removesuffix("s")))
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self.running.pop(name)
        return code

    def check(self, name: str) -> subprocess.CompletedProcess[str]:
        """Ask a service how it is, as Docker does; return code 0 is well."""
        command = files.dockerfile_of(self.services[name]).healthcheck()
        return subprocess.run(
            [sys.executable, *(self.here(word) for word in command[1:])],
            env=self.environment(name),
            cwd=self.path("app"),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def wait_healthy(self, name: str) -> None:
        """Wait until a service says that it is well."""
        end = time.monotonic() + READY_SECONDS
        while (said := self.check(name)).returncode != 0:
            assert self.running[name].poll() is None, f"{name} has ended\n{self.log(name)}"
            assert time.monotonic() < end, f"{name} is not healthy: {said.stderr}\n{self.log(name)}"
            time.sleep(0.2)

    def log(self, name: str) -> str:
        """Return what a service has written."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-4000:]

    def kill(self) -> None:
        """Leave nothing behind."""
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def deployment(
    tmp_path: Path, postgres: servers.Postgres, valkey: servers.Valkey, seaweed: servers.SeaweedFS
) -> Iterator[Deployment]:
    """Give the deployment, with nothing of it running."""
    (port,) = servers.free_ports(1)
    dotenv = {
        **files.DOTENV,
        "VOXFLEET_S3_ACCESS_KEY_ID": seaweed.access_key_id,
        "VOXFLEET_S3_SECRET_ACCESS_KEY": seaweed.secret_access_key,
        "VOXFLEET_S3_BUCKET": f"t-{secrets.token_hex(8)}",
        "PUBLISH_S3_PORT": str(seaweed.port),
        "PUBLISH_API_PORT": str(port),
    }
    with postgres.database() as url:
        made = Deployment(
            folder=tmp_path,
            services=files.compose(dotenv)["services"],
            places={
                "postgres:5432/voxfleet": url.partition("@")[2],
                "redis://valkey:6379/0": valkey.url,
                "http://seaweedfs:8333": seaweed.endpoint,
                # Open to the container's network there; here to nobody else.
                "0.0.0.0:8000": f"127.0.0.1:{port}",
                "127.0.0.1:8000": f"127.0.0.1:{port}",
            },
        )
        try:
            yield made
        finally:
            made.kill()


def test_a_job_is_spoken_by_the_services_as_they_are_written(deployment: Deployment) -> None:
    http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(10))
    api = deployment.services["api"]["environment"]["VOXFLEET_PUBLIC_URL"]

    # First what the others wait for, twice: it runs at every `docker compose up`.
    for name in ("migrate", "storage-init") * 2:
        deployment.finish(name)
    key_file = deployment.folder / "volume-first-key" / "first-key"
    key = key_file.read_text(encoding="utf-8").strip()
    assert key_file.stat().st_mode & 0o077 == 0
    assert key not in deployment.log("migrate")

    # Then all the rest at once.
    serving = [
        name
        for name, service in deployment.services.items()
        if files.is_ours(service) and not files.is_one_shot(service)
    ]
    for name in serving:
        deployment.start(name)
    for name in serving:
        deployment.wait_healthy(name)
    wait_ready(http, api, deployment)

    # A job, by the key, to the audio behind the link.
    headers = {"Authorization": f"Bearer {key}"}
    response = http.request("POST", f"{api}/v1/speech/jobs", json={"input": TEXT}, headers=headers)
    assert response.status == 202, response.data
    job = wait_ended(http, f"{api}/v1/speech/jobs/{response.json()['id']}", headers)
    assert job["status"] == "completed", f"{job['error']}\n" + "\n".join(map(deployment.log, serving))
    assert job["urls"]["audio"].startswith(f"{api}/")
    redirect = http.request("GET", job["urls"]["audio"], headers=headers, redirect=False)
    assert redirect.status == 302
    link = redirect.headers["Location"]
    assert link.startswith(deployment.services["api"]["environment"]["VOXFLEET_S3_PUBLIC_ENDPOINT"])
    audio = http.request("GET", link)
    assert audio.status == 200
    assert audio.headers["Content-Type"] == "audio/mpeg"
    assert len(audio.data) == job["result"]["audio"]["bytes"] > 16_000

    # And each leaves in its own time when it is told to, with a clean conscience.
    codes = {name: deployment.stop(name) for name in serving}
    assert codes == dict.fromkeys(serving, 0), "\n".join(map(deployment.log, serving))
    assert [name for name in serving if deployment.check(name).returncode == 0] == []

    # Nothing was written where the container could not write.
    assert list((deployment.folder / "app").iterdir()) == []
    assert list((deployment.folder / "volume-none").rglob("*")) == []


def wait_ready(http: urllib3.PoolManager, api: str, deployment: Deployment) -> None:
    """Wait until the API says that the whole fleet is there."""
    end = time.monotonic() + READY_SECONDS
    while (response := http.request("GET", f"{api}/readyz")).status != 200:
        assert time.monotonic() < end, f"{response.data!r}\n{deployment.log('api')}"
        time.sleep(0.2)


def wait_ended(http: urllib3.PoolManager, url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Wait until a job has ended, whatever way."""
    end = time.monotonic() + JOB_SECONDS
    while True:
        response = http.request("GET", url, headers=dict(headers))
        assert response.status == 200, response.data
        job: dict[str, Any] = response.json()
        if job["status"] not in ("queued", "in_progress"):
            return job
        assert time.monotonic() < end, job
        time.sleep(0.2)
