"""The deployment files as values: the compose file with its variables filled in, and the Dockerfiles."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
COMPOSE: Final = ROOT / "docker-compose.yml"
ENV_EXAMPLE: Final = ROOT / "deploy" / "compose.env.example"
DOCKERFILES: Final = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))
#: What `.env` must hold; nothing in it is a secret of anybody.
DOTENV: Final[Mapping[str, str]] = {
    "POSTGRES_PASSWORD": "password",
    "VOXFLEET_S3_ACCESS_KEY_ID": "access-key",
    "VOXFLEET_S3_SECRET_ACCESS_KEY": "secret-key",
    "VOXFLEET_WEBHOOK_SECRET": "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class MissingVariable(Exception):
    """A variable that the compose file requires is not set."""


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Fill in `$$`, `${NAME}`, `${NAME:-default}` and `${NAME:?message}`; defaults may hold variables.

    https://github.com/compose-spec/compose-spec/blob/main/12-interpolation.md

    Raises:
        MissingVariable.
    """
    filled, rest = _interpolate(text, variables, until=None)
    assert not rest
    return filled


def _interpolate(text: str, variables: Mapping[str, str], *, until: str | None) -> tuple[str, str]:
    """Return what `text` gives, and what follows the first `until` outside of any braces."""
    filled = ""
    while text:
        if until is not None and text.startswith(until):
            return filled, text[len(until) :]
        if text.startswith("$$"):
            filled, text = filled + "$", text[2:]
        elif text.startswith("${"):
            value, text = _variable(text[2:], variables)
            filled += value
        else:
            assert not text.startswith("$"), f"a bare dollar: {text}"
            filled, text = filled + text[0], text[1:]
    assert until is None, "a brace that is not closed"
    return filled, ""


def _variable(text: str, variables: Mapping[str, str]) -> tuple[str, str]:
    found = _NAME.match(text)
    assert found, f"no name: {text}"
    name, text = found[0], text[found.end() :]
    operator = next((sign for sign in (":-", ":?") if text.startswith(sign)), "")
    otherwise, rest = _interpolate(text[len(operator) :], variables, until="}")
    value = variables.get(name, "")
    if value or not operator:
        return value, rest
    if operator == ":?":
        raise MissingVariable(f"{name} {otherwise}")
    return otherwise, rest


def raw_compose() -> dict[str, Any]:
    """Return the compose file with its variables as they are written."""
    content = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def compose(variables: Mapping[str, str] = DOTENV) -> dict[str, Any]:
    """Return the compose file as it is with these variables."""

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item) for item in value]
        return interpolate(value, variables) if isinstance(value, str) else value

    filled = fill(raw_compose())
    assert isinstance(filled, dict)
    return filled


def is_ours(service: Mapping[str, Any]) -> bool:
    """Whether a service runs an image that is built from this repository."""
    return "build" in service


def is_one_shot(service: Mapping[str, Any]) -> bool:
    """Whether a service ends by itself."""
    return bool(service.get("restart") == "no")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile, its lines joined."""

    name: str
    text: str

    def words(self) -> list[str]:
        """Return the exec form's words, or the words of a shell."""
        body = re.sub(r"^(--\S+\s+)+", "", self.text)
        return [str(word) for word in json.loads(body)] if body.startswith("[") else shlex.split(body)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A Dockerfile, stage by stage."""

    path: Path
    stages: tuple[tuple[Instruction, ...], ...]

    @property
    def final(self) -> tuple[Instruction, ...]:
        """The stage that becomes the image."""
        return self.stages[-1]

    def all(self, name: str) -> list[Instruction]:
        """Return every instruction of this name, of all stages."""
        return [found for stage in self.stages for found in stage if found.name == name]

    def last(self, name: str) -> Instruction:
        """Return the instruction of this name that counts in the image."""
        found = [instruction for instruction in self.final if instruction.name == name]
        assert found, f"{self.path.name} has no {name} in its last stage"
        return found[-1]

    def environment(self) -> dict[str, str]:
        """Return what the image's ENV sets."""
        words = [word for found in self.final if found.name == "ENV" for word in found.words()]
        return dict(word.split("=", 1) for word in words)

    def healthcheck(self) -> list[str]:
        """Return the command that says whether a container is well."""
        _, _, command = self.last("HEALTHCHECK").text.partition("CMD ")
        return Instruction("CMD", command).words()


def dockerfile(path: Path) -> Dockerfile:
    """Read a Dockerfile."""
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")
    ]
    # A backslash joins a line with the next one, before anything else is read.
    text = "\n".join(lines).replace("\\\n", "")
    stages: list[list[Instruction]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, body = line.partition(" ")
        instruction = Instruction(name.upper(), body.strip())
        if instruction.name == "FROM":
            stages.append([])
        assert stages, f"{path.name}: {name} before FROM"
        stages[-1].append(instruction)
    return Dockerfile(path, tuple(map(tuple, stages)))


def dockerfile_of(service: Mapping[str, Any]) -> Dockerfile:
    """Return the Dockerfile that a service's image is built from."""
    return dockerfile(ROOT / service["build"]["dockerfile"])


def pyproject() -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
