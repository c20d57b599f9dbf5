"""boto3's errors, sorted by what the reader must do."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from botocore import exceptions as sdk
from urllib3.exceptions import HTTPError

from ckptfs.errors import (
    BucketNotFoundError,
    ObjectNotFoundError,
    PreconditionError,
    StoreCorruptionError,
    StoreDeniedError,
    StoreError,
    StoreRejectedError,
    StoreUnavailableError,
)
from ckptfs.objectstore.base import ANY, Condition

if TYPE_CHECKING:
    from collections.abc import Mapping

CALL_ERRORS = (sdk.BotoCoreError, sdk.ClientError, HTTPError, OSError)
"""Everything that a call of the client, or reading its body, raises because of the world."""

_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.ProfileNotFound,
    sdk.ConfigParseError,
    sdk.ConfigNotFound,
    sdk.TokenRetrievalError,
    sdk.SSOError,
    sdk.MetadataRetrievalError,
    sdk.UnauthorizedSSOTokenError,
)
_NO_CREDENTIALS_HINT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws, or an instance role"

_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
    "TooManyRequests",
    "TooManyRequestsException",
    "EC2ThrottledException",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "RequestTimeoutException",
    "IncompleteBody",
    "OperationAborted",
}
_DENIED_HINTS = {
    "AccessDenied": "the credentials lack the right; see the bucket's policy",
    "AllAccessDisabled": "the account has no access to this bucket any more",
    "AccountProblem": "the provider has suspended the account",
    "InvalidAccessKeyId": "the store does not know the access key; check AWS_ACCESS_KEY_ID and the endpoint",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session's credentials have expired; renew them",
    "InvalidToken": "the session token is wrong; check AWS_SESSION_TOKEN",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    "RequestExpired": "the clock of this machine is wrong; set it",
}
_CORRUPT = {
    "BadDigest",
    "InvalidDigest",
    "InvalidChecksum",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
    "ContentSHA256Mismatch",
}
_WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}


def error_of(e: Exception, what: str, condition: Condition = ANY) -> StoreError:
    """The store error that stands for ``e``, met while doing ``what`` under ``condition``."""
    if isinstance(e, sdk.ClientError):
        error = _answer_error(e, what)
        # Amazon says 404 NoSuchKey where If-Match met no object at all.
        is_unmet = condition.etag is not None and e.response.get("Error", {}).get("Code") in {"NoSuchKey", "404"}
        if is_unmet and isinstance(error, ObjectNotFoundError):
            return PreconditionError(f"{what}: the generation {condition.etag!r} is not there")
        return error
    message = f"{what}: {e}"
    if isinstance(e, _CREDENTIALS):
        return StoreDeniedError(message, hint=_NO_CREDENTIALS_HINT)
    if isinstance(e, sdk.ParamValidationError | sdk.InvalidRegionError | UnicodeError):
        return StoreRejectedError(message)
    if isinstance(e, sdk.SSLError):
        return StoreUnavailableError(message, hint="check the endpoint's certificate, or set AWS_CA_BUNDLE")
    if isinstance(e, sdk.EndpointConnectionError | sdk.ConnectTimeoutError):
        return StoreUnavailableError(message, hint="check the endpoint and the network")
    return StoreUnavailableError(message)


def _answer_error(e: sdk.ClientError, what: str) -> StoreError:
    error: Mapping[str, Any] = e.response.get("Error", {})
    metadata: Mapping[str, Any] = e.response.get("ResponseMetadata", {})
    code = str(error.get("Code", ""))
    status = int(metadata.get("HTTPStatusCode", 0))
    message = f"{what}: {code or status} {error.get('Message', '')}".rstrip()
    if code in _THROTTLED or status >= 500 or status == 429:  # some stores say 403 SlowDown: the code counts first
        return StoreUnavailableError(message, retry_after_s=_retry_after_s(metadata))
    if code in _CORRUPT:
        return StoreCorruptionError(message)
    if code == "NoSuchBucket":
        return BucketNotFoundError(message, hint="create the bucket, or correct its name in the URL")
    if code in _WRONG_REGION or status in {301, 307}:
        return StoreRejectedError(message, hint="the bucket is in another region: add ?region=NAME to the URL")
    if status == 412 or code in {"PreconditionFailed", "ConditionalRequestConflict"}:
        return PreconditionError(message)
    if status in {401, 403} or code in _DENIED_HINTS:
        return StoreDeniedError(message, hint=_DENIED_HINTS.get(code, _DENIED_HINTS["AccessDenied"]))
    if status == 404:
        return ObjectNotFoundError(message)
    if status < 300:
        # An answer that began as success and has an error in it: the outcome is not known.
        return StoreUnavailableError(message)
    return StoreRejectedError(message)


def _retry_after_s(metadata: Mapping[str, Any]) -> float | None:
    """Seconds in the Retry-After header; its other form, a date, is not used by object stores."""
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, float(metadata.get("HTTPHeaders", {}).get("retry-after")))
    return None
