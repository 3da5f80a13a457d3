"""What one inference engine is, as data: everything in which engines differ. One file beside this one per engine.

An entry says how the engine is started and recognised, what its log says in which phase, where its API is, which
arguments mean what, what is installed with it, and which load generator comes with it. Nothing else in the project
knows an engine by its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..load.generator import Generator
from ..log.log_faults import Fault

# A request in the log of uvicorn, which serves for most engines; the groups are the method, the path and the code.
UVICORN_REQUEST = re.compile(r'"(GET|POST|HEAD|PUT) (\S+) HTTP/[\d.]+" (\d{3})')


@dataclass(frozen=True)
class Phase:
    """One phase of a start.

    `words`: what the server does in it, for a person; `patience_s`: how long it may show nothing new.
    """

    name: str
    pattern: re.Pattern[str]
    words: str
    patience_s: float


PATIENCE_S = 300.0
IMPORTS = "imports"  # before the first line that names a phase; it has no pattern
# The phases that several engines have: name -> (words, patience in seconds).
COMMON_PHASES = {
    IMPORTS: ("imports its libraries", PATIENCE_S),
    "arguments": ("reads its arguments", PATIENCE_S),
    "engine": ("starts its workers", PATIENCE_S),
    "placement": ("waits until Ray has a GPU for each rank", 300.0),
    "distributed": ("connects its ranks", 180.0),
    "weights": ("loads weights", 300.0),
    "compile": ("compiles", 900.0),
    "kv_cache": ("allocates the KV cache", 600.0),
    "autotune": ("tunes kernels (FlashInfer)", 900.0),
    "graphs": ("captures CUDA graphs", 600.0),
    "scheduler": ("starts its scheduler", 300.0),
    "engine_ready": ("starts its HTTP server", PATIENCE_S),
    "listening": ("warms up", 300.0),
    "ready": ("is ready", PATIENCE_S),
}


def make_phase(name: str, pattern: str, words: str | None = None, patience_s: float | None = None) -> Phase:
    """A phase whose `pattern` begins it; `words` and `patience_s` are those of COMMON_PHASES unless given."""
    common_words, common_patience = COMMON_PHASES.get(name, (name.replace("_", " "), PATIENCE_S))
    return Phase(name, re.compile(pattern), words or common_words, patience_s or common_patience)


@dataclass(frozen=True)
class Engine:
    """One engine. Patterns match prefixes of what the engine prints, because later versions append to their lines."""

    name: str
    label: str  # its name for a person

    # How it is started: the words, with {venv} for the directory of its virtual environment.
    launch: tuple[str, ...]
    model_flag: str  # the flag that names the model, without dashes; "" where it is a word of its own after `launch`
    default_port: int

    # How it is recognised.
    command: re.Pattern[str]  # matches the command line, its words joined by blanks
    process_name: re.Pattern[str]  # matches the name of a process of it: /proc/PID/comm, or as nvidia-smi shows it
    unit_names: tuple[str, ...]  # shell patterns of the systemd units that people give it
    log_sign: re.Pattern[str]  # in a log whose process is gone
    rank: re.Pattern[str] | None  # title of a worker process, group 1 is the rank; None where no title tells a rank

    # Its log: `starts` begins a new start; `phases` are in the order of a start; `ready` is the line that ends it.
    starts: re.Pattern[str]
    phases: tuple[Phase, ...]
    ready: re.Pattern[str]
    decode: re.Pattern[str]
    usage_in_percent: bool = False  # of the decode line; else it is a share
    faults: tuple[Fault, ...] = ()  # beside those of log_faults.py, which many engines share
    # What to do where memory ran out, by when (the keys of log_faults.OUT_OF_MEMORY), in this engine's own flags.
    memory_advice: dict[str, str] = field(default_factory=dict)
    request: re.Pattern[str] = UVICORN_REQUEST

    # Its arguments. The names without dashes; the last of several is the full one.
    host_names: tuple[str, ...] = ("host",)
    port_names: tuple[str, ...] = ("port",)
    served_names: tuple[str, ...] = ("served-model-name",)
    key_names: tuple[str, ...] = ("api-key",)
    tls_names: tuple[str, ...] = ("ssl-certfile",)
    tensor_parallel: tuple[str, ...] = ()
    data_parallel: tuple[str, ...] = ()
    pipeline_parallel: tuple[str, ...] = ()
    model_names: tuple[str, ...] = ("model-path", "model")
    context_names: tuple[str, ...] = ()
    # The words after which the model stands without a flag, the nearest to it first; a program without its directory.
    model_after: tuple[str, ...] = ()
    short: dict[str, str] = field(default_factory=dict)  # names with one dash -> the full name of the same setting
    settings_prefix: str = ""  # a variable PREFIX_NAME sets --name where the command line does not
    help: tuple[str, ...] = ("--help",)  # what makes it print every option
    help_before: tuple[str, ...] = ()  # the same of older versions, where theirs differs
    abbreviates: bool = True  # argparse takes an unambiguous beginning of a name; click does not
    underscores: bool = False  # its parser takes a_name for a-name
    dotted: bool = False  # its parser takes a member of a JSON argument as --name.member
    # flag -> its successor, or "" for one without
    renamed: dict[str, str] = field(default_factory=dict)

    # Over several hosts: the names of its arguments, empty for an engine that we do not start so.
    nodes_name: str = ""  # how many hosts
    node_rank_name: str = ""  # which of them, from 0
    meeting: tuple[tuple[str, str], ...] = ()  # where rank 0 waits: names and values with {address} and {port}
    address_variable: str = ""  # the variable that names a host's own address towards the others
    follower_flags: tuple[str, ...] = ()  # what every rank but the first is given beside
    follower_answers: bool = False  # such a rank answers /health on its port, and nothing else; or it has no port
    # With Ray in the place of these: the argument and its value, and the title of a rank; see ray_nodes.py.
    ray_setting: tuple[str, ...] = ()
    ray_rank: re.Pattern[str] | None = None

    # Its API.
    server_info: tuple[str, ...] = ()
    version_key: str = "version"  # in what it says of itself
    metrics_path: str = "/metrics"
    metrics: dict[str, str] = field(default_factory=dict)

    # What is installed with it, and what it keeps. Patterns are regular expressions of names in lower case.
    packages: tuple[str, ...] = ()
    model_type_files: tuple[str, ...] = ()  # below site-packages: the model types that it knows itself
    p2p_cache: str = ""  # below the home directory: what it noted of peer access
    # Of its variables that may leave a host, without the underscore, beside those that evidence/secrets.py allows.
    environment_prefixes: tuple[str, ...] = ()

    # Its load generator; `refuses_load`: why no generator but our own can be used, where that is so.
    generator: Generator | None = None
    refuses_load: str = ""
