# The doors to this repository. `make` alone lists them.
#
# Cargo decides where things are built (CARGO_TARGET_DIR is respected), so no path to a binary stands here.

CARGO ?= cargo
SHELL := /bin/bash

.DEFAULT_GOAL := help
.PHONY: help demo test test-vm check bench sim fuzz deb static tools

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: ## three disks of 50, 100 and 100 GiB become one of 250 GiB, exported and verified (DEMO_FLAGS=--keep leaves it running)
	$(CARGO) run --locked --profile demo -p braid -- demo $(DEMO_FLAGS)

test: ## everything: install what the tests need, then units, simulator, fuzz corpus, end to end, package
	scripts/test.sh

test-vm: ## against the real kernel, in a guest (VM_SCENARIOS="nbd" picks some; VM_LOGS=folder keeps the logs)
	$(CARGO) build --locked --profile verify -p braid -p braid-ublk --bin braid --example power-cut --example half-takeover
	scripts/test-vm.sh "$$($(CARGO) metadata --locked --no-deps --format-version 1 | sed -E 's/.*"target_directory":"([^"]*)".*/\1/')/verify/braid" $(VM_SCENARIOS)

check: ## format, lint, arrows between the crates, nested locks, words, documents
	scripts/check.sh

bench: ## the table of speeds, each with its target (FULL=1: long runs; BENCH_FLAGS=--strict: exit 1 on a miss)
	scripts/install-tools.sh bench
	$(CARGO) build --locked --release -p braid -p braid-ublk -p xtask --bin braid --bin xtask --example power-cut --example half-takeover
	BRAID_BENCH_GUEST=scripts/bench-vm.sh $(CARGO) run --locked --release --quiet -p xtask -- bench --table docs/internals/benchmarks $(if $(filter 1,$(FULL)),--full) $(BENCH_FLAGS)

sim: ## the simulator (SIM=arrays, pools, volumes or replicas; SEEDS=0..200, LEVELS=raid1,raid10; SIM_FLAGS="--seed N" replays one)
	$(CARGO) run --locked --profile verify -p braid-sim -- $(or $(SIM),arrays) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(LEVELS),--levels $(LEVELS)) $(SIM_FLAGS)

fuzz: ## coverage-guided fuzzing of every parser (FUZZ_SECONDS=60 each, FUZZ_TARGET=name for one)
	scripts/fuzz.sh

deb: ## a Debian package, into target/debian (DEB_DIR=folder for another)
	$(CARGO) build --locked --profile dist -p braid
	packaging/deb/build.sh "$$($(CARGO) metadata --locked --no-deps --format-version 1 | sed -E 's/.*"target_directory":"([^"]*)".*/\1/')/dist/braid" $(or $(DEB_DIR),target/debian)

MUSL := $(shell uname -m)-unknown-linux-musl
static: ## a static binary (target/…-linux-musl/dist/braid); needs musl-gcc and rustup's target for musl
	@rustc --print sysroot | xargs -I{} test -d {}/lib/rustlib/$(MUSL) || { echo "the target is missing: rustup target add $(MUSL)" >&2; exit 1; }
	@command -v musl-gcc >/dev/null || { echo "musl-gcc is missing: sudo apt-get install musl-tools" >&2; exit 1; }
	$(CARGO) build --locked --profile dist -p braid --target $(MUSL)

tools: ## only install what the tests need
	scripts/install-tools.sh test
