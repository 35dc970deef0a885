"""A file where locks cannot be: on a read-only disk, on a network disk. Told by what Linux itself says of it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lockstead.errors import StoreRefused
from lockstead.stores.mounts import mounts_in
from lockstead.stores.sqlite.file import check_file_system, file_system_of
from tests.bad_input.lines import SHARED, pattern
from tests.bad_input.world import World

MOUNTINFO = """\
23 29 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc rw
24 29 0:23 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
29 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
31 29 0:26 / /dev/shm rw,nosuid,nodev shared:3 - tmpfs tmpfs rw,inode64
36 29 259:3 /@home /home rw,noatime shared:31 master:2 - btrfs /dev/nvme0n1p3 rw,ssd,subvol=/@home
40 29 0:34 / /net rw,relatime shared:60 - autofs auto.net rw,fd=7,pgrp=812,timeout=300
41 40 0:52 / /net/filer/export rw,nosuid,relatime shared:61 - nfs4 filer.example.org:/export rw,vers=4.2,proto=tcp
42 29 0:53 / /mnt/old rw,relatime shared:62 - nfs 192.0.2.7:/vol/old rw,vers=3,addr=192.0.2.7
43 29 0:54 / /mnt/windows\\040share rw,relatime shared:63 - cifs //server.example.org/team rw,vers=3.1.1,username=me
44 29 0:55 / /mnt/samba rw,relatime propagate_from:2 - smb3 //server.example.org/team rw
45 36 0:56 / /home/me/remote rw,nosuid,nodev,relatime shared:64 - fuse.sshfs me@host.example.org: rw,user_id=1000
46 29 0:57 / /mnt/host rw,relatime - 9p hostshare rw,sync,dirsync,access=client,trans=virtio
47 29 0:58 / /mnt/vm rw,relatime - virtiofs myfs rw
48 29 0:59 / /mnt/box rw,nodev,relatime - vboxsf shared rw,uid=0
49 29 0:60 / /mnt/bucket rw,nosuid,nodev,relatime - fuse.gcsfuse my-bucket rw,user_id=0
50 29 0:61 / /mnt/ceph rw,relatime - ceph 192.0.2.1:6789:/ rw,name=admin,secret=<hidden>
51 29 8:17 / /mnt/stick rw,relatime - fuseblk /dev/sdb1 rw,user_id=0,allow_other
52 41 0:62 / /net/filer/export/scratch rw,relatime - tmpfs tmpfs rw
53 29 259:2 /var/locks /net/filer/export/bound rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
54 29 0:63 / /srv rw,relatime - xfs /dev/mapper/srv rw
55 54 0:64 / /srv rw,relatime - glusterfs gluster.example.org:/srv rw
"""

CONTAINER = """\
1043 812 0:131 / / rw,relatime master:402 - overlay overlay rw,lowerdir=/l/A:/l/B,upperdir=/u/diff,workdir=/u/work
1044 1043 0:134 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
1047 1043 259:2 /var/lib/docker/volumes/v/_data /data rw,relatime master:1 - ext4 /dev/nvme0n1p2 rw
1048 1043 0:141 /pvc-1 /shared rw,relatime - nfs4 10.0.0.5:/exports/pvc-1 rw,vers=4.1
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/net/filer/export", "nfs4"),
        ("/net/filer/export/deep/down", "nfs4"),
        ("/mnt/old/x", "nfs"),
        ("/mnt/windows share/x", "cifs"),
        ("/mnt/samba", "smb3"),
        ("/home/me/remote/x", "fuse.sshfs"),
        ("/mnt/host", "9p"),
        ("/mnt/vm", "virtiofs"),
        ("/mnt/box", "vboxsf"),
        ("/mnt/bucket", "fuse.gcsfuse"),
        ("/mnt/ceph/x", "ceph"),
        ("/srv/x", "glusterfs"),  # the last mount is the visible one
    ],
)
def test_a_network_disk_is_refused_by_name(folder: str, kind: str) -> None:
    assert file_system_of(Path(folder), mounts_in(MOUNTINFO)) == kind
    with pytest.raises(StoreRefused) as refused:
        check_file_system(Path(folder, "locks.db"), kind)
    assert pattern(SHARED).fullmatch(str(refused.value))
    assert f"({kind})" in str(refused.value)


@pytest.mark.parametrize(
    ("mountinfo", "folder", "kind"),
    [
        (MOUNTINFO, "/", "ext4"),
        (MOUNTINFO, "/var/locks", "ext4"),
        (MOUNTINFO, "/dev/shm/locks", "tmpfs"),
        (MOUNTINFO, "/home/me", "btrfs"),
        (MOUNTINFO, "/home/me/remotely", "btrfs"),
        (MOUNTINFO, "/mnt/stick", "fuseblk"),
        (MOUNTINFO, "/mnt/oldest", "ext4"),
        (MOUNTINFO, "/net/filer/export/scratch/x", "tmpfs"),
        (MOUNTINFO, "/net/filer/export/bound", "ext4"),
        (CONTAINER, "/var/lock", "overlay"),
        (CONTAINER, "/data/locks", "ext4"),
        ("", "/", None),
        ("nonsense\n\n - \n1 2 3 4\n", "/", None),
    ],
)
def test_a_local_disk_is_taken(mountinfo: str, folder: str, kind: str | None) -> None:
    assert file_system_of(Path(folder), mounts_in(mountinfo)) == kind
    check_file_system(Path(folder, "locks.db"), kind)


def test_a_volume_shared_with_other_machines_is_refused() -> None:
    with pytest.raises(StoreRefused):
        check_file_system(Path("/shared/locks.db"), file_system_of(Path("/shared/team"), mounts_in(CONTAINER)))


# --- with mounts of our own ----------------------------------------------------------------------------------------

ASK = """
import asyncio, sys, lockstead

url = sys.argv[1] + "#apt"
try:
    lockstead.Lock(url).try_acquire()
except lockstead.StoreRefused as error:
    print(error)

async def use():
    try:
        await lockstead.AsyncLock(url).try_acquire()
    except lockstead.StoreRefused as error:
        print(error)

asyncio.run(use())
"""


def in_mounts_of_its_own(prepare: str, *command: str) -> tuple[int, str, str]:
    """Run a command with private mounts. prepare is shell; the command keeps its process id."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("only who may mount can try this")
    line = f"{prepare} && exec {shlex.join(command)}"
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", line],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout, done.stderr


def run_by_the_shell(url: str) -> list[str]:
    return [sys.executable, "-m", "lockstead.cli.main", "run", "--timeout", "0", f"{url}#apt", "--", "echo", "ran"]


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_network_disk_is_refused_in_both_colours_and_in_the_shell(world: World, kind: str) -> None:
    url = world.file()
    told = world.folder / "mountinfo"
    told.write_text(f"29 1 259:2 / / rw - ext4 /dev/vda rw\n41 29 0:52 / {world.folder} rw - {kind} server:/x rw\n")
    # the kernel itself is made to say so, to this one process
    prepare = f"mount --bind {shlex.quote(str(told))} /proc/$$/mountinfo"
    before = world.kept()
    code, out, err = in_mounts_of_its_own(prepare, sys.executable, "-c", ASK, url)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 2
    assert lines[0] == lines[1]
    code, out, err = in_mounts_of_its_own(prepare, *run_by_the_shell(url))
    assert (code, out, err) == (69, "", f"lockstead: {lines[0]}\n")
    assert pattern(SHARED).fullmatch(lines[0])
    assert f"({kind})" in lines[0]
    assert world.kept() == before


@pytest.mark.parametrize("is_there", [True, False], ids=["a file that is there", "a new file"])
def test_a_read_only_disk_is_refused_in_both_colours_and_in_the_shell(world: World, is_there: bool) -> None:
    url = world.file() if is_there else world.sqlite
    place = shlex.quote(str(world.folder))
    prepare = f"mount --bind {place} {place} && mount -o remount,ro,bind {place}"
    before = world.kept()
    code, out, err = in_mounts_of_its_own(prepare, sys.executable, "-c", ASK, url)
    assert (code, err) == (0, "")
    says = pattern("cannot keep locks in …: …; this process must be able to write the file and its folder")
    lines = out.splitlines()
    assert len(lines) == 2
    assert all(says.fullmatch(line) for line in lines), lines
    code, out, err = in_mounts_of_its_own(prepare, *run_by_the_shell(url))
    assert (code, out, err.count("\n")) == (69, "", 1)
    assert says.fullmatch(err.removeprefix("lockstead: ").rstrip("\n"))
    assert world.kept() == before


@pytest.mark.parametrize("closed", ["file", "folder", "above"])
def test_a_file_that_this_user_may_not_write_is_refused(world: World, closed: str) -> None:
    url = world.file()
    modes = {"file": (world.path, 0o444), "folder": (world.folder, 0o555), "above": (world.folder.parent, 0o000)}
    place, mode = modes[closed]
    was = place.stat().st_mode & 0o777
    place.chmod(mode)
    try:
        done = subprocess.run(
            [*as_an_ordinary_user(), sys.executable, "-c", ASK, url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        place.chmod(was)
    assert (done.returncode, done.stderr) == (0, "")
    says = pattern("cannot keep locks in …: …; this process must be able to write the file and its folder")
    assert len(done.stdout.splitlines()) == 2, done.stdout
    assert all(says.fullmatch(line) for line in done.stdout.splitlines()), done.stdout


def as_an_ordinary_user() -> list[str]:
    """Return the prefix of a command for which the modes of files hold: root gives up its capabilities."""
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
