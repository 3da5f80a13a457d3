"""What is masked, what is not, and that nothing planted comes through."""

from __future__ import annotations

import hashlib
import string
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible.module_utils.gpu_host.evidence import secrets
from ansible.module_utils.gpu_host.evidence.interface import Outcome
from ansible.module_utils.gpu_host.pve import guest_config
from ansible.module_utils.gpu_provision import pve_apply
from hypothesis import given
from hypothesis import strategies as st

MASKED_TEXT = [
    b"--api-key abc123",
    b"--api-key=abc123",
    b"--api-key 'two words'",
    b"python -m sglang.launch_server --model x --api-key abc123 --tp 8",
    b"server_args=ServerArgs(model_path='m', api_key='abc123', admin_api_key=None)",
    b"args: {'api_key': ['abc123', 'def'], 'port': 8000}",
    b'"hf_token": "abc123"',
    b"HF_TOKEN=abc123",
    b"export OPENAI_API_KEY=abc123",
    b'Environment="HUGGING_FACE_HUB_TOKEN=abc123"',
    b"X-API-Key: abc123",
    b"password: 123456abc123",
    b"db_password=abc123",
    b"aws_secret_access_key = abc123",
    b"--ssl-keyfile-password abc123",
    b"Authorization: Bearer abc123abc123",
    b"authorization: Basic abc123abc123==",
    b"https://user:abc123@example.org/x",
    b'{"secret": "with \\"abc123\\" inside"}',
    b"token=abc123",
    b"auth_key=abc123",
]


@pytest.mark.parametrize("text", MASKED_TEXT)
def test_masked(text: bytes) -> None:
    masked = secrets.redact_text(text)
    assert b"abc123" not in masked
    assert secrets.MASK in masked
    assert secrets.redact_text(masked) == masked, "masking twice is masking once"


KEPT_TEXT = [
    b"Decode batch, #running-req: 17, #token: 7808, token usage: 0.02, cuda graph: True, gen throughput (token/s): "
    b"166.48, #queue-req: 0",
    b"max_total_num_tokens=412345, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=64, "
    b"context_len=202752",
    b"KV Cache is allocated. #tokens: 412345, K size: 20.10 GB",
    b"--tokenizer-path /models/x --max-total-tokens 100000 --skip-tokenizer-init",
    b"api_key=None, admin_api_key=None, hf_token=null",
    b"full token usage: 0.10, mamba usage: 0.00",
    b"Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 20.1 tokens/s",
    b"Loading of module with unavailable key is rejected",
    b"integrity: Loaded X.509 cert 'host Secure Boot Module Signature key: 0123456789'",
    b"NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus.",
    b"systemd[1]: Started systemd-ask-password-wall.path - Forward Password Requests to Wall Directory Watch.",
    b'options nvidia NVreg_RegistryDwords="ForceP2P=0x11;RMForceP2PType=1"',
    b"https://example.org:8000/v1/models",
    b"<gpu_uuid>GPU-00000000</gpu_uuid>",
    b"bos_token_id=1, eos_token_id: 2, pad_token_id=3",
    b"input_tokens: 512 output_tokens: 128",
]


@pytest.mark.parametrize("text", KEPT_TEXT)
def test_kept(text: bytes) -> None:
    assert secrets.redact_text(text) == text


@pytest.mark.parametrize(
    "token",
    [
        b"hf_abcdefghijklmnopqrst",
        b"sk-proj-abcdefghijklmnop",
        b"nvapi-abcdefghijklmnopqrst",
        b"ghp_abcdefghijklmnopqrstuv",
        b"glpat-abcdefghijklmnopqrst",
        b"AKIAABCDEFGHIJKLMNOP",
        b"xoxb-1234567890-abc",
        b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc-def_123",
    ],
)
def test_well_known_forms_are_masked_wherever_they_stand(token: bytes) -> None:
    assert token not in secrets.redact_text(b"loading with " + token + b" from cache")


def test_a_private_key_is_masked_over_its_lines() -> None:
    text = b"before\n-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\nBBBB\n-----END OPENSSH PRIVATE KEY-----\nafter\n"
    masked = secrets.redact_text(text)
    assert b"AAAA" not in masked and b"BBBB" not in masked
    assert masked.startswith(b"before\n") and masked.endswith(b"after\n")
    assert b"CCCC" not in secrets.redact_text(b"-----BEGIN PRIVATE KEY-----\nCCCC\n")  # cut off


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            [b"vllm", b"serve", b"--api-key", b"a", b"b", b"--port", b"8000"],
            [b"vllm", b"serve", b"--api-key", secrets.MASK, secrets.MASK, b"--port", b"8000"],
        ),
        ([b"x", b"--api-key=a", b"model"], [b"x", b"--api-key=" + secrets.MASK, b"model"]),
        ([b"x", b"--hf-token", b"a", b"model"], [b"x", b"--hf-token", secrets.MASK, b"model"]),
        (
            [b"/app/llama-server", b"-hft", b"a", b"-c", b"9"],
            [b"/app/llama-server", b"-hft", secrets.MASK, b"-c", b"9"],
        ),
        (
            [b"lmdeploy", b"serve", b"api_server", b"--api-keys", b"a", b"b", b"--tp", b"2"],
            [b"lmdeploy", b"serve", b"api_server", b"--api-keys", secrets.MASK, secrets.MASK, b"--tp", b"2"],
        ),
        ([b"x", b"--api-key", b"--port", b"1"], [b"x", b"--api-key", b"--port", b"1"]),
        (
            [b"x", b"--max-tokens", b"5", b"--tokenizer-path", b"/m"],
            [b"x", b"--max-tokens", b"5", b"--tokenizer-path", b"/m"],
        ),
        (
            [b"env", b"HF_TOKEN=a", b"NCCL_DEBUG=INFO", b"x"],
            [b"env", b"HF_TOKEN=" + secrets.MASK, b"NCCL_DEBUG=INFO", b"x"],
        ),
        ([b"sh", b"-c", b"run --api-key a --tp 8"], [b"sh", b"-c", b"run --api-key " + secrets.MASK + b" --tp 8"]),
        ([b"x", b"--api-key", b"", b""], [b"x", b"--api-key", b"", b""]),
        ([b""], [b""]),
    ],
)
def test_command_lines(arguments: list[bytes], expected: list[bytes]) -> None:
    assert secrets.redact_arguments(arguments) == expected
    assert secrets.redact_arguments(expected) == expected
    assert secrets.redact_file("/proc/7/cmdline", b"\0".join(arguments)) == b"\0".join(expected)


def test_environments_keep_what_is_allowed_and_nothing_else() -> None:
    given_environment = (
        b"NCCL_P2P_LEVEL=SYS\0HF_TOKEN=a\0CUDA_VISIBLE_DEVICES=0,1\0NVIDIA_API_KEY=b\0VLLM_API_KEY=c\0SGLANG_ADMIN_KEY=d\0USER=e\0RAY_AUTH_COOKIE=f"
        b"\0HF_HUB_TOKEN=g\0VLLM_PROXY=http://u:pw@h/\0OMP_NUM_THREADS=8\0\0=x\0junk\0RAY_REDIS_PASSWORD=h\0SGLANG_MAX_NEW_TOKENS=5"
    )
    kept = secrets.redact_file("/proc/1/environ", given_environment)
    assert (
        kept
        == b"NCCL_P2P_LEVEL=SYS\0CUDA_VISIBLE_DEVICES=0,1\0VLLM_PROXY=http://u:********@h/\0OMP_NUM_THREADS=8\0SGLANG_MAX_NEW_TOKENS=5"
    )
    assert secrets.redact_environment(kept) == kept


def test_sysfs_bytes_are_never_touched() -> None:
    data = b"token=abcdef\xff\x00"
    assert secrets.redact_file("/sys/bus/pci/devices/0000:01:00.0/config", data) == data


def test_the_kernels_command_line_is_text() -> None:
    assert (
        secrets.redact_file("/proc/cmdline", b"root=/dev/x iscsi_password=abcdef quiet\n")
        == b"root=/dev/x iscsi_password=******** quiet\n"
    )


# A secret of letters and digits with at least one letter: a bare number after "tokens" is a count.
SECRET = st.text(string.ascii_letters + string.digits, min_size=12, max_size=40).map(lambda text: "Zq" + text)
NAME = st.sampled_from(
    [
        "api_key",
        "API_KEY",
        "hf-token",
        "HF_TOKEN",
        "db.password",
        "client_secret",
        "x-api-key",
        "aws_secret_access_key",
        "private_key",
        "passwd",
    ]
)
JUNK = st.text(max_size=20).map(lambda text: text.replace("\n", " "))
FORMS = [
    "%s=%s",
    "%s: %s",
    '"%s": "%s"',
    "'%s': '%s'",
    "%s = '%s'",
    "--%s=%s",
    "--%s %s",
    "export %s=%s",
    "%s=['%s']",
    '{\\"%s\\": \\"%s\\"}',
]


@given(name=NAME, secret=SECRET, form=st.sampled_from(FORMS), before=JUNK, after=JUNK)
def test_a_planted_secret_never_comes_through_text(name: str, secret: str, form: str, before: str, after: str) -> None:
    line = "%s %s %s" % (before, form % (name, secret), after)
    assert secret.encode() not in secrets.redact_text(line.encode("utf-8", "surrogatepass"))


@given(
    name=NAME,
    secret=SECRET,
    joined=st.booleans(),
    around=st.lists(st.binary(max_size=8).map(lambda data: data.replace(b"\0", b"")), max_size=3),
)
def test_a_planted_secret_never_comes_through_a_command_line(
    name: str, secret: str, joined: bool, around: list[bytes]
) -> None:
    flag = b"--" + name.encode()
    words = [*around, flag + b"=" + secret.encode()] if joined else [*around, flag, secret.encode()]
    assert secret.encode() not in secrets.redact_file("/proc/42/cmdline", b"\0".join([*words, *around]))


@given(
    name=st.text(string.ascii_uppercase + "_", min_size=1, max_size=20),
    word=st.sampled_from(["TOKEN", "KEY", "SECRET", "PASSWORD", "API_KEY"]),
    secret=SECRET,
)
def test_a_planted_secret_never_comes_through_an_environment(name: str, word: str, secret: str) -> None:
    for full in (name + "_" + word, "NCCL_" + name + word, "VLLM_" + word + "_" + name, "SGLANG_" + word):
        assert secret.encode() not in secrets.redact_environment(
            b"PATH=/bin\0" + full.encode() + b"=" + secret.encode()
        )


@given(data=st.binary(max_size=400))
def test_any_bytes_are_bounded_and_stable(data: bytes) -> None:
    once = secrets.redact_text(data)
    assert secrets.redact_text(once) == once
    assert secrets.redact_environment(secrets.redact_environment(data)) == secrets.redact_environment(data)


@pytest.mark.parametrize(
    "line",
    [
        b"token" * 200000,
        b"a_" * 500000 + b"key",
        b"--api-key " * 100000,
        b"://" * 300000,
        b"api_key=[" * 100000,
        b'"secret": "' + b"\\" * 1000000,
    ],
)
def test_hostile_text_takes_bounded_time(line: bytes) -> None:
    began = time.monotonic()
    secrets.redact_text(line)
    assert time.monotonic() - began < 5


GUEST = "/etc/pve/qemu-server/101.conf"


@pytest.mark.parametrize(
    "text",
    [
        "description: note\nsshkeys: ssh-rsa%20AAAA%2Bx\n"
        "smbios1: uuid=0a1b2c3d-0000-4000-8000-00000000abcd,serial=QUJD\n",
        "smbios1: serial=not base64\nsshkeys: with blanks\nsearchdomain: a b\ncipassword: x\ry\n",
        "ipconfig0: ip=10.0.0.5/24,gw=10.0.0.1,ip6=auto\n"
        "ipconfig1: ip=10.0.0.5\nnameserver: 10.0.0.1\ncicustom: user=local:s/x.yml\n",
        "machne: q35\nHostpci0: 01:00.0\n junk line\nhostpci0 : 01:00.0\n# note\nhostpci1: 0000:01:00.0,pcie=1\n",
        "[snap]\ndescription: x\nmachine: Q35\n[special:cloudinit]\nname: x\ncipassword: y\n[PENDING]\ncipassword: z\n",
    ],
)
@pytest.mark.parametrize("kind", ["vm", "lxc"])
def test_what_is_left_out_of_a_guest_changes_no_fault(text: str, kind: str) -> None:
    """What Proxmox takes or refuses, and on which line, is the same before and after."""
    path = GUEST if kind == "vm" else "/etc/pve/lxc/101.conf"
    masked = secrets.redact_file(path, text.encode()).decode()
    before, after = (guest_config.parse_config(one, kind) for one in (text, masked))
    assert [(line.number, line.key, line.counts, line.is_junk) for line in before.warnings()] == [
        (line.number, line.key, line.counts, line.is_junk) for line in after.warnings()
    ]
    assert [section.name for section in before.sections] == [section.name for section in after.sections]
    assert before.current.settings().keys() == after.current.settings().keys()
    assert secrets.redact_file(path, masked.encode()).decode() == masked


def test_what_readers_ask_of_a_guest_stays() -> None:
    text = (
        b"agent: 1\nargs: -global q35-pcihost.pci-hole64-size=2048G -fw_cfg name=opt/ovmf/X-PciMmio64Mb,string=65536\n"
        b"bios: ovmf\nhostpci0: 0000:01:00.0,pcie=1\nmachine: q35\nname: llm-vm\n"
        b"lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind\n"
    )
    assert secrets.redact_file(GUEST, text) == text


def test_proxmox_compares_the_digest_of_the_file_itself(tmp_path: Path) -> None:
    """`qm set --digest` is given the SHA-1 of what stands on the disk, secrets and all."""
    text = "cipassword: abc123\n#note\nmachine: q35\n"
    (tmp_path / "etc/pve/qemu-server").mkdir(parents=True)
    (tmp_path / GUEST[1:]).write_text(text)
    seen: list[list[str]] = []

    def run(argv: Sequence[str], _limit: float) -> Outcome:
        seen.append(list(argv))
        return Outcome(tuple(argv), "ok", rc=0)

    guest = pve_apply.Guest("vm", "101", str(tmp_path), run)
    guest.configure(["--machine", "q35"], guest.text())
    assert seen[0][-1] == hashlib.sha1(text.encode()).hexdigest()
