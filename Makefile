# Thin names for scripts/dev.py, which sets up what each needs. Without make: python3 scripts/dev.py validate

PYTHON ?= python3
DEV = @$(PYTHON) scripts/dev.py

.PHONY: validate read show collection test test-all test-vm molecule real-engine lint bench docs setup clean

validate:  ## show the example fleet of inventory/ (A='-i gpu1,' validates other hosts, with the exit status of the run)
	$(DEV) validate $(A)

read:  ## what somebody handed in: a bug report, a folder or an archive of outputs, a pasted text (F=PATH)
	$(DEV) read $(if $(F),"$(F)",)

show:  ## every record of a bundle as text, to look at before it is sent (F=PATH)
	$(DEV) show $(if $(F),"$(F)",)

collection:  ## an Ansible collection of the same files, in .cache/collection/ (docs/in-your-own-playbooks.md)
	$(DEV) collection

test:  ## the tests that need nothing but Python and git (T=unit for a part of tests/)
	$(DEV) test $(addprefix tests/,$(T))

test-all:  ## every test: real systemd hosts, virtual machines, browser, molecule, linters, real engine; installs what they need
	$(DEV) test-all

test-vm:  ## PCI facts on virtual machines booted for it
	$(DEV) test-all tests/vm

molecule:  ## the roles on real systemd hosts
	$(DEV) test-all tests/molecule/test_molecule.py

real-engine:  ## the role inference_server with a real engine on the CPU (PyTorch and transformers, 1 GB, into .cache/engine)
	$(DEV) test-all tests/molecule/test_real_engine.py tests/molecule/test_real_engine_made.py

lint:  ## ruff, mypy, yamllint, ansible-lint
	$(DEV) lint

bench:  ## the benchmarks, as ratios
	$(DEV) bench $(A)

docs:  ## write docs/ anew from the checks and the modules
	$(DEV) docs

setup:  ## make the environment in .venv/
	$(DEV) setup

clean:  ## remove what the others made
	rm -rf .venv .cache .test-hosts reports bundles
