"""The S3 store: every kind of answer to the right kind of error, bodies proven, and a real server's refusals."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import trio
from awscrt import checksums

from ckptfs.env import RealEnv
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
from ckptfs.objectstore import s3_client, s3_wire
from ckptfs.objectstore.base import ABSENT, Condition, Part, Upload
from ckptfs.objectstore.s3 import S3ObjectStore
from ckptfs.objectstore.url import open_store, parse_store_url
from ckptfs.testing.conformance import unique_prefix
from ckptfs.testing.servers import WeedServer
from ckptfs.types import ETag, Key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

KEY = Key("dir/key")
ETAG = ETag("0123456789abcdef0123456789abcdef")
MODIFIED = {"Last-Modified": "Sun, 29 Nov 2026 12:00:00 GMT", "ETag": f'"{ETAG}"'}


@dataclass
class Answer:
    """What the scripted server says to one request.

    Attributes:
        cut: bytes of the body after which the connection is closed; ``None`` sends all of it.
        close: close the connection instead of answering.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    close: bool = False


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class ScriptedServer:
    """An HTTP server that gives the answers of a test, in order, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[Request] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.requests.append(Request(self.command, self.path, headers, body))
                answer = script.answers.pop(0)
                if answer.close:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body[: answer.cut])
                    self.wfile.flush()
                if answer.cut is not None:
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 - the names are http.server's

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AK",
        "AWS_SECRET_ACCESS_KEY": "SK",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    server = ScriptedServer()
    yield server
    server.close()


def s3(endpoint: str, bucket: str = "bucket", prefix: str = "", **options: Any) -> S3ObjectStore:
    path = f"/{prefix}" if prefix else ""
    return S3ObjectStore(
        parse_store_url(f"s3://{bucket}{path}?endpoint={endpoint}&region=us-east-1"), RealEnv(), **options
    )


def run(store: Any, call: Callable[[Any], Awaitable[Any]], *, within_s: float = 60) -> Any:
    async def main() -> Any:
        with trio.fail_after(within_s):
            try:
                return await call(store)
            finally:
                await store.aclose()

    return trio.run(main)


def error_body(code: str, message: str = "because") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


def crc64_text(body: bytes) -> str:
    return base64.b64encode(checksums.crc64nvme(body).to_bytes(8, "big")).decode()


# -------------------------------------------------------------------------------------------------------------- errors

KINDS = [
    (503, "SlowDown", StoreUnavailableError),
    (500, "InternalError", StoreUnavailableError),
    (502, "", StoreUnavailableError),
    (429, "TooManyRequests", StoreUnavailableError),
    (403, "SlowDown", StoreUnavailableError),
    (400, "RequestTimeout", StoreUnavailableError),
    (409, "OperationAborted", StoreUnavailableError),
    (403, "AccessDenied", StoreDeniedError),
    (403, "InvalidAccessKeyId", StoreDeniedError),
    (403, "SignatureDoesNotMatch", StoreDeniedError),
    (403, "RequestTimeTooSkewed", StoreDeniedError),
    (400, "ExpiredToken", StoreDeniedError),
    (401, "Unauthorized", StoreDeniedError),
    (404, "NoSuchBucket", BucketNotFoundError),
    (404, "NoSuchKey", ObjectNotFoundError),
    (412, "PreconditionFailed", PreconditionError),
    (409, "ConditionalRequestConflict", PreconditionError),
    (400, "BadDigest", StoreCorruptionError),
    (400, "InvalidDigest", StoreCorruptionError),
    (400, "XAmzContentChecksumMismatch", StoreCorruptionError),
    (400, "KeyTooLongError", StoreRejectedError),
    (400, "EntityTooLarge", StoreRejectedError),
    (416, "InvalidRange", StoreRejectedError),
    (501, "NotImplemented", StoreUnavailableError),
    (400, "AuthorizationHeaderMalformed", StoreRejectedError),
    (400, "InvalidArgument", StoreRejectedError),
]


def test_every_answer_is_of_a_kind_and_asked_for_once(script: ScriptedServer) -> None:
    async def main(store: S3ObjectStore) -> None:
        for status, code, kind in KINDS:
            script.answers = [Answer(status, error_body(code) if code else b"<html>bad gateway</html>")]
            script.requests.clear()
            with pytest.raises(StoreError) as caught:
                await store.put(KEY, b"x")
            assert type(caught.value) is kind, (status, code)
            assert KEY in str(caught.value)
            assert len(script.requests) == 1, "the SDK itself must not try again"
            if kind in {StoreDeniedError, BucketNotFoundError}:
                assert caught.value.hint

    run(s3(script.endpoint), main)


def test_a_bucket_in_another_region_is_followed_there(script: ScriptedServer) -> None:
    where = {"x-amz-bucket-region": "eu-central-1"}
    script.answers = [
        Answer(301, error_body("PermanentRedirect"), where),
        Answer(200, b"", MODIFIED),  # to the PUT again, now signed for that region
    ]
    run(s3(script.endpoint), lambda store: store.put(KEY, b"x"))
    assert "/eu-central-1/s3/" in script.requests[-1].headers["authorization"]


def test_a_bucket_in_a_region_that_is_not_told_is_rejected_with_a_hint(script: ScriptedServer) -> None:
    script.answers = [Answer(301, error_body("PermanentRedirect")), Answer(301)]
    with pytest.raises(StoreRejectedError) as caught:
        run(s3(script.endpoint), lambda store: store.put(KEY, b"x"))
    assert "region=" in caught.value.hint
    assert [request.method for request in script.requests] == ["PUT", "HEAD"]


def test_the_store_is_heard_when_it_says_how_long_to_wait(script: ScriptedServer) -> None:
    script.answers = [Answer(503, error_body("SlowDown"), {"Retry-After": "7"})]
    with pytest.raises(StoreUnavailableError) as caught:
        run(s3(script.endpoint), lambda store: store.head(KEY))
    assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize("status", [404, 412, 403, 503])
def test_head_is_understood_without_a_body(script: ScriptedServer, status: int) -> None:
    kinds = {404: ObjectNotFoundError, 412: PreconditionError, 403: StoreDeniedError, 503: StoreUnavailableError}
    script.answers = [Answer(status)]
    with pytest.raises(kinds[status]):
        run(s3(script.endpoint), lambda store: store.head(KEY))


def test_if_match_on_a_missing_object_is_a_failed_precondition(script: ScriptedServer) -> None:
    script.answers = [Answer(404, error_body("NoSuchKey"))]
    with pytest.raises(PreconditionError):
        run(s3(script.endpoint), lambda store: store.put(KEY, b"x", condition=Condition(etag=ETAG)))


def test_a_missing_upload_is_not_found_whatever_the_condition(script: ScriptedServer) -> None:
    script.answers = [Answer(404, error_body("NoSuchUpload"))]
    parts = [Part(1, ETAG, 1, crc64_text(b"x"))]
    with pytest.raises(ObjectNotFoundError):
        run(
            s3(script.endpoint),
            lambda store: store.complete_upload(Upload(KEY, "id"), parts, condition=Condition(etag=ETAG)),
        )


@pytest.mark.parametrize("body", [error_body("InternalError"), b"", b"   ", b"<?xml version='1.0'?><CompleteMu"])
def test_a_completion_that_answers_200_without_success_is_an_error(script: ScriptedServer, body: bytes) -> None:
    script.answers = [Answer(200, body)]
    parts = [Part(1, ETAG, 1, crc64_text(b"x"))]
    with pytest.raises(StoreUnavailableError):
        run(s3(script.endpoint), lambda store: store.complete_upload(Upload(KEY, "id"), parts))


@pytest.mark.parametrize("body", [error_body("InternalError"), b""])
def test_a_copy_that_answers_200_without_success_is_an_error(script: ScriptedServer, body: bytes) -> None:
    script.answers = [Answer(200, b"x", MODIFIED), Answer(200, body)]
    with pytest.raises(StoreUnavailableError):
        run(s3(script.endpoint), lambda store: store.copy(KEY, Key("to"), etag=ETAG))


def test_a_lost_connection_is_unavailable(script: ScriptedServer) -> None:
    script.answers = [Answer(close=True)]
    with pytest.raises(StoreUnavailableError):
        run(s3(script.endpoint), lambda store: store.put(KEY, b"x"))


def test_nobody_there_is_unavailable_with_a_hint() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "AK")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "SK")
        with pytest.raises(StoreUnavailableError) as caught:
            run(s3("http://127.0.0.1:1"), lambda store: store.probe())
    assert "endpoint" in caught.value.hint


def test_no_credentials_are_denied_with_a_hint(script: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreDeniedError) as caught:
        run(s3(script.endpoint), lambda store: store.probe())
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    assert script.requests == []


def test_an_unknown_profile_is_denied(script: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreDeniedError, match="nobody"):
        run(s3(script.endpoint), lambda store: store.probe())


# -------------------------------------------------------------------------------------------------------------- bodies


def read_answer(
    script: ScriptedServer, answer: Answer, *, offset: int = 0, length: int, etag: ETag | None = None
) -> bytes:
    script.answers = [answer]
    buffer = bytearray(length)
    run(s3(script.endpoint), lambda store: store.get_range(KEY, offset, memoryview(buffer), etag=etag))
    return bytes(buffer)


def ranged(body: bytes, offset: int, total: int, **headers: str) -> Answer:
    span = {"Content-Range": f"bytes {offset}-{offset + len(body) - 1}/{total}"}
    return Answer(206, body, {**MODIFIED, **span, **headers})


@pytest.mark.parametrize(
    ("name", "fn", "size"),
    [
        ("x-amz-checksum-crc64nvme", checksums.crc64nvme, 8),
        ("x-amz-checksum-crc32c", checksums.crc32c, 4),
        ("x-amz-checksum-crc32", checksums.crc32, 4),
    ],
)
def test_a_whole_object_is_verified_against_its_checksum(script: ScriptedServer, name: str, fn: Any, size: int) -> None:
    body = os.urandom(100_000)
    header = {name: base64.b64encode(fn(body).to_bytes(size, "big")).decode(), "x-amz-checksum-type": "FULL_OBJECT"}
    assert read_answer(script, ranged(body, 0, len(body), **header), length=len(body)) == body
    assert script.requests[0].headers["x-amz-checksum-mode"] == "ENABLED"
    wrong = bytearray(body)
    wrong[50_000] ^= 1
    with pytest.raises(StoreCorruptionError):
        read_answer(script, ranged(bytes(wrong), 0, len(body), **header), length=len(body))


def test_the_checksum_of_the_whole_does_not_judge_a_range_nor_a_composite_one_the_whole(script: ScriptedServer) -> None:
    body = b"middle"
    full = {"x-amz-checksum-crc64nvme": crc64_text(b"all of it"), "x-amz-checksum-type": "FULL_OBJECT"}
    assert read_answer(script, ranged(body, 3, 100, **full), offset=3, length=6) == body
    composite = {"x-amz-checksum-crc32c": "AAAAAA==-2", "x-amz-checksum-type": "COMPOSITE"}
    assert read_answer(script, ranged(body, 0, 6, **composite), length=6) == body


@pytest.mark.parametrize("cut", [0, 1, 99_999])
def test_a_body_that_ends_early_is_an_error(script: ScriptedServer, cut: int) -> None:
    answer = ranged(bytes(100_000), 0, 100_000)
    answer.cut = cut
    with pytest.raises(StoreUnavailableError):
        read_answer(script, answer, length=100_000)


def test_a_body_of_another_length_is_an_error(script: ScriptedServer) -> None:
    short = ranged(bytes(10), 0, 10)
    short.headers["Content-Range"] = "bytes 0-19/20"
    long = ranged(bytes(30), 0, 30)
    long.headers["Content-Range"] = "bytes 0-19/20"
    for answer, kind in ((short, StoreUnavailableError), (long, StoreCorruptionError)):
        with pytest.raises(kind):
            read_answer(script, answer, length=20)


def test_an_answer_to_another_range_is_an_error(script: ScriptedServer) -> None:
    for answer in (ranged(bytes(20), 5, 100), Answer(200, bytes(100), MODIFIED)):
        with pytest.raises(StoreUnavailableError):
            read_answer(script, answer, offset=10, length=20)


def test_a_range_past_the_end_is_rejected_also_when_the_server_shortens_it(script: ScriptedServer) -> None:
    with pytest.raises(StoreRejectedError):
        read_answer(script, ranged(bytes(5), 10, 15), offset=10, length=20)


@pytest.mark.parametrize("size", [0, 1, 64 << 10, (64 << 10) + 1, 3_000_001])
def test_every_body_is_sent_as_it_is_with_its_checksum(script: ScriptedServer, size: int) -> None:
    body = os.urandom(size)
    script.answers = [Answer(200, b"", MODIFIED), Answer(200, b"", MODIFIED)]
    view = memoryview(bytearray(b"-" + body + b"-"))[1:-1]

    async def both(store: S3ObjectStore) -> Part:
        await store.put(KEY, view, condition=ABSENT)
        return await store.put_part(Upload(KEY, "id"), 3, view)

    part = run(s3(script.endpoint), both)
    assert part == Part(3, ETAG, size, crc64_text(body))
    for request in script.requests:
        assert request.body == body
        assert request.headers["content-length"] == str(size)
        assert request.headers["x-amz-checksum-crc64nvme"] == crc64_text(body)
        assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert script.requests[0].headers["if-none-match"] == "*"
    assert "partNumber=3" in script.requests[1].path


def test_a_completion_carries_size_checksum_and_condition_of_the_whole(script: ScriptedServer) -> None:
    bodies = [os.urandom(5 << 20), os.urandom(7)]
    parts = [Part(n, ETAG, len(body), crc64_text(body)) for n, body in enumerate(bodies, 1)]
    done = f"<CompleteMultipartUploadResult><ETag>&quot;{ETAG}-2&quot;</ETag></CompleteMultipartUploadResult>"
    script.answers = [Answer(200, done.encode())]
    info = run(
        s3(script.endpoint),
        lambda store: store.complete_upload(Upload(KEY, "id"), parts[::-1], condition=Condition(etag=ETAG)),
    )
    assert (info.etag, info.size) == (f"{ETAG}-2", (5 << 20) + 7)
    headers = script.requests[0].headers
    assert headers["x-amz-checksum-crc64nvme"] == crc64_text(b"".join(bodies))
    assert headers["x-amz-mp-object-size"] == str((5 << 20) + 7)
    assert headers["if-match"] == f'"{ETAG}"'
    body = script.requests[0].body.decode()
    assert body.index("<PartNumber>1<") < body.index("<PartNumber>2<")


def test_the_reader_of_a_body_rewinds_for_the_sdk() -> None:
    reader = s3_wire.BodyReader(memoryview(b"0123456789"))
    assert bytes(reader.read(1)) == b"0123456789"
    assert reader.read(1) == b""
    assert (reader.seek(0), reader.tell(), len(reader)) == (0, 0, 10)
    assert (reader.seek(-3, 2), bytes(reader.read())) == (7, b"789")
    assert reader.seek(2) + reader.seek(3, 1) == 7


def test_connections_are_used_again(script: ScriptedServer) -> None:
    body = os.urandom(300_000)
    script.answers = [ranged(body, 0, len(body)) for _ in range(20)]
    ports = set()
    remember = script._server.process_request

    def count(request: Any, address: Any) -> None:
        ports.add(address)
        remember(request, address)

    script._server.process_request = count  # type: ignore[method-assign]

    async def read_all(store: S3ObjectStore) -> None:
        for _ in range(20):
            await store.get_range(KEY, 0, memoryview(bytearray(len(body))))

    run(s3(script.endpoint), read_all)
    assert len(ports) == 1


# --------------------------------------------------------------------------------------------------- the real server


def test_the_wrong_secret_is_denied(weed: WeedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreDeniedError) as caught:
        run(s3(weed.endpoint, "conformance"), lambda store: store.probe())
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.hint
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NOBODY")
    with pytest.raises(StoreDeniedError) as caught:
        run(s3(weed.endpoint, "conformance"), lambda store: store.probe())
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_a_missing_bucket_is_told_apart(weed: WeedServer) -> None:
    for call in (lambda store: store.probe(), lambda store: store.put(KEY, b"x"), lambda store: store.list_page()):
        with pytest.raises(BucketNotFoundError) as caught:
            run(s3(weed.endpoint, "nobody-made-it"), call)
        assert caught.value.hint


def test_the_endpoint_may_come_from_the_environment(weed: WeedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", weed.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    run(open_store("s3://conformance/env", RealEnv()), lambda store: store.put(KEY, b"x"))
    assert weed.client().get_object(Bucket="conformance", Key=f"env/{KEY}")["Body"].read() == b"x"


def test_the_server_refuses_a_body_that_was_damaged_on_the_way(
    weed: WeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = unique_prefix()
    right = s3_wire.crc64
    monkeypatch.setattr(s3_wire, "crc64", lambda body: right(bytes(body) + b"damage"))

    async def main(store: S3ObjectStore) -> None:
        for size in (10, 300_000):
            with pytest.raises(StoreCorruptionError):
                await store.put(KEY, os.urandom(size))
            with pytest.raises(ObjectNotFoundError):
                await store.head(KEY)
        upload = await store.begin_upload(KEY)
        with pytest.raises(StoreCorruptionError):
            await store.put_part(upload, 1, os.urandom(100))
        await store.abort_upload(upload)

    run(s3(weed.endpoint, "conformance", prefix), main)


def test_the_server_refuses_a_whole_that_is_not_the_sum_of_its_parts(
    weed: WeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_wire, "combined_crc64", lambda _: crc64_text(b"something else"))

    async def main(store: S3ObjectStore) -> None:
        upload = await store.begin_upload(KEY)
        part = await store.put_part(upload, 1, b"part")
        with pytest.raises(StoreError):
            await store.complete_upload(upload, [part])
        with pytest.raises(ObjectNotFoundError):
            await store.head(KEY)
        await store.abort_upload(upload)

    run(s3(weed.endpoint, "conformance", unique_prefix()), main)


def test_what_the_server_stores_carries_our_checksum(weed: WeedServer) -> None:
    prefix = unique_prefix()
    body = os.urandom(6 << 20)

    async def main(store: S3ObjectStore) -> None:
        await store.put(Key("put"), body)
        upload = await store.begin_upload(Key("parts"))
        parts = [
            await store.put_part(upload, 1, memoryview(body)[: 5 << 20]),
            await store.put_part(upload, 2, memoryview(body)[5 << 20 :]),
        ]
        await store.complete_upload(upload, parts)

    run(s3(weed.endpoint, "conformance", prefix), main)
    for name in ("put", "parts"):
        head = weed.client().head_object(Bucket="conformance", Key=f"{prefix}/{name}", ChecksumMode="ENABLED")
        assert head["ChecksumCRC64NVME"] == crc64_text(body)


def test_a_large_copy_goes_in_parts(weed: WeedServer) -> None:
    body = os.urandom((12 << 20) + 1)

    async def main(store: S3ObjectStore) -> None:
        source = await store.put(KEY, body, metadata={"kind": "source"})
        copied = await store.copy(KEY, Key("to"), etag=source.etag)
        assert (copied.size, copied.metadata) == (len(body), {"kind": "source"})
        head = await store.head(Key("to"))
        assert (head.etag, head.metadata) == (copied.etag, {"kind": "source"})
        buffer = bytearray(len(body))
        await store.get_range(Key("to"), 0, memoryview(buffer), etag=copied.etag)
        assert buffer == body
        with pytest.raises(PreconditionError):
            await store.copy(KEY, Key("to"), etag=source.etag, condition=ABSENT)
        with pytest.raises(PreconditionError):
            await store.copy(KEY, Key("other"), etag=copied.etag)
        assert list(await store.list_uploads()) == [], "a copy that failed leaves no upload"

    run(s3(weed.endpoint, "conformance", unique_prefix(), copy_bytes_max=6 << 20, copy_part_bytes=5 << 20), main)


def test_prefixes_do_not_see_each_other(weed: WeedServer) -> None:
    prefix = unique_prefix()

    async def main(store: S3ObjectStore) -> list[str]:
        await store.put(Key("a"), b"x")
        upload = await store.begin_upload(Key("u"))
        listed = [info.key for info in (await store.list_page()).objects]
        assert [u.key for u in await store.list_uploads()] == ["u"]
        await store.abort_upload(upload)
        return listed

    assert run(s3(weed.endpoint, "conformance", prefix), main) == ["a"]
    assert run(s3(weed.endpoint, "conformance", f"{prefix}x"), main) == ["a"]
    assert run(s3(weed.endpoint, "conformance", f"{prefix}/sub"), main) == ["a"]


def test_a_prefix_may_be_an_odd_name(weed: WeedServer) -> None:
    prefix = f"{unique_prefix()}/a b+%25&é"

    async def main(store: Any) -> None:
        await store.put(KEY, b"x")
        assert [info.key for info in (await store.list_page("dir/")).objects] == [KEY]

    url = weed.url("conformance", prefix)
    assert parse_store_url(url).prefix == prefix
    run(open_store(url, RealEnv()), main)
    keys = [o["Key"] for o in weed.client().list_objects_v2(Bucket="conformance", Prefix=prefix)["Contents"]]
    assert keys == [f"{prefix}/{KEY}"]


def test_a_server_that_hangs_dies_or_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "READ_S", 0.5)
    monkeypatch.setattr(s3_client, "CONNECT_S", 0.5)
    server = WeedServer(tmp_path / "weed")
    for name, value in server.credentials().items():
        monkeypatch.setenv(name, value)
    with server:
        server.make_bucket("outage")

        async def main(store: S3ObjectStore) -> None:
            await store.put(KEY, b"before")
            os.kill(server.pid, signal.SIGSTOP)
            for call in (store.head(KEY), store.put(KEY, bytes(8 << 20)), store.list_page()):
                with trio.fail_after(20), pytest.raises(StoreUnavailableError):
                    await call
            os.kill(server.pid, signal.SIGCONT)
            with trio.fail_after(60):
                while True:
                    try:
                        await store.put(Key("after"), b"x")
                        break
                    except StoreUnavailableError:
                        await trio.sleep(0.05)
            server.kill()
            with pytest.raises(StoreUnavailableError):
                await store.head(KEY)
            await trio.to_thread.run_sync(server.start)
            with trio.fail_after(60):
                while True:
                    try:
                        assert (await store.head(Key("after"))).size == 1
                        break
                    except StoreUnavailableError:
                        await trio.sleep(0.05)

        run(s3(server.endpoint, "outage"), main, within_s=200)


def test_the_configuration_of_the_server_holds_one_identity(weed: WeedServer) -> None:
    (identity,) = json.loads((weed.directory / "s3.json").read_text())["identities"]
    assert identity["credentials"] == [{"accessKey": weed.access_key, "secretKey": weed.secret_key}]
