# Thin names for scripts/dev.py, which sets up what each needs. Without make: python3 scripts/dev.py validate

PYTHON ?= python3

.PHONY: validate read test real-engine lint bench docs setup clean

validate:  ## validate the example fleet of inventory/ (A='-i gpu1,' for other arguments)
	@$(PYTHON) scripts/dev.py validate $(A)

read:  ## what somebody handed in: a bug report, a folder or an archive of outputs, a pasted text (F=PATH)
	@$(PYTHON) scripts/dev.py read $(if $(F),"$(F)",)

test:  ## run the tests (T=unit for a part of tests/)
	@$(PYTHON) scripts/dev.py test $(if $(T),$(addprefix tests/,$(T)))

test-vm:  ## PCI facts on virtual machines booted for it
	@$(PYTHON) scripts/dev.py test tests/vm

molecule:  ## the roles on real systemd hosts
	@$(PYTHON) scripts/dev.py test tests/molecule

real-engine:  ## the role inference_server with a real engine on the CPU (PyTorch and transformers, 1 GB, into .cache/engine)
	@$(PYTHON) scripts/dev.py test tests/molecule/real_engine.py tests/molecule/made_environment.py

lint:
	@$(PYTHON) scripts/dev.py lint

bench:  ## the benchmarks, as ratios
	@$(PYTHON) scripts/dev.py bench $(A)

docs:  ## write docs/ anew from the checks and the modules
	@$(PYTHON) scripts/dev.py docs

setup:
	@$(PYTHON) scripts/dev.py setup

clean:
	rm -rf .venv .cache .test-hosts reports bundles
