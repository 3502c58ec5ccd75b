# MPT. `make demo` shows what it does, `make test` proves that it does it.

CARGO ?= cargo
.PHONY: all demo test check docs wasm prerequisites clean

all:
	$(CARGO) build --release

# Two emulated links, a tunnel, a real iperf3 through it, kernel MPTCP beside it, a table and a picture.
demo: prerequisites
	$(CARGO) build --release -p mpt -p mpt-lab
	./target/release/mpt-lab demo

test: prerequisites check wasm docs
	$(CARGO) build --workspace
	$(CARGO) test --workspace

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

# The core touches nothing: it builds for a target on which there is nothing to touch.
wasm:
	@if rustup target list --installed 2>/dev/null | grep -q wasm32-unknown-unknown \
	 || rustup target add wasm32-unknown-unknown >/dev/null 2>&1; then \
	  $(CARGO) check -p mpt-proto --target wasm32-unknown-unknown; \
	else echo "skipped: the target wasm32-unknown-unknown cannot be installed"; fi

prerequisites:
	@./scripts/prerequisites

clean:
	$(CARGO) clean
