"""Every setting of the fleet, in one place.

Read once by each entry point with `load`; everything below receives values, never the environment.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

PREFIX: Final = "VOXFLEET_"
ENGINE_PREFIX: Final = "VOXFLEET_ENGINE_"
#: Written by `voxfleet up` into the data folder (0600): where the parts it started are, with their
#: credentials, so that `voxfleet doctor` or a second worker started by hand finds them. The process
#: environment wins over it.
EMBEDDED_ENV: Final = "embedded.env"

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


_SCHEMES: Final[Mapping[str, tuple[str, ...]]] = {
    "broker_url": ("redis://", "rediss://", "unix://", "amqp://", "amqps://"),
    "database_url": ("sqlite:///", "postgresql://", "postgres://", "postgresql+psycopg://"),
    "public_url": ("http://", "https://"),
    "s3_endpoint": ("http://", "https://"),
    "s3_public_endpoint": ("http://", "https://"),
}
#: 24 bytes make 32 characters of base64, 64 bytes 88.
_WEBHOOK_SECRET: Final = re.compile(
    r"whsec_(?=.{32,88}$)(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
)


class SettingsError(ValueError):
    """The settings cannot be used as they are; the message names the variable."""


class UnknownSettings(SettingsError):
    """A `VOXFLEET_*` variable that nothing reads: most often a misspelling."""


class MissingSetting(SettingsError):
    """A variable without a default is not set."""


class Settings(BaseSettings):
    """Settings of every process, from `VOXFLEET_*` variables."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        # Some of the values are secrets, whoever prints the error.
        hide_input_in_errors=True,
    )

    data_dir: Path = Field(
        default=Path(".voxfleet"),
        description="Folder of all that `voxfleet up` keeps: database, objects, keys, logs, temp files.",
    )
    api_bind: str = Field(
        default="127.0.0.1:8000",
        description="Address and port the API listens on. Beyond loopback it needs an API key to exist.",
    )
    public_url: str | None = Field(
        default=None,
        description="URL under which clients reach this API. Default: http:// and `VOXFLEET_API_BIND`.",
    )
    broker_url: SecretStr = Field(
        default=SecretStr("redis://127.0.0.1:16379/0"),
        description="Where bells are rung: `redis://` or `rediss://`, with a database number of its own, "
        "or `amqp://` or `amqps://`, with a virtual host of its own.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="Job table: `sqlite:///file` or `postgresql://`. Default: SQLite in the data folder.",
    )
    s3_endpoint: str = Field(
        default="http://127.0.0.1:18333",
        description="S3 endpoint that the fleet itself uses.",
    )
    s3_public_endpoint: str | None = Field(
        default=None,
        description="S3 endpoint as clients see it: links are signed for its host. "
        "Default: `VOXFLEET_S3_ENDPOINT`.",
    )
    s3_region: str = Field(default="us-east-1", description="Region the links are signed for.")
    s3_bucket: str = Field(default="voxfleet", description="Bucket of all objects.")
    s3_access_key_id: SecretStr | None = Field(default=None, description="Access key of the bucket.")
    s3_secret_access_key: SecretStr | None = Field(default=None, description="Secret key of the bucket.")
    s3_addressing_style: Literal["path", "virtual"] = Field(
        default="path", description="`path` (host/bucket/key) or `virtual` (bucket.host/key)."
    )
    link_seconds: int = Field(
        default=3600, ge=1, le=604_800, description="Life of a presigned link, in seconds (1 s to 7 days)."
    )
    default_model: str = Field(
        default="hibari", description="Model of a request that names none, and the one `voxfleet up` serves."
    )
    max_input_chars: int = Field(
        default=200_000, ge=1, description="Longest `input` of a job, in Unicode code points."
    )
    max_queued: int = Field(
        default=10_000, ge=1, description="Jobs of one model that may wait or be worked on; more get 503."
    )
    max_wait_seconds: int = Field(
        default=86_400,
        ge=1,
        description="Estimated seconds until a new job would be started beyond which it gets 503.",
    )
    tenant_max_queued: int = Field(
        default=5_000, ge=1, description="Jobs of one tenant that may wait; more get 429."
    )
    tenant_max_running: int | None = Field(
        default=None,
        ge=1,
        description="Jobs of one tenant that are worked on at once in one queue. Default: no limit.",
    )
    metrics_allowed_cidrs: Annotated[tuple[IpNetwork, ...], NoDecode] = Field(
        default=(ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")),
        description="Networks, comma-separated, that may read `/metrics` without a key. "
        "Requests that came through a proxy may not. Default: loopback.",
    )
    webhook_allowed_cidrs: Annotated[tuple[IpNetwork, ...], NoDecode] = Field(
        default=(),
        description="Networks, comma-separated, that webhooks may reach although they are not public "
        "(plain http is allowed there).",
    )
    webhook_secret: SecretStr | None = Field(
        default=None,
        description="Webhook signing secret (`whsec_...`). "
        "Default: made once, in `webhook-secret` of the data folder.",
    )
    lease_seconds: float = Field(
        default=30.0,
        gt=1.0,
        description="How long a worker may be silent before its job is given to another.",
    )
    max_failures: int = Field(
        default=3, ge=1, description="Failures without a new clip in between after which a job is failed."
    )
    chunk_seconds: float = Field(
        default=120.0,
        gt=0,
        description="Hard limit for one chunk: the engine is killed when it takes longer.",
    )
    load_seconds: float = Field(
        default=1800.0,
        gt=0,
        description="Hard limit for loading an engine, a download of its weights included.",
    )
    first_audio_seconds: float = Field(
        default=3.0,
        gt=0,
        description="How long a live job waits for its first sound once a worker has it; then the fallback "
        "model speaks it, or a notice is heard. An engine that gives whole clips gets twice its usual time.",
    )
    fallback_model: str | None = Field(
        default=None,
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Model that speaks a job when its own has no memory for it. Default: none. "
        "A request's `fallback` wins.",
    )
    voices_dir: Path | None = Field(
        default=None,
        description="Folder of reference voices for engines that clone: `name.wav`, and `name.txt` with what "
        "it says. Read when a worker starts. Default: none.",
    )
    recycle_chunks: int | None = Field(
        default=None, ge=1, description="Chunks after which an engine is started afresh. Default: never."
    )
    recycle_mb: int | None = Field(
        default=1024,
        ge=1,
        description="Growth of an engine's memory, resident or on its device, in MB, after which it is "
        "started afresh. Default: 1024.",
    )
    cpu_nice: int = Field(
        default=10,
        ge=0,
        le=19,
        description="Niceness of CPU engines and ffmpeg, and of all that `up` starts "
        "but the API and its broker.",
    )
    ffmpeg: str | None = Field(
        default=None, description="Path of ffmpeg. Default: the one on PATH, else that of `imageio-ffmpeg`."
    )
    valkey_port: int = Field(default=16379, ge=1, le=65535, description="Port of the embedded Valkey (`up`).")
    s3_port: int = Field(
        default=18333, ge=1, le=55535, description="S3 port of the embedded SeaweedFS (`up`)."
    )
    weed_filer_port: int = Field(default=18888, ge=1, le=55535, description="SeaweedFS filer port (`up`).")
    weed_master_port: int = Field(default=19333, ge=1, le=55535, description="SeaweedFS master port (`up`).")
    weed_volume_port: int = Field(default=19340, ge=1, le=55535, description="SeaweedFS volume port (`up`).")
    weed_admin_port: int = Field(default=13646, ge=1, le=55535, description="SeaweedFS admin port (`up`).")
    worker: str | None = Field(
        default=None,
        pattern="^(media|synth:[A-Za-z0-9][A-Za-z0-9._-]*)$",
        description="What `dramatiq actors.worker:boot` is: `synth:` and a model, or `media`.",
    )
    liveness_file: Path | None = Field(
        default=None,
        description="File that a worker or sweeper touches once a second while it is well, for probes. "
        "Default: none. One for each process.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Level of the logs."
    )

    @field_validator("webhook_allowed_cidrs", "metrics_allowed_cidrs", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return (
            tuple(part.strip() for part in value.split(",") if part.strip())
            if isinstance(value, str)
            else value
        )

    @field_validator("broker_url", "database_url", "public_url", "s3_endpoint", "s3_public_endpoint")
    @classmethod
    def _known_scheme(cls, value: SecretStr | str | None, info: ValidationInfo) -> SecretStr | str | None:
        url = value.get_secret_value() if isinstance(value, SecretStr) else value
        schemes = _SCHEMES[info.field_name or ""]
        if url is not None and not url.startswith(schemes):
            # The value stays out: it may hold a password.
            raise PydanticCustomError(
                "scheme", "must start with {schemes}", {"schemes": " or ".join(schemes)}
            )
        return value

    @field_validator("broker_url")
    @classmethod
    def _readable(cls, value: SecretStr) -> SecretStr:
        # A password that is cut in two would be shown as part of the address.
        if not _is_one_url(value.get_secret_value()):
            raise PydanticCustomError(
                "unreadable", "must be one URL; special characters in a password are written as %XX", {}
            )
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _standard_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _WEBHOOK_SECRET.fullmatch(value.get_secret_value()):
            raise PydanticCustomError("secret", "must be `whsec_` and 24 to 64 bytes in base64", {})
        return value

    @property
    def database(self) -> str:
        """The SQLAlchemy URL of the job table."""
        if self.database_url is None:
            return f"sqlite:///{(self.data_dir / 'voxfleet.db').absolute()}"
        url = self.database_url.get_secret_value()
        for prefix in ("postgresql://", "postgres://"):
            if url.startswith(prefix):
                return "postgresql+psycopg://" + url.removeprefix(prefix)
        return url

    @property
    def s3_credentials(self) -> tuple[str, str]:
        """The access key and the secret key of the bucket.

        Raises:
            MissingSetting: one of them is not set.
        """
        if self.s3_access_key_id is None or self.s3_secret_access_key is None:
            raise MissingSetting(
                "VOXFLEET_S3_ACCESS_KEY_ID and VOXFLEET_S3_SECRET_ACCESS_KEY must be set; "
                "`voxfleet up` sets them for the store that it starts"
            )
        return self.s3_access_key_id.get_secret_value(), self.s3_secret_access_key.get_secret_value()

    @property
    def external_url(self) -> str:
        """This API's URL as its clients see it, without a trailing slash."""
        return (self.public_url or f"http://{self.api_bind}").rstrip("/")

    @property
    def temp_dir(self) -> Path:
        """Where a worker puts files that live as long as one piece of work."""
        return self.data_dir / "tmp"


def _is_one_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return not (parts.fragment or set("@;") & set(parts.path + parts.query))


def load(
    environ: Mapping[str, str] = os.environ,
    *,
    engine_settings: Iterable[str] | None = None,
    embedded: bool = True,
) -> Settings:
    """Read the settings, and refuse a variable that nothing reads.

    Args:
        engine_settings: full names of the variables that installed engines read, where the caller knows
            them; None accepts every name under `VOXFLEET_ENGINE_`.
        embedded: whether what `voxfleet up` wrote into the data folder counts, below `environ`.

    Raises:
        UnknownSettings: a `VOXFLEET_*` variable that is no setting.
        pydantic.ValidationError: a value out of its range.
    """
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    known.update(engine_settings or ())
    unknown = sorted(
        name
        for name in environ
        if name.startswith(PREFIX)
        and name not in known
        and not (engine_settings is None and name.startswith(ENGINE_PREFIX))
        # The command line's own: where `voxfleet speak` finds the fleet it talks to.
        and name not in ("VOXFLEET_API_KEY", "VOXFLEET_URL")
    )
    if unknown:
        raise UnknownSettings(f"unknown setting {', '.join(unknown)}; docs/reference/settings.md lists them")
    data_dir = Path(environ.get(f"{PREFIX}DATA_DIR", Settings.model_fields["data_dir"].default))
    return Settings(_env_file=data_dir / EMBEDDED_ENV if embedded else None)  # type: ignore[call-arg]


def complaints(error: ValidationError) -> str:
    """Return what is wrong with which variables, in one line and without their values."""
    return "; ".join(
        f"{PREFIX}{str(found['loc'][0]).upper()}: {found['msg']}"
        for found in error.errors(include_url=False, include_input=False)
    )


def engine_options(environ: Mapping[str, str], engine: str) -> dict[str, str]:
    """Return the options of one engine: `VOXFLEET_ENGINE_TONE_RTF=0.1` gives `{"rtf": "0.1"}` for `tone`."""
    prefix = f"{ENGINE_PREFIX}{engine.upper().replace('-', '_')}_"
    return {
        name.removeprefix(prefix).lower(): value for name, value in environ.items() if name.startswith(prefix)
    }
