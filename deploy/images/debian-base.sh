#!/bin/sh
# A base image for machines that reach a Debian mirror but no registry: Debian 12 with its Python 3.11, which stands in
# for python:3.11-slim. Needs root, debootstrap and podman or docker; the mirror is the one that apt uses here.
#   sh deploy/images/debian-base.sh [FOLDER]     # makes localhost/fairbox/base:bookworm, and keeps its archive in FOLDER
set -eu

suite=bookworm
image=localhost/fairbox/base:$suite
container=${CONTAINER:-$(command -v podman || command -v docker)}
cache=${1:-${HOME}/.cache/fairbox/images}
archive=$cache/base-$suite.tar
mkdir -p "$cache"

if [ ! -s "$archive" ]; then
    command -v debootstrap >/dev/null || { echo "debian-base: install debootstrap (Debian package debootstrap)" >&2; exit 1; }
    mirror=${DEBIAN_MIRROR:-$(apt-cache policy base-files | sed -n 's|^ *[0-9]* \(https*://[^ ]*\) .*/main .*|\1|p' | head -n 1)}
    [ -n "$mirror" ] || { echo "debian-base: apt names no mirror here; set DEBIAN_MIRROR=URL" >&2; exit 1; }
    root=$(mktemp -d "$cache/root.XXXXXX")
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv "$suite" "$root" "$mirror"
    # What nothing reads inside a container: lists and archives of packages, manuals, translations, logs.
    rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb \
        "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/info/* \
        "$root"/var/log/*.log "$root"/var/log/apt "$root"/usr/lib/python3*/EXTERNALLY-MANAGED "$root"/debootstrap
    find "$root" -name __pycache__ -prune -exec rm -rf {} +
    rm -f "$root"/etc/resolv.conf "$root"/etc/hostname
    # Manuals and translations of what is installed later stay away as well.
    printf 'path-exclude /usr/share/%s/*\n' doc man locale info > "$root"/etc/dpkg/dpkg.cfg.d/excludes
    ln -s python3 "$root"/usr/bin/python
    # The order and the times of files are the same in every run; which versions they are is the mirror's matter.
    tar --sort=name --mtime="@${SOURCE_DATE_EPOCH:-0}" --numeric-owner -C "$root" -cf "$archive.part" .
    mv "$archive.part" "$archive"
fi

"$container" import "$archive" "$image"
echo "debian-base: $image from $archive"
