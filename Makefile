# The usual ways into this project. 'make' alone lists them.
.DEFAULT_GOAL := help
.PHONY: help deps build install package package-test test fault-test elsewhere-test vm-test cluster-test demo web-test flame-graphs soak fuzz sanitize mutants bench bench-commands clean

# Where rustup puts cargo, should 'make deps' install it.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install what is missing, from Debian
	@scripts/deps

build: ## build the daemon and its command line, optimised
	cargo build --release -p forebay

install: build ## install it with manual pages, completions and service (PREFIX, DESTDIR)
	@scripts/install $(TARGET)/release/forebay

test: deps ## everything that has to pass: format, lints, unit tests, simulator, end to end
	@scripts/test

fault-test: deps ## devices, filesystems, memory and clients that fail (VM=1: in a guest too)
	@scripts/fault-test

elsewhere-test: deps ## which edits of an origin behind a volume's back its start notices (root)
	@scripts/elsewhere-test

vm-test: ## every cache of Debian's kernel, set up, verified and torn down in a guest
	@scripts/vm-test

cluster-test: deps ## volumes on a Ceph cluster of one node, which is made for it (root)
	@scripts/cluster-test

demo: deps build ## show what a cache does, on modelled disks
	@$(TARGET)/release/forebay demo

web-test: deps ## the page of --web in Chromium, which is installed from Debian; makes its screenshots
	@scripts/web-test

soak: deps ## simulator, lanes on threads and end-to-end tests for an hour (FOREBAY_SOAK_MINUTES)
	@scripts/soak

fuzz: deps ## every fuzz target for a minute (FOREBAY_FUZZ_SECONDS)
	@scripts/fuzz

sanitize: deps ## loom, Miri, ThreadSanitizer and AddressSanitizer
	@scripts/sanitize

flame-graphs: ## where the CPU time of cached requests goes, as SVG; needs perf and inferno
	@scripts/flame-graphs

mutants: deps ## mutants of the core that no test notices (SHARD=K/N)
	@scripts/mutants $(or $(SHARD),0/100)

bench: deps ## measure every goal, in three quarters of an hour (PAIRS); the page is target/goals/README.md
	@scripts/goals

bench-commands: deps ## commands on a cache of terabytes (SIZE, BLOCK): holds of the lane, neighbours, memory
	@cargo build --quiet --release -p forebay-lab
	@MALLOC_MMAP_THRESHOLD_=65536 $${CARGO_TARGET_DIR:-target}/release/forebay-lab commands --size $(or $(SIZE),1T) --block $(or $(BLOCK),4K)

package: deps ## a Debian package, in target/package
	@scripts/package

package-test: deps ## install, upgrade and remove it in a Debian of its own
	@scripts/package-test

clean: ## remove what was built
	cargo clean
