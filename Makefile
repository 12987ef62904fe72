# make demo: set up, record a small decode step, replay it.  make test: set up, run all tests.
# PYTHON=/path/to/python uses that environment; TORCH="torch==2.14.1" installs another torch.
TORCH ?= torch==2.13.0
export PYTHON

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.PHONY: demo test lint sanitize check-kernels clean

DEV := pytest pytest-cov hypothesis jsonschema jinja2 plotly pandas playwright
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

lint:
	@python=$$(python3 tools/environment.py "$(TORCH)" $(LINT))
	bin=$$(dirname $$python)
	$$bin/ruff check .
	$$bin/ruff format --check .
	$$bin/mypy
	git ls-files '*.h' '*.cpp' '*.cu' | xargs $$bin/clang-format --dry-run --Werror

clean:
	rm -rf build
