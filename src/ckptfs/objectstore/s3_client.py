"""The boto3 client as ckptfs tunes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from ckptfs.objectstore.url import StoreURL

CONNECT_S = 10.0
"""Deadline of a connection attempt, and of one send of a piece of a body, seconds."""

READ_S = 60.0
"""Longest silence of the server, seconds. A completion of thousands of parts may take most of it."""


def make_client(url: StoreURL, connection_count_max: int) -> S3Client:
    """A client for ``url``: credentials, region and endpoint from the SDK's own chain where the URL does not say."""
    params = url.params
    # An endpoint that is not Amazon's seldom has DNS names for its buckets.
    path_style = params.get("path_style", "true" if "endpoint" in params else "false") == "true"
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        max_pool_connections=connection_count_max,
        tcp_keepalive=True,
        retries={"total_max_attempts": 1, "mode": "standard"},  # RetryingObjectStore is the one that tries again
        # Our own checksum protects every body; the SDK's SHA-256 signature over it would cost five times as much.
        s3={"addressing_style": "path" if path_style else "auto", "payload_signing_enabled": False},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="ckptfs",
    )
    session = boto3.session.Session(region_name=params.get("region"))
    client = session.client("s3", endpoint_url=params.get("endpoint"), config=config)
    client.meta.events.register("before-call.s3.GetObject", _ask_for_checksum)
    client.meta.events.register("before-call.s3.HeadBucket", _ask_for_region_once)
    return client


def _ask_for_checksum(params: dict[str, Any], **_: object) -> None:
    """Ask for the object's checksum by header.

    Asked by argument, the SDK verifies it itself, slowly and against ranges.
    """
    params["headers"]["x-amz-checksum-mode"] = "ENABLED"


def _ask_for_region_once(params: dict[str, Any], **_: object) -> None:
    """Keep the SDK, which asks a bucket for its region when it is redirected, from asking again for ever."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True
