"""Every form that a secret can have, and every place where evidence is read: each form planted in each place.

A form is a line with VALUE in the place of the secret; each has a value of its own, so that a leak names its form. A
new source of a reader gets a row of PLACES (a test holds that); a new form of a secret gets a line here.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

# One a line. {16}: the value is repeated up to that length, as a token of that kind has.
FORMS = r"""
cipassword: VALUE
password: VALUE
Password = VALUE
password="VALUE"
password='VALUE with blanks'
"password": "VALUE"
'passwd': 'VALUE'
{"user": "x", "passphrase": "VALUE"}
{\"password\": \"VALUE\"}
db_password=VALUE
db.password=VALUE
spring.datasource.password=VALUE
DB_PASS=VALUE
DB_PASS="VALUE"
export DB_PASS=VALUE
DB_PASS=p;VALUE,x
DB_PASSWORD_2=VALUE
MYSQL_PWD=VALUE
MYSQL_ROOT_PASSWORD: VALUE
PGPASSWORD=VALUE psql -h db
REDISCLI_AUTH=VALUE
rootpw VALUE
rootpw=VALUE
user_pass=VALUE
pwd: VALUE
pwd=VALUE
Server=db;Uid=sa;Pwd=VALUE;
pw=VALUE
#pw VALUE
password is VALUE
the password was: VALUE
# root password of this guest is VALUE
PASSWD VALUE
passphrase VALUE
machine example.org login robot password VALUE
password%3DVALUE
?password=VALUE&x=1
x=1 password=VALUE y=2
--password VALUE
--password=VALUE
--cipassword VALUE
--ssl-keyfile-password VALUE
--wpa_passphrase=VALUE
psk="VALUE"
pre-shared-key: VALUE
PresharedKey = VALUE
PrivateKey = VALUE
private_key=VALUE
privateKey: VALUE
api_key=VALUE
api_key='VALUE'
API-KEY: VALUE
apiKey: "VALUE"
apikey=VALUE
X-API-Key: VALUE
--api-key VALUE
--api-key=VALUE
--api-key 'VALUE two'
--admin-api-key VALUE
["--api-key", "VALUE"]
"api_key": ["VALUE", "x"]
ServerArgs(model_path='m', api_key='VALUE', tp_size=8)
api_key=VALUE,tp_size=8
OPENAI_API_KEY=VALUE
NVIDIA_API_KEY=VALUE
WANDB_API_KEY=VALUE
NGC_CLI_API_KEY: VALUE
AccountName=x;AccountKey=VALUE==;EndpointSuffix=core
SharedAccessKey=VALUE=
secret_key: VALUE
SECRET_KEY_BASE=VALUE
encryption_key=VALUE
signing-key: VALUE
master_key=VALUE
license_key=VALUE
aws_access_key_id = VALUE
aws_secret_access_key = VALUE
AWS_SESSION_TOKEN=VALUE
token=VALUE
token: VALUE
"token": "VALUE"
hf_token='VALUE'
HF_TOKEN=VALUE
HUGGING_FACE_HUB_TOKEN: VALUE
--hf-token VALUE
--token VALUE
accessToken: 'VALUE'
"refreshToken":"VALUE"
id_token=VALUE
access_token=VALUE
bot-token: VALUE
k3s --token=VALUE server
the token is VALUE
secret=VALUE
"secret": "VALUE"
client_secret=VALUE
clientSecret: VALUE
client-secret: VALUE
the secret is VALUE
secret: "with \"VALUE\" inside"
credentials=VALUE
credential: VALUE
PVE_CRED=VALUE
"auth": "VALUE"
{"auths": {"nvcr.io": {"auth": "VALUE"}}}
--json-model-override-args '{"auth": "VALUE"}'
auth_key=VALUE
authToken=VALUE
Authorization: VALUE
Authorization: Bearer VALUE{16}
authorization: Basic VALUE{16}==
Authorization: Token VALUE
Authorization: Digest username="x", response="VALUE", nonce="VALUE"
Proxy-Authorization: Basic VALUE{16}
"Authorization": "Bearer VALUE"
-H 'Authorization: token VALUE'
--header "X-Auth: VALUE"
X-Auth: VALUE
X-Auth-Token: VALUE
X-Vault-Token: VALUE
Cookie: a=1; sid=VALUE
Set-Cookie: id=VALUE; Path=/
cookie=VALUE
session_id=VALUE
PHPSESSID=VALUE
csrf_token=VALUE
jwt=VALUE
otp=VALUE
bearer VALUE{16}
https://user:VALUE@example.org/x
http://VALUE{16}@example.org/x
postgres://robot:VALUE@db:5432/x
redis://:VALUE@cache:6379
git+ssh://x:VALUE@example.org/r.git
robot:VALUE@tcp(db:3306)/x
proxy http://x:VALUE@proxy:3128
GET /o?X-Amz-Signature=VALUE&X-Amz-Credential=VALUE/20260101
GET /o?sv=1&sig=VALUE HTTP/1.1
GET /v1/models?key=VALUE
GET /cb?code=VALUE&state=1
https://storage.example.org/x?Signature=VALUE&Expires=1
https://hooks.slack.com/services/T0/B0/VALUE
https://discord.com/api/webhooks/1/VALUE
docker login -u robot -p VALUE registry.example.com
docker login registry.example.com --username x --password VALUE
podman login -p VALUE quay.io
helm registry login -u x -p VALUE r
sshpass -p VALUE ssh host
sshpass -pVALUE ssh host
mysql -u root -pVALUE db
mysqldump -p VALUE db
redis-cli -a VALUE ping
curl -u robot:VALUE https://example.org
curl --user robot:VALUE https://example.org
ldapsearch -D cn=x -w VALUE
ipmitool -H bmc -U root -P VALUE sol activate
snmpwalk -v2c -c VALUE host
smbclient //s/x -U robot%VALUE
openssl rsa -passin pass:VALUE
echo root:VALUE | chpasswd
htpasswd -b /etc/x robot VALUE
setenv HF_TOKEN VALUE
ENV DB_PASSWORD VALUE
set -gx API_KEY VALUE
IDENTIFIED BY 'VALUE'
ALTER USER x IDENTIFIED WITH sha BY 'VALUE'
args: -object secret,id=s0,data=VALUE
-object secret,id=s0,format=raw,data=VALUE
-object {"qom-type":"secret","id":"s0","data":"VALUE"}
-vnc :0,password=VALUE
-spice port=1,password=VALUE
-iscsi user=x,password=VALUE
-fw_cfg name=opt/com.example/ign,string=VALUE
-smbios type=11,value=io.systemd.credential:x=VALUE
-smbios type=1,serial=VALUE
smbios1: uuid=00000000-0000-0000-0000-000000000001,serial=VALUE
SetCredential=name:VALUE
Environment=DB_PASS=VALUE MYSQL_PWD=VALUE
Environment="QUIET_NAME=VALUE x" OTHER=VALUE
lxc.environment: DB_PASS=VALUE
lxc.environment = PLAIN=VALUE
sshkeys: ssh-rsa%20VALUE{16}
ssh-ed25519 VALUE{16} robot
ecdsa-sha2-nistp256 VALUE{16} robot
<password>VALUE</password>
<entry name="password">VALUE</entry>
<Token type="x">VALUE</Token>
<user password="VALUE"/>
password => 'VALUE'
:password: VALUE
\$6\$saltsalt\$VALUE{16}
root:$6$saltsalt$VALUE{16}:19000:0:99999:7:::
$2y$10$VALUE{16}
$argon2id$v=19$m=1,t=2,p=1$VALUE{16}
$apr1$salt$VALUE{16}
loading hf_VALUE{20} now
sk-proj-VALUE{20}
sk_live_VALUE{20}
nvapi-VALUE{20}
ghp_VALUE{24}
github_pat_VALUE{24}
glpat-VALUE{20}
AKIAVALUEU{16}
ASIAVALUEU{16}
xoxb-VALUE{16}
AIzaVALUE{35}
npm_VALUE{24}
dckr_pat_VALUE{20}
hvs.VALUE{20}
tskey-auth-VALUE{16}
gsk_VALUE{20}
eyJVALUE{16}.VALUE{16}.VALUE
iscsi_password=VALUE
rd.iscsi.password=VALUE
systemd.set_credential=x:VALUE
cifs //s/x credentials=VALUE,uid=0
mount -o username=x,password=VALUE
[2026-01-01] login failed for x with password "VALUE"
error: invalid api key: VALUE
"""
PROGRAMS = (
    "docker|podman|helm|sshpass|mysql|mysqldump|redis-cli|curl|ldapsearch|ipmitool|snmpwalk|smbclient|openssl|k3s|mount"
)
# Forms of several lines.
BLOCKS = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nVALUE{40}\nVALUE{40}\n-----END OPENSSH PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\nVALUE{40}",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVALUE{40}\n-----END PGP PRIVATE KEY BLOCK-----",
    "-----BEGIN OpenVPN Static key V1-----\nVALUE{40}\n-----END OpenVPN Static key V1-----",
    'key: "-----BEGIN PRIVATE KEY-----\\nVALUE{40}\\n-----END PRIVATE KEY-----"',
)
_VALUE = re.compile(r"VALUE(U?)(?:\{(\d+)\})?")


def value_of(number: int) -> str:
    """Short, of letters and digits, in no word: what a person may have chosen."""
    return "Zq%03dvKx7" % number


@cache
def planted() -> list[tuple[str, str]]:
    """(the secret, the text that it stands in) of every form."""
    found = []
    for number, form in enumerate([line for line in FORMS.splitlines() if line] + list(BLOCKS)):
        value = value_of(number)

        def put(match: re.Match[str], value: str = value) -> str:
            length = int(match[2] or 0)
            text = value.upper() if match[1] else value
            return (text * (length // len(text) + 1))[: max(length, len(text))]

        found.append((value, _VALUE.sub(put, form)))
    return found


def find_leaks(text: str) -> list[str]:
    """The forms whose secret stands in `text`, spelt as it was or in capitals."""
    numbers = {int(match[1]) for match in re.finditer(r"[Zz][Qq](\d{3})[Vv][Kk][Xx]7", text)}
    forms = planted()
    return [forms[number][1] for number in sorted(numbers)]


def lines() -> str:
    return "".join(text + "\n" for _value, text in planted())


def into_text(content: str) -> str:
    """Every form as a line of its own, before and after what stands there."""
    return lines() + content + ("" if content.endswith("\n") or not content else "\n") + lines()


def into_one_line(content: str) -> str:
    """What /proc/cmdline and single values hold: words, and forms of one word."""
    words = [text for _value, text in planted() if " " not in text and "\n" not in text]
    return (content.rstrip("\n") + " " + " ".join(words)).strip() + "\n"


def into_arguments(content: str) -> str:
    """The words of each form as arguments, and each form as one argument."""
    words = content.split("\0")
    for _value, text in planted():
        words.append(text)
        # What is a command line; a sentence or an object no shell takes apart.
        if re.match(r"--?[a-z]|(?:%s) |[A-Za-z_.]+=[^ ]+$" % PROGRAMS, text) and "{" not in text:
            words += shlex.split(text)
    return "\0".join(words)


def into_environment(content: str) -> str:
    names = ["TOKEN", "PLAIN", "HF_TOKEN", "VLLM_API_KEY", "SGLANG_SECRET", "NCCL_PASSWORD", "DB_PASS", "MY_AUTH"]
    pairs = ["%s_%d=%s" % (names[index % len(names)], index, value) for index, (value, _text) in enumerate(planted())]
    return "\0".join([content.rstrip("\0"), *pairs, *("FORM%d=%s" % pair for pair in enumerate(lines().splitlines()))])


def into_guest(content: str) -> str:
    """A configuration of a guest: settings that nobody reads, comments, notes between the lines, and every form."""
    value = value_of(0)
    settings = (
        "description: %s", "ciuser: %s", "cipassword: %s", "sshkeys: ssh-rsa%%20%s", "smbios1: serial=%s",
        "vmgenid: %s", "tags2: %s", "cicustom: user=local:snippets/%s.yml", "searchdomain: %s.example.org", "#%s",
        "# %s", "%s", "note %s", "unheard_of: %s", "env: PLAIN=%s",
        "scsi9: local:1,serial=%s",
    )  # fmt: skip
    extra = "".join(setting % value + "\n" for setting in settings)
    return extra + lines() + content + extra + "[snapshot]\n" + extra + "[special:cloudinit]\n" + extra + lines()


def into_json(content: str) -> str:
    """An answer of a server: every form as a text in it, and a field of each name that a form has."""
    texts = [text for _value, text in planted() if "nvironment" not in text]  # known by the line that they begin
    fields: dict[str, Any] = {"note%d" % number: text for number, text in enumerate(texts)}
    fields.update(
        {"password": value_of(1), "api_key": value_of(2), "tokens": [value_of(3)], "env": {"DB_PASS": value_of(4)}}
    )
    try:
        before = json.loads(content)
    except ValueError:
        before = None
    return json.dumps({**before, **fields}) if isinstance(before, dict) else into_text(content)


def into_container_json(content: str) -> str:
    """What `docker inspect` and `crictl inspect` print: every form in each place of such an answer."""
    texts = [text for _value, text in planted()]
    shell = [["sh", "-c", text] for text in texts]
    words = into_arguments("python3").split("\0")
    environment = into_environment("PLAIN=1").split("\0")
    value = value_of(0)
    tables = {"PLAIN": value, "io.kubernetes.pod.name": "p", **{"label%d" % n: text for n, text in enumerate(texts)}}
    config = {
        "Env": environment, "Cmd": words, "Entrypoint": words,
        "CreateCommand": ["podman", "run", "-e", "PLAIN=" + value, "--env=PLAIN=" + value, "--env", "DB=" + value,
                          "--label", "x=" + value, "--health-cmd", value, *words],
        "Labels": tables, "Healthcheck": {"Test": ["CMD-SHELL", value, *texts]}, "OnBuild": texts, "Shell": texts,
    }  # fmt: skip
    planted_fields: dict[str, Any] = {
        "Path": "sh", "Args": words, "Config": config, "password": value, "api_key": value,
        "State": {"Health": {"Status": "healthy", "Log": [{"Output": value}, *texts]}},
        "HostConfig": {"LogConfig": {"Type": "splunk", "Config": {"splunk-token": value, "env": value}},
                       "Annotations": tables, "StorageOpt": tables, "Sysctls": tables},
        "Mounts": [{"Source": text, "Destination": "/x", "Options": ["password=" + value]} for text in texts],
        "GraphDriver": {"Name": "x"}, "notes": texts,
        "info": {"config": {"envs": [{"key": "PLAIN", "value": value}, {"key": "HF_TOKEN", "value": value}],
                            "command": words, "annotations": tables},
                 "runtimeSpec": {"process": {"env": environment, "args": words}, "annotations": tables,
                                 "hooks": {"prestart": [{"args": words, "env": environment}]}}},
        "status": {"labels": tables, "annotations": tables}, "commands": [{"Cmd": one} for one in shell],
    }  # fmt: skip
    try:
        before = json.loads(content)
    except ValueError:
        before = {}
    one = before[0] if isinstance(before, list) and before else before
    # What stands in the answer already is kept where the readers look for it.
    whole = _laid_under(planted_fields, one if isinstance(one, dict) else {})
    return json.dumps([whole] if isinstance(before, list) else whole)


def _laid_under(planted_fields: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    found = {**planted_fields, **own}
    for name, value in planted_fields.items():
        if isinstance(value, dict) and isinstance(own.get(name), dict):
            found[name] = _laid_under(value, own[name])
        elif isinstance(value, list) and isinstance(own.get(name), list):
            found[name] = own[name] + value
    return found


def unchanged(content: str) -> str:
    return content


Plant = Callable[[str], str]
# How the secrets come into what a reader asks for: (read, list, run or fetch; what is asked; the plant). Registers and
# numbers of /sys hold no text; names in a listing are asked for again, so they stay, and a link's target is planted.
PLACES: tuple[tuple[str, str, Plant], ...] = (
    ("read", r"/sys/bus/pci/devices/[^/]+/config", unchanged),
    ("read", r"/sys/(?:bus|class|devices|module|kernel|firmware|fs|hypervisor)/.+", into_text),
    ("read", r"/proc/(?:\d+|PID|self)/environ", into_environment),
    ("read", r"/proc/(?:\d+|PID|self)/cmdline", into_arguments),
    ("read", r"/proc/cmdline|/etc/kernel/cmdline", into_one_line),
    ("read", r"/proc/(?:\d+|PID|self)/(?:cgroup|io|limits|mountinfo|stat|status|wchan)", into_text),
    ("read", r"/proc/(?:\d+|PID)/(?:net/(?:tcp6?|fib_trie)|fd/\d+|root/.+)", into_text),
    ("read", r"/proc/(?:cpuinfo|devices|meminfo|modules|mounts|stat|uptime|version|net/(?:tcp6?|fib_trie))", into_text),
    ("read", r"/proc/(?:driver/nvidia|sys/kernel)/.+", into_text),
    ("read", r"(?:/etc/pve/(?:nodes/[^/]+/)?|/hypervisor/etc/pve/)(?:qemu-server|lxc)/[^/]+\.conf", into_guest),
    ("read", r"/etc/pve/.+|/var/run/qemu-server/.+|/etc/kernel/proxmox-boot-uuids", into_text),
    ("read", r"/etc/(?:apt|default|ld\.so\.conf\.d|modprobe\.d|modules-load\.d|systemd)/.+", into_text),
    ("read", r"/etc/(?:modules|nccl\.conf|os-release)", into_text),
    ("read", r"/(?:usr/)?lib/(?:modprobe\.d|modules-load\.d|systemd|udev)/.+|/run/.+", into_text),
    ("read", r"/usr/local/cuda-[^/]+/version\.json", into_text),
    ("read", r"/boot/.+|/proc/bus/pci/devices|/opt/.+/site-packages/.+", into_text),
    ("read", r"/root/\.nccl\.conf|/root/\.cache/.+|/.+\.log|LOG|/dev/nvidia.+", into_text),
    ("run", r"(?:date|df|dkms|dmesg|dpkg-query|find|journalctl|lscpu|lspci|lxc-info|modinfo)\b.*", into_text),
    ("run", r"(?:apt-mark|mokutil|proxmox-boot-tool)\b.*", into_text),
    ("run", r"(?:nvidia-smi|pveversion|systemctl|systemd-detect-virt|tail)\b.*", into_text),
    ("run", r"(?:docker|podman|nerdctl)(?: image)? inspect .*|(?:k3s )?crictl inspect .*", into_container_json),
    ("run", r"sh -c for n in /dev/nvidia.*", into_text),
    ("run", r"p2p_(?:probe|collective|between_hosts)|nccl_ras_status .*", into_text),
    ("fetch", r"GET http://(?:[\d.]+|CONTAINER):(?:\d+|PORT)/.*", into_json),
    ("fetch", r"POST http://(?:[\d.]+|CONTAINER):(?:\d+|PORT)/.*", into_text),
    ("list", r"/.*", unchanged),
)  # fmt: skip


def place_of(kind: str, asked: str) -> Plant | None:
    """How secrets are planted in this source; None where PLACES does not know it."""
    return next((plant for its, pattern, plant in PLACES if its == kind and re.fullmatch(pattern, asked)), None)


def question_of(record: dict[str, Any]) -> tuple[str, str]:
    """(read, list, run or fetch; what was asked) of a record of a bundle."""
    kind = next(name for name in ("read", "list", "run", "fetch") if name in record)
    asked = " ".join(record["run"]) if kind == "run" else str(record[kind])
    return kind, "%s %s" % (record.get("method", "GET"), asked) if kind == "fetch" else asked


def seed_record(record: dict[str, Any]) -> dict[str, Any]:
    """A record of a bundle with every form of a secret in it, as a bundle from another hand could hold it."""
    kind, asked = question_of(record)
    plant = place_of(kind, asked) or into_text
    seeded = dict(record)
    if kind == "list":
        some = planted()[len(asked) % 16 :: 16]  # every directory others
        links = {"planted%d" % number: {"kind": "link", "target": text} for number, (_v, text) in enumerate(some)}
        return {**seeded, "entries": {**(record.get("entries") or {}), **links}}
    for name in ("text", "stdout"):
        if name in record:
            seeded[name] = plant(record[name])
    if kind == "run":
        seeded["stderr"] = into_text(str(record.get("stderr", "")))
    seeded["reason"] = " ".join(
        [str(record.get("reason", "")), *(text for _value, text in planted() if not re.search("\n|nvironment", text))]
    )
    return seeded


def seed_records(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of a host, of which the first of each source is planted: the others are read in the same way."""
    seen: set[tuple[str, str]] = set()
    found = []
    for record in records:
        kind, asked = question_of(record)
        source = (kind, re.sub(r"[0-9a-f]{4}:[0-9a-f]{2}(?::[0-9a-f]{2}\.[0-7])?|[0-9]+", "N", asked))
        found.append(record if source in seen else seed_record(record))
        seen.add(source)
    return found
