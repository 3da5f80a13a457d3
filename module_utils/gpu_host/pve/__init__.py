"""Proxmox VE: its node, its guests and their configurations, as Proxmox itself reads them."""
