#!/bin/sh
# Publish packages to the APT and the YUM repository of a bucket, each under its lock.
#
#   PUBLISHING_REPO=gs://bucket/prefix PUBLISHING_KEY=secret.asc examples/publishing/publish.sh FILES...
#
# What is slow comes first, without the lock. Then `lockstead run` waits for the lock, keeps it while the command works, stops
# the command and all that it started if the lock is lost, and gives it back at the end. The command works under that
# lease: its token reaches the repository, which refuses who is too late.
#
# PUBLISHING_LOCKS is the store of the locks, PUBLISHING_TTL after how long an unrenewed lease expires, PYTHON the interpreter.
set -eu

repo="${PUBLISHING_REPO:?where are the repositories? gs://bucket/prefix}"
key="${PUBLISHING_KEY:?which file has the secret key?}"
locks="${PUBLISHING_LOCKS:-$repo/locks}"
python="${PYTHON:-python3}"

for kind in apt yum; do
    "$python" -m examples.publishing stage "$kind" --repo "$repo" --key "$key" "$@"
    lockstead run --verbose --ttl "${PUBLISHING_TTL:-5m}" --purpose "publish $kind packages" \
        --owner "shell:$(uname -n)/$$" "$locks#$kind" -- \
        "$python" -m examples.publishing publish --attached --repo "$repo" --lock "$locks" --key "$key" "$@"
done
