//! The list of checks, and the faults that no namespace can have.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use mpt_linux::netlink::Link;

use super::*;
use crate::config;
use crate::control::feature_reports::TlsCertificateReport;
use crate::control::report::{PathReport, PeerReport, Report, TunnelReport};
use crate::doctor::facts::{Config, Control, Port, Socket, Wait};
use crate::doctor::render::{Checked, Verdict};

const REFERENCE: &str = include_str!("../../../../../docs/guide/doctor.md");

fn facts() -> Facts {
    let text = "private_key = \"ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00=\"\n\
                address = [\"10.77.0.1/24\"]\n[[peer]]\n\
                public_key = \"L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=\"\nremote = \"192.0.2.2\"\n";
    let file = config::parse(Path::new("mpt0.toml"), text).unwrap();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let tunnel = TunnelReport { interface: "mpt0".to_owned(), version, ..TunnelReport::default() };
    let mut facts = Facts {
        is_root: true,
        interface: "mpt0".to_owned(),
        config: Config::Read(Box::new(file)),
        control: Control::Report(Box::new(Report { tunnel, ..Report::default() })),
        ..Facts::default()
    };
    (facts.host.aes, facts.host.clock_synchronised) = (Some(true), Some(true));
    facts.host.socket = Some(Socket { offload_problems: Vec::new(), receive_buffer: (4_000, 4_000) });
    facts
}

fn names(facts: &Facts) -> Vec<&'static str> {
    let has_finding = |check: &&Check| (check.run)(facts).is_some_and(|findings| !findings.is_empty());
    CHECKS.iter().filter(has_finding).map(|check| check.name).collect()
}

#[test]
fn the_reference_has_a_row_for_each_check_and_no_other() {
    let section = REFERENCE.split("\n## ").find(|section| section.starts_with("The checks")).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let described: BTreeSet<_> = rows.map(|(name, _)| name).collect();
    assert_eq!(described, CHECKS.iter().map(|check| check.name).collect());
    assert_eq!(described.len(), CHECKS.len(), "no name is there twice");
}

#[test]
fn a_host_without_a_fault_has_no_finding() {
    assert_eq!(names(&facts()), [""; 0]);
    assert_eq!(names(&Facts::default()), ["running"]);
    // A file with a mistake does not say which tunnel is to run.
    let broken = Config::Broken("mpt0.toml".into(), Vec::new());
    assert_eq!(names(&Facts { config: broken, ..Facts::default() }), [""; 0]);
}

#[test]
fn properties_of_the_kernel_and_the_processor_are_found() {
    let with = |change: &dyn Fn(&mut Facts)| {
        let mut facts = facts();
        change(&mut facts);
        names(&facts)
    };
    assert_eq!(with(&|facts| facts.host.clock_synchronised = Some(false)), ["clock_synchronised"]);
    assert_eq!(with(&|facts| facts.host.aes = Some(false)), ["aes"]);
    let refused = || vec!["UDP GSO: refused by the kernel".to_owned()];
    let socket = || Socket { offload_problems: refused(), receive_buffer: (4_000, 4_000) };
    assert_eq!(with(&|facts| facts.host.socket = Some(socket())), ["offload"]);
    // A container may not exceed net.core.rmem_max, which is one for the whole machine.
    let clamped = || Socket { offload_problems: Vec::new(), receive_buffer: (212_992, 4_194_304) };
    assert_eq!(with(&|facts| facts.host.socket = Some(clamped())), ["receive_buffer"]);
    let other = |facts: &mut Facts| match &mut facts.control {
        Control::Report(report) => report.tunnel.version = "0.0.9".to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(with(&other), ["version"]);
}

#[test]
fn bbr_beside_a_path_with_a_much_longer_round_trip_is_found() {
    let find = |congestion: &str, scheduler: &str, far_us: u64, queue_us: u64| {
        let mut facts = facts();
        facts.host.congestion = Some(congestion.to_owned());
        let path = |name: &str, srtt_us: u64, queue_us: u64| PathReport {
            name: name.to_owned(),
            up: true,
            srtt_us: Some(srtt_us),
            queue_us: Some(queue_us),
            ..PathReport::default()
        };
        let paths = vec![path("dsl", 20_000, 0), path("sat", far_us, queue_us)];
        let peer = PeerReport { paths, scheduler: scheduler.to_owned(), ..PeerReport::default() };
        let Control::Report(report) = &mut facts.control else { panic!("a report") };
        report.peers.push(peer);
        names(&facts)
    };
    assert_eq!(find("bbr", "earliest", 80_000, 0), ["bbr"]);
    assert_eq!(find("bbr2", "earliest", 80_000, 0), ["bbr"]);
    assert_eq!(find("bbr", "earliest", 80_000, 30_000), [""; 0], "the path has a queue");
    assert_eq!(find("bbr", "earliest", 60_000, 0), [""; 0]);
    assert_eq!(find("bbr", "weighted", 80_000, 0), [""; 0]);
    assert_eq!(find("cubic", "earliest", 80_000, 0), [""; 0]);
}

#[test]
fn a_certificate_that_was_not_renewed_is_found() {
    let with = |expires_s: i64, problem: Option<&str>| {
        let mut facts = facts();
        let Control::Report(report) = &mut facts.control else { panic!("a report") };
        let problem = problem.map(str::to_owned);
        report.tunnel.tls_certificate = Some(TlsCertificateReport { expires_s: Some(expires_s), problem });
        let found = tunnel::tls_certificate(&facts).unwrap();
        found.into_iter().map(|finding| finding.cause).collect::<Vec<_>>().join("; ")
    };
    let day = 86_400;
    assert_eq!(with(14 * day, None), "");
    assert_eq!(with(14 * day - 1, None), "the certificate for paths over TLS expires in 13 d");
    assert_eq!(with(day, None), "the certificate for paths over TLS expires in 24 h");
    assert_eq!(with(-3 * day, None), "the certificate for paths over TLS expired 3 d ago");
    assert!(with(90 * day, Some("key.pem: no private key in PEM")).contains("is not renewed: key.pem: no private key"));
}

/// Returns the facts with a peer that this host calls, and one path that is silent.
fn with_peer(session_age_s: Option<u64>, drops: &[(&str, u64)], drops_of_tunnel: &[(&str, u64)]) -> Facts {
    let counts = |all: &[(&str, u64)]| all.iter().map(|(why, count)| ((*why).to_owned(), *count)).collect();
    let mut facts = facts();
    let name = facts.file().unwrap().peers[0].name.to_string();
    let path = PathReport { name: "eth1".to_owned(), cause: Some("silent".to_owned()), ..PathReport::default() };
    let peer = PeerReport { name: name.clone(), session_age_s, drops: counts(drops), ..PeerReport::default() };
    let Control::Report(report) = &mut facts.control else { panic!("a report") };
    report.peers.push(PeerReport { paths: vec![path], ..peer });
    report.drops = counts(drops_of_tunnel);
    let remote = "192.0.2.2:4754".parse().unwrap();
    facts.ports.push(Port { peer: name, path: "eth1".to_owned(), remote, refusal: None });
    facts
}

#[test]
fn answers_that_are_not_authentic_mean_another_preshared_key() {
    assert_eq!(names(&with_peer(None, &[], &[])), ["no_answer"]);
    let differs = with_peer(None, &[], &[("not_authentic", 3)]);
    assert_eq!(names(&differs), ["preshared_key"]);
    let found = tunnel::preshared_key(&differs).unwrap();
    assert!(found[0].cause.starts_with("3 answers arrived and were not authentic"), "{found:?}");
    assert_eq!(tunnel::preshared_key(&with_peer(Some(7), &[], &[("not_authentic", 3)])), Some(Vec::new()));
}

#[test]
fn packets_with_a_foreign_source_are_found_and_those_of_a_link_are_not() {
    let mut facts = with_peer(Some(7), &[("foreign_source", 3), ("local_source", 5)], &[]);
    facts.ports.clear();
    assert_eq!(names(&facts), ["foreign_source"]);
    let Control::Report(report) = &mut facts.control else { panic!("a report") };
    report.peers[0].drops.remove("foreign_source");
    assert_eq!(names(&facts), [""; 0]);
}

#[test]
fn a_path_is_narrow_by_comparison_with_what_it_is_probed_for() {
    let find = |configured: Option<usize>, link_mtu: u32, carried: usize| {
        let mut facts = facts();
        let Config::Read(file) = &mut facts.config else { panic!("a file") };
        file.mtu = configured.map(|mtu| file.port.map(|_| mtu));
        let path = PathReport { name: "eth1".to_owned(), up: true, mtu_bytes: Some(carried), ..PathReport::default() };
        let peer = PeerReport { name: "peer".to_owned(), paths: vec![path], ..PeerReport::default() };
        let Control::Report(report) = &mut facts.control else { panic!("a report") };
        report.peers.push(peer);
        facts.network.links = vec![Link { index: 2, name: "eth1".to_owned(), mtu: link_mtu, up: true, running: true }];
        names(&facts)
    };
    assert_eq!(find(None, 1_500, 1_250), ["path_mtu"]);
    // A configured MTU, jumbo frames, PPPoE, and an interface that carries no more.
    for (configured, link_mtu, carried) in
        [(Some(1_280), 1_500, 1_280), (None, 9_000, 1_437), (None, 1_500, 1_429), (None, 1_300, 1_237)]
    {
        assert_eq!(find(configured, link_mtu, carried), [""; 0], "{configured:?} {link_mtu}");
    }
}

#[test]
fn without_facts_a_check_is_skipped_and_only_failures_fail() {
    let mut facts = facts();
    let wait = Wait { time: Duration::from_secs(2), answered: false };
    for source in [FactSource::Host, FactSource::Network, FactSource::Firewall] {
        facts.waits.insert(source, wait);
    }
    facts.host.aes = Some(false);
    let checked = Checked::of(&facts);
    assert_eq!([Verdict::Failed, Verdict::Warning].map(|verdict| checked.count(verdict)), [0, 0]);
    assert!(checked.text().contains("skipped  aes: no answer within 2.0 s\n"), "{}", checked.text());

    facts.waits.clear();
    facts.names = vec![("home.example.org".to_owned(), Err("no resolver answered within 2 s".to_owned()))];
    let checked = Checked::of(&facts);
    assert_eq!([Verdict::Failed, Verdict::Warning].map(|verdict| checked.count(verdict)), [1, 1]);
    let text = checked.text();
    assert!(text.find("FAILED   names") < text.find("warning  aes"), "{text}");
}
