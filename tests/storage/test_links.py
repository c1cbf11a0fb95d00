from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3

from storage.links import LONGEST_SECONDS
from storage.s3 import S3Store, connect
from storage.store import LinkSigner

from ..servers import SeaweedFS

KEY = "audio/1d/job_1/0.mp3"
BODY = bytes(range(256)) * 40


@pytest.fixture
def http() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager(retries=False) as manager:
        yield manager


@pytest.fixture
def url(bucket: S3Store) -> str:
    bucket.put(KEY, BODY, content_type="audio/mpeg", cache_control="private")
    return bucket.links.sign(KEY, seconds=60).url


@pytest.fixture
def signer() -> LinkSigner:
    return signer_for("https://media.example.com")


def signer_for(public_endpoint: str | None, *, style: str = "path", bucket: str = "media") -> LinkSigner:
    store = connect(
        endpoint="http://127.0.0.1:9",
        public_endpoint=public_endpoint,
        region="eu-central-1",
        bucket=bucket,
        access_key_id="id",
        secret_access_key="secret",
        addressing_style=style,  # type: ignore[arg-type]
    )
    return store.links


def test_a_link_gives_the_whole_object(http: urllib3.PoolManager, url: str) -> None:
    answer = http.request("GET", url)

    assert answer.status == 200
    assert answer.data == BODY
    assert answer.headers["Content-Type"] == "audio/mpeg"
    assert answer.headers["Cache-Control"] == "private"
    assert answer.headers["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-1", 0, 1),  # how Safari begins
        ("bytes=5000-5999", 5000, 5999),
        ("bytes=10000-", 10_000, 10_239),
        ("bytes=-500", 9740, 10_239),
        ("bytes=10000-99999", 10_000, 10_239),
    ],
)
def test_a_link_gives_a_range(http: urllib3.PoolManager, url: str, asked: str, first: int, last: int) -> None:
    answer = http.request("GET", url, headers={"Range": asked})

    assert answer.status == 206
    assert answer.headers["Content-Range"] == f"bytes {first}-{last}/{len(BODY)}"
    assert answer.data == BODY[first : last + 1]


def test_a_range_past_the_end_is_refused_with_the_size(http: urllib3.PoolManager, url: str) -> None:
    answer = http.request("GET", url, headers={"Range": f"bytes={len(BODY)}-"})

    assert answer.status == 416
    assert answer.headers["Content-Range"] == f"bytes */{len(BODY)}"


def test_a_link_ends_when_it_says(http: urllib3.PoolManager, bucket: S3Store, url: str) -> None:
    link = bucket.links.sign(KEY, seconds=2)

    assert http.request("GET", link.url).status == 200
    time.sleep((link.expires_at - datetime.now(UTC)).total_seconds() + 1.1)
    assert http.request("GET", link.url).status == 403


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        (r"0\.mp3", "1.mp3"),
        (r"X-Amz-Expires=60", "X-Amz-Expires=600"),
        (r"X-Amz-Signature=[0-9a-f]{4}", "X-Amz-Signature=0000"),
        (r"X-Amz-Date=\d{8}T\d\d", "X-Amz-Date=20200101T00"),
        (r"$", "&response-content-type=text/html"),
    ],
)
def test_a_changed_link_is_refused(
    http: urllib3.PoolManager, bucket: S3Store, url: str, part: str, instead: str
) -> None:
    bucket.put("audio/1d/job_1/1.mp3", b"another's", content_type="audio/mpeg")
    changed = re.sub(part, instead, url, count=1)

    assert changed != url
    assert http.request("GET", changed).status == 403


def test_a_link_is_for_reading_only(http: urllib3.PoolManager, bucket: S3Store, url: str) -> None:
    assert http.request("PUT", url, body=b"mine").status == 403
    assert http.request("DELETE", url).status == 403
    assert bucket.head(KEY).size == len(BODY)


@pytest.mark.parametrize("key", ["größe/声音 1.mp3", "a+b", "a%2Fb"])
def test_a_link_works_for_any_key(http: urllib3.PoolManager, bucket: S3Store, key: str) -> None:
    bucket.put(key, BODY, content_type="audio/mpeg")

    assert http.request("GET", bucket.links.sign(key, seconds=60).url).data == BODY


def test_a_link_through_the_public_endpoint_works_there(
    http: urllib3.PoolManager, bucket: S3Store, seaweed: SeaweedFS, url: str
) -> None:
    store = connect(
        endpoint="http://127.0.0.1:9",
        public_endpoint=f"http://localhost:{seaweed.port}",
        region="us-east-1",
        bucket=bucket.bucket,
        access_key_id=seaweed.access_key_id,
        secret_access_key=seaweed.secret_access_key,
    )

    link = store.links.sign(KEY, seconds=60)

    assert urlsplit(link.url).netloc == f"localhost:{seaweed.port}"
    assert http.request("GET", link.url).data == BODY


@pytest.mark.parametrize(
    ("endpoint", "style", "start"),
    [
        ("https://media.example.com", "path", "https://media.example.com/media/a.mp3?"),
        ("https://media.example.com", "virtual", "https://media.media.example.com/a.mp3?"),
        ("https://media.example.com:8443", "path", "https://media.example.com:8443/media/a.mp3?"),
        (None, "path", "http://127.0.0.1:9/media/a.mp3?"),
    ],
)
def test_a_link_is_for_the_public_endpoint(endpoint: str | None, style: str, start: str) -> None:
    assert signer_for(endpoint, style=style).sign("a.mp3", seconds=60).url.startswith(start)


def test_a_link_is_signed_with_sigv4_and_no_header_but_the_host(signer: LinkSigner) -> None:
    query = parse_qs(urlsplit(signer.sign("a.mp3", seconds=60).url).query)

    assert query.keys() == {
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
    }
    assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert query["X-Amz-SignedHeaders"] == ["host"]
    assert query["X-Amz-Credential"][0].split("/")[2] == "eu-central-1"


@pytest.mark.parametrize("seconds", [1, 3600, LONGEST_SECONDS])
def test_the_end_of_a_link_is_what_is_signed_into_it(signer: LinkSigner, seconds: int) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    link = signer.sign("a.mp3", seconds=seconds)
    after = datetime.now(UTC)

    query = parse_qs(urlsplit(link.url).query)
    signed = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%S%z")
    assert query["X-Amz-Expires"] == [str(seconds)]
    assert link.expires_at == signed + timedelta(seconds=seconds)
    assert before <= signed <= after


@pytest.mark.parametrize("seconds", [0, -1, LONGEST_SECONDS + 1, True, 60.0, "60", None])
def test_a_life_that_is_no_whole_number_of_seconds_up_to_a_week_is_refused(
    signer: LinkSigner, seconds: object
) -> None:
    with pytest.raises(ValueError, match="whole seconds"):
        signer.sign("a.mp3", seconds=seconds)  # type: ignore[arg-type]


def test_the_longest_link_is_accepted_by_a_store(
    http: urllib3.PoolManager, bucket: S3Store, url: str
) -> None:
    assert http.request("GET", bucket.links.sign(KEY, seconds=LONGEST_SECONDS).url).status == 200
