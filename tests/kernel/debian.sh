#!/usr/bin/env bash
# Lays a kernel of Debian's and what it needs to start from this machine's files into a folder: vmlinuz, initrd, modules.
# usage: tests/kernel/debian.sh FOLDER
set -eu
folder=$1
[ ! -e "$folder/.done" ] || exit 0
for each in busybox cpio depmod apt-get; do
    command -v $each >/dev/null || { echo "$0: there is no $each (Debian: busybox-static, cpio, kmod)"; exit 2; }
done
rm -rf "$folder"; mkdir -p "$folder"; cd "$folder"
image=$(apt-cache depends --important linux-image-cloud-amd64 | sed -n 's/^ *Depends: *\(linux-image-[^ ]*\)$/\1/p' | head -1)
apt-get download -qq -o APT::Sandbox::User=root "$image"
dpkg-deb -x linux-image-*.deb unpacked && rm linux-image-*.deb
version=$(basename unpacked/lib/modules/*)
mv unpacked/boot/vmlinuz-* vmlinuz; mv unpacked/lib .; rm -r unpacked
depmod -b . "$version"
mkdir -p start/bin start/modules start/dev start/host
cp "$(command -v busybox)" start/bin
modprobe -d . -S "$version" --show-depends virtiofs >names
modprobe -d . -S "$version" --show-depends virtio_pci >>names
sed -n 's/^insmod //p' names | awk '!seen[$0]++' | while read -r module; do
    cp "$module" start/modules; basename "$module" >>start/order
done
cat >start/init <<'I'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
while read module; do /bin/busybox insmod /modules/$module; done </order
/bin/busybox mount -t virtiofs host /host
exec /bin/busybox switch_root /host $START
I
chmod 755 start/init
(cd start && find . | cpio --quiet -o -H newc | gzip -1) >initrd
rm -r start names; touch .done
