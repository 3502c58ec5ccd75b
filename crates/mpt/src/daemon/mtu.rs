//! The MTU of the tunnel: that of the configuration, or less if paths of a peer carry less.
//!
//! A peer that carries less gets routes with an MTU of their own, so that it lowers nobody else's. The kernel then
//! fragments, and reports the MTU to senders. A peer that is reached by a default route of the tunnel has no such
//! route: it lowers the MTU of the TUN device.

use ipnet::IpNet;
use mpt_linux::netlink::Netlink;
use mpt_proto::peer::Peer;

use super::Daemon;
use crate::config::File;
use crate::control::EventKind;

impl Daemon {
    /// Sets the MTUs of the TUN device and of the routes to peers.
    pub(super) fn adapt_mtu(&mut self) {
        let is_applied = |applied: &Vec<_>| self.workers.narrow_peers().eq(applied.iter().copied());
        if self.narrow_peers.as_ref().is_some_and(is_applied) {
            return;
        }
        let narrow: Vec<_> = self.workers.narrow_peers().collect();
        let (mut mtu, mut networks) = (self.workers.mtu(), Vec::new());
        for (index, carried) in &narrow {
            let own = self.workers.peer(*index).map(Peer::networks).unwrap_or_default();
            match has_routes_of_its_own(&self.file, own) {
                true => networks.extend(own.iter().map(|net| (net.trunc(), *carried as u32))),
                false => mtu = mtu.min(*carried),
            }
        }
        self.narrow_peers = Some(narrow);
        self.set_device_mtu(mtu);
        for (net, mtu) in &networks {
            tracing::info!(%net, mtu, "the paths to this network carry less than the tunnel's MTU");
        }
        self.routes.set_narrow(networks);
        let applied =
            Netlink::open().map_err(Into::into).and_then(|mut netlink| self.routes.apply(&self.file, &mut netlink));
        if let Err(failure) = applied {
            tracing::warn!(%failure, "cannot set the MTU of the routes to peers");
        }
    }

    fn set_device_mtu(&mut self, mtu: usize) {
        if mtu == self.tunnel_report.mtu_bytes {
            return;
        }
        let before = std::mem::replace(&mut self.tunnel_report.mtu_bytes, mtu);
        self.publish(EventKind::Mtu { mtu_bytes: mtu });
        let set = Netlink::open().and_then(|mut netlink| netlink.set_mtu(self.workers.tun_index(), mtu as u32));
        match set {
            Ok(()) if mtu < before => {
                tracing::warn!(mtu, before, "tunnel MTU lowered to what every path carries");
            }
            Ok(()) => tracing::info!(mtu, before, "tunnel MTU raised to what every path carries"),
            Err(error) => {
                tracing::warn!(mtu, %error, "a path carries less than the tunnel's MTU, which cannot be changed")
            }
        }
    }
}

/// Returns true if routes to exactly the networks of a peer lead no other traffic into the tunnel than without them:
/// each is, or is part of, a network that the main table leads there.
fn has_routes_of_its_own(file: &File, networks: &[IpNet]) -> bool {
    let led = || file.addresses.iter().chain(&file.routes).filter(|net| net.prefix_len() > 0);
    let is_own = |net: &IpNet| file.addresses.iter().any(|own| own.trunc() == *net);
    networks.iter().map(IpNet::trunc).all(|net| !is_own(&net) && led().any(|led| led.contains(&net)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_peer_inside_the_networks_of_the_tunnel_has_routes_of_its_own() {
        let text = "private_key = \"ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00=\"\naddress = [\"10.77.0.1/24\"]\n\
                    routes = [\"0.0.0.0/0\", \"10.80.0.0/16\"]\n[[peer]]\n\
                    public_key = \"L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=\"\nnetworks = [NETWORKS]\n";
        let own = |networks: &str| {
            let file = crate::config::parse("a.toml".as_ref(), &text.replace("NETWORKS", networks)).unwrap();
            has_routes_of_its_own(&file, &file.peers[0].networks.iter().map(|net| net.value).collect::<Vec<_>>())
        };
        for networks in [r#""10.77.0.2/32""#, r#""10.80.0.0/16""#, r#""10.77.0.2/32", "10.80.5.0/24""#] {
            assert!(own(networks), "{networks}");
        }
        for networks in
            [r#""0.0.0.0/0""#, r#""10.77.0.2/32", "10.90.0.0/16""#, r#""10.77.0.0/24""#, r#""10.64.0.0/10""#]
        {
            assert!(!own(networks), "{networks}");
        }
    }
}
