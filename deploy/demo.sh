#!/usr/bin/env bash
# Shows what ckptfs is for, from nothing, on a Debian or Ubuntu machine: installs what is missing, mounts a bucket, trains a
# small model on it, kills the training in the middle of a save, resumes it, and proves that nothing was lost.
# Everything it makes is in ./demo-ckptfs (and .venv). Ends 0 only if every step did what it says.
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

DEMO=$PWD/demo-ckptfs
BUCKET=$DEMO/bucket
MNT=$DEMO/mnt
RUN=$MNT/run

step_count=0
step() {
    step_count=$((step_count + 1))
    printf '\n\033[1m%d. %s\033[0m\n' "$step_count" "$*"
}
show() { printf '    $ %s\n' "$*"; "$@" 2>&1 | sed 's/^/    /'; }
train() { python "$ROOT/deploy/demo/train.py" "$RUN" --log "$DEMO/losses.jsonl" "$@"; }
mounted() { awk '{print $5}' /proc/self/mountinfo | grep -qxF "$(printf '%s' "$MNT" | sed 's/ /\\040/g')"; }

detach() {
    mounted || return 0
    ckptfs umount "$MNT" --no-drain >/dev/null 2>&1 || true
    mounted || return 0
    if [ "$(id -u)" = 0 ]; then umount -l "$MNT"; else fusermount3 -u -z "$MNT"; fi
}

finish() {
    local code=$?
    trap - EXIT
    detach || code=1
    if [ "$code" != 0 ]; then
        printf '\nThe demo FAILED in step %d. What it made is in %s\n' "$step_count" "$DEMO" >&2
    fi
    exit "$code"
}

need_system
need_venv all,demo
need_fuse
PATH=$VENV/bin:$PATH
trap finish EXIT
trap 'exit 130' INT TERM

step "A bucket and a mount"
say "    A bucket is where objects live: S3, for example. To need no account, this demo uses a directory as its bucket."
say "    ckptfs shows the bucket as a normal directory. Programs save there; ckptfs carries it to the bucket."
detach
rm -rf --one-file-system "$DEMO"
mkdir -p "$BUCKET" "$MNT"
show ckptfs mount "file://$BUCKET" "$MNT" --cache-dir "$DEMO/cache"
mounted || die "mount said yes, but nothing is mounted on $MNT"

step "Training starts: two processes share one model and save it together, and are killed in the middle of a save"
say "    A transformer with 25 million parameters; every second step its whole state, 300 MB, goes to the mount."
train --ranks 2 --steps 6 --kill-in-save-of 6
[ ! -e "$RUN/step-6/.metadata" ] || die "the killed save looks whole in the mount"
[ ! -e "$BUCKET/run/step-6/.metadata" ] || die "the killed save looks whole in the bucket"
say "    Neither the mount nor the bucket shows that checkpoint as whole: its .metadata, written last, is not there."

step "Training starts again: it finds the last whole checkpoint, and goes on as if nothing had happened"
train --ranks 2 --steps 9

step "The same checkpoint on one process instead of two"
train --ranks 1 --steps 10

step "Everything is in the bucket"
say "    'wait' returns when all that was saved is in the bucket, and verified there."
show ckptfs wait "$RUN" --level published
say "    Each file of the mount against the object of its name in the bucket, byte for byte:"
file_count=0
while IFS= read -r -d '' file; do
    name=${file#"$MNT"/}
    cmp "$file" "$BUCKET/$name" || die "the object $name differs from the file"
    printf '    equal  %12d bytes  %s\n' "$(stat -c %s "$file")" "$name"
    file_count=$((file_count + 1))
done < <(find "$MNT" -type f -print0 | sort -z)
object_count=$(find "$BUCKET" -path "$BUCKET/.ckptfs" -prune -o -type f -print | wc -l)
[ "$file_count" = "$object_count" ] || die "$file_count files in the mount, but $object_count objects in the bucket"
[ "$file_count" = 14 ] || die "$file_count files, but five checkpoints, four of them of two ranks, have fourteen"
show ckptfs status "$MNT"

step "Unmount, and lose the machine"
say "    The cache directory is removed: what is left is the bucket, as on a new machine."
show ckptfs umount "$MNT"
if mounted; then die "umount said yes, but $MNT is still mounted"; fi
rm -rf "$DEMO/cache"

step "A new machine mounts the bucket and resumes"
show ckptfs mount "file://$BUCKET" "$MNT" --cache-dir "$DEMO/cache"
train --ranks 1 --steps 11
show ckptfs umount "$MNT"
if mounted; then die "umount said yes, but $MNT is still mounted"; fi

say ""
say "Done: a training run was killed in the middle of a save, resumed, moved to another number of processes and to another"
say "machine, and every parameter was what had been saved. Nothing is mounted any more; the folder $DEMO can be removed."
