"""Store URLs: read, checked, and opened.

::

    s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME&path_style=true|false]
    file:///DIRECTORY

Prefix and directory are percent-decoded, so any key can be named. Credentials never stand in a URL: they come from the
SDK's own chain.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, quote, unquote_to_bytes, urlencode, urlsplit

from ckptfs.errors import UsageError
from ckptfs.objectstore.file import FileObjectStore
from ckptfs.objectstore.retry import RetryingObjectStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfs.env import Env
    from ckptfs.objectstore.base import ObjectStore

_S3_PARAMS = frozenset({"endpoint", "region", "path_style"})
_SECRET_PARAMS = re.compile(r"key|secret|token|password|credential", re.IGNORECASE)
_LATER = {"r2": "Cloudflare R2", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}
_FORMS = "s3://BUCKET/PREFIX or file:///DIRECTORY"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A store URL, read and checked.

    Attributes:
        scheme: ``s3`` or ``file``.
        bucket: name of the bucket; for ``file`` the absolute directory.
        prefix: what every key begins with, without slashes at its ends; always empty for ``file``.
        params: what stands after the question mark.
    """

    scheme: str
    bucket: str
    prefix: str = ""
    params: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The URL in its one canonical form: equal stores, equal texts."""
        if self.scheme == "file":
            return f"file://{quote(os.fsencode(self.bucket))}"
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        query = f"?{urlencode(sorted(self.params.items()), safe=':/')}" if self.params else ""
        return f"{self.scheme}://{self.bucket}{path}{query}"


def parse_store_url(text: str) -> StoreURL:
    """Read a store URL.

    Raises:
        UsageError: anything is wrong with it; the hint says what to write instead.
    """
    if "://" not in text:
        hint = f"write file://{text}" if text.startswith("/") else f"write {_FORMS}"
        raise UsageError(f"{text!r} is not a store URL", hint=hint)
    try:
        parts = urlsplit(text)
    except ValueError as e:
        raise UsageError(f"{text!r} is not a URL: {e}", hint=f"write {_FORMS}") from e
    if "@" in parts.netloc:
        # Not repeated in the message: it would put the secret into logs.
        raise UsageError(
            f"the {parts.scheme}:// URL has credentials in it",
            hint="remove them; credentials come from the environment or the SDK's configuration files",
        )
    if parts.fragment:
        raise UsageError(f"{text!r} has a '#'", hint="write %23 for a '#' in a prefix or directory")
    if parts.scheme in _LATER:
        name = _LATER[parts.scheme]
        raise UsageError(f"this version does not have {name} ({parts.scheme}://) yet", hint=f"write {_FORMS}")
    if parts.scheme == "file":
        return _file_url(text, parts)
    if parts.scheme == "s3":
        return _s3_url(text, parts)
    raise UsageError(f"unknown kind of store {parts.scheme + '://'!r}", hint=f"write {_FORMS}")


def open_store(url: str | StoreURL, env: Env) -> ObjectStore:
    """The store of ``url``, with retries around it. Makes no request: :meth:`ObjectStore.probe` does.

    Raises:
        UsageError: the URL is wrong, or the SDK that it needs is not installed.
    """
    parsed = parse_store_url(url) if isinstance(url, str) else url
    if parsed.scheme == "file":
        return RetryingObjectStore(FileObjectStore(parsed.bucket, env), env)
    assert parsed.scheme == "s3", f"a parsed URL has a known scheme: {parsed}"
    try:
        from ckptfs.objectstore.s3 import S3ObjectStore
    except ImportError as e:
        raise UsageError(f"s3:// needs a package that is not installed: {e}", hint="pip install 'ckptfs[s3]'") from e
    return RetryingObjectStore(S3ObjectStore(parsed, env), env)


def _file_url(text: str, parts: SplitResult) -> StoreURL:
    if parts.netloc:
        raise UsageError(
            f"{text!r} names the host {parts.netloc!r}, not a directory",
            hint="write three slashes and the absolute path: file:///DIRECTORY",
        )
    if parts.query:
        raise UsageError(
            f"{text!r} has parameters", hint="a file:// URL takes none; write %3F for a '?' in a directory"
        )
    directory = os.fsdecode(unquote_to_bytes(parts.path))
    if not directory.startswith("/") or "\0" in directory:
        raise UsageError(f"{text!r} names no directory", hint="write file:///DIRECTORY")
    # normpath keeps two leading slashes, which POSIX leaves undefined.
    return StoreURL("file", "/" + os.path.normpath(directory).lstrip("/"))


def _s3_url(text: str, parts: SplitResult) -> StoreURL:
    bucket = parts.netloc
    if not bucket:
        raise UsageError(f"{text!r} names no bucket", hint="write s3://BUCKET/PREFIX")
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(
            f"{bucket!r} is not the name of a bucket", hint="3 to 255 letters, digits, dots and dashes; no port"
        )
    try:
        prefix = unquote_to_bytes(parts.path.strip("/")).decode()
    except UnicodeDecodeError as e:
        raise UsageError(f"the prefix of {text!r} is not UTF-8") from e
    if prefix and any(component in {"", ".", ".."} for component in prefix.split("/")):
        raise UsageError(f"the prefix {prefix!r} has an empty, '.' or '..' component", hint="write a plain path")
    return StoreURL("s3", bucket, prefix, _s3_params(parts.query))


def _s3_params(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=20)
    except ValueError as e:
        raise UsageError(f"{query!r} is not a list of NAME=VALUE: {e}", hint="write ?region=NAME&endpoint=URL") from e
    params = dict(pairs)
    for name in params:
        if name in _S3_PARAMS:
            continue
        if _SECRET_PARAMS.search(name):
            raise UsageError(
                f"credentials such as {name!r} do not belong into a URL",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws",
            )
        raise UsageError(f"unknown parameter {name!r}", hint=f"s3:// takes {', '.join(sorted(_S3_PARAMS))}")
    if len(params) != len(pairs):
        raise UsageError(f"a parameter stands twice in {query!r}", hint="remove one")
    _check_s3_params(params)
    return params


def _check_s3_params(params: Mapping[str, str]) -> None:
    if "endpoint" in params:
        endpoint = urlsplit(params["endpoint"])
        if endpoint.scheme not in {"http", "https"} or not endpoint.hostname:
            raise UsageError(
                f"endpoint {params['endpoint']!r} is not an http or https URL", hint="endpoint=https://HOST"
            )
        if "@" in endpoint.netloc:
            raise UsageError(
                "the endpoint has credentials in it", hint="remove them; they come from the SDK's own chain"
            )
    if "region" in params and not _REGION.fullmatch(params["region"]):
        raise UsageError(f"region {params['region']!r} is not a region's name", hint="region=eu-central-1")
    if params.get("path_style", "true") not in {"true", "false"}:
        raise UsageError(f"path_style is true or false, not {params['path_style']!r}", hint="path_style=true")
