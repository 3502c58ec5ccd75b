//! The qlog files of a simulated case: JSON text sequences with the header and the events of the documentation.

use mpt_lab::{experiment::trace, plan};
use mpt_sim::seed::Seed;
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::Path, time::Duration};

/// Returns the JSON texts of a file (RFC 7464).
fn texts(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).expect("a qlog file");
    let mut parts = text.split('\u{1e}');
    assert_eq!(parts.next(), Some(""), "every text begins with a separator");
    let parse = |part: &str| serde_json::from_str(part.strip_suffix('\n').expect("a line feed")).expect("JSON");
    parts.map(parse).collect()
}

#[test]
fn both_ends_of_a_simulated_case_write_qlog() {
    let plans = plan::select("rtt_40").expect("a case of the catalogue");
    let folder = tempfile::tempdir().expect("a folder");
    let qlog = folder.path().join("new");
    trace::trace(&plans[0].cases[0], Seed(1), Duration::from_secs(1), Some(&qlog)).expect("a trace");
    let docs =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/qlog.md")).expect("docs");
    let mut names = BTreeSet::new();
    for end in ["near", "far"] {
        let texts = texts(&qlog.join(format!("rtt_40-{end}.sqlog")));
        assert_eq!(texts[0]["file_schema"], "urn:ietf:params:qlog:file:sequential");
        assert_eq!(texts[0]["serialization_format"], "application/qlog+json-seq");
        assert_eq!(texts[0]["trace"]["vantage_point"]["name"], end);
        let mut before = 0.0;
        for event in &texts[1..] {
            let time = event["time"].as_f64().expect("a time");
            assert!(time >= before, "{event}");
            before = time;
            let name = event["name"].as_str().expect("a name").to_owned();
            assert!(docs.contains(&format!("`{name}`")), "{name} is not documented");
            for field in event["data"].as_object().expect("data").keys() {
                assert!(docs.contains(&format!("`{field}`")), "{field} of {name} is not documented");
            }
            names.insert(name);
        }
    }
    for name in ["mpt:path_added", "mpt:handshake", "quic:recovery_metrics_updated", "mpt:packets_scheduled"] {
        assert!(names.contains(name), "{name}");
    }
}
