"""Network namespaces and TUN devices, made with the kernel's own calls.

A namespace made here has no name: it lives as long as a process in it or a descriptor of it, so that no crash can leave
one behind. Whoever is not root makes them inside a user namespace, where the system allows that.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shoal.errors import UserError

DEVICE = "lab0"
"""The interface of every host."""

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x40000000
_MS_REC, _MS_PRIVATE, _MS_BIND = 0x4000, 0x40000, 0x1000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_TUN = "/dev/net/tun"


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Namespace:
    """One host's network. `net` keeps the namespace alive, `tun` is the other end of its interface."""

    net: int
    tun: int

    @property
    def inode(self) -> int:
        """What tells this namespace from others in ``/proc/PID/ns/net``."""
        return os.fstat(self.net).st_ino

    def close(self) -> None:
        os.close(self.tun)
        os.close(self.net)


def become_able() -> bool:
    """Make sure that this process may make network namespaces; returns whether it took a user namespace to do so.

    Call it before the first thread.

    Raises:
        UserError: the system allows neither.
    """
    try:
        with _left_again():
            _unshare(CLONE_NEWNET)
        return False
    except PermissionError:
        pass
    except OSError as error:
        raise _refused(error) from None
    own_user_namespace()
    try:
        with _left_again():
            _unshare(CLONE_NEWNET)
    except OSError as error:
        raise _refused(error) from None
    return True


def own_user_namespace() -> None:
    """Be root in a user namespace of one's own; outside, nothing changes.

    Raises:
        UserError: the system does not allow it.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        _unshare(CLONE_NEWUSER)
        with contextlib.suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1", encoding="ascii")
    except OSError as error:
        raise _refused(error) from None


def _refused(error: OSError) -> UserError:
    return UserError(
        f"this system does not let us make network namespaces: {error.strerror}",
        mend="run as root, or allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone,"
        " kernel.apparmor_restrict_unprivileged_userns=0); in a container: --cap-add SYS_ADMIN --cap-add NET_ADMIN",
    )


def make(commands: Sequence[str], sysctls: Sequence[tuple[str, str]]) -> tuple[Namespace, list[str]]:
    """A new namespace with a TUN device called `DEVICE`, set up by `commands` of ``ip -batch``.

    Args:
        sysctls: (path under ``/proc/sys/net``, value); those that cannot be set are returned.

    Raises:
        UserError: the system refuses; says what.
    """
    with _left_again():
        _unshare(CLONE_NEWNET)
        net = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            tun = _open_tun()
        except BaseException:
            os.close(net)
            raise
        made = Namespace(net, tun)
        try:
            ip(commands)
            return made, [path for path, value in sysctls if not _set(path, value)]
        except BaseException:
            made.close()
            raise


def change(namespace: Namespace, commands: Sequence[str]) -> None:
    """Run `commands` of ``ip -batch`` in `namespace`."""
    with _left_again():
        _setns(namespace.net, CLONE_NEWNET)
        ip(commands)


def ip(commands: Sequence[str]) -> None:
    """Run `commands` of ``ip -batch`` where this thread is."""
    try:
        done = subprocess.run(
            ["ip", "-batch", "-"],
            input="\n".join(commands) + "\n",
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        raise UserError("the command ip is not here", mend="install the package iproute2") from None
    if done.returncode:
        raise UserError(f"ip refuses to set up a namespace: {' '.join(done.stderr.split())}")


def enter(net: str, *, user: str | None = None) -> None:
    """Move this process, which has one thread, to the namespaces at these paths.

    Raises:
        OSError: they are gone, or this process may not.
    """
    for path, kind in ((user, CLONE_NEWUSER), (net, CLONE_NEWNET)):
        if path is not None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _setns(descriptor, kind)
            finally:
                os.close(descriptor)


def call_host(name: str, hosts_file: str) -> None:
    """Let this process and its children find their host's name, and the others' in `hosts_file`, where they may."""
    with contextlib.suppress(OSError):
        _unshare(CLONE_NEWUTS | CLONE_NEWNS)
        _mount(None, "/", _MS_REC | _MS_PRIVATE)
        _mount(hosts_file, "/etc/hosts", _MS_BIND)
        _checked(_libc().sethostname(name.encode(), len(name.encode())))


def processes_in(inodes: set[int]) -> list[int]:
    """The processes, other than this one, that live in one of these network namespaces."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and int(entry) != os.getpid() and os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                found.append(int(entry))
    return found


@contextmanager
def _left_again() -> Iterator[None]:
    """Come back to the network namespace in which this began. From a user namespace there is no way back to the
    system's own one; nothing here needs it."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            _setns(home, CLONE_NEWNET)
        os.close(home)


def _open_tun() -> int:
    import fcntl  # does not exist on every platform

    try:
        tun = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        mend = {
            errno.ENOENT: "modprobe tun; in a container: --device /dev/net/tun",
            errno.EACCES: f"run as root, or let everybody open it: chmod 666 {_TUN}",
        }.get(error.errno or 0, "in a container: --device /dev/net/tun --cap-add NET_ADMIN")
        raise UserError(f"cannot open {_TUN}: {error.strerror}", mend=mend) from None
    try:
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        os.close(tun)
        raise UserError(f"cannot make a TUN device: {error.strerror}", mend="run as root") from None
    return tun


def _set(path: str, value: str) -> bool:
    try:
        Path("/proc/sys/net", path).write_text(value, encoding="ascii")
    except OSError:
        return False
    return True


def _unshare(kinds: int) -> None:
    _checked(_libc().unshare(kinds))


def _setns(descriptor: int, kind: int) -> None:
    _checked(_libc().setns(descriptor, kind))


def _mount(source: str | None, target: str, flags: int) -> None:
    _checked(_libc().mount(source.encode() if source else None, target.encode(), None, ctypes.c_ulong(flags), None))


def _checked(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
