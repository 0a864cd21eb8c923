#!/usr/bin/env bash
# Runs pytest on another kernel, with control groups of version 2 and this machine's files: Debian's user-mode Linux (6.1 or
# 6.12), started as a process, with one CPU and without Landlock; or, in the row `landlock`, the kernel that Debian's machines
# have, in an emulator, with two CPUs and an old Landlock. A Python starts several times more slowly there.
# usage: tests/kernel/boot.sh ROW ARGUMENTS-OF-PYTEST...
# with KERNEL (linux.uml, or a folder that debian.sh made), KERNEL_MEMORY (3G), KERNEL_TIMEOUT (900 s),
# KERNEL_ROUNDS (1): how often each bomb is set off.
# Rows: root | delegated: an ordinary user in a group that is its own | systemd: one with a systemd of its own | user: in
# a group that is not its own | no-namespaces: the same where user.max_user_namespaces is 0 | no-sysadmin: root without
# CAP_SYS_ADMIN | landlock: a user without namespaces whose kernel has Landlock
# nfs: a user whose home and folders of tests are on NFS, and nfs-root: root, who may not enter that home.
set -eu
cd "$(dirname "$0")/../.."
row=$1; shift
kernel=${KERNEL:-linux.uml}
[ "$row" != landlock ] || [ -n "${KERNEL:-}" ] || { kernel=$PWD/.tests-kernel; tests/kernel/debian.sh "$kernel"; }
if [ -d "$kernel" ]; then
    emulator=qemu-system-x86_64 files=/usr/lib/qemu/virtiofsd modules=$kernel/lib/modules disk=/dev/vda
    for each in $emulator $files; do
        command -v $each >/dev/null || { echo "$0: there is no $each (Debian: qemu-system-x86)"; exit 2; }
    done
else
    modules=/usr/lib/uml/modules disk=/run/disk
    command -v "$kernel" >/dev/null || { echo "$0: there is no $kernel (Debian: user-mode-linux)"; exit 2; }
fi
case $row in
    root | nfs-root) become="" ;;
    delegated | systemd | user | no-namespaces | landlock | nfs) become="setpriv --reuid=1000 --regid=1000 --clear-groups --inh-caps=-all" ;;
    no-sysadmin) become="setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin" ;;
    *) echo "$0: there is no row $row"; exit 2 ;;
esac
folder=$(mktemp -d /var/tmp/fairbox-kernel-XXXXXX)
trap 'rm -rf "$folder"' EXIT
# Files of the host are not cached by the guest beyond their last close; those of a disk are.
truncate -s "$([ "${row#nfs}" = "$row" ] && echo 96M || echo 1G)" "$folder/disk" && mkfs.ext4 -q "$folder/disk"
python=$PWD/.venv/bin/python
case $row in nfs*)
    for each in exportfs modprobe; do
        [ -x /usr/sbin/$each ] || { echo "$0: there is no $each (Debian: nfs-kernel-server, kmod)"; exit 2; }
    done ;;
esac
[ $row != nfs ] || set -- --basetemp=/run/nfs/home/pytest "$@"
printf '%q ' "$python" -m pytest -p no:cacheprovider -o timeout=400 -m "not soak" "$@" >"$folder/command"
prefix=$("$python" -c 'import sys; print(sys.base_prefix)')
cat >"$folder/init" <<I
#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
export PYTHONDONTWRITEBYTECODE=1 FAIRBOX_KERNEL_ROW=$row FAIRBOX_TEST_SLOWNESS=6 FAIRBOX_TEST_DISK=/usr/local/games
[ $row != landlock ] || export EXECUTOR_ISOLATION=landlock {EXECUTOR,FAIRBOX_UP}_MIN_ISOLATION=landlock FAIRBOX_TEST_LANDLOCK=2
export FAIRBOX_KERNEL_ROUNDS=${KERNEL_ROUNDS:-1} HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmp /tmp; mount -t tmpfs run /run
[ $disk != /dev/vda ] || mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts; mount -t tmpfs shm /dev/shm; chmod 1777 /tmp /dev/shm
mount -t cgroup2 -o nsdelegate groups /sys/fs/cgroup
# As in a service of systemd: a group of its own, and controllers in all above it.
mkdir /sys/fs/cgroup/service
echo +memory +pids +cpu >/sys/fs/cgroup/cgroup.subtree_control
echo \$\$ >/sys/fs/cgroup/service/cgroup.procs
mkdir -p /run/modules/lib; ln -s $modules /run/modules/lib/modules
! command -v modprobe || modprobe -d /run/modules -a overlay virtio_blk # for workspaces and images; the disk
[ -b $disk ] || mknod $disk b 98 0
mount -t ext4 $disk /usr/local/games
for n in {1..40}; do head -c 9000 /dev/zero >/usr/local/games/small-\$n; done
for n in 1 2 3; do head -c 12M /dev/zero >/usr/local/games/large-\$n; done; sync
[ $row != delegated ] || chown 1000 /sys/fs/cgroup/service{,/cgroup.procs,/cgroup.subtree_control,/cgroup.threads}
if [ $row = systemd ]; then
    mkdir -p /run/systemd/system /run/user/1000 /sys/fs/cgroup/service/{manager,session}
    echo \$\$ >/sys/fs/cgroup/service/session/cgroup.procs
    echo +memory +pids +cpu >/sys/fs/cgroup/service/cgroup.subtree_control
    chown -R 1000 /run/user/1000 /sys/fs/cgroup/service
    export XDG_RUNTIME_DIR=/run/user/1000
    (echo \$BASHPID >/sys/fs/cgroup/service/manager/cgroup.procs; exec $become /lib/systemd/systemd --user) &>$folder/systemd &
    until [ -S \$XDG_RUNTIME_DIR/systemd/private ]; do sleep 0.1; done
fi
[ $row != no-namespaces -a $row != landlock ] || echo 0 >/proc/sys/user/max_user_namespaces
# What lies in root's home is the tests' own here: a checkout, an interpreter.
n=0; for each in $(printf '%q ' "$PWD" "$prefix"); do
    mkdir -p /run/kept/\$((++n)); mount --bind \$each /run/kept/\$n
done
mount -t tmpfs -o mode=755 home /root
n=0; for each in $(printf '%q ' "$PWD" "$prefix"); do
    n=\$((n + 1)); case \$each in /root/*) mkdir -p \$each; mount --bind /run/kept/\$n \$each ;; esac
done
"$python" -c "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14s', b'lo', 0x41, b''))"
case $row in nfs*)
    mkdir /run/nfs; modprobe -d /run/modules nfsd; modprobe -d /run/modules nfsv4
    mount -t tmpfs state /var/lib/nfs; mkdir -p /var/lib/nfs/{v4recovery,rpc_pipefs,sm,sm.bak}; touch /var/lib/nfs/{etab,rmtab}
    mount -t nfsd nfsd /proc/fs/nfsd
    mkdir -m 700 /usr/local/games/home; chown 1000 /usr/local/games/home
    exportfs -i -o rw,fsid=0,root_squash,no_subtree_check,insecure 127.0.0.1:/usr/local/games
    rpc.nfsd -N 3 -U 2; rpc.mountd -N 2 -N 3
    mount -t nfs4 -o vers=4.2,sec=sys 127.0.0.1:/ /run/nfs
    export HOME=/run/nfs/home ;;
esac
cd $(printf '%q' "$PWD")
$become bash -c "\$(cat $folder/command)" >$folder/out 2>&1
echo \$? >$folder/rc
sync; halt -f -p
I
chmod 755 "$folder" "$folder/init"
memory=${KERNEL_MEMORY:-3G}
if [ -d "$kernel" ]; then
    $files --socket-path="$folder/files" -o source=/ -o cache=always -o sandbox=chroot -o announce_submounts &>"$folder/served" &
    for n in {1..100}; do [ ! -S "$folder/files" ] || break; sleep 0.1; done
    set -- $emulator -accel tcg,thread=multi -cpu max -smp 2 -m "$memory" -nographic -nic none -no-reboot \
        -object "memory-backend-memfd,id=memory,size=$memory,share=on" -numa node,memdev=memory \
        -chardev "socket,id=files,path=$folder/files" -device vhost-user-fs-pci,chardev=files,tag=host \
        -drive "file=$folder/disk,if=virtio,format=raw" -kernel "$kernel/vmlinuz" -initrd "$kernel/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off START=$folder/init"
else
    set -- "$kernel" "mem=$memory" ubd0="$folder/disk" rootfstype=hostfs rootflags=/ rw init="$folder/init" con=null con0=null,fd:1
fi
timeout -k 10 "${KERNEL_TIMEOUT:-900}" "$@" </dev/null >"$folder/console" 2>&1 || true
echo "== $row"
cat "$folder/out" 2>/dev/null || true
if [ ! -e "$folder/rc" ]; then
    tail -20 "$folder/console"
    echo "$0: the kernel ended before the tests, or they took longer than ${KERNEL_TIMEOUT:-900} s"
fi
exit "$(cat "$folder/rc" 2>/dev/null || echo 125)"
