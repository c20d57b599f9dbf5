# Shared by deploy/demo.sh and deploy/test.sh: bring what is missing, and say plainly what is wrong.
# To be sourced by bash, with `set -euo pipefail` on.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
TORCH="torch==2.13.0"

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root and there is no sudo: $*"
    fi
}

# need_packages PROBE=PACKAGE ...: installs each Debian package whose probe fails. A probe is the name of a command, or
# pc:NAME for a library that pkg-config must know.
need_packages() {
    local entry probe missing=()
    for entry in "$@"; do
        probe=${entry%%=*}
        case $probe in
            pc:*) pkg-config --exists "${probe#pc:}" 2>/dev/null || missing+=("${entry#*=}") ;;
            *) command -v "$probe" >/dev/null || missing+=("${entry#*=}") ;;
        esac
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "please install with this system's package manager: ${missing[*]}"
    say "Installing system packages: ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Prints the Python to build the environment with: $PYTHON, else the machine's own python3, else a newer one beside it.
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# What the filesystem itself is built from and mounted with.
need_system() {
    need_packages gcc=gcc pkg-config=pkg-config fusermount3=fuse3
    need_packages pc:fuse3=libfuse3-dev
    find_python >/dev/null || need_packages python3.11=python3
    local python
    python=$(find_python) || die "Python 3.11 or newer is needed; set PYTHON=/path/to/python"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || need_packages no-venv=python3-venv
    "$python" -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' ||
        need_packages no-headers=python3-dev
}

# need_venv EXTRAS: makes .venv with ckptfs[EXTRAS] from this tree. Does nothing when pyproject.toml did not change since.
need_venv() {
    local extras=$1 stamp python
    python=$(find_python)
    stamp=$VENV/.ckptfs-$(printf '%s' "$extras" | tr ',' '-')
    local want
    want=$("$python" -c 'import hashlib, sys; print(sys.version, hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' \
        "$ROOT/pyproject.toml")
    if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && "$VENV/bin/python" -c 'import ckptfs, torch' 2>/dev/null; then
        return 0
    fi
    say "Making the Python environment .venv with ckptfs[$extras] (the first time takes some minutes)"
    local version='import sys; print(sys.version)' fresh=()
    [ "$("$VENV/bin/python" -c "$version" 2>/dev/null)" = "$("$python" -c "$version")" ] || fresh=(--clear)
    "$python" -m venv "${fresh[@]}" "$VENV"
    "$VENV/bin/pip" install --quiet --progress-bar off --upgrade 'pip>=25'
    # torch first and by its exact version, so that nothing below brings another build of it.
    "$VENV/bin/pip" install --quiet --progress-bar off "$TORCH"
    DS_BUILD_OPS=0 "$VENV/bin/pip" install --quiet --progress-bar off --constraint <(printf '%s\n' "$TORCH") \
        --editable "$ROOT[$extras]"
    printf '%s\n' "$want" >"$stamp"
}

# FUSE must be usable now: without it nothing here can be shown or tested, and nothing is skipped.
need_fuse() {
    [ -c /dev/fuse ] || (as_root modprobe fuse) 2>/dev/null || true
    [ -c /dev/fuse ] || die "there is no /dev/fuse: load the kernel module 'fuse' (in a container: --device /dev/fuse --cap-add SYS_ADMIN)"
    (exec 3<>/dev/fuse) 2>/dev/null || die "/dev/fuse cannot be opened by $(id -un): check its permissions (in a container: --device /dev/fuse)"
}
