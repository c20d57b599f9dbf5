"""What a framework saved on the mount is, from the bucket alone, what it saved.

Each framework saves on the mount, in processes of its own as a training job would. When `ckptfs wait` says that all
of it is published, every file must be an object of its name and bytes; then the cache is lost, the bucket is mounted
again, the files must be the same, and the framework must load them equal and go on.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfs.testing.mounts import Mount
    from ckptfs.testing.servers import WeedServer

PROGRAMS = Path(__file__).parent / "jobs"
JOB_S = 240

OFFLINE = {
    "DS_ACCELERATOR": "cpu",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",
    # DeepSpeed builds an extension once; it stays in the environment that it was built for.
    "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "torch_extensions"),
}

JOBS = [
    ("dcp", "default"),
    ("dcp", "threads"),
    ("dcp", "async"),
    ("dcp", "huggingface"),
    ("dcp", "huggingface-consolidated"),
    ("single", "torch-mapped"),
    ("single", "safetensors"),
    ("hf_trainer", ""),
    ("lightning_fit", ""),
    ("orbax_manager", ""),
    ("deepspeed_zero", "2"),
    ("deepspeed_zero", "3"),
    ("fastpersist_sequence", ""),
    ("megatron_sequence", ""),
]

# Not Orbax, which rotates whole directories away and reads the listing back: SeaweedFS, unlike S3, goes on listing a
# prefix whose last object was deleted, so directories without anything in them come back with the bucket.
JOBS_ON_S3 = [("dcp", "default"), ("single", "safetensors"), ("hf_trainer", ""), ("lightning_fit", "")]


def run_job(name: str, action: str, directory: Path, side: Path, variant: str) -> None:
    result = subprocess.run(
        [sys.executable, PROGRAMS / f"{name}.py", action, directory, side, variant],
        env={**os.environ, **OFFLINE},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    if result.returncode != 0:
        pytest.fail(f"{name} {variant}: {action} failed\n{result.stdout}\n{result.stderr}", pytrace=False)


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of every regular file under ``directory`` by its name there; what is ckptfs' own left out."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink() and ".ckptfs" not in path.relative_to(directory).parts
    }


def prove(mount: Mount, objects: Callable[[], dict[str, str]], name: str, variant: str, side: Path) -> None:
    """Save, publish, lose the cache, load. ``objects`` gives what the bucket has under ``run/``, as :func:`digests`."""
    run = mount / "run"
    run.mkdir()
    side.mkdir()

    run_job(name, "save", run, side, variant)
    saved = digests(run)
    assert saved, "the job saved nothing"
    mount.wait(run)
    assert objects() == saved, "the objects in the bucket are not the files of the mount"

    mount.wipe_cache_and_remount()
    assert digests(run) == saved, "the files read back from the bucket are not those that were saved"
    run_job(name, "load", run, side, variant)


@pytest.mark.timeout(2 * JOB_S + 120)
@pytest.mark.parametrize(("name", "variant"), JOBS, ids=lambda value: value or "run")
def test_what_is_saved_is_loaded_equal_from_the_bucket_alone(
    name: str, variant: str, mount: Mount, bucket: Path, tmp_path: Path
) -> None:
    prove(mount, lambda: digests(bucket / "run"), name, variant, tmp_path / "side")


@pytest.mark.timeout(2 * JOB_S + 120)
@pytest.mark.parametrize(("name", "variant"), JOBS_ON_S3, ids=lambda value: value or "run")
def test_what_is_saved_is_loaded_equal_from_s3_alone(
    name: str, variant: str, s3_mount: Mount, s3_server: WeedServer, s3_bucket: str, tmp_path: Path
) -> None:
    def objects() -> dict[str, str]:
        client = s3_server.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=s3_bucket, Prefix="prefix/run/")
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        bodies = {key: client.get_object(Bucket=s3_bucket, Key=key)["Body"].read() for key in keys}
        client.close()
        # A key that ends in a slash stands for a directory and is no file.
        return {
            key.removeprefix("prefix/run/"): hashlib.sha256(body).hexdigest()
            for key, body in bodies.items()
            if not key.endswith("/")
        }

    prove(s3_mount, objects, name, variant, tmp_path / "side")
