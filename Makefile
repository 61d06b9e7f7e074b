.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
GRAPHS ?= 1000
CALLS ?= 10000

.PHONY: help setup native stubs demo test lint types check slow intel-gpu format sanitize bench clean

help: ## what a developer does all day
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 11

setup: .venv/.installed native ## create .venv and install placeit with everything its tests need

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

native: .venv/.installed ## build the C++ extension placeit/_core, what has changed of it
	@test -f build/build.ninja || $(BIN)/cmake -S . -B build -G Ninja \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	@$(BIN)/cmake --build build

stubs: native ## write placeit/_core.pyi anew, by what the extension holds
	$(BIN)/python -m nanobind.stubgen --quiet --module placeit._core --output-file placeit/_core.pyi

demo: setup ## export a model, then find, measure and run a placement for it
	$(BIN)/python -m examples.demo

test: lint types check ## everything that must pass before a commit

lint: setup ## ruff: style and formatting; import-linter: no import from a layer above
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup ## strict mypy on the package
	$(BIN)/mypy

check: setup ## pytest, without the slow tests and those of Intel GPUs, in two processes
	$(BIN)/pytest -m 'not slow and not intel_gpu' -n 2 --dist loadfile

slow: setup ## the slow tests: stress, whole models, training; in two processes
	$(BIN)/pytest -m 'slow and not intel_gpu' -n 2 --dist loadfile

intel-gpu: setup ## the tests that need Intel GPUs: on real ones, or else on emulated ones
	$(BIN)/python -m tests.emulated_gpu --optional $(BIN)/pytest -m intel_gpu

format: setup ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sanitize: setup ## the core's stress program and a fuzz of its bindings, under ThreadSanitizer, AddressSanitizer and UBSan
	@for of in thread address,undefined; do \
	  $(BIN)/cmake -S . -B build/$$of -G Ninja -DSANITIZE=$$of -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python) >/dev/null && \
	  $(BIN)/cmake --build build/$$of --target stress && build/$$of/stress $(GRAPHS) || exit 1; \
	done
	@$(BIN)/cmake --build build/address,undefined --target _core
	LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  $(BIN)/python tests/fuzz_core.py build/address,undefined $(CALLS)

bench: setup ## the quick form of every benchmark
	$(BIN)/python -m benchmarks --quick

clean: ## remove the environment and every cache
	rm -rf .venv build placeit/_core.*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
