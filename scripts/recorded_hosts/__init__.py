"""Parts of make_recorded_hosts.py: models of hosts, from which bundles are recorded through the real readers."""
