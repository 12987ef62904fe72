# make demo: set up, record a small decode step, replay it.  make test: set up, run all tests.
# PYTHON=/path/to/python uses that environment; TORCH="torch==2.14.1" installs another torch.
TORCH ?= torch==2.13.0
export PYTHON

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.PHONY: demo test lint sanitize check-kernels check-graph check-cuda-build device-check wheelhouse clean

DEV := pytest pytest-cov hypothesis jsonschema jinja2 plotly pandas playwright ray isal
LINT := ruff==0.17.6 mypy clang-format==23.1.5 jinja2

demo:
	@python=$$(python3 tools/environment.py "$(TORCH)")
	$$python -m opreplay demo

test:
	@python=$$(python3 tools/environment.py "$(TORCH)" $(DEV))
	export PATH="$$(dirname $$python):$$PATH"
	cmake -S . -B build/tests -DOPREPLAY_PYTHON=OFF -DOPREPLAY_TESTS=ON -DOPREPLAY_WERROR=ON \
	  -DPython_EXECUTABLE=$$python -DCMAKE_BUILD_TYPE=Release > build/tests.log || { cat build/tests.log; exit 1; }
	cmake --build build/tests -j2
	ctest --test-dir build/tests --output-on-failure --no-tests=error
	$$python -m pytest -m "not gpu" --cov --cov-fail-under=95 --cov-report=term-missing:skip-covered

# The kernels' own tests are built with sanitizers wherever they are built; this adds the library's.
sanitize:
	@python=$$(python3 tools/environment.py "$(TORCH)")
	export PATH="$$(dirname $$python):$$PATH"
	cmake -S . -B build/sanitize -DOPREPLAY_PYTHON=OFF -DOPREPLAY_TESTS=ON \
	  -DOPREPLAY_SANITIZE=address,undefined -DPython_EXECUTABLE=$$python -DCMAKE_BUILD_TYPE=RelWithDebInfo
	cmake --build build/sanitize -j2 --target library_test accelerator_test
	ctest --test-dir build/sanitize -R "^(library|accelerator)_test" --output-on-failure --no-tests=error

check-kernels:
	@tests/compile_kernels.sh

# torch's own headers, for CUDA and by hipify for ROCm; nothing is linked.
check-graph:
	@python=$$(python3 tools/environment.py "$(TORCH)")
	$$python tests/compile_graph.py

check-cuda-build:
	@tests/check_cuda_build.sh

# On a machine with a GPU: tests, a short benchmark, a trace recorded and replayed. No network where
# wheelhouse/ has what is missing.
device-check:
	@if [ -d wheelhouse ]; then export PIP_NO_INDEX=1 PIP_FIND_LINKS="$$PWD/wheelhouse"; fi
	python=$$(python3 tools/environment.py "$(TORCH)" pytest hypothesis jsonschema nvidia-ml-py)
	$$python tools/device_check.py build/device-check

wheelhouse:
	@python3 -m pip download --quiet --only-binary=:all: --dest wheelhouse -r requirements-device.txt

lint:
	@python=$$(python3 tools/environment.py "$(TORCH)" $(LINT))
	bin=$$(dirname $$python)
	$$bin/ruff check .
	$$bin/ruff format --check .
	$$bin/mypy
	git ls-files '*.h' '*.cpp' '*.cu' | xargs $$bin/clang-format --dry-run --Werror

clean:
	rm -rf build
