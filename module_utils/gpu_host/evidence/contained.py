"""Files below the root directory of a process, as the process itself would open them.

/proc/PID/root leads into the file system of a container, and the links in it are the container's: one with an absolute
target leads into the file system of whoever follows it. So each step is taken by itself, without following links, and
the target of a link is looked up below the same root. Whoever writes the container's files cannot make this process,
which may be root's, read those of the host.
"""

from __future__ import annotations

import errno
import os
import re
import stat

ROOT = re.compile(r"(?P<root>/proc/\d+/root)(?P<inside>/.*|)")
_LINKS_AT_MOST = 40  # as the kernel's own limit, path_resolution(7)
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class ContainedPath:
    """A file or directory below `root`; ``descriptor`` (O_PATH) stands for it as long as the context is open.

    Raises OSError as open(2) does.
    """

    def __init__(self, root: str, inside: str) -> None:
        self._steps = [os.open(root, os.O_PATH | os.O_CLOEXEC)]
        try:
            self._walk(inside)
        except BaseException:
            self._close()
            raise

    @property
    def descriptor(self) -> int:
        return self._steps[-1]

    def __enter__(self) -> ContainedPath:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def open_file(self) -> int:
        """A descriptor of the content. A device or a pipe is not opened: that alone may do something."""
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file of the container")
        return os.open("/proc/self/fd/%d" % self.descriptor, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def open_directory(self) -> int:
        if not stat.S_ISDIR(os.fstat(self.descriptor).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return os.open("/proc/self/fd/%d" % self.descriptor, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _walk(self, inside: str) -> None:
        todo = [part for part in inside.split("/") if part not in ("", ".")]
        links = 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                if len(self._steps) > 1:
                    os.close(self._steps.pop())
                continue
            step = os.open(part, _STEP, dir_fd=self.descriptor)
            if not stat.S_ISLNK(os.fstat(step).st_mode):
                self._steps.append(step)
                continue
            os.close(step)
            links += 1
            if links > _LINKS_AT_MOST:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink(part, dir_fd=self.descriptor)
            if target.startswith("/"):
                while len(self._steps) > 1:
                    os.close(self._steps.pop())
            todo = [piece for piece in target.split("/") if piece not in ("", ".")] + todo

    def _close(self) -> None:
        while self._steps:
            os.close(self._steps.pop())
