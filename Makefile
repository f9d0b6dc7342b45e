# Every command of the project; `make help` lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip --disable-pip-version-check
UV := VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip
CLUSTER ?= embedded
SUBJECT ?= all
JOBS ?=
SEED ?= 1
SCENARIO ?= faults
T ?= tests
FILES ?=
BASE ?= origin/main
MINUTES ?=
# Tests wait more than they compute, so two cores serve four processes.
ALL_TESTS := -n 4 --dist loadfile --no-loadscope-reorder --durations 30 --durations-min 1
# Tests that start a cluster of their own. Each needs namespaces of its own, because every cluster has the same addresses.
OWN_CLUSTER := tests/integration/benchmarks tests/node/test_builds.py tests/node/test_container_jobs.py tests/node/test_four_kinds.py \
  tests/node/test_ostler_in_cluster.py
NODE_TESTS = $(BIN)/ostler-lab node $(BIN)/pytest --cluster real -m node
# Without caches each of the many processes of a demo or a test compiles what it imports anew: twice the CPU of a start.
unexport PYTHONDONTWRITEBYTECODE
PACKAGES := beat_schedule.py poller ostler cli watch tasks models k8s_adapters github_adapters container_hooks rules deploys web lab tests benchmarks
SPELLED := $(PACKAGES) docs charts compose .ci Makefile pyproject.toml README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md

.PHONY: help demo chaos bench test test-cluster test-slow test-ui test-node test-seeds check mutants mutants-all mutants-sql lint advisories fmt control-plane toxiproxy helm kubectl prometheus node images compose-check setup

help: ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.txt requirements/bootstrap.txt pyproject.toml lab/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ostler needs Python 3.11 or newer; set PYTHON=")'
	@echo "Setting up $(VENV): locked, hashed dependencies (this takes about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --no-deps --require-hashes -r requirements/bootstrap.txt
	@$(UV) install --quiet --no-deps --require-hashes -r requirements/dev.txt \
		|| { echo "uv cannot fetch them here; pip can take minutes"; $(PIP) install --quiet --no-deps --require-hashes -r requirements/dev.txt; }
	@$(PIP) install --quiet --no-deps --no-build-isolation -e . -e ./lab
	@touch $@

setup: $(STAMP) ## install everything into .venv

demo: $(STAMP) ## run the whole system, and jobs through it: CLUSTER=embedded|real|node JOBS=20
	@$(BIN)/ostler-lab demo --cluster $(CLUSTER) $(if $(JOBS),--jobs $(JOBS))

chaos: $(STAMP) ## break everything while jobs run, and judge: JOBS=2000 SEED=1 SCENARIO=faults|tenant|fleets CLUSTER=real|embedded|node
	@$(BIN)/ostler-lab chaos --scenario $(SCENARIO) --jobs $(or $(JOBS),2000) --seed $(SEED) \
		--cluster $(if $(filter file,$(origin CLUSTER)),real,$(CLUSTER))

bench: $(STAMP) ## measure, and write docs/performance.md: SUBJECT=webhooks for one, else all (about 50 minutes)
	@$(BIN)/python -m benchmarks $(SUBJECT)

test: $(STAMP) ## run the tests that need nothing but PyPI, except long ones: T=path for one file
	@$(BIN)/pytest $(if $(filter tests,$(T)),$(ALL_TESTS)) $(T)

test-cluster: $(STAMP) ## run the tests on a real control plane, with Helm and kubectl, which it builds once: T=path for one file
	@$(BIN)/pytest --cluster real -m "(cluster or either) and not slow and not seeds and not node" \
		$(if $(filter tests,$(T)),$(ALL_TESTS)) $(T)

test-slow: $(STAMP) ## run the tests that take minutes each, on a real control plane
	@$(BIN)/pytest --cluster real -m "slow and not node" -n 2 --dist loadfile --durations 30 --durations-min 1

test-ui: $(STAMP) ## run the tests of the dashboard in Chromium (about two minutes): T=path for one file
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ echo "make test-ui needs Chromium: apt-get install chromium" >&2; exit 1; }
	@$(BIN)/pytest -m ui -n 2 --dist loadfile $(if $(filter tests,$(T)),tests/ui,$(T))

test-node: $(STAMP) ## run the tests on real nodes, as root: T=path for one file (about 80 minutes, and 20 more to build them once)
	@command -v nft >/dev/null || { echo "make test-node needs the program nft: apt-get install nftables" >&2; exit 1; }
	@$(BIN)/ostler-lab images
	@$(BIN)/ostler-lab kubectl
ifeq ($(T),tests)
	@failed=0; $(NODE_TESTS) tests/node $(OWN_CLUSTER:%=--ignore=%) || failed=1; \
	for path in $(OWN_CLUSTER); do $(NODE_TESTS) $$path || failed=1; done; exit $$failed
else
	@$(NODE_TESTS) $(T)
endif

test-seeds: $(STAMP) ## run the tests against every seeded bug
	@$(BIN)/pytest --cluster real -m seeds -n 2 --dist loadfile

mutants: $(STAMP) ## seed mistakes in changed modules of rules and deploys, at most 10 minutes: BASE=origin/main or FILES=rules/sweeps/nodes.py
	@$(BIN)/python tests/mutants/of_rules.py --minutes $(or $(MINUTES),10) --base $(BASE) $(FILES)

mutants-all: $(STAMP) ## seed mistakes in all of rules and deploys (up to an hour; goes on where it stopped): MINUTES=60
	@$(BIN)/python tests/mutants/of_rules.py --all --minutes $(or $(MINUTES),180)

mutants-sql: $(STAMP) ## drop conditions of guarded statements, at most 150 (about an hour; goes on where it stopped): FILES= MINUTES=
	@$(BIN)/python tests/mutants/of_sql.py --minutes $(or $(MINUTES),120) $(FILES)

check: lint ## linters, types and unit tests: about 90 seconds once warm, needs no cluster
	@$(BIN)/pytest -n 4 --dist loadfile tests/unit

lint: $(STAMP) ## ruff, format, mypy, import-linter, shellcheck, codespell, prose, credentials
	@$(BIN)/ruff check $(PACKAGES)
	@$(BIN)/ruff format --check $(PACKAGES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/shellcheck poller/*.sh container_hooks/hook.sh lab/kubelet/runner/*.sh .ci/run .ci/advisories
	@$(BIN)/codespell $(SPELLED)
	@$(BIN)/python -m tests.prose
	@! git grep -nIE -f .ci/credentials || { echo "these lines look like credentials (.ci/credentials)" >&2; exit 1; }

advisories: $(STAMP) ## check the locked packages of the product for known vulnerabilities, if the source can be reached
	@.ci/advisories

house: $(STAMP) ## print the weight of the source, and the packages that a job crosses (two minutes): AGAINST=commit to compare
	@$(BIN)/python -m tests.house $(if $(AGAINST),--against $(AGAINST))

fmt: $(STAMP) ## format the code
	@$(BIN)/ruff check --fix --exit-zero --quiet $(PACKAGES)
	@$(BIN)/ruff format $(PACKAGES)

toxiproxy: $(STAMP) ## build toxiproxy for tests of dropped packets and of slow stores (half a minute, once)
	@$(BIN)/ostler-lab toxiproxy

helm: $(STAMP) ## build Helm 3 and Helm 4 for the tests of the chart (about four minutes, once)
	@$(BIN)/ostler-lab helm

kubectl: $(STAMP) ## build kubectl for tests and the demo (about a minute after the control plane, once)
	@$(BIN)/ostler-lab kubectl

prometheus: $(STAMP) ## build Prometheus and promtool for the tests of alerts and dashboards (about three minutes, once)
	@$(BIN)/ostler-lab prometheus

node: $(STAMP) ## build kubelet, scheduler, containerd, runc and the images of a real node (about ten minutes, once)
	@$(BIN)/ostler-lab node

images: $(STAMP) ## build the images of the product, the lab, the runner and the stores, and print their sizes (about five minutes, once)
	@$(BIN)/ostler-lab images

compose-check: $(STAMP) ## build and start the compose file on a Docker engine of its own, as root, and judge its jobs: JOBS=20 CLUSTER=lab|node
	@$(BIN)/ostler-lab compose-check $(if $(JOBS),--jobs $(JOBS)) --cluster $(if $(filter node,$(CLUSTER)),node,lab)

control-plane: $(STAMP) ## build kube-apiserver, kube-controller-manager and etcd (about five minutes, once)
	@$(BIN)/ostler-lab control-plane
