//! The file format: one function per table, one line per key.
//!
//! Keys of native mode are in `native`, rules in `rules`, keys for peers that run the original MPT in `original`. A new
//! key needs a line here, a field in the model and a row in `docs/guide/config.md`; a new value type is a function in
//! `value_types`.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use mpt_proto::config::{PlainFraming, ProbeConfig, Protocol};
use mpt_proto::crypto::keys::KeyPair;
use mpt_proto::path::MAX_PATHS;
use mpt_proto::repair::fec;
use mpt_proto::{cc, reorder, sched};
use toml::de::DeTable;

use super::model::{File, FileFormat, OriginalPeer, Path, Peer};
use super::native::UsageLimits;
use super::problem::{Lines, ProblemLog};
use super::reader::{NameGenerator, Reader};
use super::tables::WireSettings;
use super::value_types::{as_u32, as_usize};
use super::values::{At, Mode};
use super::{
    bypass, checks, defaults, forward, include, native, original, peer_source, rules, servers, tls, value_types,
};

/// Reads the whole file. Missing or invalid values are reported and left out.
pub fn file(document: &DeTable<'_>, log: &mut ProblemLog<'_>) -> File {
    let path = log.path().to_owned();
    let mut top = Reader::new(document, "", 1, log);
    let wire = WireSettings::read(&mut top);
    let mode = wire.mode.unwrap_or_else(|| top.at(Mode::Native));
    let original = original::control(&mut top, wire.is(Mode::Native));
    let creates = original.as_ref().is_some_and(|original| original.template.is_some());
    let file = File {
        path,
        lines: Lines::default(),
        format: FileFormat::Toml,
        mode,
        original,
        identity: identity(&mut top, &wire),
        session_routes: if wire.is(Mode::Plain) { None } else { native::session_routes(&mut top) },
        workers: if wire.is(Mode::Plain) { At { value: 1, line: 0 } } else { native::workers(&mut top) },
        server_id: if wire.is(Mode::Plain) { 0 } else { native::server_id(&mut top) },
        server_list: if wire.is(Mode::Plain) { None } else { native::server_list(&mut top) },
        interface: top.read_or("interface", &value_types::interface("mpt0"), defaults::INTERFACE.to_owned()),
        addresses: top.require_list("address", &value_types::interface_address("10.77.0.1/24")),
        mtu: top
            .read("mtu", &value_types::integer("a number of bytes", 576..=65_535, 1400))
            .map(|mtu| mtu.map(as_usize)),
        routes: top.list("routes", &value_types::network("10.82.0.0/16")),
        kill_switch: kill_switch(&mut top, &wire),
        outside: if wire.is(Mode::Plain) { None } else { native::outside(&mut top) },
        bypass: if wire.is(Mode::Plain) { Vec::new() } else { bypass::rules(&mut top) },
        forwards: forward::forwards(&mut top),
        tls: if wire.is(Mode::Plain) { None } else { tls::listen(&mut top) },
        reachable: top.list("reachable", &value_types::network("192.168.5.10/32")),
        masquerade: top.read_or("masquerade", &value_types::boolean(), defaults::MASQUERADE).value,
        client_to_client: top.read_or("client_to_client", &value_types::boolean(), defaults::CLIENT_TO_CLIENT),
        lan: top.list("lan", &value_types::network("192.168.7.0/24")),
        share: top.read_or("share", &value_types::one_or_list(value_types::interface("lan0")), Vec::new()),
        delegate: top.read("delegate", &value_types::lan_network("fd12:3456:789a:1::/64")),
        dns: top.list("dns", &value_types::host("10.77.0.1")),
        scheduler: top.read_or(
            "scheduler",
            &value_types::choice(sched::SchedulerKind::NAMES),
            defaults::scheduler(*mode),
        ),
        rules: rules::rules(&mut top, wire.mode.as_deref().copied()),
        resequence: wire.resequence,
        probe: probe(&mut top, &wire),
        offload: top.read_or("offload", &value_types::boolean(), defaults::OFFLOAD).value,
        includes: top.has("include"),
        peer_source: if wire.is(Mode::Plain) { None } else { peer_source::read(&mut top, &wire) },
        peers: peers(&mut top, &wire, creates),
        port: wire.port,
        warnings: Vec::new(),
    };
    top.finish();
    let file = File { lines: log.lines().clone(), ..file };
    if !log.is_broken() {
        checks::check(&file, log);
    }
    file
}

impl WireSettings {
    fn read(top: &mut Reader<'_, '_, '_>) -> Self {
        let mode = mode(top);
        let framing = top.table("plain", "plain", |table| framing(table, defaults::framing())).unwrap_or_default();
        let (congestion, fec) = match mode.as_deref() {
            Some(Mode::Plain) => (cc::ControllerKind::default(), fec::FecMode::default()),
            Some(Mode::Native) | None => (native::congestion(top), native::fec(top)),
        };
        let native = mode.as_deref() == Some(&Mode::Native);
        let resequence = resequence(top, Some(reorder::ReorderLimits::default()), native);
        Self {
            mode,
            framing,
            congestion,
            fec,
            resequence,
            port: top.read_or("port", &value_types::port(), defaults::PORT),
        }
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.as_deref() == Some(&mode)
    }
}

fn mode(top: &mut Reader<'_, '_, '_>) -> Option<At<Mode>> {
    let names = value_types::choice(&[("native", Mode::Native), ("plain", Mode::Plain)]);
    let mode = if top.has("mode") { top.read("mode", &names) } else { Some(top.read_or("mode", &names, Mode::Native)) };
    if let Some(line) = top.line_of_key("plain").filter(|_| mode.as_deref() == Some(&Mode::Native)) {
        let hint = "mode = \"plain\" at the top of the file; native mode is the default";
        top.log.structure(line, "[plain] has no meaning in native mode", hint.to_owned());
    }
    mode
}

fn identity(top: &mut Reader<'_, '_, '_>, wire: &WireSettings) -> Option<KeyPair> {
    if wire.is(Mode::Plain) {
        native::refuse(top, &native::TOP);
        return None;
    }
    native::identity(top, wire.is(Mode::Native))
}

/// Reads the kill switch; in plain mode the key has been rejected already.
fn kill_switch(top: &mut Reader<'_, '_, '_>, wire: &WireSettings) -> At<bool> {
    if wire.is(Mode::Plain) {
        return top.at(defaults::KILL_SWITCH);
    }
    native::kill_switch(top)
}

/// Reads the GRE fields; absent ones are as in `base`.
fn framing(table: &mut Reader<'_, '_, '_>, base: PlainFraming) -> PlainFraming {
    let key = value_types::integer("a GRE key", 0..=u64::from(u32::MAX), 7);
    PlainFraming {
        sequence: table.read_or("sequence", &value_types::boolean(), base.sequence).value,
        key: table.read("key", &key).map(|key| as_u32(key.value)).or(base.key),
        checksum: table.read_or("checksum", &value_types::boolean(), base.checksum).value,
    }
}

fn resequence(
    table: &mut Reader<'_, '_, '_>,
    base: Option<reorder::ReorderLimits>,
    native: bool,
) -> Option<reorder::ReorderLimits> {
    #[derive(Clone, Copy, PartialEq)]
    enum Hold {
        Adaptive,
        Fixed,
        Off,
    }
    if native {
        native::refuse_order(table);
    }
    let default = base.unwrap_or_default();
    let default_hold = match base {
        Some(limits) if limits.adaptive => Hold::Adaptive,
        Some(_) => Hold::Fixed,
        None => Hold::Off,
    };
    let holds = value_types::choice(&[("adaptive", Hold::Adaptive), ("fixed", Hold::Fixed), ("off", Hold::Off)]);
    let hold = table.read_or("reorder", &holds, default_hold).value;
    let window = value_types::integer("a number of packets", 1..=65_536, default.window as u64);
    let window = table.read_or("reorder_window", &window, default.window as u64).map(as_usize);
    let delay = value_types::duration(Duration::from_millis(1)..=Duration::from_secs(10), "500ms");
    let delay = table.read_or("reorder_delay", &delay, default.max_hold);
    let adaptive = hold == Hold::Adaptive;
    let limits = reorder::ReorderLimits { window: window.value, max_hold: delay.value, adaptive };
    (hold != Hold::Off).then_some(limits)
}

fn probe(table: &mut Reader<'_, '_, '_>, wire: &WireSettings) -> Option<ProbeConfig> {
    let (default, hour) = (ProbeConfig::default(), Duration::from_secs(3_600));
    let idle = value_types::duration(Duration::from_secs(1)..=hour, "10s").or_off();
    let idle = table.read_or("keepalive", &idle, Some(default.idle));
    if idle.is_none() && wire.is(Mode::Native) {
        let hint = "keepalive = \"1h\" is the maximum: native mode monitors paths by probes".to_owned();
        table.log.error(idle.line, "keepalive: \"off\" has no meaning in native mode".to_owned(), Some(hint));
    }
    let dead =
        table.read_or("dead", &value_types::duration(Duration::from_millis(50)..=hour, "500ms"), default.dead).value;
    idle.value.map(|idle| ProbeConfig { idle, dead })
}

/// Reads the peers. One is required, unless peers may be added later: as files in a folder, by a source, or by
/// request.
fn peers(top: &mut Reader<'_, '_, '_>, wire: &WireSettings, creates: bool) -> Vec<Peer> {
    let folder = top.read("include", &value_types::folder("peers.d"));
    if top.is_absent_or_empty("peer") && !creates && folder.is_none() && !top.has("peer_source") {
        top.missing("there is no peer", "add [[peer]] and below it [[peer.path]]".to_owned());
    }
    let several = top.count("peer") > 1 || folder.is_some() || top.has("peer_source");
    let mut names = NameGenerator::after(defaults::PEER);
    let peers = top.tables("peer", "peer", |table| {
        let name = names.next(table);
        peer(table, wire, name, several)
    });
    let included = folder
        .map_or_else(Vec::new, |folder| include::peers(&folder, &|table, name| peer(table, wire, name, true), top.log));
    peers.into_iter().flatten().chain(included).collect()
}

/// Reads a peer, named `name` by default; as one of `several` it must have networks. One with several servers becomes
/// a peer for each.
pub(super) fn peer(table: &mut Reader<'_, '_, '_>, wire: &WireSettings, name: String, several: bool) -> Vec<Peer> {
    let port = table.read_or("port", &value_types::port(), defaults::PORT);
    let name = table.read_or("name", &value_types::name("office"), name);
    let has_servers = table.has("server") && !wire.is(Mode::Plain);
    let servers = match has_servers {
        true => servers::read(table, port.value, |table| protocol(table, wire)),
        false => Vec::new(),
    };
    let protocol = match has_servers {
        true => servers.first().map(|server| server.protocol.clone()),
        false => protocol(table, wire),
    };
    let original = original::peer(table, &name, wire.is(Mode::Native));
    let local_networks = table.list("local_networks", &value_types::network("10.81.0.0/16"));
    let local_port = table.read("local_port", &value_types::port()).unwrap_or(wire.port);
    let (auto, pairs) = match wire.is(Mode::Plain) {
        true => (None, defaults::PAIRS),
        false if has_servers => (Some(native::interfaces(table)), native::pairs(table)),
        false => (native::auto(table, port.value), native::pairs(table)),
    };
    let servers_key = if wire.is(Mode::Plain) { None } else { servers::key(table, has_servers) };
    let standby = if wire.is(Mode::Plain) { 0 } else { servers::standby(table, has_servers) };
    let (networks, resequence) =
        (networks(table, wire, several), resequence(table, wire.resequence, wire.is(Mode::Native)));
    let paths = paths(table, &PeerContext { wire, port: port.value, original: original.as_ref() });
    let Some(protocol) = protocol else { return Vec::new() };
    let peer = Peer {
        name,
        server: None,
        servers_key,
        protocol,
        networks,
        local_networks,
        local_port,
        resequence,
        original,
        paths,
        auto,
        pairs,
    };
    if has_servers { servers::expand(table, &peer, servers, standby) } else { vec![peer] }
}

fn protocol(table: &mut Reader<'_, '_, '_>, wire: &WireSettings) -> Option<At<Protocol>> {
    if wire.is(Mode::Plain) {
        native::refuse(table, &native::PEER);
        let framing = table.table("plain", "plain", |table| framing(table, wire.framing)).unwrap_or(wire.framing);
        return Some(table.at(Protocol::Plain(framing)));
    }
    native::protocol(table, (wire.congestion, wire.fec), wire.is(Mode::Native))
}

fn networks(table: &mut Reader<'_, '_, '_>, wire: &WireSettings, several: bool) -> Vec<At<IpNet>> {
    let network = value_types::network("10.77.0.2/32");
    let is_incoming =
        table.is_absent_or_empty("path") && !table.has("remote") && !table.has("interfaces") && !table.has("server");
    if wire.is(Mode::Native) && is_incoming && !table.has("networks") {
        let hint = "add remote = \"203.0.113.7\", its address; or, for a peer that connects to this host, networks = [\"10.77.0.2/32\"]";
        table.missing("this peer has neither a path nor networks", hint.to_owned());
    }
    match several && !is_incoming {
        true => table.require_list("networks", &network),
        false if table.has("networks") => table.list("networks", &network),
        false => defaults::networks().map(|net| table.at(net)).to_vec(),
    }
}

/// The values that a path inherits from its peer.
struct PeerContext<'p> {
    wire: &'p WireSettings,
    port: u16,
    original: Option<&'p OriginalPeer>,
}

fn paths(table: &mut Reader<'_, '_, '_>, peer: &PeerContext<'_>) -> Vec<Path> {
    if table.is_absent_or_empty("path") && peer.wire.is(Mode::Plain) {
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

fn path(table: &mut Reader<'_, '_, '_>, peer: &PeerContext<'_>, number: usize) -> Option<Path> {
    let PeerContext { wire, port, .. } = *peer;
    let name = table.read("name", &value_types::name("dsl"));
    let interface = table.read("interface", &value_types::interface("eth1"));
    let local = table.read("local", &value_types::host("192.168.10.1"));
    let tls = if wire.is(Mode::Plain) { None } else { tls::server(table) };
    // A peer that connects to us has no configured address; its path is identified by the local address or interface.
    let learned = wire.is(Mode::Native) && !table.has("remote") && (table.has("interface") || table.has("local"));
    let learned = learned || wire.is(Mode::Native) && table.has("tls");
    let remote = value_types::remote("192.168.10.2");
    let remote = if learned { table.read("remote", &remote) } else { table.require("remote", &remote) };
    let weight = table.read_or("weight", &value_types::integer("a share", 1..=10_000, 10), u64::from(defaults::WEIGHT));
    let UsageLimits { cap, role, limit } = usage(table, wire);
    let gateway = table.read("gateway", &value_types::host("192.168.10.254"));
    if let (Some(gateway), true, false) = (&gateway, learned, table.has("remote")) {
        let hint = "add the remote to which it is the next router, or leave gateway out".to_owned();
        table.log.error(gateway.line, "gateway: this path has no remote".to_owned(), Some(hint));
    }
    let (original, liveness, alive) = original::path(table, peer.original);
    if remote.is_none() && !learned {
        return None;
    }
    let unnamed = || match (&tls, &interface) {
        (Some(_), _) => table.at(defaults::TLS_PATH.to_owned()),
        (None, Some(interface)) => interface.clone(),
        (None, None) => table.at(format!("{}{number}", defaults::PATH)),
    };
    Some(Path {
        name: name.unwrap_or_else(unnamed),
        remote: remote.map(|remote| remote.map(|(ip, own)| SocketAddr::new(ip, own.unwrap_or(port)))),
        weight: as_u32(weight.value),
        tls,
        interface,
        local,
        cap,
        role,
        limit,
        gateway,
        liveness,
        alive,
        original,
    })
}

fn usage(table: &mut Reader<'_, '_, '_>, wire: &WireSettings) -> UsageLimits {
    if wire.is(Mode::Plain) {
        native::refuse(table, &native::PATH);
        return UsageLimits::default();
    }
    UsageLimits::read(table)
}
