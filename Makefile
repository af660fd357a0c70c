# Short commands for CMake: see CMakePresets.json. `make help` lists the targets.
.DEFAULT_GOAL := all
SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=
CUDA ?=
KERNELS ?=
export KERNELS

.PHONY: all demo check test test-all test-torch faults fuzz coverage bench soak compilers deps wheel wheel-arm install uninstall format \
	check-format clean help

all: ## build the library, the tool and the examples, in build/release; kernels for the GPU here, KERNELS=all for all
	@scripts/deps build
	@scripts/build release

demo: ## build; ranks sum numbers, times beside Gloo, a rank is killed and the others go on (a minute)
	@scripts/deps build demo
	@scripts/demo

check: ## run the quick tests (2 minutes)
	@scripts/deps build check
	@scripts/test check

test: ## run nearly all tests, shortened (5 minutes)
	@scripts/deps build check
	@scripts/test test

test-all: test ## also every compiler, sanitizer, kernel, fault and model, PyTorch, another Debian, aarch64 (45 minutes)
	@scripts/deps build demo rivals check all
	@scripts/venv || true
	@scripts/nvcc || true
	@scripts/test all

compilers: ## compile with every gcc and clang of this Debian and of Debian 13, -O1 to -O3; a warning fails (an hour)
	@scripts/deps build check all
	@scripts/compilers
	@scripts/chroot trixie 'scripts/deps build check && scripts/compilers'

fuzz: ## search with libFuzzer for inputs that break a parser (an hour; FUZZ_SECONDS)
	@scripts/deps build check all
	@nice scripts/fuzz

coverage: ## count the lines that the tests run, by folder (half an hour)
	@scripts/deps build check all
	@scripts/coverage

bench: ## compare with Open MPI, MPICH, Intel MPI and Gloo (25 minutes; RANKS="2 32": numbers of ranks); writes bench/results, docs
	@scripts/deps build rivals
	@scripts/rivals
	@scripts/build gcc -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_BENCH=ON
	@bench/run.sh

test-torch: ## run the tests of the PyTorch backend with another version: make test-torch TORCH=2.14.1
	@scripts/test-torch $(TORCH)

faults: ## run every fault at every stage of a communicator's life, write tests/fault/faults.md (half an hour)
	@scripts/deps build check
	@scripts/build gcc
	@scripts/faults

soak: ## random operations under random faults, checked: SOAK_SECONDS=3600 SOAK_DEVICE=cpu|cuda SOAK_SEED=1
	@scripts/deps build check
	@if [ "$(SOAK_DEVICE)" = cuda ]; then scripts/build full; else scripts/build gcc; fi
	@scripts/soak

deps: ## install what all targets need; CUDA=1: also nvcc, from PyPI if there is none
	@scripts/deps build demo rivals check all
	@if [ "$(CUDA)" = 1 ]; then scripts/nvcc; fi

wheel: ## build the Python package: a wheel that needs no compiler, and a source distribution, in dist/
	@scripts/deps build
	@scripts/venv --without-torch
	@scripts/wheel

wheel-arm: ## build the wheel for aarch64 by a cross compiler, and run tests of it under qemu (15 minutes)
	@scripts/deps all
	@scripts/venv --without-torch
	@scripts/wheel --aarch64

install: all ## install under PREFIX (/usr/local), below DESTDIR if set
	@DESTDIR="$(DESTDIR)" scripts/install build/release "$(PREFIX)"

uninstall: ## remove what `make install` has installed under PREFIX
	@DESTDIR="$(DESTDIR)" scripts/install --remove build/release "$(PREFIX)"

format: ## format the C sources by .clang-format
	@scripts/format

check-format: ## fail if a C source is not formatted
	@scripts/format --check

clean: ## remove build/ (the environments in .venv, .cuda and .rivals stay)
	@rm -rf build

help:
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-13s %s\n' "$$name" "$$text"; done
