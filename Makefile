# SPDX-License-Identifier: Apache-2.0
#
# Entry point for developers and CI; the build itself is CMake (see CMakePresets.json). A fresh
# Debian 12 machine needs only make: `make demo` and `make test` install the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

TOPIC ?=
ONLY ?=
TORCH ?=
export TORCH

# More arguments for CMake, for example CONFIGURE=-DTUTTI_BUILD_BENCHMARKS=OFF.
CONFIGURE ?=

# Only from the command line: others set variables of this name for purposes of their own.
ifneq ($(origin BUILD),command line)
BUILD := build
endif

# Only OpenBLAS, which Debian's LibTorch uses, reads it: it does not recognise current CPUs.
ifndef OPENBLAS_CORETYPE
openblas_core := $(shell tools/openblas_core.sh)
ifneq ($(openblas_core),)
export OPENBLAS_CORETYPE := $(openblas_core)
endif
endif

# Each LibTorch gets its own build trees, since CMake caches where it found the first one.
torch_folder := $(if $(filter-out debian,$(TORCH)),$(shell realpath -m '$(TORCH)'))
torch_id := $(if $(torch_folder),-torch$(shell cksum <<<'$(torch_folder)' | cut -d' ' -f1),$(TORCH:%=-%))
release := $(BUILD)/release$(torch_id)

empty :=
space := $(empty) $(empty)
say = @echo "== $(1)"
build = @cmake --build $(1) -j "$$(tools/jobs.sh)" $(if $(2),--target $(2))
ctest = @ctest --test-dir $(1) -j "$$(tools/jobs.sh)" --output-on-failure --no-tests=error -LE slow \
  --output-log $(1)/ctest.log

.PHONY: help
help:
	@echo "Usage: make <target> [TORCH=debian|<folder of an unpacked LibTorch>] [BUILD=<folder of the build trees>]"
	@echo
	@sed -n 's/^##  *\([^:]*\): */\1|/p' Makefile | while IFS='|' read -r name text; do \
	  printf '  %-18s %s\n' "$$name" "$$text"; done

## demo: install what is missing, build and run the main example
.PHONY: demo
demo: $(release)/build.ninja
	$(call say,Building the demo)
	$(call build,$(release),example_01_hello_replicas)
	$(call say,Running examples/01_hello_replicas.cc)
	@$(release)/bin/01_hello_replicas

## test: install what is missing, build everything, run all tests
.PHONY: test
test: $(release)/build.ninja
	$(call say,Building everything: $(release))
	$(call build,$(release))
	$(call say,Running all tests)
	$(call ctest,$(release))

## test-under-load: run the tests beside busy loops: all 3 times, multi-process tests 20 times
.PHONY: test-under-load
test-under-load: $(release)/build.ninja
	$(call build,$(release))
	@tools/test_under_load.sh $(release)

## bench: build and run the benchmarks, or one of them with TOPIC=<topic>
.PHONY: bench
topics := $(patsubst benchmarks/%_bench.cc,%,$(wildcard benchmarks/*_bench.cc))
bench: $(release)/build.ninja
	$(if $(filter-out $(topics),$(TOPIC)),$(error no benchmark "$(TOPIC)"; there are: $(topics)))
	$(call say,Building the benchmarks)
	$(call build,$(release),$(addprefix bench_,$(or $(TOPIC),$(topics))))
	$(call say,Running the benchmarks)
	@for topic in $(or $(TOPIC),$(topics)); do $(release)/bin/bench_$$topic; done

## check: formatting, layers, source lists, code blocks of the docs and the list of mutants
.PHONY: check
check: install-lint-deps
	@status=0; for tool in 'format.sh --check' check_layers.py check_sources.py check_docs.py \
	  'mutants.py --check'; do \
	  tools/$$tool || status=1; done; exit $$status

## format: format all sources in place
.PHONY: format
format: install-lint-deps
	@tools/format.sh

## asan: build and run the tests with the address and undefined-behaviour sanitizers
## tsan: build and run the tests with the thread sanitizer
.PHONY: asan tsan
asan tsan: %: $(BUILD)/%$(torch_id)/build.ninja
	$(call say,Building the tests: $(<D))
	$(call build,$(<D))
	$(call say,Running the tests: $(<D))
	$(call ctest,$(<D))

## fuzz: fuzz the readers of files and messages with Clang: make fuzz [FORMAT=csv] [FUZZ_SECONDS=60]
.PHONY: fuzz
FORMAT ?= tf_record example csv npy idx tf_config hostlist pods shared_memory_link rpc wire
FUZZ_SECONDS ?= 60
fuzz: install-fuzz-deps $(BUILD)/fuzz$(torch_id)/build.ninja
	$(call build,$(BUILD)/fuzz$(torch_id),$(addsuffix _fuzz,$(FORMAT)))
	@for format in $(FORMAT); do \
	  mkdir -p $(BUILD)/fuzz$(torch_id)/corpus/$$format $(BUILD)/fuzz$(torch_id)/found; \
	  echo "== Fuzzing $$format for $(FUZZ_SECONDS) s; inputs that crash are kept in $(BUILD)/fuzz$(torch_id)/found"; \
	  $(BUILD)/fuzz$(torch_id)/bin/$${format}_fuzz -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -print_final_stats=1 \
	    -artifact_prefix=$(BUILD)/fuzz$(torch_id)/found/$$format- $(BUILD)/fuzz$(torch_id)/corpus/$$format \
	    tests/fuzz/corpus/$$format; done

## mutants: plant subtle mistakes in a copy, one at a time; check that tests detect them (slow)
.PHONY: mutants
mutants: install-deps
	@tools/mutants.py --scratch $(BUILD)/mutants$(torch_id) --jobs "$$(tools/jobs.sh)" \
	  --define 'TUTTI_TORCH=$(or $(torch_folder),$(TORCH))' $(if $(ONLY),--only $(ONLY))

## analyze: run clang-tidy and Clang's thread-safety analysis on every source (slow)
.PHONY: analyze
analyze: install-lint-deps $(BUILD)/analyze$(torch_id)/build.ninja
	@tools/tidy.sh --all --tree $(BUILD)/analyze$(torch_id)

## headers: compile every public header alone
.PHONY: headers
headers: $(BUILD)/dev$(torch_id)/build.ninja
	$(call build,$(<D),tutti_verify_interface_header_sets)

# The other programs of tests link what is the same with gRPC; `ctest --preset minimal` has them all.
## minimal: build and install the library without gRPC and OpenSSL; test what may depend on them
.PHONY: minimal
minimal_tests := shared_memory_tests group_tests multi_worker_tests strategy_tests
minimal: $(BUILD)/minimal$(torch_id)/build.ninja
	$(call say,Building without gRPC: $(<D))
	$(call build,$(<D),tutti $(minimal_tests))
	$(call say,Running the tests: $(<D))
	$(call ctest,$(<D)) -R '^($(subst $(space),|,$(minimal_tests)))(_[0-9]+)?$$'
	@tools/check_install.sh $(<D) installed

## consumer: install, then build a program by find_package, pkg-config and add_subdirectory
.PHONY: consumer
consumer: $(release)/build.ninja
	$(call build,$(release),tutti)
	@tools/check_install.sh $(release)

## install-deps: install the Debian packages that the build needs, and fetch LibTorch
.PHONY: install-deps
install-deps:
	@tools/install_deps.sh

# Packages that were missing when the build was configured are searched for again.
## install-bench-deps: install the peers that benchmarks compare with: Gloo, OpenMPI, MPICH, PyTorch
.PHONY: install-bench-deps
install-bench-deps:
	@tools/install_deps.sh --bench
	@rm -f $(release)/build.ninja

.PHONY: install-lint-deps
install-lint-deps:
	@tools/install_deps.sh --lint

.PHONY: install-fuzz-deps
install-fuzz-deps:
	@tools/install_deps.sh --fuzz

## slurm: install Slurm, start three nodes on this machine, resolve clusters in its job steps (needs root)
.PHONY: slurm
slurm: $(release)/build.ninja
	@[[ $$EUID -ne 0 ]] || tools/install_deps.sh --slurm
	@tests/cluster/slurm_cluster.py --probe
	$(call build,$(release),cluster_program)
	@tests/cluster/slurm_cluster.py $(release)/bin/cluster_program

## clean: remove all build trees
.PHONY: clean
clean:
	rm -rf '$(BUILD)'

# After the first time, Ninja itself detects when CMake has to run again.
$(BUILD)/%/build.ninja: CMakePresets.json | install-deps
	$(call say,Configuring: $(BUILD)/$*)
	@mkdir -p $(BUILD)
	@cmake --preset $(firstword $(subst -, ,$*)) -B $(BUILD)/$* "-DTUTTI_TORCH=$(or $(torch_folder),$(TORCH))" $(CONFIGURE) \
	  > $(BUILD)/$*.log 2>&1 || { cat $(BUILD)/$*.log; exit 1; }
	@sed -nE 's/^-- ((LibTorch |TUTTI_WITH_GRPC).*)/   \1/p' $(BUILD)/$*.log
	@touch $@
