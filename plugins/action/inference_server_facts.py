"""The inference server of a live or a recorded host: the same way as plugins/action/gpu_facts.py."""

from __future__ import annotations

from ansible.plugins.loader import action_loader

ActionModule = action_loader.get("gpu_facts", class_only=True)
