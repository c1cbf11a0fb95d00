"""`voxfleet storage`: the bucket."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from cli.environment import BadInput, Failed, settings

if TYPE_CHECKING:
    from config.settings import Settings
    from storage.s3 import S3Store


@click.group()
def storage() -> None:
    """Look after the bucket."""


@storage.command()
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=0,
    help="Seconds to wait for a store that is starting.",
)
def init(seconds: float) -> None:
    """Make the bucket and its lifecycle rules; changes nothing where all is there."""
    values = settings()
    from storage import lifecycle
    from storage.store import StoreError, StoreUnavailable

    store = connect(values)
    end = time.monotonic() + seconds
    while True:
        try:
            store.ensure_bucket()
            lifecycle.apply(store)
        except StoreUnavailable as error:
            if time.monotonic() < end:
                time.sleep(0.1)
                continue
            raise Failed(
                f"the store at {values.s3_endpoint} does not answer: {error} (VOXFLEET_S3_ENDPOINT)"
            ) from error
        except StoreError as error:
            raise Failed(
                f"bucket {values.s3_bucket} at {values.s3_endpoint}: {error} (VOXFLEET_S3_*)"
            ) from error
        break
    click.echo(f"bucket {values.s3_bucket} is ready, with {len(lifecycle.RULES)} lifecycle rules")


def connect(values: Settings) -> S3Store:
    """Return the fleet's store.

    Raises:
        BadInput: the keys are not set.
    """
    from storage import s3

    if values.s3_access_key_id is None or values.s3_secret_access_key is None:
        raise BadInput(
            "no keys for the object store: set VOXFLEET_S3_ACCESS_KEY_ID and VOXFLEET_S3_SECRET_ACCESS_KEY "
            "(`voxfleet up` makes its own)"
        )
    return s3.connect(
        endpoint=values.s3_endpoint,
        public_endpoint=values.s3_public_endpoint,
        region=values.s3_region,
        bucket=values.s3_bucket,
        access_key_id=values.s3_access_key_id.get_secret_value(),
        secret_access_key=values.s3_secret_access_key.get_secret_value(),
        addressing_style=values.s3_addressing_style,
    )
