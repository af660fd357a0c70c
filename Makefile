# The ways in. Everything is CMake underneath: see CMakePresets.json. `make help` lists the targets.
.DEFAULT_GOAL := all
SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=
CUDA ?=

.PHONY: all demo test fuzz coverage bench soak deps install format check-format clean help

all: ## build the library, the tool, the examples and the tests (gcc, in build/gcc)
	@scripts/build gcc

demo: ## set up what is missing, build, then time and check an all-reduce among processes of this machine
	@scripts/deps build rivals
	@scripts/build gcc
	@scripts/demo

test: ## set up what is missing, build every preset, run every test that this machine can run
	@scripts/deps build rivals test
	@scripts/venv || true
	@scripts/nvcc || true
	@scripts/test

fuzz: ## search for inputs that break a parser, for an hour (FUZZ_SECONDS) with libFuzzer; finds are named
	@scripts/deps build test
	@nice scripts/fuzz

coverage: ## count which lines the tests run (minutes), and print it by directory
	@scripts/deps build test
	@scripts/coverage

bench: ## compare with Open MPI, MPICH and Gloo (minutes); results go to bench/results, a picture to docs
	@scripts/deps build rivals
	@scripts/build gcc
	@bench/run.sh

soak: ## random lives under random faults, checked: SOAK_SECONDS=3600 SOAK_DEVICE=cpu|cuda SOAK_SEED=1
	@scripts/build gcc
	@scripts/soak

deps: ## install everything that demo, test and bench need; CUDA=1: nvcc, too, from PyPI where there is none
	@scripts/deps build rivals test
	@if [ "$(CUDA)" = 1 ]; then scripts/nvcc; fi

install: all ## install under PREFIX (/usr/local), below DESTDIR if set
	@DESTDIR="$(DESTDIR)" cmake --install build/gcc --prefix "$(PREFIX)"
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

format: ## rewrite the C sources as .clang-format says
	@scripts/format

check-format: ## fail if a C source differs from .clang-format
	@scripts/format --check

clean: ## remove build/ (the environments in .venv and .cuda stay)
	@rm -rf build

help:
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-13s %s\n' "$$name" "$$text"; done
