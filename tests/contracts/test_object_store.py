"""What every `ObjectStore` promises, asked of each implementation on a real server."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from storage.s3 import S3Store, connect
from storage.store import AccessDenied, ObjectNotFound, ObjectStore, StoreUnavailable

from ..servers import SeaweedFS, free_ports
from ..storage.doubles import cutting_proxy, pattern, silent_server, stream

pytestmark = pytest.mark.slow

MB = 1024 * 1024


@dataclass
class S3Place:
    """A bucket on a server, and other ways to reach it."""

    store: S3Store
    server: SeaweedFS
    others: list[S3Store] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.server.port

    def at(self, port: int) -> ObjectStore:
        """Return the same bucket, through another port."""
        return self._other(endpoint=f"http://127.0.0.1:{port}")

    def with_wrong_secret(self) -> ObjectStore:
        """Return the same bucket, for an impostor."""
        return self._other(secret_access_key="wrong")

    def with_unknown_key(self) -> ObjectStore:
        """Return the same bucket, for a stranger."""
        return self._other(access_key_id="nobody")

    def missing_bucket(self) -> ObjectStore:
        """Return a bucket that does not exist."""
        return self._other(bucket="t-there-is-none")

    def _other(
        self,
        *,
        endpoint: str | None = None,
        bucket: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
    ) -> ObjectStore:
        other = connect(
            endpoint=endpoint or self.server.endpoint,
            region="us-east-1",
            bucket=bucket or self.store.bucket,
            access_key_id=access_key_id or self.server.access_key_id,
            secret_access_key=secret_access_key or self.server.secret_access_key,
        )
        self.others.append(other)
        return other


@pytest.fixture
def s3_seaweedfs(bucket: S3Store, seaweed: SeaweedFS) -> Iterator[S3Place]:
    place = S3Place(bucket, seaweed)
    yield place
    for other in place.others:
        other.close()


@pytest.fixture(params=["s3_seaweedfs"])
def place(request: pytest.FixtureRequest) -> S3Place:
    found: S3Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store(place: S3Place) -> ObjectStore:
    return place.store


def put(store: ObjectStore, key: str, body: bytes = b"sound") -> None:
    store.put(key, body, content_type="audio/mpeg")


def read(store: ObjectStore, key: str) -> bytes:
    return b"".join(store.get(key))


@pytest.mark.parametrize("size", [0, 1, 1000, 8 * MB - 1, 8 * MB, 8 * MB + 1])
def test_bytes_come_back_as_they_went(store: ObjectStore, size: int) -> None:
    body = pattern(0, size)

    put(store, "a/b.mp3", body)

    assert read(store, "a/b.mp3") == body
    assert store.head("a/b.mp3").size == size


@pytest.mark.parametrize("size", [0, 1, 8 * MB, 16 * MB, 20 * MB + 17])
def test_a_stream_without_length_or_seek_comes_back_as_it_went(store: ObjectStore, size: int) -> None:
    store.put("a/b.mp3", stream(size), content_type="audio/mpeg")

    assert hashlib.sha256(read(store, "a/b.mp3")).digest() == hashlib.sha256(pattern(0, size)).digest()
    assert store.head("a/b.mp3").size == size


def test_pieces_are_no_larger_than_asked_for(store: ObjectStore) -> None:
    put(store, "a", bytes(1000))

    sizes = [len(piece) for piece in store.get("a", chunk_size=300)]

    assert max(sizes) <= 300
    assert sum(sizes) == 1000


def test_a_piece_of_nothing_is_refused(store: ObjectStore) -> None:
    with pytest.raises(ValueError, match="chunk_size"):
        store.get("a", chunk_size=0)


@pytest.mark.parametrize("size", [10, 9 * MB])
def test_description_is_kept(store: ObjectStore, size: int) -> None:
    store.put(
        "a/b.mp3",
        stream(size),
        content_type="audio/mpeg",
        metadata={"job": "job_1", "sample-rate": "24000"},
        cache_control="private, max-age=60",
    )

    found = store.head("a/b.mp3")

    assert found.key == "a/b.mp3"
    assert found.content_type == "audio/mpeg"
    assert found.metadata == {"job": "job_1", "sample-rate": "24000"}
    assert found.cache_control == "private, max-age=60"
    assert found.etag
    assert '"' not in found.etag
    assert abs(datetime.now(UTC) - found.last_modified) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "key", ["a b/c d.mp3", "größe/声音.mp3", "a+b", "a%2Fb", "a%20b", "a&b=c?d#e", "~'()*!"]
)
def test_any_key_is_kept_as_it_is(store: ObjectStore, key: str) -> None:
    put(store, key)

    assert read(store, key) == b"sound"
    assert store.head(key).key == key
    assert [item.key for item in store.list("")] == [key]
    store.delete(key)
    assert list(store.list("")) == []


def test_a_second_put_replaces_the_first(store: ObjectStore) -> None:
    put(store, "a", b"first")
    put(store, "a", b"second, longer")

    assert read(store, "a") == b"second, longer"


def test_a_body_that_fails_leaves_what_was_there(store: ObjectStore) -> None:
    put(store, "a", b"before")

    with pytest.raises(BrokenPipeError, match="the encoder died"):
        store.put("a", stream(30 * MB, fails_at=20 * MB), content_type="audio/mpeg")
    with pytest.raises(BrokenPipeError, match="the encoder died"):
        store.put("b", stream(1000, piece=100, fails_at=500), content_type="audio/mpeg")

    assert read(store, "a") == b"before"
    assert [item.key for item in store.list("")] == ["a"]


def test_more_than_a_page_is_listed_once_and_in_order(store: ObjectStore) -> None:
    keys = [f"staged/job_1/{number:04}" for number in range(1050)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: put(store, key, b"x"), keys))
    put(store, "staged/job_10/0000")
    put(store, "audio/1d/job_1/0.mp3")

    listed = [*store.list("staged/job_1/")]

    assert [item.key for item in listed] == keys
    assert {item.size for item in listed} == {1}
    assert sorted(item.key for item in store.list("")) == sorted(
        [*keys, "staged/job_10/0000", "audio/1d/job_1/0.mp3"]
    )


def test_nothing_is_listed_where_nothing_is(store: ObjectStore) -> None:
    assert list(store.list("audio/")) == []


def test_delete_may_be_said_again(store: ObjectStore) -> None:
    put(store, "a")

    store.delete("a")
    store.delete("a")
    store.delete("never/was")

    with pytest.raises(ObjectNotFound):
        store.head("a")


def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    with pytest.raises(ObjectNotFound):
        next(iter(store.get("nope")))
    with pytest.raises(ObjectNotFound):
        store.head("nope")


def test_a_usable_bucket_passes_the_check(store: ObjectStore) -> None:
    store.check()


def test_a_missing_bucket_fails_the_check(place: S3Place) -> None:
    with pytest.raises(ObjectNotFound):
        place.missing_bucket().check()


def test_wrong_credentials_are_denied(place: S3Place) -> None:
    put(place.store, "a")
    for impostor in (place.with_wrong_secret(), place.with_unknown_key()):
        with pytest.raises(AccessDenied):
            put(impostor, "b")
        with pytest.raises(AccessDenied):
            next(iter(impostor.get("a")))
        with pytest.raises(AccessDenied):
            impostor.head("a")
        with pytest.raises(AccessDenied):
            impostor.delete("a")
        with pytest.raises(AccessDenied):
            next(iter(impostor.list("")))
        with pytest.raises(AccessDenied):
            impostor.check()
    assert [item.key for item in place.store.list("")] == ["a"]


def test_a_server_that_is_down_is_unavailable_within_seconds(place: S3Place) -> None:
    down = place.at(free_ports(1)[0])
    for ask in (
        lambda: put(down, "a"),
        lambda: down.put("a", stream(9 * MB), content_type="audio/mpeg"),
        lambda: read(down, "a"),
        lambda: down.head("a"),
        lambda: down.delete("a"),
        lambda: list(down.list("")),
        down.check,
    ):
        started = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        assert caught.value.__cause__ is not None
        assert time.monotonic() - started < 5


def test_the_check_does_not_wait_for_a_server_that_hangs(place: S3Place) -> None:
    with silent_server() as port:
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            place.at(port).check()
        assert time.monotonic() - started < 4


def test_a_connection_cut_in_the_body_never_looks_like_the_end(place: S3Place) -> None:
    body = pattern(0, MB)
    put(place.store, "a", body)
    got = b""

    with cutting_proxy(place.port, after=300_000) as port:
        pieces = place.at(port).get("a")
        while len(got) < 200_000:
            got += next(pieces)
        with pytest.raises(StoreUnavailable):
            list(pieces)

    assert body.startswith(got)


def test_a_connection_cut_in_the_headers_is_unavailable(place: S3Place) -> None:
    put(place.store, "a")
    with cutting_proxy(place.port, after=10) as port, pytest.raises(StoreUnavailable):
        read(place.at(port), "a")


def test_a_reader_that_leaves_early_does_no_harm(store: ObjectStore) -> None:
    put(store, "a", bytes(MB))
    for _ in range(40):  # more than there are pooled connections
        pieces = store.get("a")
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]
    assert len(read(store, "a")) == MB


def test_threads_may_share_a_store(store: ObjectStore) -> None:
    def there_and_back(number: int) -> bool:
        body = pattern(number, 100_000)
        put(store, f"t/{number}", body)
        return read(store, f"t/{number}") == body

    with ThreadPoolExecutor(24) as threads:
        assert all(threads.map(there_and_back, range(96)))
