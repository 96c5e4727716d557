# Every target sets up .venv first, once; `make` alone lists them. Another Python: make setup PYTHON=python3.12

PYTHON ?= python3
TORCH ?= 2.11.0
TURN = $(shell printf '%d' 0x$$(git rev-parse --short=7 HEAD))
BIN := .venv/bin
QUICK := not night and not alone and not browser
.DEFAULT_GOAL := help
.PHONY: help setup demo test mutants alone samples attacks night slice look hour hub compat lab course lessons book tidy bench lint release grade feedback clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' Makefile

setup: .venv/.installed ## create .venv and install everything into it

demo: setup ## run one lab on 4 CPU ranks, grade a small class, print the grade table
	$(BIN)/shardlab demo

test: setup ## run the quick tests (a quarter of an hour)
	$(BIN)/python -m pytest -m '$(QUICK)' -n 2 --dist loadfile

mutants: setup ## plant each mistake of lib/tests/mutants.toml, and see which quick test catches it
	$(BIN)/python lib/tests/mutants.py

alone: setup ## run the tests of claims about time, one by one: nothing else should run meanwhile
	$(BIN)/python -m pytest -m 'alone and not browser'

samples: setup ## put every submission that a lab's judges were made for before them (some two hours)
	$(BIN)/python -m pytest -n 2 --dist loadfile grading/tests/checks

attacks: setup ## hand in submissions that want points or harm (some twenty minutes; needs bubblewrap)
	$(BIN)/python -m pytest grading/tests/attacks

night: setup ## run all that `make test` leaves out, slice by slice (some five hours)
	$(BIN)/python lib/tests/night.py all

slice: setup ## run one slice of the night, the one whose turn it is by the commit's hash
	$(BIN)/python lib/tests/night.py turn

look: setup ## open every figure and widget in a real browser; pictures in build/pictures
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[browser,book]'
	$(BIN)/python -m pytest lib/tests/browser/test_book.py lib/tests/browser/test_look.py lib/tests/browser/test_live_ranks_in_jupyterlab.py

hour: setup ## a student's, an instructor's and a guest's first hour in a real browser (some minutes); pictures in build/pictures
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest lib/tests/browser/test_student.py lib/tests/browser/test_instructor.py lib/tests/browser/test_guest.py

hub: setup ## a class on a real JupyterHub in a real browser, as grading/README.md says; needs root; pictures in build/pictures
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[browser,hub]'
	$(BIN)/python -m pytest -rs grading/tests/hub/test_hub.py

compat: ## run the tests with another PyTorch (TORCH=2.11.0 is the oldest that is supported), in an environment of its own
	$(PYTHON) -m venv build/torch-$(TORCH)
	@grep -vE '^(torch|torchao|setuptools)==' constraints.txt > build/torch-$(TORCH)/constraints.txt
	build/torch-$(TORCH)/bin/python -m pip install -q -c build/torch-$(TORCH)/constraints.txt 'torch==$(TORCH)' -e '.[dev]'
	build/torch-$(TORCH)/bin/python -m pytest -m '$(QUICK)' -n 2 --dist loadfile lib/tests

lab: setup ## open JupyterLab on the first lesson
	$(BIN)/shardlab lab

lessons: setup ## run the lessons that changed since lib/benchmarks/course-cpu-torch2.13.json, and a quarter of the others
	$(BIN)/shardlab run course/*.ipynb --since lib/benchmarks/course-cpu-torch2.13.json --turn $(TURN)

course: setup ## run every lesson on this machine's tier; figures in build/run/course.json
	$(BIN)/shardlab run course/*.ipynb

book: setup ## write the course as a site to read, with what its lessons put out, to build/book/html
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[book]'
	$(BIN)/shardlab book

tidy: setup ## put lessons into the form in which they are committed
	$(BIN)/shardlab tidy

bench: setup ## measure: ours beside torch's
	$(BIN)/shardlab bench all

lint: setup ## check style, formatting, types, and who imports whom
	$(BIN)/ruff check --no-cache
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

release: setup ## make the students' notebooks of LAB (LAB=..., or all)
	$(BIN)/shardlab release $(LAB)

grade: setup ## grade what was submitted for LAB
	$(BIN)/shardlab grade $(LAB)

feedback: setup ## write the feedback for LAB
	$(BIN)/shardlab feedback $(LAB)

clean: ## remove .venv, builds and caches; submissions and grades stay
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# torch first and alone, so that a pip configured to find a CPU wheel takes it: 2.13.0+cpu satisfies the pin torch==2.13.0.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'shardlab needs Python 3.11 or newer, and "$(PYTHON)" is not. Name one: make setup PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
		echo '"$(PYTHON)" cannot make an environment. On Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@echo 'setting up .venv, once: PyTorch, then the rest (some minutes)'
	@$(BIN)/python -m pip install -q -c constraints.txt torch
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@
