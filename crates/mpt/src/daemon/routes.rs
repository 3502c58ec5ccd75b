//! The routes of a tunnel: into it for the networks behind peers, and host routes that bypass it for its own datagrams.
//!
//! The kernel removes routes into the tunnel with the TUN device when this process ends. Bypass routes are on other
//! interfaces, so they are removed on drop; a killed process leaves them behind, as the original MPT does, and replaces
//! them at the next start, or `mpt down` removes them. Only a clean shutdown lifts the kill switch.
//!
//! In native mode rules route the whole Internet (0.0.0.0/0, ::/0) into the tunnel: see [`super::policy_routing`]. In
//! plain mode two half-size routes do, which take precedence over the default route without replacing it. A path that
//! is bound to an interface continues to use its default route, and the remote addresses of other paths get bypass
//! routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use mpt_linux::Error;
use mpt_linux::netlink::{Change, MAIN_TABLE, Netlink, Prefix, Route};
use mpt_proto::path::MAX_PATHS;
use nix::libc;

use super::bypass;
use super::bypass_rules::BypassRules;
use super::kill_switch::KillSwitch;
use super::policy_routing::{PolicyRouting, routes_everything, source_for};
use super::port_forward;
use crate::Failure;
use crate::config::File;
use crate::config::model::{At, Path, Peer};
use crate::control::RunDir;

/// The installed routes.
#[derive(Debug)]
pub struct Routes {
    tun: u32,
    interface: String,
    policy: PolicyRouting,
    kill_switch: KillSwitch,
    bypass_rules: BypassRules,
    tunnel_routes: Vec<Route>,
    /// Networks of peers that carry less than the TUN device's MTU.
    narrow: Vec<(IpNet, u32)>,
    bypasses: Vec<(BypassKey, Route)>,
    /// A path lacks its bypass route, or a route could not be added.
    incomplete: bool,
    /// Default routes and kill switch are suspended.
    is_suspended: bool,
    /// Rules and kill switch stay active after the end: those of the file, or those that an earlier process left.
    keep_kill_switch: bool,
    /// Bypass routes stay after the end, too, for the next process.
    keep_bypasses: bool,
}

/// The parameters of a path's bypass route. Several routes to one remote address differ in their metric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BypassKey {
    remote: IpAddr,
    interface: Option<String>,
    gateway: Option<IpAddr>,
}

impl Routes {
    /// Makes the set for the TUN device with this index and name: those that a process before has installed, or none.
    pub fn new(tun: u32, interface: &str, earlier: &[Route]) -> Self {
        let policy = PolicyRouting::of(interface);
        let (kill_switch, bypass_rules) = (KillSwitch::of(interface), BypassRules::of(interface));
        let interface = interface.to_owned();
        Self {
            tun,
            interface,
            policy,
            kill_switch,
            bypass_rules,
            tunnel_routes: earlier.iter().filter(|route| route.table == MAIN_TABLE).map(normal).collect(),
            narrow: Vec::new(),
            bypasses: Vec::new(),
            incomplete: false,
            is_suspended: false,
            keep_kill_switch: true,
            keep_bypasses: false,
        }
    }

    /// Suspends default routes and kill switch, or ends that; [`Self::apply`] is to follow.
    pub fn set_suspended(&mut self, is_suspended: bool) {
        self.is_suspended = is_suspended;
    }

    /// Adds all routes that a configuration needs, including those that the kernel removed, and removes others.
    ///
    /// # Errors
    /// A route into the tunnel could not be added; the others are. A bypass route may be missing without an error: only
    /// its path is down then.
    pub fn apply(&mut self, file: &File, netlink: &mut Netlink) -> Result<(), Failure> {
        self.bypass_rules.apply(file)?;
        let reduced = self.is_suspended.then(|| bypass::without_default_routes(file));
        let file = reduced.as_ref().unwrap_or(file);
        self.incomplete = true;
        let incomplete = self.apply_bypasses(file, netlink)?;
        self.kill_switch.apply(file, netlink)?;
        self.keep_kill_switch = *file.kill_switch;
        self.policy.apply(file, self.tun, netlink)?;
        let wanted: Vec<_> = self.networks(file).flat_map(|net| self.routes_into(file, net)).collect();
        let is_wanted = |route: &Route| wanted.iter().any(|wanted| Route { mtu: route.mtu, ..*wanted } == *route);
        for route in self.tunnel_routes.extract_if(.., |route| !is_wanted(route)) {
            netlink.remove_route(&route)?;
        }
        let mut failed = Ok(());
        for route in wanted {
            if let Some(own) = self.tunnel_routes.iter_mut().find(|own| own.to == route.to && own.mtu != route.mtu) {
                netlink.replace_route(&route)?;
                *own = route;
            }
            let is_ours = self.tunnel_routes.contains(&route);
            match netlink.add_route(&route) {
                Ok(_) if is_ours => {}
                Ok(Change::Applied) => self.tunnel_routes.push(route),
                Ok(Change::Unchanged) => {
                    tracing::warn!(net = %route.to, "a route to this network exists already and is kept");
                }
                Err(error) => failed = failed.and(Err(error.into())),
            }
        }
        self.incomplete = incomplete || failed.is_err();
        failed
    }

    /// Sets the networks of peers that carry less than the TUN device's MTU. [`Self::apply`] is to follow.
    pub fn set_narrow(&mut self, narrow: Vec<(IpNet, u32)>) {
        self.narrow = narrow;
    }

    /// Returns the networks with a route of their own: those of the file, and parts of them with another MTU.
    fn networks<'a>(&'a self, file: &'a File) -> impl Iterator<Item = &'a IpNet> {
        let more = self.narrow.iter().map(|(net, _)| net);
        let more = more.filter(|net| file.routes.iter().all(|route| **route != **net));
        file.routes.iter().map(|net| &**net).chain(more)
    }

    fn routes_into(&self, file: &File, net: &IpNet) -> Vec<Route> {
        let route = |net: &IpNet| Route {
            to: Prefix { address: net.network(), length: net.prefix_len() },
            via: None,
            device: self.tun,
            table: MAIN_TABLE,
            metric: 0,
            source: source_for(file, net),
            mtu: self.narrow.iter().find(|(narrow, _)| narrow == net).map(|(_, mtu)| *mtu),
        };
        match net.prefix_len() {
            0 if routes_everything(file, net.addr().is_ipv6()) => Vec::new(),
            0 => net.subnets(1).into_iter().flatten().map(|half| route(&half)).collect(),
            _ => vec![route(net)],
        }
    }

    /// Adds the routes again that the kernel removed when an interface went down. Forgets those of removed interfaces.
    pub fn restore(&mut self, netlink: &mut Netlink) {
        let is_gone = |error: Error| error.errno() == Some(libc::ENODEV);
        let gone = self.bypasses.extract_if(.., |(_, route)| netlink.add_route(route).is_err_and(is_gone)).count();
        self.incomplete |= gone > 0;
    }

    /// Updates the kill switch when the networks of the interfaces have changed.
    ///
    /// # Errors
    /// The system refused a change. The earlier kill switch stays.
    pub fn sync_kill_switch(&mut self, file: &File, netlink: &mut Netlink) -> Result<(), Failure> {
        match self.is_suspended {
            true => Ok(()),
            false => self.kill_switch.apply(file, netlink),
        }
    }

    /// Restores rules and routes of the whole Internet that another program deleted. Returns true if any was missing.
    ///
    /// # Errors
    /// The kernel refused a change.
    pub fn restore_policy(&mut self, file: &File, netlink: &mut Netlink) -> Result<bool, Error> {
        let leads = [false, true].into_iter().any(|ipv6| routes_everything(file, ipv6));
        let leads = !self.is_suspended && (leads || port_forward::answer_mark(file).is_some());
        Ok(leads && self.policy.apply(file, self.tun, netlink)?)
    }

    /// Restores the other routes into the tunnel. Returns true if any was missing.
    ///
    /// # Errors
    /// The kernel refused a change.
    pub fn restore_tunnel_routes(&self, netlink: &mut Netlink) -> Result<bool, Error> {
        let mut restored = false;
        for route in &self.tunnel_routes {
            restored |= netlink.add_route(route)? == Change::Applied;
        }
        Ok(restored)
    }

    /// Returns the kill switch.
    pub fn kill_switch(&mut self) -> &mut KillSwitch {
        &mut self.kill_switch
    }

    /// Returns the rules for traffic beside the tunnel.
    pub fn bypass_rules(&mut self) -> &mut BypassRules {
        &mut self.bypass_rules
    }

    /// Returns true if a path lacks its bypass route, or the last attempt to apply has failed.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// Lifts the kill switch at the end, because the shutdown is clean; or leaves everything to the next process.
    pub fn on_shutdown(&mut self, restarts: bool) {
        (self.keep_kill_switch, self.keep_bypasses) = (restarts, restarts);
    }

    /// Returns true if a path lacks its bypass route.
    fn apply_bypasses(&mut self, file: &File, netlink: &mut Netlink) -> Result<bool, Error> {
        let own: Vec<_> = netlink.all_addresses()?.into_iter().map(|(_, prefix)| prefix.address).collect();
        let wanted: BTreeSet<_> = bypass_keys(file, &own).collect();
        for (_, route) in self.bypasses.extract_if(.., |(bypass, _)| !wanted.contains(bypass)) {
            remove_or_warn(&route, netlink);
        }
        self.restore(netlink);
        let is_installed = |bypass: &BypassKey| self.bypasses.iter().any(|(known, _)| known == bypass);
        let missing: Vec<_> = wanted.into_iter().filter(|bypass| !is_installed(bypass)).collect();
        if !missing.is_empty() {
            // While the tunnel has the default route, a lookup would return the tunnel for any peer.
            for half in self.tunnel_routes.extract_if(.., |route| route.to.length == 1) {
                netlink.remove_route(&half)?;
            }
        }
        let mut incomplete = false;
        for bypass in missing {
            let (remote, gateway) = (bypass.remote, bypass.gateway);
            match self.add_bypass(bypass, netlink) {
                Ok(added) => incomplete |= !added,
                Err(error) => {
                    incomplete = true;
                    tracing::warn!(%remote, ?gateway, %error, "cannot add a bypass route");
                }
            }
        }
        Ok(incomplete)
    }

    /// Returns true if the remote address is reachable. The bypass gets the lowest metric that no foreign route to this
    /// address has.
    fn add_bypass(&mut self, bypass: BypassKey, netlink: &mut Netlink) -> Result<bool, Error> {
        let Some(found) = bypass_route(&bypass, netlink)? else { return Ok(false) };
        let is_own =
            |route: &Route| self.bypasses.iter().any(|(_, own)| own.to == route.to && own.metric == route.metric);
        let all = (found.metric..).map(|metric| Route { metric, ..found }).filter(|route| !is_own(route));
        for route in all.take(MAX_PATHS) {
            if self.add_or_replace(&route, netlink)? == Change::Applied {
                self.bypasses.push((bypass, route));
                break;
            }
        }
        Ok(true)
    }

    /// Adds a route, and replaces one that a killed process left on the same link. Keeps it if another tunnel is
    /// running, which may own it, and if we have a route beside it: removing a route without a metric removes any.
    fn add_or_replace(&self, route: &Route, netlink: &mut Netlink) -> Result<Change, Error> {
        let change = netlink.add_route(route)?;
        let is_same_target = |own: &Route| own.to == route.to && own.device == route.device;
        let is_left_over = || is_only_tunnel(&self.interface, &RunDir::from_env());
        if change == Change::Applied || self.bypasses.iter().any(|(_, own)| is_same_target(own)) || !is_left_over() {
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
        if !self.keep_bypasses {
            self.bypasses.iter().for_each(|(_, route)| remove_or_warn(route, &mut netlink));
        }
        if self.keep_kill_switch {
            return;
        }
        if let Err(error) = self.policy.clear(&mut netlink) {
            tracing::warn!(%error, "cannot remove the policy routing rules");
        }
        if let Err(failure) = self.kill_switch.clear() {
            tracing::warn!(%failure, "cannot remove the kill switch");
        }
        if let Err(failure) = self.bypass_rules.clear() {
            tracing::warn!(%failure, "cannot remove the rules for traffic beside the tunnel");
        }
    }
}

/// Returns the bypass routes that killed processes left. Empty if another tunnel is running, which may need them.
///
/// # Errors
/// The kernel refused the query.
pub fn stale_bypasses(interface: &str, run: &RunDir, netlink: &mut Netlink) -> Result<Vec<Route>, Error> {
    if !is_only_tunnel(interface, run) {
        return Ok(Vec::new());
    }
    let is_to_a_host = |route: &Route| route.to.length == host_length(route.to.address);
    Ok(netlink.stale_routes()?.into_iter().filter(is_to_a_host).collect())
}

/// Removes the stale bypass routes. Returns true if there were any.
///
/// # Errors
/// The kernel refused a change.
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
        tracing::warn!(%error, "cannot remove a route");
    }
}

/// Returns the bypasses that the paths of a file need. `own` are the addresses of this host.
fn bypass_keys(file: &File, own: &[IpAddr]) -> impl Iterator<Item = BypassKey> {
    let paths = file.peers.iter().flat_map(|peer| &peer.paths).filter(|path| needs_bypass(file, path, own));
    paths.filter_map(|path| {
        let interface = path.interface.as_deref().cloned();
        Some(BypassKey { remote: path.remote_ip()?, interface, gateway: gateway(path, own) })
    })
}

/// A path needs a bypass if it has a gateway, or if it has no interface and the tunnel has the default route.
fn needs_bypass(file: &File, path: &Path, own: &[IpAddr]) -> bool {
    let of_family = |net: &IpNet| path.remote_ip().is_some_and(|remote| remote.is_ipv4() == net.addr().is_ipv4());
    let by_halves = |net: &IpNet| !routes_everything(file, net.addr().is_ipv6());
    let everything = |net: &At<IpNet>| net.prefix_len() == 0 && of_family(net) && by_halves(net);
    gateway(path, own).is_some() || path.interface.is_none() && file.routes.iter().any(everything)
}

/// Returns the gateway, unless it is an end of the path or another address of this host: files of the original use that
/// for "no gateway". An address that is not configured yet is known as an end.
fn gateway(path: &Path, own: &[IpAddr]) -> Option<IpAddr> {
    let ends = [path.remote_ip(), path.local.as_deref().copied()];
    let gateway = path.gateway.as_deref().copied();
    gateway.filter(|gateway| !ends.contains(&Some(*gateway)) && !own.contains(gateway))
}

/// Looks up the route of a path's datagrams outside the tunnel; `None` if there is none.
fn bypass_route(bypass: &BypassKey, netlink: &mut Netlink) -> Result<Option<Route>, Error> {
    let remote = bypass.remote;
    let device = match &bypass.interface {
        Some(name) => netlink.link(name)?.map(|link| link.index),
        None => None,
    };
    let Some(hop) = netlink.route_to(bypass.gateway.unwrap_or(remote), device)? else { return Ok(None) };
    let metric = if remote.is_ipv4() { 0 } else { DEFAULT_METRIC_V6 };
    let (to, via) = (Prefix { address: remote, length: host_length(remote) }, bypass.gateway.or(hop.gateway));
    Ok(Some(Route { to, via, device: hop.device, table: MAIN_TABLE, metric, source: None, mtu: None }))
}

/// Returns a route as it was requested: the kernel reports the default metric of IPv6 as a number.
fn normal(route: &Route) -> Route {
    let is_default = route.to.address.is_ipv6() && route.metric == DEFAULT_METRIC_V6;
    Route { metric: if is_default { 0 } else { route.metric }, ..*route }
}

/// Returns the prefix length of a host route.
fn host_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The kernel's default metric for IPv6 routes (`IP6_RT_PRIO_USER`).
const DEFAULT_METRIC_V6: u32 = 1024;

/// Returns the routes of a file after a peer was removed, without those that only this peer needed.
pub fn routes_without(file: &File, gone: &Peer) -> Vec<At<IpNet>> {
    let needed = |route: &&At<IpNet>| serves(file, route, &file.peers) || !serves(file, route, [gone]);
    file.routes.iter().filter(needed).copied().collect()
}

/// Returns true if a network of these peers uses this very route, not a more specific one or the tunnel's own prefix.
pub fn serves<'a>(file: &File, route: &IpNet, peers: impl IntoIterator<Item = &'a Peer>) -> bool {
    let is_narrower = |other: &IpNet| other.prefix_len() > route.prefix_len();
    let narrower = || file.routes.iter().chain(&file.addresses).filter(|other| is_narrower(other));
    let uses_route = |net: &At<IpNet>| route.contains(&**net) && !narrower().any(|other| other.contains(&**net));
    peers.into_iter().flat_map(|peer| &peer.networks).any(uses_route)
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
    fn a_route_is_removed_with_the_last_peer_that_needs_it() {
        let near = (2, r#""10.77.0.2/32""#);
        let everything = (3, r#""0.0.0.0/0", "10.84.0.0/24""#);
        assert_eq!(left(&[near], everything), ["10.80.0.0/16"], "the tunnel's own address leads to the other peer");
        assert_eq!(left(&[near, everything], (4, r#""10.84.0.0/24""#)), ["0.0.0.0/0", "10.80.0.0/16", "10.84.0.0/24"]);
        let part = (5, r#""10.80.1.0/24""#);
        assert_eq!(left(&[near], part), ["0.0.0.0/0", "10.84.0.0/24"]);
        assert_eq!(left(&[(6, r#""10.80.2.0/24""#)], part), ["0.0.0.0/0", "10.80.0.0/16", "10.84.0.0/24"]);
    }
}
