//! Writes the INI format: for saved files, and for the messages that create a connection.
//!
//! A saved file has every key. (The original leaves out `auth_key`, `cmd_default` and `window_size`, so that a saved
//! and reloaded connection falls back to the public key.) A message has every key but `auth_key`: it is signed, not
//! encrypted, and a receiver that can verify it has the key.
//!
//! A text begins with seven semicolons, because the original does not read the first four characters of a message, and
//! ends with a comment of more than 36 characters, because it cuts 36 off the end of a reply.

use std::fmt::Write;
use std::net::IpAddr;

use super::model::{ConnectionConfig, ConnectionPath, Interface, NetworkPair, Prefix, Public, TunnelInterface};

/// Formats a connection for its file.
pub fn file(connection: &ConnectionConfig) -> String {
    text(connection, true)
}

/// Formats a connection for the peer.
pub fn message(connection: &ConnectionConfig) -> String {
    text(connection, false)
}

/// Formats `interface.conf`.
pub fn interface(interface: &Interface) -> String {
    let mut out = IniWriter(String::new());
    out.section("general");
    out.line("tunnel_num", interface.tunnels.len());
    out.line("accept_remote", u8::from(interface.accept_remote));
    out.line("cmdport_local", interface.cmdport_local);
    out.line("cmd_timeout", interface.cmd_timeout);
    for (number, tunnel) in interface.tunnels.iter().enumerate() {
        out.tunnel(number, tunnel);
    }
    out.0
}

fn text(connection: &ConnectionConfig, with_key: bool) -> String {
    let mut out = IniWriter(";;;;;;; Multipath connection\n".into());
    out.connection(connection);
    if let Some(key) = connection.auth_key.as_ref().filter(|_| with_key) {
        out.text("auth_key", &key.0);
    }
    for (number, path) in connection.paths.iter().enumerate() {
        out.path(number, path);
    }
    for (number, network) in connection.networks.iter().enumerate() {
        out.network(number, network);
    }
    out.0.push_str("\n;;;;;;; End of the multipath connection ;;;;;;;\n");
    out.0
}

struct IniWriter(String);

impl IniWriter {
    fn connection(&mut self, c: &ConnectionConfig) {
        self.section("connection");
        self.text("name", &c.name);
        self.line("permission", c.permission);
        self.line("ip_ver", version(c.v6));
        self.line("ip_local", address(c.ip_local, c.v6));
        self.line("local_port", c.local_port);
        self.line("local_cmd_port", c.local_cmd_port);
        self.line("ip_remote", address(c.ip_remote, c.v6));
        self.line("remote_port", c.remote_port);
        self.line("remote_cmd_port", c.remote_cmd_port);
        self.line("path_count", c.paths.len());
        self.line("network_count", c.networks.len());
        self.line("status", c.status);
        self.line("reorder_window", c.reorder_window);
        self.line("max_buffdelay_msec", c.max_buffdelay_msec);
        self.line("auth_type", c.auth_type as u8);
    }

    fn path(&mut self, number: usize, p: &ConnectionPath) {
        self.section(&format!("path_{number}"));
        self.text("interface_name", &p.interface_name);
        self.line("ip_ver", version(p.v6));
        self.line("private_ipaddr", address(p.private_ipaddr, p.v6));
        match p.public_ipaddr {
            Public::Private => self.line("public_ipaddr", "private_ipaddr"),
            Public::Discover => self.line("public_ipaddr", address(None, p.v6)),
            Public::Is(public) => self.line("public_ipaddr", public),
        }
        self.line("gw_ipaddr", address(p.gw_ipaddr, p.v6));
        self.line("remote_ipaddr", address(p.remote_ipaddr, p.v6));
        self.line("keepalive_time", p.keepalive_time);
        self.line("dead_time", p.dead_time);
        self.line("weight_out", p.weight_out);
        self.line("weight_in", p.weight_in);
        self.line("cmd_default", u8::from(p.cmd_default));
        self.line("status", p.status);
        self.line("window_size", p.window_size);
    }

    fn network(&mut self, number: usize, n: &NetworkPair) {
        self.section(&format!("net_{number}"));
        self.line("ip_ver", version(n.src_addr.address.is_ipv6()));
        self.line("src_addr", n.src_addr);
        self.line("dst_addr", n.dst_addr);
    }

    fn tunnel(&mut self, number: usize, t: &TunnelInterface) {
        let none = |v6| Prefix { address: unspecified(v6), len: 0 };
        self.section(&format!("tun_{number}"));
        self.text("name", &t.name);
        self.line("mtu", t.mtu);
        self.line("ipv4_addr", t.ipv4.unwrap_or(none(false)));
        self.line("ipv6_addr", t.ipv6.unwrap_or(none(true)));
    }

    fn section(&mut self, name: &str) {
        let _ = writeln!(self.0, "\n[{name}]");
    }

    fn line(&mut self, key: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{key} = {value}");
    }

    /// Writes any text. The format has no escapes, so a text with both kinds of quotes loses the double ones if it must
    /// be quoted; line ends become spaces, since they would begin another key.
    fn text(&mut self, key: &str, value: &str) {
        let value = value.replace(['\n', '\r'], " ");
        let plain = !value.contains([';', '#', '\\']) && !value.starts_with(['"', '\'']) && value.trim() == value;
        match (plain, value.contains('"'), value.contains('\'')) {
            (true, _, _) => self.line(key, value),
            (false, false, _) => self.line(key, format!("\"{value}\"")),
            (false, true, false) => self.line(key, format!("'{value}'")),
            (false, true, true) => self.line(key, format!("\"{}\"", value.replace('"', "_"))),
        }
    }
}

fn version(v6: bool) -> u8 {
    if v6 { 6 } else { 4 }
}

fn unspecified(v6: bool) -> IpAddr {
    if v6 { IpAddr::V6([0; 16].into()) } else { IpAddr::V4([0; 4].into()) }
}

fn address(address: Option<IpAddr>, v6: bool) -> IpAddr {
    address.unwrap_or(unspecified(v6))
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::legacy::ini::Ini;
    use crate::legacy::model::Secret;
    use crate::legacy::samples;
    use mpt_proto::legacy::wire::AuthType;

    fn read(text: &str) -> ConnectionConfig {
        let (mut problems, mut notes) = (vec![], vec![]);
        let connection = ConnectionConfig::read(&Ini::parse("c.conf", text, &mut problems), &mut problems, &mut notes);
        assert_eq!((problems, notes), (vec![], vec![]), "{text}");
        connection
    }

    prop_compose! {
        fn v4()(bits in 1..u32::MAX) -> IpAddr { IpAddr::V4(bits.into()) }
    }

    prop_compose! {
        fn v6()(bits in 1..u128::MAX) -> IpAddr { IpAddr::V6(bits.into()) }
    }

    /// Printable text with all special characters of the dialect, but not both quotes at once.
    fn any_text() -> impl Strategy<Value = String> {
        let text = prop_oneof!["[ -&(-~]{1,60}", "[ !#-~]{1,60}"];
        text.prop_map(|text| text.trim().to_owned()).prop_filter("empty means absent", |text| !text.is_empty())
    }

    fn of_version(v6_: bool) -> BoxedStrategy<IpAddr> {
        if v6_ { v6().boxed() } else { v4().boxed() }
    }

    fn any_prefix(v6_: bool) -> impl Strategy<Value = Prefix> {
        (of_version(v6_), 0..=if v6_ { 128_u8 } else { 32 }).prop_map(|(address, len)| Prefix { address, len })
    }

    fn any_public(v6_: bool) -> impl Strategy<Value = Public> {
        prop_oneof![Just(Public::Discover), Just(Public::Private), of_version(v6_).prop_map(Public::Is)]
    }

    fn any_path() -> impl Strategy<Value = ConnectionPath> {
        let addresses = |v6| (Just(v6), option::of(of_version(v6)), any_public(v6), option::of(of_version(v6)));
        let numbers = (0..86_401_u32, 0..86_401_u32, 1..10_001_u16, 1..10_001_u16, any::<u8>(), any::<u32>());
        (any_text(), any::<bool>().prop_flat_map(addresses), numbers, any::<bool>()).prop_map(
            |(name, a, n, default)| ConnectionPath {
                interface_name: name,
                v6: a.0,
                private_ipaddr: a.1,
                public_ipaddr: a.2,
                gw_ipaddr: a.3,
                remote_ipaddr: a.1,
                keepalive_time: n.0,
                dead_time: n.1,
                weight_out: n.2,
                weight_in: n.3,
                cmd_default: default,
                status: n.4,
                window_size: n.5,
            },
        )
    }

    fn any_network() -> impl Strategy<Value = NetworkPair> {
        let both = |v6| (any_prefix(v6), any_prefix(v6));
        any::<bool>().prop_flat_map(both).prop_map(|(src_addr, dst_addr)| NetworkPair { src_addr, dst_addr })
    }

    fn any_connection() -> impl Strategy<Value = ConnectionConfig> {
        let addresses = |v6| (Just(v6), option::of(of_version(v6)), option::of(of_version(v6)));
        let ports = (any::<u16>(), any::<u16>(), 1..=u16::MAX, 1..=u16::MAX);
        let numbers = (0..4_u8, any::<u8>(), 0..10_001_u16, 1..3_600_000_u32, 0..3_u8);
        let lists = (prop::collection::vec(any_path(), 0..5), prop::collection::vec(any_network(), 0..3));
        let texts = (any_text(), option::of(any_text()));
        let parts = (any::<bool>().prop_flat_map(addresses), ports, numbers, lists, texts);
        parts.prop_map(|(a, p, n, (paths, networks), (name, key))| ConnectionConfig {
            file: "c.conf".into(),
            name,
            permission: n.0,
            v6: a.0,
            ip_local: a.1,
            local_port: p.0,
            local_cmd_port: p.1,
            ip_remote: a.2,
            remote_port: p.2,
            remote_cmd_port: p.3,
            status: n.1,
            reorder_window: n.2,
            max_buffdelay_msec: n.3,
            auth_type: AuthType::from_wire(n.4).unwrap(),
            auth_key: key.map(Secret),
            paths,
            networks,
        })
    }

    proptest! {
        #[test]
        fn saved_files_are_read_again_without_loss(connection in any_connection()) {
            prop_assert_eq!(&read(&file(&connection)), &connection);
            prop_assert_eq!(file(&read(&file(&connection))), file(&connection));
        }
    }

    #[test]
    fn keys_that_the_original_drops_are_saved() {
        let mut connection = read(samples::CONNECTION);
        connection.auth_key = Some(Secret("0123456789abcdef".into()));
        connection.paths[1].window_size = 7;
        let saved = file(&connection);
        for line in ["auth_key = 0123456789abcdef", "cmd_default = 1", "window_size = 7"] {
            assert!(saved.contains(line), "{line} in {saved}");
        }
        assert_eq!(read(&saved), connection);
    }

    #[test]
    fn a_message_has_all_keys_but_the_secret() {
        let mut connection = read(samples::CONNECTION);
        connection.auth_key = Some(Secret("0123456789abcdef".into()));
        let text = message(&connection);
        assert!(!text.contains("auth_key") && !text.contains("0123456789abcdef"));
        connection.auth_key = None;
        assert_eq!(read(&text), connection);
    }

    #[test]
    fn a_message_survives_the_originals_truncation_of_both_ends() {
        let connection = read(samples::CONNECTION);
        let text = message(&connection);
        assert!(text.starts_with(";;;;;;;"));
        assert_eq!(read(&text[4..text.len() - 36]), connection);
    }

    #[test]
    fn a_text_cannot_begin_another_key() {
        let mut connection = read(samples::CONNECTION);
        connection.name = "x\nauth_type = 0".into();
        assert_eq!(read(&file(&connection)).name, "x auth_type = 0");
    }

    #[test]
    fn interface_conf_is_read_again_without_loss() {
        let read = |text: &str| {
            let (mut problems, mut notes) = (vec![], vec![]);
            let read = Interface::read(&Ini::parse("i", text, &mut problems), &mut problems, &mut notes);
            assert_eq!((problems, notes), (vec![], vec![]));
            read
        };
        let mut original = read(samples::INTERFACE);
        assert_eq!(read(&interface(&original)), original);
        original.tunnels[0].ipv6 = None;
        assert_eq!(read(&interface(&original)), original);
    }
}
