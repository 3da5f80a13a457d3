"""Secrets that stand in the words of a command without a name: `docker login -p X`, `mysql -pX`, `curl -u me:X`."""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = b"********"

_LOGIN = {b"-p", b"--password", b"--creds", b"--registry-password"}
# Program -> its flags that a secret follows. Those of the first line have them after `login` only.
_AFTER_LOGIN = frozenset(
    b"docker podman nerdctl helm oras skopeo buildah crane regctl ctr az oc kubectl wandb ngc".split()
)
_FLAGS: dict[bytes, frozenset[bytes]] = {
    **{name: frozenset(_LOGIN) for name in _AFTER_LOGIN},
    **{name: frozenset([b"-p"]) for name in (b"sshpass", b"mysql", b"mysqldump", b"mysqladmin", b"mariadb", b"mongo")},
    **{name: frozenset([b"-p"]) for name in (b"mongosh", b"mongodump", b"mariadb-dump", b"zip", b"7z", b"unrar")},
    **{name: frozenset([b"-w", b"-y"]) for name in (b"ldapsearch", b"ldapadd", b"ldapmodify", b"ldapwhoami")},
    **{
        name: frozenset([b"-u", b"--user", b"-U", b"--proxy-user", b"-a"])
        for name in (b"curl", b"http", b"https", b"xh")
    },
    **{name: frozenset([b"-c", b"-A", b"-X"]) for name in (b"snmpget", b"snmpwalk", b"snmpbulkwalk", b"snmpset")},
    **{name: frozenset([b"-U", b"-u"]) for name in (b"smbclient", b"rpcclient", b"lftp")},
    **{name: frozenset([b"-hft"]) for name in (b"llama-server", b"llama")},
    b"redis-cli": frozenset([b"-a", b"--pass"]),
    b"ipmitool": frozenset([b"-P", b"-k"]),
    b"nomad": frozenset([b"-token"]),
    b"rclone": frozenset([b"obscure"]),
    b"htpasswd": frozenset(),
}
_JOINED = frozenset(b"sshpass mysql mysqldump mysqladmin mariadb mariadb-dump 7z unrar".split())  # -pSECRET
_SEPARATORS = (b"|", b"||", b"&&", b";", b"&")
# A line of text is looked at where it holds one of these (in lower case).
_SHORT_FLAGS = b"-p -u -w -y -c -a -x -k -hft".split()
SIGNS = (
    *(lead + flag for flag in _SHORT_FLAGS for lead in (b" ", b'"', b"'")),
    *b" -token, --creds, --proxy-user, --user, obscure".split(b","),
)
_WORD = re.compile(rb"[^\s,\[\]\"']+")


class _Follower:
    """Knows, word by word, whether the next one is a secret."""

    def __init__(self) -> None:
        self._program = b""
        self._login = False
        self._next = False

    def take(self, word: bytes) -> bytes:
        """`word`, masked as far as it is a secret."""
        if self._next:
            self._next = False
            if word and not (word.startswith(b"-") and len(word) < 3):
                return MASK
        if word in _SEPARATORS:
            self._program = b""
            return word
        name = word.rpartition(b"/")[2].lstrip(b"(`$")
        if name in _FLAGS and not word.startswith(b"-"):
            self._program, self._login = name, name not in _AFTER_LOGIN
            return word
        if self._program and word == b"login":
            self._login = True
        if not (self._program and self._login):
            return word
        return self._after_program(word)

    def _after_program(self, word: bytes) -> bytes:
        if word in _FLAGS[self._program]:
            self._next = True
        elif self._program in _JOINED and re.match(rb"-p[^\s=-]", word):
            return word[:2] + MASK
        return word


def redact_words(words: Sequence[bytes]) -> list[bytes]:
    """The words of a command line with those masked that a program takes a secret from."""
    follower = _Follower()
    return [follower.take(word) for word in words]


def redact_command(line: bytes) -> bytes:
    """A line of text with a command in it, likewise; of a quoted secret all that stands in the quotes."""
    follower = _Follower()
    parts: list[bytes] = []
    end = 0
    for match in _WORD.finditer(line):
        if match.start() < end:
            continue
        taken = follower.take(match.group(0))
        parts += [line[end : match.start()], taken]
        end = match.end()
        quote = line[match.start() - 1 : match.start()]
        if taken == MASK and quote in (b"'", b'"'):
            closing = line.find(quote, end)
            end = closing if closing >= 0 else len(line)
    return b"".join([*parts, line[end:]])
