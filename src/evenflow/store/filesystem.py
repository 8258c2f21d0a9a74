"""Whether a folder can carry a SQLite queue: WAL and `flock` need one host and a local file system."""

import ctypes
import sys
from pathlib import Path

from evenflow.errors import StoreRefused

# f_type of statfs(2). On these, shared memory or locks are not those of one host.
_NETWORK = {
    0x6969: "NFS", 0x517B: "SMB", 0xFE534D42: "SMB2", 0xFF534D42: "CIFS", 0x01021997: "9p", 0x00C36400: "Ceph",
    0x5346414F: "AFS", 0x0BD00BD0: "Lustre", 0x47504653: "GPFS", 0x7461636F: "OCFS2", 0x01161970: "GFS2",
}  # fmt: skip
# Those that nobody changes but through this kernel, which therefore can tell of each change. Others may be a folder of a
# host outside of this machine (FUSE, virtiofs), where a file can go without an event.
_TELLING = {
    0xEF53: "ext4", 0x58465342: "XFS", 0x9123683E: "Btrfs", 0xF2F52010: "F2FS", 0x01021994: "tmpfs", 0x794C7630: "overlay",
}  # fmt: skip
_BYTES_OF_STATFS = 256


def refuse_network_filesystem(folder: Path) -> None:
    """StoreRefused where the folder lies on a file system that hosts share."""
    kind = _filesystem_type(folder) if sys.platform == "linux" else None
    if kind in _NETWORK:
        raise StoreRefused(
            f"SQLite: {str(folder)!r} is on {_NETWORK[kind]}, where several hosts could write at once and corrupt the file; "
            "put the file on a local disk, or use PostgreSQL"
        )


def tells_of_changes(folder: Path) -> bool:
    """Whether nothing can be renamed or deleted there without the kernel's telling whoever watches it."""
    return sys.platform == "linux" and _filesystem_type(folder) in _TELLING


def _filesystem_type(folder: Path) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)  # to look for it by name would start another program
    buffer = ctypes.create_string_buffer(_BYTES_OF_STATFS)
    if libc.statfs(str(folder).encode(), buffer) != 0:
        return None
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF
