"""On what kind of file system a file lies, and whether a store can live there.

SQLite's WAL needs memory that all processes share and locks that work. Network file systems have
neither; others lose everything when the machine, or the container, ends.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

__all__ = ["FileSystem", "file_system_of", "from_mountinfo"]

_NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "virtiofs", "afs", "afpfs", "ceph",
    "glusterfs", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2", "webdav", "davfs", "vboxsf",
    "prl_fs", "vmhgfs", "fuse.sshfs", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.ceph",
    "fuse.vmhgfs-fuse", "fuse.davfs2", "drvfs",
})  # fmt: skip
_PASSING = frozenset({"tmpfs", "ramfs", "overlay", "aufs"})


class FileSystem(NamedTuple):
    """A mounted file system; the kind is ``unknown`` where the system does not tell."""

    kind: str
    mounted_at: str
    read_only: bool = False

    @property
    def is_network(self) -> bool:
        """Return True if it is shared with other machines: the WAL does not work there."""
        return self.kind in _NETWORK

    @property
    def is_ephemeral(self) -> bool:
        """Return True if its content is gone with the machine, or with a container."""
        return self.kind in _PASSING


def file_system_of(path: Path) -> FileSystem:
    """Return the file system of *path*, or of the nearest folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return from_mountinfo(path.resolve(), Path("/proc/self/mountinfo").read_text())
    except OSError:
        return _from_mount(path.resolve())


def from_mountinfo(path: Path, text: str) -> FileSystem:
    """Return the mount that *path* is in, by *text*, the table of Linux.

    Of several on one place the last one counts. ``unknown`` if there is none.
    """
    found = FileSystem("unknown", "/")
    best = -1
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 6 or not kinds[0]:
            continue
        # The kernel writes blanks, tabs, line breaks and backslashes in octal: "\040".
        place = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields[4])
        # The longest place has the file. ">=": the later of two mounts on one place hides the
        # earlier.
        if path.is_relative_to(place) and len(place) >= best:
            best = len(place)
            # The options of the mount, not those of the file system behind the dash: a bind mount
            # may be read-only by itself.
            found = FileSystem(kinds[0], place, "ro" in fields[5].split(","))
    return found


def _from_mount(path: Path) -> FileSystem:
    """By the words of ``mount`` on macOS: ``/dev/disk1 on /Volumes/x (apfs, local, journaled)``."""
    found, best = FileSystem("unknown", "/"), -1
    try:
        listed = subprocess.run(["mount"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return found
    for match in re.finditer(r"^.* on (.*) \((\w+)(.*)\)$", listed, re.MULTILINE):
        place, kind, options = match.groups()
        if path.is_relative_to(place) and len(place) >= best:
            best = len(place)
            found = FileSystem(kind, place, "read-only" in options)
    return found
