"""The compose file: no door open, no secret inside, and nothing in it that the program does not know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from cli import embedded
from cli.main import main
from config.settings import ENGINE_PREFIX, PREFIX, Settings

from . import files

SERVICES: Final[dict[str, Any]] = files.compose()["services"]
OURS: Final = {name: service for name, service in SERVICES.items() if files.is_ours(service)}
SETTINGS: Final = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")

each = pytest.mark.parametrize("name", SERVICES)
each_of_ours = pytest.mark.parametrize("name", OURS)


def test_the_fleet_is_whole() -> None:
    content = files.compose()

    assert content["name"] == "voxfleet"
    assert "version" not in content
    assert set(OURS) == {"migrate", "storage-init", "api", "worker-media", "worker-hibari", "sweeper"}
    assert {"postgres", "valkey", "seaweedfs"} <= set(SERVICES)


@pytest.mark.parametrize("missing", files.DOTENV)
def test_a_missing_secret_stops_compose_and_is_named(missing: str) -> None:
    given = {name: value for name, value in files.DOTENV.items() if name != missing}

    with pytest.raises(files.MissingVariable, match=missing):
        files.compose(given)


def test_interpolation_reads_what_the_file_uses() -> None:
    given = {"PORT": "9", "EMPTY": ""}

    assert files.interpolate("${PORT}:${EMPTY}:$${PORT}", given) == "9::${PORT}"
    assert files.interpolate("${URL:-http://h:${PORT:-8}}/", given) == "http://h:9/"
    assert files.interpolate("${URL:-http://h:${EMPTY:-8}}/", given) == "http://h:8/"


def test_no_secret_is_written_in_it() -> None:
    secret = re.compile(r"PASSWORD|SECRET|ACCESS_KEY|DATABASE_URL")
    found = [
        (name, variable, value)
        for name, service in files.raw_compose()["services"].items()
        for variable, value in service.get("environment", {}).items()
        if secret.search(variable)
    ]

    assert found
    assert [entry for entry in found if ":?" not in entry[2]] == []


def test_the_example_of_env_names_every_variable_and_sets_no_secret() -> None:
    example = files.ENV_EXAMPLE.read_text(encoding="utf-8")
    named = set(re.findall(r"^#?([A-Z][A-Z0-9_]*)=", example, re.MULTILINE))

    assert named == set(VARIABLE.findall(files.COMPOSE.read_text(encoding="utf-8")))
    assert re.findall(r"^([A-Z][A-Z0-9_]*)=.+", example, re.MULTILINE) == []
    assert set(re.findall(r"^([A-Z][A-Z0-9_]*)=$", example, re.MULTILINE)) == set(files.DOTENV)


@each
def test_a_container_gets_no_privilege_it_does_not_need(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert not {"privileged", "cap_add", "network_mode", "pid", "devices"} & set(service)
    assert all(":" in mount and not mount.startswith(("/", ".")) for mount in service.get("volumes", []))


@each
def test_a_container_cannot_take_the_whole_machine(name: str) -> None:
    service = SERVICES[name]

    assert service["deploy"]["resources"]["limits"]["memory"]
    assert {"max-size", "max-file"} <= set(service["logging"]["options"])


@each
def test_what_may_be_written_in_a_container_is_named(name: str) -> None:
    mounts = [tmpfs.partition(":")[0] for tmpfs in SERVICES[name].get("tmpfs", [])]

    assert "/tmp" in mounts
    assert all("mode=1777" in tmpfs for tmpfs in SERVICES[name]["tmpfs"])


@each
def test_an_image_has_a_tag_that_does_not_wander(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].rpartition(":")

    assert image
    assert "/" not in tag
    assert tag not in ("latest", "edge", "main", "nightly")
    assert re.search(r"\d", tag)


@each_of_ours
def test_our_images_bear_the_version_of_the_project(name: str) -> None:
    assert OURS[name]["image"].rpartition(":")[2] == files.pyproject()["project"]["version"]


def test_only_the_api_and_the_store_are_published_and_only_on_loopback() -> None:
    published = {
        (name, port.rpartition(":")[2]): port.rpartition(":")[0]
        for name, service in SERVICES.items()
        for port in service.get("ports", [])
    }

    assert published == {
        ("api", "8000"): "127.0.0.1:8000",
        ("seaweedfs", "8333"): "127.0.0.1:8333",
        ("minio", "9000"): "127.0.0.1:9000",
    }


def test_only_those_who_must_can_reach_out() -> None:
    networks = files.compose()["networks"]

    assert networks["inside"] == {"internal": True}
    assert {name for name, service in SERVICES.items() if "outside" in service["networks"]} == {
        *("api", "seaweedfs", "minio", "worker-media"),
    }


@each
def test_a_service_can_be_asked_how_it_is_or_ends_by_itself(name: str) -> None:
    service = SERVICES[name]
    if files.is_one_shot(service):
        assert service["healthcheck"] == {"disable": True}
        return
    assert service["restart"] == "always"
    check = (
        service["healthcheck"]["test"]
        if "healthcheck" in service
        else files.dockerfile_of(service).healthcheck()
    )
    assert check
    assert "curl" not in " ".join(check)


@each
def test_what_a_service_waits_for_exists_and_can_come_true(name: str) -> None:
    for other, wanted in SERVICES[name].get("depends_on", {}).items():
        if wanted["condition"] == "service_completed_successfully":
            assert files.is_one_shot(SERVICES[other])
        else:
            assert wanted["condition"] == "service_healthy"
            assert "healthcheck" in SERVICES[other]


@each_of_ours
def test_every_setting_is_one_that_the_program_reads(name: str) -> None:
    variables = {*OURS[name]["environment"], *files.dockerfile_of(OURS[name]).environment()}
    ours = {variable for variable in variables if variable.startswith(PREFIX)}

    assert {variable for variable in ours - SETTINGS if not variable.startswith(ENGINE_PREFIX)} == set()


@each_of_ours
def test_the_command_line_understands_every_command(name: str) -> None:
    result = CliRunner().invoke(main, [*OURS[name]["command"], "--help"])

    assert result.exit_code == 0, result.output


def test_a_worker_has_longer_to_leave_than_it_takes() -> None:
    from actors.departure import LEAVE_SECONDS

    for name in ("worker-media", "worker-hibari", "sweeper"):
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > LEAVE_SECONDS


def test_the_store_is_started_with_the_options_of_the_embedded_one(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path)
    wanted = {option.partition("=")[0] for option in embedded.seaweed_command(settings)[1:]}
    given = dict(option.partition("=")[::2] for option in SERVICES["seaweedfs"]["command"])

    assert wanted == set(given)
    # It reports to its makers by default.
    assert given["-master.telemetry"] == "false"
    # Options that it wrote at an earlier start would win over these.
    assert "rm -f /data/mini.options" in " ".join(SERVICES["seaweedfs"]["entrypoint"])


def test_the_broker_keeps_nothing() -> None:
    command = SERVICES["valkey"]["command"]

    assert command[command.index("--save") + 1] == ""
    assert command[command.index("--appendonly") + 1] == "no"
    assert "volumes" not in SERVICES["valkey"]
