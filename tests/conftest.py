"""Makes module_utils importable under the name that Ansible gives it."""
from __future__ import annotations

import sys
from pathlib import Path

import ansible.module_utils

ROOT = Path(__file__).resolve().parent.parent
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
# The modules of library/, imported by name: `import gpu_facts`.
sys.path.insert(0, str(ROOT / "library"))
