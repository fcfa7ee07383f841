# Everything here runs on a machine with Python 3.10+ and make; the first target that is asked for installs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Every package by version and hash: nothing else is installed, and nothing is looked for to build them with.
LOCKED := $(PIP) --quiet --require-hashes --no-deps --no-build-isolation --use-pep517

.PHONY: help demo test test-fast test-slow test-min lock audit smoke results results-tunnels results-paper lint format types docs dist dist-test bench clean
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# A stamp is written last, so an interrupted installation is repeated and a finished one is not.
$(VENV)/.installed: pyproject.toml requirements/build.txt requirements/torch-cpu.txt requirements/torch.txt requirements/demo.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "fmcpe needs Python 3.10 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing into $(VENV) (about two minutes, once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(LOCKED) -r requirements/build.txt
	@$(LOCKED) -r requirements/torch-cpu.txt 2>/dev/null || $(LOCKED) -r requirements/torch.txt
	@$(LOCKED) -r requirements/demo.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements/test.txt
	@$(LOCKED) -r requirements/test.txt
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-dev requirements/docs.txt
	@$(LOCKED) -r requirements/docs.txt
	@touch $@

demo: $(VENV)/.installed ## Before/after on the pendulum, with a table and a picture
	@$(BIN)/fmcpe demo

test: $(VENV)/.installed-dev ## All tests, those against exact posteriors among them
	$(BIN)/python -m pytest -n auto --dist worksteal

test-fast: $(VENV)/.installed-dev ## The tests for every commit, in a minute or two
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not nightly"

test-slow: $(VENV)/.installed-dev ## Long repetitions, load and scores against stored values (half an hour)
	$(BIN)/python -m pytest -n auto --dist worksteal -m nightly

$(VENV)-min/.installed: pyproject.toml .ci/lowest.py
	@$(PYTHON) -m venv $(VENV)-min
	@$(PYTHON) .ci/lowest.py > $(VENV)-min/lowest.txt
	@for file in build torch-cpu; do $(subst $(VENV)/,$(VENV)-min/,$(LOCKED)) -r requirements/$$file.txt || exit 1; done
	@$(subst $(VENV)/,$(VENV)-min/,$(PIP)) -c $(VENV)-min/lowest.txt -e '.[chambers,dask,files,arviz]' pytest pytest-xdist hypothesis
	@touch $@

test-min: $(VENV)-min/.installed ## The fast tests with the lowest versions that pyproject.toml allows
	$(VENV)-min/bin/python -m pytest -n auto --dist worksteal -m "not slow and not nightly"

$(VENV)-tools/.installed:
	@$(PYTHON) -m venv $(VENV)-tools
	@$(VENV)-tools/bin/python -m pip install --quiet --disable-pip-version-check uv pip-audit
	@touch $@

lock: $(VENV)-tools/.installed ## Write requirements/*.txt again, with hashes
	$(VENV)-tools/bin/python .ci/lock.py

audit: $(VENV)-tools/.installed ## Look up known vulnerabilities of the locked packages (asks a public service)
	cat requirements/build.txt requirements/torch.txt requirements/demo.txt requirements/test.txt > $(VENV)-tools/all.txt
	$(VENV)-tools/bin/pip-audit --disable-pip --require-hashes -r $(VENV)-tools/all.txt

smoke: $(VENV)/.installed-dev ## Every experiment with tiny budgets, and its report: does everything run?
	rm -rf fmcpe-smoke
	$(BIN)/fmcpe bench run all --preset smoke --out fmcpe-smoke
	$(BIN)/fmcpe bench run zoo --preset smoke --with-paper --out fmcpe-smoke
	$(BIN)/fmcpe bench report --out fmcpe-smoke

results: $(VENV)/.installed ## Run every experiment with the quick preset into docs/results (an hour or more; goes on where it was stopped)
	$(BIN)/fmcpe bench run all --preset quick --out fmcpe-quick
	$(BIN)/fmcpe bench report --preset quick --out fmcpe-quick --keep docs/results

results-tunnels: $(VENV)/.installed-dev ## The same for the stand-ins of both tunnels, accuracy and speed (several hours)
	$(BIN)/fmcpe bench run main --preset quick --task wind-tunnel --task light-tunnel --out fmcpe-tunnels
	$(BIN)/fmcpe bench run sbc --preset quick --task wind-tunnel --out fmcpe-tunnels
	$(BIN)/fmcpe bench run frontier --preset quick --task wind-tunnel --task light-tunnel --out fmcpe-tunnels
	$(BIN)/fmcpe bench run speed --preset quick --task wind-tunnel --task light-tunnel --out fmcpe-tunnels
	$(BIN)/fmcpe bench report --preset quick --out fmcpe-tunnels --keep docs/results/tunnels

results-paper: $(VENV)/.installed-dev ## The run at the paper's budget into docs/results/paper (ten hours; goes on from the units that are kept there)
	if [ -f docs/results/paper/units.json.gz ]; then $(BIN)/fmcpe bench restore docs/results/paper --out fmcpe-paper; fi
	for experiment in main sbc; do \
	  $(BIN)/fmcpe bench run $$experiment --preset paper --task gaussian --task pendulum --task wind-tunnel --out fmcpe-paper || exit 1; done
	for experiment in independence prior; do $(BIN)/fmcpe bench run $$experiment --preset paper --out fmcpe-paper || exit 1; done
	$(BIN)/fmcpe bench run timing --preset paper --task gaussian --task pendulum --task wind-tunnel --jobs 1 --out fmcpe-paper
	$(BIN)/fmcpe bench run ablation --preset paper --task pendulum --task wind-tunnel --out fmcpe-paper
	$(BIN)/fmcpe bench run sensitivity --preset paper --task pendulum --out fmcpe-paper
	$(BIN)/fmcpe bench report --preset paper --out fmcpe-paper --keep docs/results/paper

lint: $(VENV)/.installed-dev ## Lint and check the format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev ## Check the types
	$(BIN)/mypy

docs: $(VENV)/.installed-docs ## Check links, commands and doctests, execute the notebooks, build the site (site/index.html)
	$(BIN)/python -m pytest -q tests/test_docs.py tests/test_doctests.py
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -j 2 -b html docs site
	$(BIN)/python .ci/check_site.py site

dist: $(VENV)/.installed-dev ## Build wheel and source distribution into dist/
	rm -rf dist build
	$(BIN)/python -m build --outdir dist .

dist-test: dist ## Install the wheel into a new environment and use it there (downloads torch again)
	$(BIN)/python .ci/dist_test.py dist

bench: $(VENV)/.installed ## Print the benchmark tables (long)
	$(BIN)/python benchmarks/gaussian.py
	$(BIN)/python benchmarks/gaussian_regression.py
	$(BIN)/python benchmarks/npe_schedule.py
	$(BIN)/python benchmarks/rope.py
	$(BIN)/python benchmarks/metrics.py
	$(BIN)/python benchmarks/harm.py

clean: ## Remove the environment and caches
	rm -rf $(VENV) $(VENV)-min $(VENV)-tools .pytest_cache .mypy_cache .ruff_cache fmcpe-demo fmcpe-bench fmcpe-smoke fmcpe-quick fmcpe-tunnels fmcpe-zoo site dist build
