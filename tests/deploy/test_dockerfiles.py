"""The images: small, locked, and made of this repository alone."""

from __future__ import annotations

import re
from typing import Final

import pytest

from . import files

FILES: Final = {path.name: files.dockerfile(path) for path in files.DOCKERFILES}
each = pytest.mark.parametrize("file", FILES.values(), ids=FILES)


#: Triton builds a stub with the system's compiler when a model is compiled.
WITH_COMPILER: Final = "gpu.Dockerfile"
#: Its engine's own pins are others than those that the tests have passed with.
WITH_OWN_PINS: Final = "chatterbox.Dockerfile"


def test_the_images_are_there() -> None:
    assert set(FILES) == {"api.Dockerfile", "cpu.Dockerfile", WITH_COMPILER, WITH_OWN_PINS}


@each
def test_a_base_image_is_pinned(file: files.Dockerfile) -> None:
    for instruction in file.all("FROM"):
        image, _, tag = instruction.text.split()[0].rpartition(":")
        assert image
        assert re.search(r"\d", tag)
        assert tag != "latest"


@each
def test_the_image_runs_as_a_numbered_user_without_rights(file: files.Dockerfile) -> None:
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", file.last("USER").text)
    after_user = [instruction.name for instruction in file.final]
    assert "RUN" not in after_user[after_user.index("USER") :]


@each
def test_nothing_is_fetched_but_packages(file: files.Dockerfile) -> None:
    assert file.all("ADD") == []
    for run in file.all("RUN"):
        assert not re.search(r"\b(curl|wget|git clone|https?://)", run.text)


@each
def test_no_secret_and_no_model_is_baked_in(file: files.Dockerfile) -> None:
    for name in ("ENV", "ARG"):
        for instruction in file.all(name):
            assert not re.search(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY|API_KEY", instruction.text, re.IGNORECASE)
    copied = " ".join(instruction.text for instruction in file.all("COPY"))
    assert not re.search(r"\.(bin|onnx|safetensors|pt|env)\b|\.voxfleet", copied)


@each
def test_no_compiler_reaches_the_image(file: files.Dockerfile) -> None:
    assert len(file.stages) > 1
    final = " ".join(instruction.text for instruction in file.final)
    compilers = r"g\+\+|build-essential|make"
    if file is not FILES[WITH_COMPILER]:
        compilers += "|gcc"
    assert not re.search(rf"\b({compilers}|pip install)\b", final)
    (install,) = [run.text for run in file.all("RUN") if "pip install" in run.text]
    if file is not FILES[WITH_OWN_PINS]:
        assert "-c requirements/constraints.txt" in install
        assert "--only-binary :all:" in install


@each
def test_all_that_is_copied_exists_and_may_enter_the_build(file: files.Dockerfile) -> None:
    ignore = (files.ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    assert rules[0] == "*"
    admitted = {line[1:].rstrip("/") for line in rules if line.startswith("!")}

    for copy in file.all("COPY"):
        if copy.text.startswith("--from="):
            continue
        for source in copy.words()[:-1]:
            assert (files.ROOT / source).exists(), source
            assert source.rstrip("/") in admitted


@each
def test_every_package_is_copied(file: files.Dockerfile) -> None:
    wanted = files.pyproject()["tool"]["setuptools"]["packages"]["find"]["include"]
    copied = {source.rstrip("/") for copy in file.all("COPY") for source in copy.words()[:-1]}

    assert {name.removesuffix("*") for name in wanted} <= copied


@each
def test_it_can_run_with_a_read_only_root_file_system(file: files.Dockerfile) -> None:
    environment = file.environment()

    assert environment["HOME"] == "/tmp"
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert environment["VOXFLEET_DATA_DIR"] == "/data"
    assert file.last("WORKDIR").text == "/app"


@each
def test_it_stops_when_asked_and_starts_the_command_line(file: files.Dockerfile) -> None:
    assert file.last("STOPSIGNAL").text == "SIGTERM"
    # The exec form: a shell in between would keep the signal for itself.
    assert file.last("ENTRYPOINT").text.startswith("[")
    (entry,) = file.last("ENTRYPOINT").words()
    assert entry in files.pyproject()["project"]["scripts"]


@each
def test_the_health_check_needs_python_alone(file: files.Dockerfile) -> None:
    program, option, source = file.healthcheck()

    assert (program, option) == ("python", "-c")
    compile(source, "healthcheck", "exec")


@each
def test_the_label_tells_the_version_of_the_project(file: files.Dockerfile) -> None:
    labels = dict(word.split("=", 1) for word in file.last("LABEL").words())

    assert labels["org.opencontainers.image.version"] == files.pyproject()["project"]["version"]
    assert labels["org.opencontainers.image.licenses"] == files.pyproject()["project"]["license"]


def test_the_engines_of_the_cpu_image_are_extras() -> None:
    (argument,) = FILES["cpu.Dockerfile"].all("ARG")
    engines = argument.text.removeprefix("ENGINES=").split(",")

    assert set(engines) <= set(files.pyproject()["project"]["optional-dependencies"])
