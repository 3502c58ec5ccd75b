//! The routes that a tunnel needs: into it for the networks behind peers, and around it for its own datagrams.
//!
//! Routes into the tunnel hang on the TUN device, which the kernel removes with this process. Those around it are on other
//! interfaces, so they are removed when this is dropped; a process that is killed leaves them behind, as the original MPT
//! does, and replaces them when it comes back, or `mpt down` removes them. A kill switch is lifted by an orderly end alone.
//!
//! The whole Internet (0.0.0.0/0, ::/0) is led into a tunnel of native mode by rules: see [`super::policy`]. In plain mode it
//! is led there as two halves, which win over the default route without replacing it; a path that is bound to an interface
//! goes on using that interface's default route, and the remote addresses of others get routes of their own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use mpt_linux::Error;
use mpt_linux::netlink::{Change, MAIN_TABLE, Netlink, Prefix, Route};
use mpt_proto::path::MAX_PATHS;
use nix::libc;

use super::policy_routing::{PolicyRouting, routes_everything};
use crate::config::File;
use crate::config::model::{At, Path, Peer};
use crate::control::RunDir;

/// What has been set.
#[derive(Debug)]
pub struct Routes {
    tun: u32,
    interface: String,
    policy: PolicyRouting,
    tunnel_routes: Vec<Route>,
    bypasses: Vec<(BypassKey, Route)>,
    /// There was no way for a path that needs a route of its own, or something could not be set.
    incomplete: bool,
    /// A kill switch is to hold beyond the end: that of the file, or one that a run before this has left.
    keep_kill_switch: bool,
}

/// What of a path says how its datagrams stay out of the tunnel. Those to one remote address differ in their metric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BypassKey {
    remote: IpAddr,
    interface: Option<String>,
    gateway: Option<IpAddr>,
}

impl Routes {
    /// Nothing yet, for the TUN device of this index and name.
    pub fn new(tun: u32, interface: &str) -> Self {
        let policy = PolicyRouting::of(interface);
        let interface = interface.to_owned();
        Self {
            tun,
            interface,
            policy,
            tunnel_routes: Vec::new(),
            bypasses: Vec::new(),
            incomplete: false,
            keep_kill_switch: true,
        }
    }

    /// Sets what a configuration needs, that included which the kernel took away, and removes what it does not.
    ///
    /// # Errors
    /// When a route into the tunnel cannot be set; the others are. One around it may be missing: the path is then down, and
    /// others are not.
    pub fn apply(&mut self, file: &File, netlink: &mut Netlink) -> Result<(), Error> {
        self.incomplete = true;
        let lacks = self.apply_bypasses(file, netlink)?;
        self.keep_kill_switch = *file.kill_switch;
        self.policy.apply(file, self.tun, netlink)?;
        let wanted: Vec<_> = file.routes.iter().flat_map(|net| self.routes_into(file, net)).collect();
        for route in self.tunnel_routes.extract_if(.., |route| !wanted.contains(route)) {
            netlink.remove_route(&route)?;
        }
        let mut failed = Ok(());
        for route in wanted {
            let is_ours = self.tunnel_routes.contains(&route);
            match netlink.add_route(&route) {
                Ok(_) if is_ours => {}
                Ok(Change::Applied) => self.tunnel_routes.push(route),
                Ok(Change::Unchanged) => {
                    tracing::warn!(net = %route.to, "there is a route to this network already; it stays as it is");
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        self.incomplete = lacks || failed.is_err();
        failed
    }

    fn routes_into(&self, file: &File, net: &IpNet) -> Vec<Route> {
        let route = |net: &IpNet| Route {
            to: Prefix { address: net.network(), length: net.prefix_len() },
            via: None,
            device: self.tun,
            table: MAIN_TABLE,
            metric: 0,
            source: source_for(file, net),
        };
        match net.prefix_len() {
            0 if routes_everything(file, net.addr().is_ipv6()) => Vec::new(),
            0 => net.subnets(1).into_iter().flatten().map(|half| route(&half)).collect(),
            _ => vec![route(net)],
        }
    }

    /// Sets again what the kernel took away with an interface that was down. A route by one that is gone is none.
    pub fn restore(&mut self, netlink: &mut Netlink) {
        let is_gone = |error: Error| error.errno() == Some(libc::ENODEV);
        let gone = self.bypasses.extract_if(.., |(_, route)| netlink.add_route(route).is_err_and(is_gone)).count();
        self.incomplete |= gone > 0;
    }

    /// Whether a path has no route of its own that needs one, or the last attempt to settle has failed.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// The end is an orderly one.
    pub fn on_shutdown(&mut self) {
        self.keep_kill_switch = false;
    }

    /// Whether a path has no route of its own that needs one.
    fn apply_bypasses(&mut self, file: &File, netlink: &mut Netlink) -> Result<bool, Error> {
        let wanted: BTreeSet<_> = bypass_keys(file).collect();
        for (_, route) in self.bypasses.extract_if(.., |(bypass, _)| !wanted.contains(bypass)) {
            remove_or_warn(&route, netlink);
        }
        self.restore(netlink);
        let has_one = |bypass: &BypassKey| self.bypasses.iter().any(|(known, _)| known == bypass);
        let missing: Vec<_> = wanted.into_iter().filter(|bypass| !has_one(bypass)).collect();
        if !missing.is_empty() {
            // While the whole Internet is led into the tunnel, that is the way to any peer.
            for half in self.tunnel_routes.extract_if(.., |route| route.to.length == 1) {
                netlink.remove_route(&half)?;
            }
        }
        let mut lacks = false;
        for bypass in missing {
            let (remote, gateway) = (bypass.remote, bypass.gateway);
            match self.add_bypass(bypass, netlink) {
                Ok(set) => lacks |= !set,
                Err(error) => {
                    lacks = true;
                    tracing::warn!(%remote, ?gateway, %error, "no route of its own");
                }
            }
        }
        Ok(lacks)
    }

    /// Whether there is a way. Its route gets the lowest metric that nobody else's route to this address has.
    fn add_bypass(&mut self, bypass: BypassKey, netlink: &mut Netlink) -> Result<bool, Error> {
        let Some(way) = bypass_route(&bypass, netlink)? else { return Ok(false) };
        let is_own =
            |route: &Route| self.bypasses.iter().any(|(_, own)| own.to == route.to && own.metric == route.metric);
        let all = (way.metric..).map(|metric| Route { metric, ..way }).filter(|route| !is_own(route));
        for route in all.take(MAX_PATHS) {
            if self.add_or_replace(&route, netlink)? == Change::Applied {
                self.bypasses.push((bypass, route));
                break;
            }
        }
        Ok(true)
    }

    /// Adds a route, in place of one that a killed process has left on the same link. A tunnel that runs may have set it, too, and
    /// to remove one without a metric is to remove any.
    fn add_or_replace(&self, route: &Route, netlink: &mut Netlink) -> Result<Change, Error> {
        let change = netlink.add_route(route)?;
        let is_beside = |own: &Route| own.to == route.to && own.device == route.device;
        let is_left_over = || is_only_tunnel(&self.interface, &RunDir::from_env());
        if change == Change::Applied || self.bypasses.iter().any(|(_, own)| is_beside(own)) || !is_left_over() {
            return Ok(change);
        }
        match netlink.remove_stale_route(route)? {
            Change::Applied => netlink.add_route(route),
            Change::Unchanged => Ok(change),
        }
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        let Ok(mut netlink) = Netlink::open() else { return };
        self.bypasses.iter().for_each(|(_, route)| remove_or_warn(route, &mut netlink));
        if self.keep_kill_switch {
            return;
        }
        if let Err(error) = self.policy.clear(&mut netlink) {
            tracing::warn!(%error, "rules are left behind");
        }
    }
}

/// The routes around tunnels that processes which were killed have left. There are none as long as another tunnel runs that may need
/// them.
///
/// # Errors
/// What the kernel refused.
pub fn stale_bypasses(interface: &str, run: &RunDir, netlink: &mut Netlink) -> Result<Vec<Route>, Error> {
    if !is_only_tunnel(interface, run) {
        return Ok(Vec::new());
    }
    let is_to_a_host = |route: &Route| route.to.length == host_length(route.to.address);
    Ok(netlink.stale_routes()?.into_iter().filter(is_to_a_host).collect())
}

/// Removes them; whether there were any.
///
/// # Errors
/// What the kernel refused.
pub fn clean(interface: &str, run: &RunDir, netlink: &mut Netlink) -> Result<bool, Error> {
    let stale = stale_bypasses(interface, run, netlink)?;
    stale.iter().try_for_each(|route| netlink.remove_stale_route(route).map(drop))?;
    Ok(!stale.is_empty())
}

fn is_only_tunnel(interface: &str, run: &RunDir) -> bool {
    run.running().iter().all(|name| *name == interface)
}

fn remove_or_warn(route: &Route, netlink: &mut Netlink) {
    if let Err(error) = netlink.remove_route(route) {
        tracing::warn!(%error, "a route is left behind");
    }
}

/// The detours that the paths of a file need.
fn bypass_keys(file: &File) -> impl Iterator<Item = BypassKey> {
    let paths = file.peers.iter().flat_map(|peer| &peer.paths).filter(|path| needs_bypass(file, path));
    paths.filter_map(|path| {
        let interface = path.interface.as_deref().cloned();
        Some(BypassKey { remote: path.remote_ip()?, interface, gateway: gateway(path) })
    })
}

/// A gateway is named, or everything is led into the tunnel and no interface keeps the path out of it.
fn needs_bypass(file: &File, path: &Path) -> bool {
    let of_family = |net: &IpNet| path.remote_ip().is_some_and(|remote| remote.is_ipv4() == net.addr().is_ipv4());
    let by_halves = |net: &IpNet| !routes_everything(file, net.addr().is_ipv6());
    let everything = |net: &At<IpNet>| net.prefix_len() == 0 && of_family(net) && by_halves(net);
    gateway(path).is_some() || path.interface.is_none() && file.routes.iter().any(everything)
}

/// The gateway, unless it is one of the path's ends: files of the original name those where there is no gateway.
fn gateway(path: &Path) -> Option<IpAddr> {
    let ends = [path.remote_ip(), path.local.as_deref().copied()];
    path.gateway.as_deref().copied().filter(|gateway| !ends.contains(&Some(*gateway)))
}

/// The way that a path's datagrams take while nothing is led into the tunnel; none when there is no way.
fn bypass_route(bypass: &BypassKey, netlink: &mut Netlink) -> Result<Option<Route>, Error> {
    let remote = bypass.remote;
    let device = match &bypass.interface {
        Some(name) => netlink.link(name)?.map(|link| link.index),
        None => None,
    };
    let Some(hop) = netlink.route_to(bypass.gateway.unwrap_or(remote), device)? else { return Ok(None) };
    let metric = if remote.is_ipv4() { 0 } else { DEFAULT_METRIC_V6 };
    let (to, via) = (Prefix { address: remote, length: host_length(remote) }, bypass.gateway.or(hop.gateway));
    Ok(Some(Route { to, via, device: hop.device, table: MAIN_TABLE, metric, source: None }))
}

/// The length of the prefix that is this address alone.
fn host_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// What the kernel gives an IPv6 route without a metric (`IP6_RT_PRIO_USER`).
const DEFAULT_METRIC_V6: u32 = 1024;

/// The routes of a file whose peers have changed, less those that only a peer which is gone needed.
pub fn routes_without(file: &File, gone: &Peer) -> Vec<At<IpNet>> {
    let needed = |route: &&At<IpNet>| serves(file, route, &file.peers) || !serves(file, route, [gone]);
    file.routes.iter().filter(needed).copied().collect()
}

/// Whether a network of these peers is reached by this very route, and not by a narrower one or by the tunnel's own address.
pub fn serves<'a>(file: &File, route: &IpNet, peers: impl IntoIterator<Item = &'a Peer>) -> bool {
    let is_narrower = |other: &IpNet| other.prefix_len() > route.prefix_len();
    let narrower = || file.routes.iter().chain(&file.addresses).filter(|other| is_narrower(other));
    let by_it = |net: &At<IpNet>| route.contains(&**net) && !narrower().any(|other| other.contains(&**net));
    peers.into_iter().flat_map(|peer| &peer.networks).any(by_it)
}

/// Our own address of the route's family, so that packets of this host carry one that the peer accepts.
pub fn source_for(file: &File, net: &IpNet) -> Option<IpAddr> {
    file.addresses.iter().map(|address| address.addr()).find(|address| address.is_ipv4() == net.addr().is_ipv4())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "mode = \"plain\"\naddress = [\"10.77.0.1/24\"]\nroutes = [\"0.0.0.0/0\", \"10.80.0.0/16\", \"10.84.0.0/24\"]\n";

    fn file(peers: &[(u8, &str)]) -> File {
        let peer = |(number, networks): &(u8, &str)| {
            format!("[[peer]]\nnetworks = [{networks}]\n[[peer.path]]\nremote = \"192.168.10.{number}\"\n")
        };
        let peers: String = peers.iter().map(peer).collect();
        crate::config::parse(std::path::Path::new("a.toml"), &(FILE.to_owned() + &peers)).unwrap()
    }

    fn left(of: &[(u8, &str)], gone: (u8, &str)) -> Vec<String> {
        let gone = file(&[gone]).peers.remove(0);
        routes_without(&file(of), &gone).iter().map(|net| net.to_string()).collect()
    }

    #[test]
    fn a_route_goes_with_the_last_peer_behind_it() {
        let near = (2, r#""10.77.0.2/32""#);
        let everything = (3, r#""0.0.0.0/0", "10.84.0.0/24""#);
        assert_eq!(left(&[near], everything), ["10.80.0.0/16"], "the tunnel's own address leads to the other peer");
        assert_eq!(left(&[near, everything], (4, r#""10.84.0.0/24""#)), ["0.0.0.0/0", "10.80.0.0/16", "10.84.0.0/24"]);
        let part = (5, r#""10.80.1.0/24""#);
        assert_eq!(left(&[near], part), ["0.0.0.0/0", "10.84.0.0/24"]);
        assert_eq!(left(&[(6, r#""10.80.2.0/24""#)], part), ["0.0.0.0/0", "10.80.0.0/16", "10.84.0.0/24"]);
    }
}
