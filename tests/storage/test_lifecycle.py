from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from storage import keys, lifecycle
from storage.s3 import S3Store
from storage.store import StoreError

FOREIGN = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 3}}
FOREIGN_TAG = {
    "ID": "theirs-too",
    "Status": "Enabled",
    "Filter": {"Tag": {"Key": "keep", "Value": "no"}},
    "Expiration": {"Days": 9},
}
IDS = [rule.id for rule in lifecycle.RULES]


class Bucket:
    """A bucket in memory that counts writes."""

    def __init__(self, *rules: Mapping[str, Any], keeps: bool = True) -> None:
        self.rules: list[Mapping[str, Any]] = [*rules]
        self.keeps = keeps
        self.writes = 0

    def lifecycle_rules(self) -> Iterable[Mapping[str, Any]]:
        return self.rules

    def put_lifecycle_rules(self, rules: Iterable[Mapping[str, Any]]) -> None:
        self.writes += 1
        if self.keeps:
            self.rules = [*rules]


def ids(bucket: S3Store | Bucket) -> list[str]:
    return [rule["ID"] for rule in bucket.lifecycle_rules()]


def test_a_new_bucket_lacks_every_rule_until_they_are_applied(bucket: S3Store) -> None:
    assert lifecycle.missing(bucket) == IDS

    lifecycle.apply(bucket)

    assert lifecycle.missing(bucket) == []
    assert sorted(ids(bucket)) == sorted(IDS)


def test_applying_again_adds_nothing(bucket: S3Store) -> None:
    lifecycle.apply(bucket)
    lifecycle.apply(bucket)

    assert sorted(ids(bucket)) == sorted(IDS)


def test_rules_that_are_not_ours_stay_as_they_are(bucket: S3Store) -> None:
    bucket.put_lifecycle_rules([FOREIGN, FOREIGN_TAG])

    lifecycle.apply(bucket)

    assert lifecycle.missing(bucket) == []
    foreign = [rule for rule in bucket.lifecycle_rules() if not rule["ID"].startswith("voxfleet-")]
    assert foreign == [FOREIGN, FOREIGN_TAG]


def test_a_bucket_in_order_is_not_written_to() -> None:
    bucket = Bucket(FOREIGN)

    lifecycle.apply(bucket)
    lifecycle.apply(bucket)

    assert bucket.writes == 1


@pytest.mark.parametrize(
    "change",
    [
        {"Status": "Disabled"},
        {"Expiration": {"Days": 1}},
        {"Filter": {"Prefix": "audio/"}},
        {"Filter": {"And": {"Prefix": "audio/1d/", "Tags": [{"Key": "a", "Value": "b"}]}}},
    ],
)
def test_a_rule_of_ours_that_was_changed_is_missing_and_mended(change: dict[str, Any]) -> None:
    first, *others = (rule.to_s3() for rule in lifecycle.RULES)
    bucket = Bucket(first | change, *others)

    assert lifecycle.missing(bucket) == [first["ID"]]
    lifecycle.apply(bucket)

    assert bucket.rules == [first, *others]


def test_a_rule_of_ours_from_another_version_goes_away() -> None:
    bucket = Bucket(FOREIGN, {**FOREIGN, "ID": "voxfleet-forgotten"})

    lifecycle.apply(bucket)

    assert ids(bucket) == ["theirs", *IDS]


def test_a_store_that_forgets_the_rules_is_an_error_that_names_them() -> None:
    with pytest.raises(StoreError, match=r"voxfleet-audio-1d.*voxfleet-abort-uploads"):
        lifecycle.apply(Bucket(keeps=False))


def test_a_rule_in_the_older_form_is_understood() -> None:
    old = [
        {key: value for key, value in rule.to_s3().items() if key != "Filter"} | {"Prefix": rule.prefix}
        for rule in lifecycle.RULES
    ]

    assert lifecycle.missing(Bucket(*old)) == []


@pytest.mark.parametrize(("name", "days"), keys.AUDIO_CLASSES.items())
def test_the_rule_of_a_class_finds_its_audio_and_is_never_early(name: keys.AudioClass, days: int) -> None:
    key = keys.audio_key("job_1", epoch=0, extension="mp3", expires_in=days * keys.DAY_SECONDS)

    found = [rule for rule in lifecycle.RULES if rule.expire_days is not None and key.startswith(rule.prefix)]

    assert [rule.id for rule in found] == [f"voxfleet-audio-{name}"]
    assert found[0].expire_days == days + 1


def test_staged_clips_outlive_every_published_audio() -> None:
    key = keys.staged_key("job_1", epoch=0, seq=0)

    found = [rule for rule in lifecycle.RULES if rule.expire_days is not None and key.startswith(rule.prefix)]

    assert [(rule.id, rule.expire_days) for rule in found] == [("voxfleet-staged", 35)]


def test_abandoned_uploads_are_aborted_wherever_they_are() -> None:
    assert [(rule.prefix, rule.abort_upload_days) for rule in lifecycle.RULES if rule.abort_upload_days] == [
        ("", 1)
    ]


def test_ids_are_ours_and_unique() -> None:
    assert len(set(IDS)) == len(IDS)
    assert all(name.startswith(lifecycle.ID_PREFIX) for name in IDS)
