"""Settings are read once, and a wrong one is said by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from config.settings import EMBEDDED_ENV, MissingSetting, UnknownSettings, engine_options, load
from jobs.events import decode_secret, new_secret


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BROKER_URL", "http://x"),
        ("DATABASE_URL", "mysql://x"),
        ("PUBLIC_URL", "foo"),
        ("S3_ENDPOINT", "localhost:9000"),
        ("S3_PUBLIC_ENDPOINT", "ftp://x"),
        ("WEBHOOK_SECRET", "abc"),
        ("WEBHOOK_SECRET", "whsec_" + "A" * 31),
        ("WEBHOOK_ALLOWED_CIDRS", "10.0.0.0/8,foo"),
        ("LINK_SECONDS", "604801"),
        ("LINK_SECONDS", "0"),
        ("LINK_SECONDS", "1.5"),
        ("MAX_FAILURES", "0"),
        ("MAX_QUEUED", "0"),
        ("MAX_WAIT_SECONDS", "0"),
        ("TENANT_MAX_QUEUED", "-1"),
        ("TENANT_MAX_RUNNING", "0"),
        ("METRICS_ALLOWED_CIDRS", "localhost"),
        ("LOG_LEVEL", "LOUD"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"VOXFLEET_{name}", value)

    with pytest.raises(ValidationError) as refused:
        load()

    assert refused.value.errors()[0]["loc"][0] == name.lower()


def test_the_limits_and_who_reads_metrics_are_as_documented_where_nothing_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = load(embedded=False)

    assert (settings.max_queued, settings.max_wait_seconds) == (10_000, 86_400)
    assert (settings.tenant_max_queued, settings.tenant_max_running) == (5_000, None)
    assert [str(network) for network in settings.metrics_allowed_cidrs] == ["127.0.0.0/8", "::1/128"]
    monkeypatch.setenv("VOXFLEET_METRICS_ALLOWED_CIDRS", "10.0.0.0/8, 2001:db8::/32")
    assert len(load(embedded=False).metrics_allowed_cidrs) == 2
    monkeypatch.setenv("VOXFLEET_METRICS_ALLOWED_CIDRS", "")
    assert load(embedded=False).metrics_allowed_cidrs == ()


def test_a_variable_that_nothing_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownSettings, match="VOXFLEET_BROKER_ULR"):
        load({"VOXFLEET_BROKER_ULR": "redis://x"})
    with pytest.raises(UnknownSettings, match="VOXFLEET_ENGINE_TONE_RFT"):
        load({"VOXFLEET_ENGINE_TONE_RFT": "1"}, engine_settings={"VOXFLEET_ENGINE_TONE_RTF"})


def test_what_up_wrote_counts_below_the_environment_and_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / EMBEDDED_ENV).write_text("VOXFLEET_S3_BUCKET=written\nVOXFLEET_S3_REGION=there\n")
    monkeypatch.setenv("VOXFLEET_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("VOXFLEET_S3_BUCKET", "given")

    assert (load().s3_bucket, load().s3_region) == ("given", "there")
    assert load(embedded=False).s3_region == "us-east-1"


@pytest.mark.parametrize("secret", [new_secret(), "whsec_" + "A" * 32, "whsec_" + "A" * 86 + "=="])
def test_a_webhook_secret_of_the_standard_is_taken(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXFLEET_WEBHOOK_SECRET", secret)

    kept = load().webhook_secret

    assert kept is not None
    assert decode_secret(kept.get_secret_value())
    assert secret not in repr(load())


def test_a_store_without_credentials_is_said_when_it_is_needed() -> None:
    with pytest.raises(MissingSetting, match="VOXFLEET_S3_ACCESS_KEY_ID"):
        _ = load(embedded=False).s3_credentials


def test_an_engine_gets_its_own_options_alone() -> None:
    environ = {"VOXFLEET_ENGINE_TONE_RTF": "1", "VOXFLEET_ENGINE_SUPERTONIC_3_THREADS": "2"}

    assert engine_options(environ, "tone") == {"rtf": "1"}
    assert engine_options(environ, "supertonic-3") == {"threads": "2"}
