# The commands of the project; each does all the set-up it needs, and none of it twice. `make help` lists them.
#   PYTHON=python3  the interpreter that .venv is made from
#   SETUP=none      install nothing: PYTHON itself must have torch (a cluster, a container, no network)
#   CUDA=wheels     take the CUDA compiler from wheels; CUDA=OFF leaves CUDA out
#   FOLDER=comm     for `make test`: only the tests of this folder
#   ARGS="..."      more arguments for `capstan train`, or for tools/campaign.py

.DEFAULT_GOAL := help
.NOTPARALLEL:

PYTHON ?= python3
SETUP ?= auto
CUDA ?=
FOLDER ?=
ARGS ?=
TREE := build/release

ifeq ($(SETUP),none)
  BUILD_PYTHON := $(PYTHON)
  prepare = @true
else
  BUILD_PYTHON := $(CURDIR)/.venv/bin/python
  prepare = @$(PYTHON) tools/setup.py $(addprefix --section ,$(1)) $(if $(filter wheels,$(CUDA)),--cuda)
endif

# Where it cannot be installed, the tests that need it are skipped and say so.
peer = $(if $(filter none,$(SETUP))$(filter-out checkpoint,$(FOLDER)),@true,-@$(BUILD_PYTHON) tools/peer.py build/peer)
build = $(BUILD_PYTHON) tools/build.py --python $(BUILD_PYTHON) $(if $(CUDA),--cuda $(CUDA))
# The tests need no benchmarks; `make bench`, `make campaign` and `make lint` compile those.
tested := $(if $(FOLDER),--folder $(FOLDER),capstan/all examples/all tests/all)
# What reduced.txt lists: everything that needs no libtorch under the address and undefined-behaviour sanitizers, over
# libtorch a part of the tests under each of the address and thread sanitizers (`make campaign` runs all under each).
build_reduced = $(build) --preset $(1) --tree build/$(1)_torch -D CAPSTAN_CUDA=OFF reduced_tests$(addprefix _,$(FOLDER))
reduced := $(if $(FOLDER),$(if $(wildcard tests/$(FOLDER)/*_test.cpp),asan) $(if $(shell grep -s REDUCED tests/$(FOLDER)/CMakeLists.txt),tsan),asan tsan)
run_tests = $(BUILD_PYTHON) tools/run_tests.py --python $(BUILD_PYTHON) --build $(TREE)

.PHONY: help
help:
	@echo "make train     set up, build, and train a small GPT on two ranks"
	@echo "make test      set up, build, and run every test (FOLDER=comm: only that folder's)"
	@echo "make build     set up and build; the programs are in $(TREE)/bin"
	@echo "make bench     ratios against the bound or the peer measured in the same run"
	@echo "make campaign  the long counts: fuzzing, kills, sanitizers over everything"
	@echo "make peer      the real DeepSpeed in build/peer, for tests that compare with it"
	@echo "make lint      clang-format and clang-tidy; unchanged files are not checked again"
	@echo "make format    let clang-format write"
	@echo "make setup     only the set-up: system packages and .venv"
	@echo "Variables: PYTHON, SETUP=none, CUDA=wheels, FOLDER, ARGS; see the top of the Makefile."

.PHONY: setup
setup:
	$(call prepare,build test)

.PHONY: build
build:
	$(call prepare,build)
	@$(build)

.PHONY: train
train:
	$(call prepare,build)
	@$(build) capstan/cli/all
	@$(TREE)/bin/capstan train --data capstan --files '*.h' --curve $(TREE)/train.html --metrics $(TREE)/train.jsonl $(ARGS)

.PHONY: test
test:
	$(call prepare,build test)
	@$(build) $(tested)
	@$(foreach preset,$(reduced),$(call build_reduced,$(preset)) &&) true
	$(peer)
	@$(run_tests) $(foreach preset,$(reduced),--reduced build/$(preset)_torch) $(if $(FOLDER),--folder $(FOLDER))

.PHONY: bench
bench:
	$(call prepare,build)
	@$(build)
	@while read -r program ranks; do echo "== $$program"; \
	  if [ "$$ranks" = 1 ]; then $(TREE)/bin/$$program; \
	  else $(TREE)/bin/capstan launch -n $$ranks --no_python $(TREE)/bin/$$program; fi || exit 1; \
	done < $(TREE)/benchmarks.txt

.PHONY: campaign
campaign:
	$(call prepare,build test)
	@$(BUILD_PYTHON) tools/campaign.py --python $(BUILD_PYTHON) $(ARGS)

# The real DeepSpeed in a folder of its own; tests/checkpoint/test_deepspeed.py runs where it is.
.PHONY: peer
peer:
	$(call prepare,build)
	@$(BUILD_PYTHON) tools/peer.py build/peer

.PHONY: format
format:
	$(call prepare,build)
	@$(BUILD_PYTHON) tools/lint.py --python $(BUILD_PYTHON) --format-only --fix

.PHONY: lint
lint:
	$(call prepare,build)
	@$(build) --tree build/lint -D CMAKE_DISABLE_PRECOMPILE_HEADERS=ON --configure-only
	@$(BUILD_PYTHON) tools/lint.py --python $(BUILD_PYTHON) --build build/lint
