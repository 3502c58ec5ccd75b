use super::*;
use std::{path::Path, time::Duration};

const GOOD: &str = r#"
key = "T"
title = "a test"
paper = "none"
seconds = 30
quick_seconds = 2
repetitions = 3
paths = ["rate=10mbit,delay={delay}ms", "rate=100mbit"]
weights = ["{weight}", 100]
published.goodput = [1.0, 2.0, 3.0, 4.0]

[[axis]]
name = "delay"
unit = "ms"
values = [0, 50]
quick = [50]

[[axis]]
name = "weight"
values = [10, 20]

[traffic]
kind = "tcp"

[[claim]]
metric = "goodput"
of = "ceiling"
at_least = 0.95
cases = ["50/10"]
"#;

fn read(text: &str) -> Result<Plan, String> {
    parse(Path::new("t.toml"), text).map_err(|problem| problem.to_string())
}

#[test]
fn axes_are_multiplied_out_the_first_one_outermost() {
    let plan = read(GOOD).unwrap();
    let names: Vec<&str> = plan.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, ["0/10", "0/20", "50/10", "50/20"]);
    let last = &plan.cases[3];
    assert_eq!(last.paths[0].there.start.delay, Duration::from_millis(50));
    assert_eq!(last.tunnel.weights, Some(vec![20, 100]));
    assert_eq!(last.published[&Metric::Goodput], 4.0);
    assert_eq!(plan.cases.iter().filter(|case| case.quick).count(), 2);
}

#[test]
fn every_error_has_its_line_and_a_hint() {
    let wrong = |from: &str, to: &str| read(&GOOD.replacen(from, to, 1)).unwrap_err();
    assert_eq!(
        wrong("seconds = 30", "secnods = 30"),
        "t.toml:5: unknown field `secnods`\n  hint: did you mean 'seconds'?"
    );
    assert_eq!(wrong("seconds = 30", "seconds = 0"), "t.toml:5: 0 seconds\n  hint: between 1 and 3600");
    let problem = wrong("rate=100mbit", "rate=100");
    assert_eq!(problem, "t.toml:8: '100' is not a rate\n  hint: 10mbit, 2048kbit, 1gbit, max");
    let problem = wrong("{delay}ms", "{dealy}ms");
    assert!(problem.starts_with("t.toml:8: ") && problem.ends_with("{delay}, {weight}"), "{problem}");
    let problem = wrong("[1.0, 2.0, 3.0, 4.0]", "[1.0]");
    assert_eq!(problem, "t.toml:10: 1 values for 4 cases\n  hint: one for each case, in order");
    let problem = wrong("\"50/10\"", "\"51\"");
    assert!(problem.starts_with("t.toml:25: there is no case '51'"), "{problem}");
    assert!(wrong("kind = \"tcp\"", "kind = \"pacd\"").contains("did you mean 'paced'?"));
    assert!(wrong("\"{weight}\", 100", "\"{weight}\"").starts_with("t.toml:9: weights for other than 2 paths"));
    assert!(wrong("at_least = 0.95", "").contains("a claim without a bound"));
    assert!(wrong("key = \"T\"", "key = ").starts_with("t.toml:2: "));
}

const EVENTS: &str = r#"
key = "T"
title = "a test"
paper = "none"
seconds = 20
quick_seconds = 5
mtu = 1400
paths = ["rate=10mbit", "rate=10mbit"]
traffic = { kind = "bulk" }

[[case]]
name = "first"
event = [
    { at = 4, quick = 1, path = 2, do = "cut" },
    { at = 14, quick = 3, path = 2, do = "restore" },
]

[[case]]
name = "second"
traffic = { kind = "udp", payload = 1000 }

[[case]]
name = "third"
traffic = { kind = "tcp", streams = 4 }
"#;

#[test]
fn plans_that_cannot_be_measured_are_refused() {
    let wrong = |from: &str, to: &str| read(&EVENTS.replacen(from, to, 1)).unwrap_err();
    assert_eq!(read(EVENTS).unwrap().cases[0].events[1].at.quick, Duration::from_secs(3));
    assert_eq!(
        wrong("at = 14", "at = 20"),
        "t.toml:15: an event at 20 s of a run of 20s\n  hint: before 20s; with --quick the time is 'quick', else 'at'"
    );
    let problem = wrong("at = 14, quick = 3", "at = 14");
    assert!(problem.starts_with("t.toml:15: an event at 14 s of a run of 5s"), "{problem}");
    assert_eq!(
        wrong("at = 14", "at = 3"),
        "t.toml:15: an event at 3 s after one at 4s\n  hint: events in order of time"
    );
    assert!(wrong("at = 4", "at = -1").starts_with("t.toml:14: an event at -1 s"));
    assert_eq!(wrong("\"second\"", "\"first\""), "t.toml:19: two cases 'first'\n  hint: another name");
    assert_eq!(wrong("mtu = 1400", "mtu = 40"), "t.toml:7: 40\n  hint: between 576 and 65535");
    assert_eq!(wrong("payload = 1000", "payload = 70000"), "t.toml:20: 70000\n  hint: between 16 and 65507");
    assert_eq!(wrong("streams = 4", "streams = 0"), "t.toml:24: 0\n  hint: between 1 and 128");
    let problem = read(&GOOD.replacen("[10, 20]", "[10, 10]", 1)).unwrap_err();
    assert_eq!(problem, "t.toml:20: axis 'weight' has the value 10 twice\n  hint: each value once");
}
