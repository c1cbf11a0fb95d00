from __future__ import annotations

import secrets
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import boto3.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from storage.s3 import S3Store, connect
from storage.store import AccessDenied, ObjectNotFound, StoreError, StoreUnavailable

from ..servers import SeaweedFS
from .doubles import OldS3, old_s3, pattern, stream

MB = 1024 * 1024


@pytest.fixture
def old() -> Iterator[OldS3]:
    with old_s3() as server:
        yield server


@pytest.fixture
def store(old: OldS3) -> Iterator[S3Store]:
    store = store_at(old.endpoint)
    yield store
    store.close()


def store_at(endpoint: str, *, bucket: str = "b", key: str = "id", secret: str = "") -> S3Store:
    return connect(
        endpoint=endpoint,
        region="us-east-1",
        bucket=bucket,
        access_key_id=key,
        secret_access_key=secret or "none",
    )


def test_a_store_from_before_checksums_takes_small_objects(store: S3Store, old: OldS3) -> None:
    store.put("bytes", b"sound", content_type="audio/mpeg")
    store.put("stream", stream(1000), content_type="audio/mpeg")

    assert old.objects == {"/b/bytes": b"sound", "/b/stream": pattern(0, 1000)}


def test_a_store_from_before_checksums_takes_large_objects(store: S3Store, old: OldS3) -> None:
    store.put("stream", stream(20 * MB), content_type="audio/mpeg")

    assert old.objects["/b/stream"] == pattern(0, 20 * MB)
    assert {number: len(part) for number, part in old.parts.items()} == {1: 8 * MB, 2: 8 * MB, 3: 4 * MB}


def test_that_store_would_refuse_what_boto3_sends_by_default(old: OldS3) -> None:
    client = boto3.session.Session("id", "secret").client(
        "s3",
        endpoint_url=old.endpoint,
        region_name="us-east-1",
        config=Config(request_checksum_calculation="when_supported", s3={"addressing_style": "path"}),
    )

    with pytest.raises(ClientError, match="unknown header"):
        client.put_object(Bucket="b", Key="a", Body=b"sound")
    client.close()


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "NoSuchKey", ObjectNotFound),
        (404, "NoSuchBucket", ObjectNotFound),
        (404, "NoSuchUpload", StoreUnavailable),
        (403, "AccessDenied", AccessDenied),
        (403, "InvalidAccessKeyId", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (403, "AllAccessDisabled", AccessDenied),
        (403, "RequestTimeTooSkewed", StoreUnavailable),
        (400, "RequestTimeout", StoreUnavailable),
        (400, "Throttling", StoreUnavailable),
        (429, "TooManyRequests", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (503, "SlowDown", StoreUnavailable),
        (502, "", StoreUnavailable),
        (400, "InvalidRequest", StoreError),
        (409, "OperationAborted", StoreUnavailable),
        (412, "PreconditionFailed", StoreError),
    ],
)
def test_what_the_store_answers_becomes_an_error_of_the_port(
    store: S3Store, old: OldS3, status: int, code: str, expected: type[StoreError]
) -> None:
    old.refuses = (status, code)

    with pytest.raises(StoreError) as caught:
        store.put("a", b"sound", content_type="audio/mpeg")

    assert type(caught.value) is expected
    assert isinstance(caught.value.__cause__, ClientError)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(404, ObjectNotFound), (403, AccessDenied), (503, StoreUnavailable), (400, StoreError)],
)
def test_an_answer_without_a_body_is_understood_by_its_status(
    store: S3Store, old: OldS3, status: int, expected: type[StoreError]
) -> None:
    old.refuses = (status, "")

    with pytest.raises(StoreError) as caught:
        store.head("a")

    assert type(caught.value) is expected


def test_an_overloaded_store_is_asked_twice_and_by_the_check_once(store: S3Store, old: OldS3) -> None:
    old.refuses = (503, "SlowDown")

    with pytest.raises(StoreUnavailable):
        store.put("a", b"sound", content_type="audio/mpeg")
    assert old.asked == 2
    with pytest.raises(StoreUnavailable):
        store.check()
    assert old.asked == 3


def test_deleting_what_is_not_there_is_no_error_even_where_the_store_says_so(store: S3Store) -> None:
    store.delete("a")


def test_a_request_that_cannot_be_made_is_an_error_of_the_port(store: S3Store) -> None:
    with pytest.raises(StoreError):
        store.put("", b"sound", content_type="audio/mpeg")
    with pytest.raises(StoreError):
        store.put("a", b"sound", content_type="audio/mpeg", metadata={"voice": "größe"})


def test_a_missing_bucket_is_made_once_whoever_comes_first(seaweed: SeaweedFS) -> None:
    stores = [
        store_at(seaweed.endpoint, bucket=name, key=seaweed.access_key_id, secret=seaweed.secret_access_key)
        for name in [f"t-{secrets.token_hex(8)}"] * 4
    ]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(S3Store.ensure_bucket, stores))
    stores[0].ensure_bucket()

    for store in stores:
        store.check()
        store.close()


def test_a_long_stream_takes_no_more_memory_than_a_short_one(bucket: S3Store) -> None:
    tracemalloc.start()
    try:
        bucket.put("a", stream(96 * MB, piece=MB), content_type="audio/mpeg")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 48 * MB
    assert bucket.head("a").size == 96 * MB
