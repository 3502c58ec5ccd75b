# MPT. `make demo` shows what it does, `make test` proves that it does it.

CARGO ?= cargo
FUZZ_SECONDS ?= 30
.PHONY: all demo test check docs wasm fuzz prerequisites clean

all:
	$(CARGO) build --release

# Two emulated links, a tunnel, a real iperf3 through it, kernel MPTCP beside it, a table and a picture.
demo: prerequisites
	$(CARGO) build --release -p mpt -p mpt-lab
	$${CARGO_TARGET_DIR:-target}/release/mpt-lab demo

# The namespace tests run the programs, which `cargo test` builds before it runs any test; `cargo build` would build half
# of the dependencies a second time, with other features. Examples in the documentation come first, so that the last lines
# are those of the tests.
test: prerequisites check wasm docs
	@[ "$$(id -u)" -eq 0 ] || echo "skipped: tests in network namespaces need root; hint: sudo make test"
	$(CARGO) test --workspace --doc --quiet
	$(CARGO) test --workspace --lib --bins --tests

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	./scripts/check-docs

# What is documented is read in the source as well, where a link to a private room leads somewhere.
docs:
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --workspace --no-deps --quiet

# The core touches nothing: it builds for a target on which there is nothing to touch.
wasm:
	@if rustup target list --installed 2>/dev/null | grep -q wasm32-unknown-unknown \
	 || rustup target add wasm32-unknown-unknown >/dev/null 2>&1; then \
	  $(CARGO) check -p mpt-proto --target wasm32-unknown-unknown; \
	else echo "skipped: the target wasm32-unknown-unknown cannot be installed"; fi

# Searches for input that breaks something, FUZZ_SECONDS with each target. Needs a nightly compiler.
# `make test` runs those of `gre`, `inner` and `endpoint` over the seeds and over generated input.
fuzz:
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	cd fuzz && for target in $$(cargo +nightly fuzz list); do \
	  mkdir -p corpus/$$target && \
	  cargo +nightly fuzz run $$target corpus/$$target seeds/$$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

prerequisites:
	@./scripts/prerequisites

clean:
	$(CARGO) clean
