"""Links: URLs that give one object to whoever holds them, for a while."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from storage.store import Link

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

#: The longest life of a SigV4 link: seven days.
#: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
LONGEST_SECONDS: Final = 604_800


class S3LinkSigner:
    """Signs GET links with AWS Signature Version 4. Safe for use by several threads at once.

    Of the request's headers only `host` is signed, so a player may add `Range`. The method is signed too:
    a HEAD on such a link is refused by the store.
    """

    def __init__(self, client: S3Client, *, bucket: str) -> None:
        """Sign with `client`, whose endpoint must be the one that the holders of the links will use.

        The host is part of what is signed: rewriting it afterwards breaks the link.
        """
        self._client = client
        self._bucket = bucket

    def sign(self, key: str, *, seconds: int) -> Link:
        """Return a link to `key` that works for `seconds` (1 to 604,800). Asks no server.

        Raises:
            ValueError: `seconds` is no whole number, or out of range.
        """
        # A bool is an int, and a float would be signed as `3600.0`, which stores refuse.
        if type(seconds) is not int or not 1 <= seconds <= LONGEST_SECONDS:
            raise ValueError(f"a link lives for 1 to {LONGEST_SECONDS} whole seconds, not {seconds!r}")
        url = self._client.generate_presigned_url(
            "get_object", Params={"Bucket": self._bucket, "Key": key}, ExpiresIn=seconds, HttpMethod="GET"
        )
        return Link(url=url, expires_at=_signed_at(url) + timedelta(seconds=seconds))


def _signed_at(url: str) -> datetime:
    """Return the moment from which the store counts, as signed into `url` (whole seconds)."""
    stamp = parse_qs(urlsplit(url).query)["X-Amz-Date"][0]
    return datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
