//! Generates the text of the two files.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use mpt_proto::crypto::keys::{KeyPair, PresharedKey};
use zeroize::Zeroizing;

use crate::Failure;
use crate::config::defaults;

/// The contents of the two files.
pub struct Pair {
    /// None in plain mode.
    pub keys: Option<Keys>,
    /// Host A and host B.
    pub hosts: [PairHost; 2],
    /// The networks inside the tunnel.
    pub networks: Vec<IpNet>,
    /// The UDP port of both.
    pub port: u16,
}

/// The keys of the hosts.
pub struct Keys {
    /// Of host A and host B.
    pub pairs: [KeyPair; 2],
    /// The preshared key.
    pub shared: Option<PresharedKey>,
}

/// One of the hosts.
pub struct PairHost {
    /// Its public addresses: one for each path, one for all, or none if it connects to the other host.
    pub addresses: Vec<IpAddr>,
    /// Its interfaces to the other host: one for each path, one for all, or none to use its routes.
    pub interfaces: Vec<String>,
}

impl Pair {
    /// Returns the texts of the files of host A and host B.
    ///
    /// # Errors
    /// Interfaces and addresses do not match, or a network is too small.
    pub fn texts(&self) -> Result<[Zeroizing<String>; 2], Failure> {
        let paths = self.paths()?;
        Ok([self.text(0, paths)?, self.text(1, paths)?])
    }

    /// Returns the number of paths.
    fn paths(&self) -> Result<usize, Failure> {
        let lists = self.hosts.iter().flat_map(|host| [host.addresses.len(), host.interfaces.len()]);
        let max_count = lists.clone().max().unwrap_or_default();
        match lists.into_iter().find(|count| ![0, 1, max_count].contains(count)) {
            Some(count) => {
                Err(Failure::new(format!("the numbers of addresses and interfaces differ: {max_count} and {count}"))
                    .hint("give one address and one interface for each path, or one for all paths"))
            }
            None => Ok(max_count),
        }
    }

    fn text(&self, own: usize, paths: usize) -> Result<Zeroizing<String>, Failure> {
        // Large enough for any file: growing would leave an unwiped copy of the key behind.
        let mut text = Zeroizing::new(String::with_capacity(1_024 + 128 * paths));
        let far = 1 - own;
        match &self.keys {
            Some(keys) => line(&mut text, "private_key", &keys.pairs[own].secret_base64()),
            None => line(&mut text, "mode", "plain"),
        }
        let addresses = self.networks.iter().map(|net| inner(net, own).map(|net| format!("{:?}", net.to_string())));
        put(&mut text, format_args!("address = [{}]\n", addresses.collect::<Result<Vec<_>, _>>()?.join(", ")));
        self.port(&mut text);
        put(&mut text, format_args!("\n[[peer]]\n"));
        if let Some(keys) = &self.keys {
            line(&mut text, "public_key", &keys.pairs[far].public().to_string());
            keys.shared.iter().for_each(|key| line(&mut text, "preshared_key", &key.to_base64()));
        }
        self.port(&mut text);
        match self.hosts[far].addresses.is_empty() {
            true => self.incoming_peer(&mut text, far)?,
            false => (0..paths).for_each(|path| self.path(&mut text, own, path, paths)),
        }
        Ok(text)
    }

    fn port(&self, text: &mut String) {
        if self.port != defaults::PORT {
            put(text, format_args!("port = {}\n", self.port));
        }
    }

    /// Writes the networks, which are required because the far host connects to this one.
    fn incoming_peer(&self, text: &mut String, far: usize) -> Result<(), Failure> {
        let hosts = self.networks.iter().map(|net| {
            let address = inner(net, far)?.addr();
            Ok(format!("{:?}", IpNet::from(address).to_string()))
        });
        put(text, format_args!("networks = [{}]\n", hosts.collect::<Result<Vec<_>, Failure>>()?.join(", ")));
        Ok(())
    }

    fn path(&self, text: &mut String, own: usize, path: usize, paths: usize) {
        let (near, far) = (&self.hosts[own], &self.hosts[1 - own]);
        put(text, format_args!("[[peer.path]]\n"));
        if paths > 1 && near.interfaces.len() == 1 {
            // Otherwise all would be named after the one interface.
            line(text, "name", &format!("{}{}", defaults::PATH, path + 1));
        }
        if let Some(interface) = of_path(&near.interfaces, path) {
            line(text, "interface", interface);
        } else if let Some(local) = near.addresses.get(path).filter(|_| paths > 1 && near.addresses.len() == paths) {
            line(text, "local", &local.to_string());
        }
        let remote = of_path(&far.addresses, path).expect("a host without addresses has no path to it");
        line(text, "remote", &remote.to_string());
    }
}

/// Returns the entry for a path, in a list of one for each or one for all.
fn of_path<T>(list: &[T], path: usize) -> Option<&T> {
    list.get(if list.len() == 1 { 0 } else { path })
}

/// Returns the tunnel address of the host with this number.
fn inner(net: &IpNet, host: usize) -> Result<IpNet, Failure> {
    // The first address of an IPv6 network is the anycast address of its routers (RFC 4291 section 2.6.1).
    let anycast = usize::from(net.addr().is_ipv6() && net.prefix_len() < 127);
    let address = net.hosts().nth(anycast + host).ok_or_else(|| {
        Failure::new(format!("{net} has no room for two hosts")).hint("for example --network 10.77.0.0/24")
    })?;
    Ok(IpNet::new(address, net.prefix_len()).expect("the length was that of a prefix already"))
}

fn line(text: &mut String, key: &str, value: &str) {
    put(text, format_args!("{key} = {value:?}\n"));
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes everything");
}
