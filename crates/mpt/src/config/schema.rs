//! The file format: one function per table, one line per key.
//!
//! A new key is a line here, a field in the model, a row in `docs/config.md`; a new kind of value is a function in `forms`.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use mpt_proto::config::{PlainFraming, ProbeConfig};
use mpt_proto::path::MAX_PATHS;
use mpt_proto::{reseq, sched};
use toml::de::DeTable;

use super::model::{At, File, Mode, Path, Peer, Plain};
use super::problem::Log;
use super::reader::Reader;
use super::{checks, defaults, forms};

type Table<'l, 't, 'a> = Reader<'l, 't, 'a>;

/// Reads the whole file. What is missing or wrong is noted and left out.
pub fn file(document: &DeTable<'_>, log: &mut Log<'_>) -> File {
    let path = log.path().to_owned();
    let mut top = Reader::new(document, "", 1, log);
    let file = File {
        path,
        mode: mode(&mut top),
        interface: top.read_or("interface", &forms::interface("mpt0"), defaults::INTERFACE.to_owned()),
        addresses: top.need_list("address", &forms::interface_address("10.77.0.1/24")),
        port: top.read_or("port", &forms::port(), defaults::PORT),
        mtu: top.read("mtu", &forms::integer("a number of bytes", 576..=65_535, 1400)).map(|mtu| mtu.map(as_usize)),
        routes: top.list("routes", &forms::network("10.82.0.0/16")),
        scheduler: top.read_or("scheduler", &forms::choice(sched::Kind::NAMES), sched::Kind::default()).value,
        offload: top.read_or("offload", &forms::boolean(), defaults::OFFLOAD).value,
        peers: peers(&mut top),
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
    let settings = top.table("plain", "plain", plain).unwrap_or_default();
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

fn plain(table: &mut Table<'_, '_, '_>) -> Plain {
    Plain { framing: framing(table), resequence: resequence(table), probe: probe(table) }
}

fn framing(table: &mut Table<'_, '_, '_>) -> PlainFraming {
    let key = forms::integer("a GRE key", 0..=u64::from(u32::MAX), 7);
    PlainFraming {
        sequence: table.read_or("sequence", &forms::boolean(), defaults::SEQUENCE).value,
        key: table.read("key", &key).map(|key| as_u32(key.value)),
        checksum: table.read_or("checksum", &forms::boolean(), defaults::CHECKSUM).value,
    }
}

fn resequence(table: &mut Table<'_, '_, '_>) -> Option<reseq::Limits> {
    #[derive(Clone, Copy, PartialEq)]
    enum Hold {
        Adaptive,
        Fixed,
        Off,
    }
    let default = reseq::Limits::default();
    let holds = forms::choice(&[("adaptive", Hold::Adaptive), ("fixed", Hold::Fixed), ("off", Hold::Off)]);
    let hold = table.read_or("reorder", &holds, Hold::Adaptive).value;
    let window = forms::integer("a number of packets", 1..=65_536, default.window as u64);
    let window = table.read_or("reorder_window", &window, default.window as u64).map(as_usize);
    let delay = forms::duration(Duration::from_millis(1)..=Duration::from_secs(10), "500ms");
    let delay = table.read_or("reorder_delay", &delay, default.max_hold);
    let adaptive = hold == Hold::Adaptive;
    let limits = reseq::Limits { window: window.value, max_hold: delay.value, adaptive, repaired: false };
    (hold != Hold::Off).then_some(limits)
}

fn probe(table: &mut Table<'_, '_, '_>) -> Option<ProbeConfig> {
    let (default, hour) = (ProbeConfig::default(), Duration::from_secs(3_600));
    let idle = forms::duration(Duration::from_secs(1)..=hour, "10s").or_off();
    let idle = table.read_or("keepalive", &idle, Some(default.idle)).value;
    let dead = table.read_or("dead", &forms::duration(Duration::from_millis(50)..=hour, "500ms"), default.dead).value;
    idle.map(|idle| ProbeConfig { idle, dead })
}

fn peers(top: &mut Table<'_, '_, '_>) -> Vec<Peer> {
    if top.lacks("peer") {
        top.missing("there is no peer", "add [[peer]] and below it [[peer.path]]".to_owned());
    }
    let several = top.count("peer") > 1;
    let mut number = 0;
    top.tables("peer", "peer", |table| {
        number += 1;
        let name = if several { format!("{}{number}", defaults::PEER) } else { defaults::PEER.to_owned() };
        peer(table, name, several)
    })
}

fn peer(table: &mut Table<'_, '_, '_>, name: String, several: bool) -> Peer {
    let port = table.read_or("port", &forms::port(), defaults::PORT);
    Peer {
        name: table.read_or("name", &forms::name("office"), name),
        networks: networks(table, several),
        paths: paths(table, port.value),
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

fn paths(table: &mut Table<'_, '_, '_>, port: u16) -> Vec<Path> {
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
        path(table, port, number)
    });
    paths.into_iter().flatten().collect()
}

fn path(table: &mut Table<'_, '_, '_>, port: u16, number: usize) -> Option<Path> {
    let name = table.read("name", &forms::name("dsl"));
    let interface = table.read("interface", &forms::interface("eth1"));
    let local = table.read("local", &forms::host("192.168.10.1"));
    let remote = table.need("remote", &forms::remote("192.168.10.2"));
    let weight = table.read_or("weight", &forms::integer("a share", 1..=10_000, 10), u64::from(defaults::WEIGHT));
    let unnamed = || interface.clone().unwrap_or_else(|| table.at(format!("{}{number}", defaults::PATH)));
    Some(Path {
        name: name.unwrap_or_else(unnamed),
        remote: remote?.map(|(ip, own)| SocketAddr::new(ip, own.unwrap_or(port))),
        weight: as_u32(weight.value),
        interface,
        local,
    })
}

/// Numbers whose range has been checked.
fn as_usize(number: u64) -> usize {
    usize::try_from(number).expect("checked against a range that fits")
}

fn as_u32(number: u64) -> u32 {
    u32::try_from(number).expect("checked against a range that fits")
}
