# The ways in. Everything is CMake underneath: see CMakePresets.json. `make help` lists the targets.
.DEFAULT_GOAL := all
SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=
CUDA ?=

.PHONY: all demo check test test-all faults fuzz coverage bench soak compilers deps install format check-format \
	clean help

all: ## build the library, the tool and the examples, in build/release
	@scripts/deps build
	@scripts/build release

demo: ## build, then show ranks that sum, the times beside Gloo, and a rank that is killed: a minute
	@scripts/deps build demo
	@scripts/demo

check: ## the quick tests: two minutes
	@scripts/deps build check
	@scripts/test check

test: ## the tests that a newcomer runs: five minutes
	@scripts/deps build check
	@scripts/test test

test-all: test ## and every compiler, sanitizer, kernel, fault and model, PyTorch, another Debian, aarch64: half an hour
	@scripts/deps build demo rivals check all
	@scripts/venv || true
	@scripts/nvcc || true
	@scripts/test all

compilers: ## compile with every gcc and clang of this Debian and of 13, -O1 to -O3: a warning fails (an hour)
	@scripts/deps build check all
	@scripts/compilers
	@scripts/chroot trixie 'scripts/deps build check && scripts/compilers'

fuzz: ## search for inputs that break a parser, for an hour (FUZZ_SECONDS) with libFuzzer; finds are named
	@scripts/deps build check all
	@nice scripts/fuzz

coverage: ## count which lines the tests run (minutes), and print it by directory
	@scripts/deps build check all
	@scripts/coverage

bench: ## compare with Open MPI, MPICH, Intel MPI and Gloo (12 minutes); results go to bench/results, a picture to docs
	@scripts/deps build rivals
	@scripts/rivals
	@scripts/build gcc -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_BENCH=ON
	@bench/run.sh

faults: ## every fault at every stage of a communicator's life (half an hour); rewrites tests/fault/faults.md
	@scripts/deps build check
	@scripts/build gcc
	@scripts/faults

soak: ## random lives under random faults, checked: SOAK_SECONDS=3600 SOAK_DEVICE=cpu|cuda SOAK_SEED=1
	@scripts/deps build check
	@if [ "$(SOAK_DEVICE)" = cuda ]; then scripts/build full; else scripts/build gcc; fi
	@scripts/soak

deps: ## install everything that all of these need; CUDA=1: nvcc, too, from PyPI where there is none
	@scripts/deps build demo rivals check all
	@if [ "$(CUDA)" = 1 ]; then scripts/nvcc; fi

install: all ## install under PREFIX (/usr/local), below DESTDIR if set
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)"
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

format: ## rewrite the C sources as .clang-format says
	@scripts/format

check-format: ## fail if a C source differs from .clang-format
	@scripts/format --check

clean: ## remove build/ (the environments in .venv, .cuda and .rivals stay)
	@rm -rf build

help:
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-13s %s\n' "$$name" "$$text"; done
