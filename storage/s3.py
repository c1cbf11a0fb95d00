"""The object store port over S3: AWS, SeaweedFS, MinIO, R2 and their like. All of boto3 is in here."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

import boto3.session
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    ClientError,
    ConnectionError,  # botocore's own, no relation of the builtin
    HTTPClientError,
    IncompleteReadError,
)
from botocore.parsers import ResponseParserError
from s3transfer.exceptions import RetriesExceededError
from urllib3.exceptions import HTTPError

from storage.links import S3LinkSigner
from storage.store import AccessDenied, ObjectNotFound, StoredObject, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

AddressingStyle = Literal["path", "virtual"]

#: Above the 5 MiB that S3 asks of every part but the last; 10,000 of them make 80 GB.
PART_BYTES: Final = 8 * 1024 * 1024
CONNECT_SECONDS: Final = 2
#: Between two reads of a socket: far above the slowest answer of a healthy store (a multipart completion).
READ_SECONDS: Final = 20
#: A readiness probe is asked every few seconds: it must have answered by then.
PROBE_SECONDS: Final = 2
#: The first try included. Above us every stage tries again, so a second try is for a stale connection only.
ATTEMPTS: Final = 2
#: More threads than a worker or an API process has at work in the store at once.
POOL_CONNECTIONS: Final = 16

#: What an S3 error code means to the caller; looked up before the status.
#: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
CODES: Final[Mapping[str, type[StoreError]]] = {
    "NoSuchKey": ObjectNotFound,
    "NoSuchBucket": ObjectNotFound,
    "AccessDenied": AccessDenied,
    "InvalidAccessKeyId": AccessDenied,
    "SignatureDoesNotMatch": AccessDenied,
    "RequestTimeTooSkewed": StoreUnavailable,  # a 403 that setting the clock mends
    "SlowDown": StoreUnavailable,
    "RequestTimeout": StoreUnavailable,  # a 400
    "Throttling": StoreUnavailable,
    "ThrottlingException": StoreUnavailable,
    "OperationAborted": StoreUnavailable,  # a 409: another request is changing the same thing
    "NoSuchUpload": StoreUnavailable,  # a 404: the multipart upload was cleared away under us
}
#: What a status means where the code is unknown; a HEAD has no body and so no code.
STATUSES: Final[Mapping[int, type[StoreError]]] = {
    401: AccessDenied,
    403: AccessDenied,
    404: ObjectNotFound,
    408: StoreUnavailable,
    429: StoreUnavailable,
}
#: Not answered, or not to the end.
UNREACHED: Final = (
    ConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ChecksumError,
    ResponseParserError,
    RetriesExceededError,
    HTTPError,
)


class S3Store:
    """An `ObjectStore` over one bucket. Safe for use by several threads at once.

    Attributes:
        bucket: the bucket's name.
        links: signs links to this bucket's objects, for the public endpoint.
    """

    def __init__(
        self, *, bucket: str, region: str, client: S3Client, probe: S3Client, links: S3LinkSigner
    ) -> None:
        self.bucket = bucket
        self.links = links
        self._region = region
        self._client = client
        self._probe = probe

    def put(
        self,
        key: str,
        body: bytes | BinaryIO,
        *,
        content_type: str,
        metadata: Mapping[str, str] | None = None,
        cache_control: str | None = None,
    ) -> None:
        """Store `body` under `key`; nobody sees it before it is whole.

        A file object is read to its end from where it stands, needs no length and no `seek`, and is not
        closed. It is read on the caller's thread, at most two parts (16 MiB) ahead. An error of its own
        passes through, and leaves what was there before.

        Raises:
            StoreUnavailable, AccessDenied, StoreError.
        """
        described: dict[str, Any] = {"ContentType": content_type, "Metadata": dict(metadata or {})}
        if cache_control is not None:
            described["CacheControl"] = cache_control
        with _translated(key):
            if isinstance(body, bytes) and len(body) < PART_BYTES:
                self._client.put_object(Bucket=self.bucket, Key=key, Body=body, **described)
                return
            source = io.BytesIO(body) if isinstance(body, bytes) else body
            reads: Any = _FullReads(source)  # boto3 asks for `read` only; its stubs for all of IO
            self._client.upload_fileobj(reads, self.bucket, key, ExtraArgs=described, Config=_in_parts())

    def get(self, key: str, *, chunk_size: int = 1 << 16) -> Iterator[bytes]:
        """Yield the bytes of `key`, in pieces of at most `chunk_size`. Asks the store at the first piece.

        Raises:
            ObjectNotFound: before the first piece.
            StoreUnavailable: at any piece; a cut connection never looks like the end.
        """
        if chunk_size < 1:
            raise ValueError(f"chunk_size {chunk_size} is below 1")
        return self._pieces(key, chunk_size)

    def _pieces(self, key: str, chunk_size: int) -> Iterator[bytes]:
        with _translated(key):
            body = self._client.get_object(Bucket=self.bucket, Key=key)["Body"]
        with closing(body):
            while True:
                with _translated(key):
                    piece = body.read(chunk_size)  # at the end it compares with Content-Length
                if not piece:
                    return
                yield piece

    def head(self, key: str) -> StoredObject:
        """Describe `key`.

        Raises:
            ObjectNotFound.
        """
        with _translated(key):
            answer = self._client.head_object(Bucket=self.bucket, Key=key)
        return StoredObject(
            key=key,
            size=answer["ContentLength"],
            etag=answer["ETag"].strip('"'),
            last_modified=answer["LastModified"],
            content_type=answer.get("ContentType", ""),
            cache_control=answer.get("CacheControl", ""),
            metadata=answer["Metadata"],
        )

    def delete(self, key: str) -> None:
        """Delete `key`; a missing one is no error."""
        with _translated(key):
            try:
                self._client.delete_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                # S3 answers 204 to this as well; some stores do not.
                if _code(error) != "NoSuchKey":
                    raise

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every object whose key starts with `prefix`; asks for 1,000 at a time."""
        page_from: dict[str, Any] = {}
        while True:
            with _translated(prefix):
                page = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **page_from)
            for item in page.get("Contents", ()):
                yield StoredObject(
                    key=item["Key"],
                    size=item["Size"],
                    etag=item["ETag"].strip('"'),
                    last_modified=item["LastModified"],
                )
            if not page.get("IsTruncated"):
                return
            page_from = {"ContinuationToken": page["NextContinuationToken"]}

    def check(self) -> None:
        """Return when the bucket can be used; tries once, and waits for 2 s at most per step.

        Raises:
            StoreUnavailable, AccessDenied, ObjectNotFound (no such bucket).
        """
        with _translated(self.bucket):
            self._probe.head_bucket(Bucket=self.bucket)

    def ensure_bucket(self) -> None:
        """Create the bucket where it is missing.

        Raises:
            AccessDenied: it belongs to someone else, or these credentials may not create it.
            StoreUnavailable, StoreError.
        """
        try:
            self.check()
        except ObjectNotFound:
            self._create_bucket()

    def _create_bucket(self) -> None:
        where: dict[str, Any] = {}
        # us-east-1 is the one region that must not be named.
        # https://docs.aws.amazon.com/AmazonS3/latest/API/API_CreateBucket.html
        if self._region != "us-east-1":
            where["CreateBucketConfiguration"] = {"LocationConstraint": self._region}
        with _translated(self.bucket):
            try:
                self._client.create_bucket(Bucket=self.bucket, **where)
            except ClientError as error:
                if _code(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise
        # Whoever was quicker, it must be ours to use.
        self.check()

    def lifecycle_rules(self) -> Iterable[Mapping[str, Any]]:
        """Return the bucket's lifecycle rules as S3 gives them; none where there is no configuration."""
        with _translated(self.bucket):
            try:
                return self._client.get_bucket_lifecycle_configuration(Bucket=self.bucket)["Rules"]
            except ClientError as error:
                if _code(error) != "NoSuchLifecycleConfiguration":
                    raise
                return []

    def put_lifecycle_rules(self, rules: Iterable[Mapping[str, Any]]) -> None:
        """Replace all lifecycle rules of the bucket."""
        configuration: Any = {"Rules": [*rules]}
        with _translated(self.bucket):
            self._client.put_bucket_lifecycle_configuration(
                Bucket=self.bucket, LifecycleConfiguration=configuration
            )

    def close(self) -> None:
        """Close the idle connections."""
        self._client.close()
        self._probe.close()


def connect(
    *,
    endpoint: str,
    public_endpoint: str | None = None,
    region: str,
    bucket: str,
    access_key_id: str,
    secret_access_key: str,
    addressing_style: AddressingStyle = "path",
) -> S3Store:
    """Return the store over `bucket`. Asks no server: `check` does.

    Args:
        endpoint: S3 endpoint that we use ourselves.
        public_endpoint: S3 endpoint as the holders of links see it; None is `endpoint`.
        region: region that requests and links are signed for.
        bucket: name of the bucket; it need not exist yet (see `ensure_bucket`).
        access_key_id: who signs.
        secret_access_key: with what.
        addressing_style: `path` (host/bucket/key) or `virtual` (bucket.host/key).
    """
    session = boto3.session.Session(
        aws_access_key_id=access_key_id, aws_secret_access_key=secret_access_key, region_name=region
    )

    def client(
        url: str,
        *,
        connect_seconds: int = CONNECT_SECONDS,
        read_seconds: int = READ_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> S3Client:
        return session.client(
            "s3",
            endpoint_url=url,
            config=Config(
                # Without it boto3 signs links for custom endpoints with SigV2.
                signature_version="s3v4",
                region_name=region,
                s3={"addressing_style": addressing_style},
                # By default boto3 adds x-amz-checksum-* and aws-chunked, which some stores refuse.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                connect_timeout=connect_seconds,
                read_timeout=read_seconds,
                retries={"mode": "standard", "total_max_attempts": attempts},
                max_pool_connections=POOL_CONNECTIONS,
                tcp_keepalive=True,
            ),
        )

    return S3Store(
        bucket=bucket,
        region=region,
        client=client(endpoint),
        probe=client(endpoint, connect_seconds=PROBE_SECONDS, read_seconds=PROBE_SECONDS, attempts=1),
        links=S3LinkSigner(client(public_endpoint or endpoint), bucket=bucket),
    )


class _FullReads:
    """A body whose `read(n)` gives n bytes unless it ends there.

    A pipe may give fewer: boto3 would take that for the end of a small body and read the rest of it into
    memory, or send a part that S3 refuses as too small. It hides `seek`, so that every body takes one way.
    """

    def __init__(self, body: BinaryIO) -> None:
        self._body = body

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return self._body.read()
        pieces = []
        while size > 0 and (piece := self._body.read(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def _in_parts() -> TransferConfig:
    # No threads: parts go up one after another as they are read, so memory stays flat however long the body.
    return TransferConfig(
        multipart_threshold=PART_BYTES,
        multipart_chunksize=PART_BYTES,
        use_threads=False,
        preferred_transfer_client="classic",
    )


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn every error of the libraries below into one of the port's; `what` is the key or bucket."""
    try:
        yield
    except ClientError as error:
        raise _meaning(error)(f"{what}: {error}") from error
    except UNREACHED as error:
        raise StoreUnavailable(f"{what}: {error}") from error
    except (BotoCoreError, Boto3Error) as error:
        raise StoreError(f"{what}: {error}") from error


def _meaning(error: ClientError) -> type[StoreError]:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if (meaning := CODES.get(_code(error)) or STATUSES.get(status)) is not None:
        return meaning
    return StoreUnavailable if status >= 500 else StoreError


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")
