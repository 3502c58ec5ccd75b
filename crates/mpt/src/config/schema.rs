//! The file format: one function per table, one line per key.
//!
//! A new key is a line here, a field in the model, a row in `docs/config.md`; a new kind of value is a function in `forms`.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use mpt_proto::config::{AnnounceConfig, Liveness, PlainFraming, ProbeConfig};
use mpt_proto::path::MAX_PATHS;
use mpt_proto::{reseq, sched};
use toml::de::DeTable;

use super::model::{At, File, Form, Mode, OriginalPeer, Path, Peer, Plain};
use super::problem::Log;
use super::reader::Reader;
use super::{checks, defaults, forms, original};

/// A table while it is being read.
pub type Table<'l, 't, 'a> = Reader<'l, 't, 'a>;

/// Reads the whole file. What is missing or wrong is noted and left out.
pub fn file(document: &DeTable<'_>, log: &mut Log<'_>) -> File {
    let path = log.path().to_owned();
    let mut top = Reader::new(document, "", 1, log);
    let (mode, port) = (mode(&mut top), top.read_or("port", &forms::port(), defaults::PORT));
    let original = original::control(&mut top);
    if top.lacks("peer") && original.as_ref().is_none_or(|original| original.template.is_none()) {
        top.missing("there is no peer", "add [[peer]] and below it [[peer.path]]".to_owned());
    }
    let file = File {
        path,
        form: Form::Toml,
        interface: top.read_or("interface", &forms::interface("mpt0"), defaults::INTERFACE.to_owned()),
        addresses: top.need_list("address", &forms::interface_address("10.77.0.1/24")),
        mtu: top.read("mtu", &forms::integer("a number of bytes", 576..=65_535, 1400)).map(|mtu| mtu.map(as_usize)),
        routes: top.list("routes", &forms::network("10.82.0.0/16")),
        scheduler: top.read_or("scheduler", &forms::choice(sched::Kind::NAMES), sched::Kind::default()).value,
        offload: top.read_or("offload", &forms::boolean(), defaults::OFFLOAD).value,
        original,
        peers: peers(&mut top, &mode, port),
        port,
        mode,
        warnings: Vec::new(),
    };
    top.finish();
    if !log.is_broken() {
        checks::check(&file, log);
    }
    file
}

#[derive(Clone, Copy, PartialEq)]
enum ModeName {
    Native,
    Plain,
}

fn mode(top: &mut Table<'_, '_, '_>) -> At<Mode> {
    let names = forms::choice(&[("native", ModeName::Native), ("plain", ModeName::Plain)]);
    let name = top.read("mode", &names);
    let settings = top.table("plain", "plain", |table| plain(table, Plain::default())).unwrap_or_default();
    let native = !top.has("mode") || name.as_ref().is_some_and(|name| **name == ModeName::Native);
    if let Some(line) = top.line_of_key("plain").filter(|_| native) {
        let hint = "mode = \"plain\" at the top of the file; native mode is the default";
        top.log.structure(line, "[plain] has no meaning in native mode", hint.to_owned());
    }
    name.unwrap_or_else(|| top.at(ModeName::Native)).map(|name| match name {
        ModeName::Native => Mode::Native,
        ModeName::Plain => Mode::Plain(settings),
    })
}

/// What is not said is as in `base`.
fn plain(table: &mut Table<'_, '_, '_>, base: Plain) -> Plain {
    Plain {
        framing: framing(table, base.framing),
        resequence: resequence(table, base.resequence),
        probe: probe(table, base.probe),
    }
}

fn framing(table: &mut Table<'_, '_, '_>, base: PlainFraming) -> PlainFraming {
    let key = forms::integer("a GRE key", 0..=u64::from(u32::MAX), 7);
    PlainFraming {
        sequence: table.read_or("sequence", &forms::boolean(), base.sequence).value,
        key: table.read("key", &key).map(|key| as_u32(key.value)).or(base.key),
        checksum: table.read_or("checksum", &forms::boolean(), base.checksum).value,
    }
}

fn resequence(table: &mut Table<'_, '_, '_>, base: Option<reseq::Limits>) -> Option<reseq::Limits> {
    #[derive(Clone, Copy, PartialEq)]
    enum Hold {
        Adaptive,
        Fixed,
        Off,
    }
    let default = base.unwrap_or_default();
    let usual = match base {
        Some(limits) if limits.adaptive => Hold::Adaptive,
        Some(_) => Hold::Fixed,
        None => Hold::Off,
    };
    let holds = forms::choice(&[("adaptive", Hold::Adaptive), ("fixed", Hold::Fixed), ("off", Hold::Off)]);
    let hold = table.read_or("reorder", &holds, usual).value;
    let window = forms::integer("a number of packets", 1..=65_536, default.window as u64);
    let window = table.read_or("reorder_window", &window, default.window as u64).map(as_usize);
    let delay = forms::duration(Duration::from_millis(1)..=Duration::from_secs(10), "500ms");
    let delay = table.read_or("reorder_delay", &delay, default.max_hold);
    let adaptive = hold == Hold::Adaptive;
    let limits = reseq::Limits { window: window.value, max_hold: delay.value, adaptive, ..default };
    (hold != Hold::Off).then_some(limits)
}

fn probe(table: &mut Table<'_, '_, '_>, base: Option<ProbeConfig>) -> Option<ProbeConfig> {
    let idle = table.read_or("keepalive", &keepalive(), base.map(|probe| probe.idle)).value;
    let dead = table.read_or("dead", &dead(), base.unwrap_or_default().dead).value;
    idle.map(|idle| ProbeConfig { idle, dead })
}

fn keepalive() -> forms::Form<Option<Duration>> {
    forms::duration(Duration::from_secs(1)..=DAY, "10s").or_off()
}

fn dead() -> forms::Form<Duration> {
    forms::duration(Duration::from_millis(50)..=3 * DAY, "500ms")
}

/// The original MPT counts such times in seconds and has no limit; nobody waits longer.
const DAY: Duration = Duration::from_secs(86_400);

/// A path's own keepalives: as the original MPT sends them, or as the peer's settings say.
fn liveness(table: &mut Table<'_, '_, '_>, peer: &OfPeer) -> Liveness {
    let usual = peer.plain.probe.filter(|_| peer.original.is_none());
    let every = table.read_or("keepalive", &keepalive(), usual.map(|probe| probe.idle)).value;
    if let Some(OriginalPeer { local, remote, .. }) = peer.original {
        let dead = table.read_or("dead", &dead().or_off(), None).value;
        return Liveness::Announces(AnnounceConfig { every, dead, local, remote });
    }
    let dead = table.read_or("dead", &dead(), usual.unwrap_or_default().dead).value;
    every.map_or(Liveness::Off, |idle| Liveness::Probes(ProbeConfig { idle, dead }))
}

/// What a path takes from its peer.
struct OfPeer {
    port: u16,
    plain: Plain,
    original: Option<OriginalPeer>,
}

fn peers(top: &mut Table<'_, '_, '_>, mode: &Mode, local_port: At<u16>) -> Vec<Peer> {
    let base = match mode {
        Mode::Plain(plain) => *plain,
        Mode::Native => Plain::default(),
    };
    let several = top.count("peer") > 1;
    let mut number = 0;
    top.tables("peer", "peer", |table| {
        number += 1;
        let name = if several { format!("{}{number}", defaults::PEER) } else { defaults::PEER.to_owned() };
        peer(table, name, several, base, local_port)
    })
}

fn peer(table: &mut Table<'_, '_, '_>, name: String, several: bool, base: Plain, local_port: At<u16>) -> Peer {
    let name = table.read_or("name", &forms::name("office"), name);
    let port = table.read_or("port", &forms::port(), defaults::PORT).value;
    let plain = table.table("plain", "plain", |table| plain(table, base)).unwrap_or(base);
    let of_peer = OfPeer { port, plain, original: original::peer(table, &name) };
    Peer {
        name,
        networks: networks(table, several),
        local_networks: table.list("local_networks", &forms::network("10.81.0.0/16")),
        local_port: table.read("local_port", &forms::port()).unwrap_or(local_port),
        paths: paths(table, &of_peer),
        plain: of_peer.plain,
        original: of_peer.original,
    }
}

fn networks(table: &mut Table<'_, '_, '_>, several: bool) -> Vec<At<IpNet>> {
    let network = forms::network("10.77.0.2/32");
    match several {
        true => table.need_list("networks", &network),
        false if table.has("networks") => table.list("networks", &network),
        false => defaults::networks().map(|net| table.at(net)).to_vec(),
    }
}

fn paths(table: &mut Table<'_, '_, '_>, peer: &OfPeer) -> Vec<Path> {
    if table.lacks("path") {
        table.missing("this peer has no path", "add [[peer.path]] with a remote address".to_owned());
    }
    let count = table.count("path");
    if count > MAX_PATHS {
        let hint = "several peers can share the load".to_owned();
        table.log.error(table.line, format!("this peer has {count} paths; {MAX_PATHS} is the most"), Some(hint));
    }
    let mut number = 0;
    let paths = table.tables("path", "peer.path", |table| {
        number += 1;
        path(table, peer, number)
    });
    paths.into_iter().flatten().collect()
}

fn path(table: &mut Table<'_, '_, '_>, peer: &OfPeer, number: usize) -> Option<Path> {
    let name = table.read("name", &forms::name("dsl"));
    let interface = table.read("interface", &forms::interface("eth1"));
    let local = table.read("local", &forms::host("192.168.10.1"));
    let remote = table.need("remote", &forms::remote("192.168.10.2"));
    let weight = table.read_or("weight", &forms::integer("a share", 1..=10_000, 10), u64::from(defaults::WEIGHT));
    let gateway = table.read("gateway", &forms::host("192.168.10.254"));
    let alive = table.read_or("start", &forms::choice(&[("up", true), ("down", false)]), true).value;
    let (liveness, original) = (liveness(table, peer), original::path(table));
    let unnamed = || interface.clone().unwrap_or_else(|| table.at(format!("{}{number}", defaults::PATH)));
    Some(Path {
        name: name.unwrap_or_else(unnamed),
        remote: remote?.map(|(ip, own)| SocketAddr::new(ip, own.unwrap_or(peer.port))),
        weight: as_u32(weight.value),
        interface,
        local,
        gateway,
        liveness,
        alive,
        original,
    })
}

/// Numbers whose range has been checked.
fn as_usize(number: u64) -> usize {
    usize::try_from(number).expect("checked against a range that fits")
}

pub fn as_u32(number: u64) -> u32 {
    u32::try_from(number).expect("checked against a range that fits")
}
