import subprocess
import sys

import pytest

from speech import registry
from speech.engine import EngineUnavailable
from speech.registry import UnknownEngine


@pytest.fixture
def broken_engine(tmp_path, monkeypatch):
    """An installed package whose engine cannot be imported."""
    package = tmp_path / "broken_engine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-engine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[voxfleet.engines]\nbroken = no_such_module_anywhere:ENGINE\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "broken"


def test_the_engines_of_the_project_are_installed():
    assert {"tone", "hibari"} <= registry.installed().keys()


def test_an_unknown_engine_is_refused_with_the_names_of_those_installed():
    with pytest.raises(UnknownEngine, match=r"'tune'.*hibari.*tone"):
        registry.find("tune")


def test_an_engine_that_cannot_be_imported_is_reported_and_harms_no_other(broken_engine, caplog):
    engines = registry.installed()

    assert "tone" in engines
    assert broken_engine not in engines
    assert "no_such_module_anywhere" in caplog.text
    with pytest.raises(UnknownEngine, match="no_such_module_anywhere"):
        registry.find(broken_engine)


def test_every_option_of_an_installed_engine_is_a_setting():
    names = registry.settings()

    assert {"VOXFLEET_ENGINE_TONE_RTF", "VOXFLEET_ENGINE_HIBARI_THREADS"} <= names
    assert "VOXFLEET_ENGINE_TONE_RFT" not in names


def test_an_option_that_an_engine_does_not_have_is_refused_by_name_without_its_value():
    with pytest.raises(EngineUnavailable, match="rft") as refused:
        registry.find("tone").load({"rft": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_an_option_out_of_its_range_is_refused_by_name_without_its_value():
    with pytest.raises(EngineUnavailable, match="rtf") as refused:
        registry.find("tone").load({"rtf": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_looking_engines_up_imports_no_runtime():
    code = (
        "import sys\n"
        "from speech import registry\n"
        "registry.installed(); registry.settings(); [e.missing() for e in registry.installed().values()]\n"
        "print(sorted({'onnxruntime', 'hibari', 'torch'} & sys.modules.keys()))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"
