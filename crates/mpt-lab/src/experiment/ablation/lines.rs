//! Size of a rule: the lines of the files that contain nothing else, without tests, comments and blank lines.

use mpt_proto::tuning::Heuristic;
use std::{fs, path::Path};

/// Returns the lines of a rule's own files; none if it has no file of its own, or outside of the source tree.
pub fn of(rule: Heuristic) -> Option<usize> {
    let (_, files) = FILES.iter().find(|(known, _)| *known == rule)?;
    files.iter().map(|file| fs::read_to_string(Path::new(CORE).join(file)).ok().map(|text| count(&text))).sum()
}

fn count(text: &str) -> usize {
    let code = text.lines().map(str::trim).take_while(|line| *line != "#[cfg(test)]");
    code.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// Folder of the core, relative to the root of the source tree.
const CORE: &str = "crates/mpt-proto/src";

/// Files that contain nothing but one rule.
const FILES: &[(Heuristic, &[&str])] = &[
    (Heuristic::AckDelay, &["inner/ack_delay.rs"]),
    (Heuristic::AckFilter, &["inner/ack_filter.rs"]),
    (Heuristic::WindowLimit, &["inner/window_limit.rs"]),
    (Heuristic::ReservedPath, &["sched/reserve.rs"]),
    (Heuristic::LinkRate, &["path/packet_pair.rs"]),
    (Heuristic::UdpShaper, &["inner/udp_shaper.rs"]),
    (Heuristic::InitialProbes, &["path/loss_gate.rs"]),
    (Heuristic::HeaderCompression, &["peer/native/header_compression.rs"]),
    (Heuristic::Fec, &["peer/native/fec.rs"]),
    (Heuristic::ProcessorLoad, &["peer/native/processor_load.rs"]),
    (Heuristic::IdleMemory, &["peer/native/idle.rs"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_outside_of_tests_counts() {
        assert_eq!(count("//! Head.\n\nfn a() {\n    // Nothing.\n}\n\n#[cfg(test)]\nmod tests {}\n"), 2);
    }

    #[test]
    fn every_listed_file_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(CORE);
        let missing: Vec<_> =
            FILES.iter().flat_map(|(_, files)| *files).filter(|file| !root.join(file).is_file()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
