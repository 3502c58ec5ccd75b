# Targets of MPT: `make demo` runs a demonstration, `make test` runs all checks.

CARGO ?= cargo
FUZZ_SECONDS ?= 30
# Sets CI's part of a check apart from the whole: packages of `msrv`, tests of `miri`.
MSRV_PACKAGES ?= --workspace
MIRI_TESTS ?= crypto::replay wire::frame wire::native reorder::sparse_window reorder::delivered_bitmap reorder::sequence
.PHONY: all demo fleet-demo test check docs site wasm deny msrv miri asan fuzz mutants instructions deb packages check-packages release interop prerequisites clean

all:
	$(CARGO) build --release

# Measures two emulated links with iperf3, the tunnel over both, and kernel MPTCP; prints a table and draws a picture.
demo: prerequisites
	$(CARGO) build --release -p mpt -p mpt-lab
	$${CARGO_TARGET_DIR:-target}/release/mpt-lab demo

# Kills the servers of a fleet with etcd and BIRD, one after the other, while a host talks to its sites. Needs root.
fleet-demo:
	$(CARGO) build --release -p mpt -p mpt-fleet -p mpt-lab
	$${CARGO_TARGET_DIR:-target}/release/mpt-lab fleet

# The namespace tests run the programs, which `cargo test` builds before it runs any test; `cargo build` would build half
# of the dependencies a second time with other features. Examples run first, so that the test results are
# the last lines of the output.
test: prerequisites check wasm docs
	@[ "$$(id -u)" -eq 0 ] || echo "skipped: tests in network namespaces need root; hint: sudo make test"
	$(CARGO) test --workspace --doc --quiet
	$(CARGO) test -p mpt-proto --features crypto-portable --lib --quiet crypto::
	for example in loopback custom_scheduler custom_controller; do \
	  $(CARGO) run -q -p mpt-proto --example $$example || exit 1; \
	done
	$(CARGO) test --workspace --lib --bins --tests

# The fuzz targets are only type-checked. The path makes libfuzzer-sys skip its C++ sources; nothing is linked.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	CUSTOM_LIBFUZZER_PATH=/none/libnone.a $(CARGO) check --manifest-path fuzz/Cargo.toml --target-dir $${CARGO_TARGET_DIR:-target}
	./scripts/check-docs
	./scripts/check-comments
	./scripts/check-unit
	./scripts/check-rules

# Links to private items are allowed, because the documentation is also read in the source, where they lead somewhere.
docs:
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --workspace --no-deps --quiet

# Makes the documentation as a site, in target/site.
site:
	./scripts/site target/site

# Proves that the core does no I/O: it builds for a target without an operating system.
wasm:
	@if rustup target list --installed 2>/dev/null | grep -q wasm32-unknown-unknown \
	 || rustup target add wasm32-unknown-unknown >/dev/null 2>&1; then \
	  $(CARGO) check -p mpt-proto --target wasm32-unknown-unknown; \
	else echo "skipped: the target wasm32-unknown-unknown cannot be installed"; fi

# Checks licences, sources and duplicates of the dependencies, and known vulnerabilities if the database can be reached.
deny:
	@command -v cargo-deny >/dev/null \
	 || { echo "skipped: needs cargo-deny; hint: cargo install --locked cargo-deny"; exit 0; }; \
	$(CARGO) deny --workspace check bans licenses sources || exit 1; \
	if $(CARGO) deny --workspace fetch db >/dev/null 2>&1; then $(CARGO) deny --workspace check --disable-fetch advisories; \
	else echo "skipped: known vulnerabilities, because the advisory database cannot be reached"; fi

# Compiles with the oldest supported compiler: all crates, or MSRV_PACKAGES ("-p mpt" is the program with its libraries).
msrv:
	@version=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); \
	if rustup toolchain install --profile minimal --no-self-update $$version >/dev/null 2>&1; then \
	  $(CARGO) +$$version check --profile quick $(MSRV_PACKAGES); \
	else echo "skipped: Rust $$version cannot be installed"; fi

# Runs tests of the core's pure modules in an interpreter that finds undefined behaviour. The core has no unsafe code, but
# its dependencies have. Few cases of each property: the interpreter is some hundred times slower. MIRI_TESTS names them.
miri:
	@if rustup component add --toolchain nightly miri rust-src >/dev/null 2>&1; then \
	  PROPTEST_CASES=2 MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test -p mpt-proto --lib -- $(MIRI_TESTS); \
	else echo "skipped: Miri cannot be installed"; fi

# Runs the tests of the system calls with AddressSanitizer.
asan:
	@if rustup toolchain list | grep -q ^nightly; then \
	  RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly test --profile quick -p mpt-linux --lib --target $$(rustc -vV | sed -n 's/host: //p'); \
	else echo "skipped: AddressSanitizer needs a nightly compiler"; fi

# Fuzzes each target for FUZZ_SECONDS. Needs a nightly compiler.
# `make test` runs the harnesses of `gre`, `inner`, `endpoint` and `malicious_peer` over the seeds and over generated input.
fuzz:
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	cd fuzz && for target in $$(cargo +nightly fuzz list); do \
	  mkdir -p corpus/$$target && \
	  cargo +nightly fuzz run $$target corpus/$$target seeds/$$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

# Changes one line after the other of the replay window, the wire, repair, the reorder buffers and header compression, and
# counts the changes that no test detects. Compares them with crates/mpt-proto/mutants.txt. MUTANTS has some of the files.
mutants:
	./scripts/mutants

# Prints the instructions of the core per packet and stage, and compares them with lab/instructions.txt. Needs valgrind.
instructions:
	./scripts/instructions

# Compares MPT with the kernel of Debian 12 in a virtual machine without KVM: GRE-in-UDP, WireGuard, netem.
interop:
	$(CARGO) build --release -p mpt -p mpt-lab
	./scripts/interop/run

# Makes the Debian packages of this host's architecture, mpt, mpt-fleet and mpt-lab, in target/packages. Needs no cross compiler.
deb:
	$(CARGO) build --release -p mpt -p mpt-fleet -p mpt-lab
	./scripts/build-deb

# Makes target/packages: Debian packages, rpms, static tarballs, an image, SBOMs and SHA256SUMS, for the architectures in
# PACKAGES (amd64 arm64 armhf i386).
packages:
	./scripts/build-packages

# Checks them: contents, programs of all architectures, lintian; installs, upgrades, removes and purges them in a fresh
# Debian 12, as root; makes those of amd64 again in another folder and compares.
check-packages: packages
	./scripts/check-packages
	./scripts/package/check-reproducible target/packages

# Makes a release of a tagged commit: checks version, changelog and tag, then packages, source archive and notes.
release:
	./scripts/release

prerequisites:
	@./scripts/prerequisites

clean:
	$(CARGO) clean
