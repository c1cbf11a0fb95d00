"""The bucket's own rules: the net under the sweeper.

The API's `expires_at` is exact and the sweeper deletes on time. These rules delete what both forgot, so they
may be late and are never early. Not every store enforces the rules that it accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from storage.keys import AUDIO_CLASSES, STAGED_PREFIX, audio_class_prefix
from storage.store import StoreError

#: Every rule of ours has an id that starts so; rules with any other id are left alone.
ID_PREFIX: Final = "voxfleet-"

#: One day more than a class promises: stores count whole days, some of them from midnight, and the object is
#: older than its job's completion.
SPARE_DAYS: Final = 1
#: Longer than the longest queue: a clip must outlive every wait of its job.
STAGED_DAYS: Final = 35
#: No upload takes a day; one that is older was abandoned, and its parts cost space that no listing shows.
ABORT_UPLOAD_DAYS: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One lifecycle rule.

    Attributes:
        id: its name in the bucket.
        prefix: what it applies to; empty is the whole bucket.
        expire_days: delete objects of this age; None deletes none.
        abort_upload_days: abort multipart uploads of this age; None aborts none.
    """

    id: str
    prefix: str
    expire_days: int | None = None
    abort_upload_days: int | None = None

    def to_s3(self) -> dict[str, Any]:
        """Return the rule as S3 takes it."""
        rule: dict[str, Any] = {"ID": self.id, "Status": "Enabled", "Filter": {"Prefix": self.prefix}}
        if self.expire_days is not None:
            rule["Expiration"] = {"Days": self.expire_days}
        if self.abort_upload_days is not None:
            rule["AbortIncompleteMultipartUpload"] = {"DaysAfterInitiation": self.abort_upload_days}
        return rule

    @classmethod
    def from_s3(cls, rule: Mapping[str, Any]) -> Rule | None:
        """Return the rule that a store gave back; None where it is switched off or does something else."""
        known = {"ID", "Status", "Filter", "Prefix", "Expiration", "AbortIncompleteMultipartUpload"}
        scope = rule.get("Filter", {})
        if rule.get("Status") != "Enabled" or rule.keys() - known or scope.keys() - {"Prefix"}:
            return None
        return cls(
            id=rule.get("ID", ""),
            # The older form has the prefix beside the filter.
            prefix=scope.get("Prefix", rule.get("Prefix", "")),
            expire_days=rule.get("Expiration", {}).get("Days"),
            abort_upload_days=rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation"),
        )


RULES: Final[tuple[Rule, ...]] = (
    *(
        Rule(id=f"{ID_PREFIX}audio-{name}", prefix=audio_class_prefix(name), expire_days=days + SPARE_DAYS)
        for name, days in AUDIO_CLASSES.items()
    ),
    Rule(id=f"{ID_PREFIX}staged", prefix=STAGED_PREFIX, expire_days=STAGED_DAYS),
    Rule(id=f"{ID_PREFIX}abort-uploads", prefix="", abort_upload_days=ABORT_UPLOAD_DAYS),
)


class RuleStore(Protocol):
    """A bucket whose lifecycle rules can be read and replaced; `S3Store` is one."""

    def lifecycle_rules(self) -> Iterable[Mapping[str, Any]]:
        """Return all rules, in S3's own form."""
        ...

    def put_lifecycle_rules(self, rules: Iterable[Mapping[str, Any]]) -> None:
        """Replace all rules."""
        ...


def apply(store: RuleStore) -> None:
    """Make the bucket hold our rules as they are here, beside every rule that is not ours.

    May run at every start and from several processes at once: it writes only where something differs, and
    every process writes the same.

    Raises:
        StoreError: the store took the rules but does not give them back.
        AccessDenied, StoreUnavailable.
    """
    present = [*store.lifecycle_rules()]
    foreign = [rule for rule in present if not _is_ours(rule)]
    if len(present) == len(foreign) + len(RULES) and not _absent(present):
        return
    store.put_lifecycle_rules([*foreign, *(rule.to_s3() for rule in RULES)])
    if absent := missing(store):
        raise StoreError(f"the store did not keep the lifecycle rules {', '.join(absent)}")


def missing(store: RuleStore) -> list[str]:
    """Return the ids of our rules that the bucket lacks, or holds otherwise than they are here."""
    return _absent(store.lifecycle_rules())


def _absent(present: Iterable[Mapping[str, Any]]) -> list[str]:
    found = {Rule.from_s3(rule) for rule in present}
    return [rule.id for rule in RULES if rule not in found]


def _is_ours(rule: Mapping[str, Any]) -> bool:
    return str(rule.get("ID", "")).startswith(ID_PREFIX)
