//! Converts a file of wg-quick(8) to one of ours. Keys and networks have the same meaning in both.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;

use super::problem::{LegacyProblem, Note};
use super::toml::Imported;

/// Returns true if the text is a file of wg-quick.
pub fn is_wg_quick(text: &str) -> bool {
    text.lines().any(|line| without_comment(line).eq_ignore_ascii_case("[Interface]"))
}

/// Converts the text of a file of this name.
///
/// # Errors
/// All lines that wg-quick would refuse, or that have no counterpart and are needed.
pub fn convert(name: &str, text: &str) -> Result<Imported, Vec<LegacyProblem>> {
    let mut file = WgQuick { name, ..WgQuick::default() };
    for (index, line) in text.lines().enumerate() {
        file.line(index + 1, without_comment(line));
    }
    if file.problems.is_empty() { Ok(Imported { text: file.text(), notes: file.notes }) } else { Err(file.problems) }
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

/// The settings of a file.
#[derive(Default)]
struct WgQuick<'a> {
    name: &'a str,
    section: WgQuickSection,
    top: String,
    addresses: Vec<IpNet>,
    name_servers: Vec<IpAddr>,
    peers: Vec<WgPeer>,
    notes: Vec<Note>,
    problems: Vec<LegacyProblem>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum WgQuickSection {
    #[default]
    None,
    Interface,
    Peer,
}

#[derive(Default)]
struct WgPeer {
    keys: String,
    networks: Vec<IpNet>,
    endpoint: Option<String>,
}

impl WgQuick<'_> {
    fn line(&mut self, line: usize, text: &str) {
        match text.to_ascii_lowercase().as_str() {
            "" => {}
            "[interface]" => self.section = WgQuickSection::Interface,
            "[peer]" => {
                self.section = WgQuickSection::Peer;
                self.peers.push(WgPeer::default());
            }
            _ => match text.split_once('=') {
                Some((key, value)) => self.setting(line, key.trim(), value.trim()),
                None => self.problem(line, format!("{} is no setting", shown(text)), "KEY = VALUE, or remove the line"),
            },
        }
    }

    fn setting(&mut self, line: usize, key: &str, value: &str) {
        let peer = self.peers.last_mut();
        match (self.section, key.to_ascii_lowercase().as_str(), peer) {
            (WgQuickSection::Interface, "privatekey", _) => line_of(&mut self.top, "private_key", value),
            (WgQuickSection::Interface, "listenport", _) => {
                let _ = writeln!(self.top, "port = {value}");
            }
            (WgQuickSection::Interface, "address", _) => {
                let addresses = self.list(line, key, value);
                self.addresses.extend(addresses);
            }
            (WgQuickSection::Interface, "dns", _) => self.name_servers(line, value),
            (WgQuickSection::Peer, "publickey", Some(peer)) => line_of(&mut peer.keys, "public_key", value),
            (WgQuickSection::Peer, "presharedkey", Some(peer)) => line_of(&mut peer.keys, "preshared_key", value),
            (WgQuickSection::Peer, "endpoint", Some(peer)) => peer.endpoint = Some(value.to_owned()),
            (WgQuickSection::Peer, "allowedips", Some(_)) => {
                let networks: Vec<IpNet> = self.list(line, key, value);
                let networks = networks.iter().map(IpNet::trunc);
                self.peers.last_mut().expect("it is there").networks.extend(networks);
            }
            (_, "mtu", _) => self.note(line, "MTU: it is measured"),
            (_, "persistentkeepalive", _) => self.note(line, "PersistentKeepalive: every path has probes"),
            (_, "table" | "preup" | "postup" | "predown" | "postdown" | "saveconfig" | "fwmark", _) => {
                self.note(line, &format!("{key}: see routes, kill_switch, masquerade and mpt hooks"));
            }
            _ => self.problem(line, format!("unknown setting: {}", shown(key)), "wg-quick(8) has a list"),
        }
    }

    /// Reads prefixes. An address without a length is one host.
    fn list(&mut self, line: usize, key: &str, value: &str) -> Vec<IpNet> {
        let mut all = Vec::new();
        for text in value.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            match text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)) {
                Ok(net) => all.push(net),
                Err(_) => self.problem(line, format!("{key}: {text:?} is no prefix"), "for example 10.77.0.1/24"),
            }
        }
        all
    }

    fn name_servers(&mut self, line: usize, value: &str) {
        for text in value.split(',').map(str::trim) {
            match text.parse() {
                Ok(address) => self.name_servers.push(address),
                Err(_) => self.note(line, &format!("DNS: {text} is a search domain")),
            }
        }
    }

    fn note(&mut self, line: usize, what: &str) {
        self.notes.push(Note { file: self.name.to_owned(), line, what: what.to_owned() });
    }

    fn problem(&mut self, line: usize, what: String, hint: &str) {
        self.problems.push(LegacyProblem::new(self.name, line, what, hint));
    }

    fn text(&self) -> String {
        let mut text = format!("# From {}. Both ends must run MPT.\n{}", self.name, self.top);
        let _ = writeln!(text, "address = {}", quoted(&self.addresses));
        // wg-quick adds a route for each network that is not on the interface's own.
        let all = self.peers.iter().flat_map(|peer| &peer.networks);
        let is_own = |net: &&IpNet| self.addresses.iter().any(|own| own.contains(*net));
        let routes: Vec<_> = all.filter(|net| !is_own(net)).collect();
        if !routes.is_empty() {
            let _ = writeln!(text, "routes = {}", quoted(&routes));
        }
        if !self.name_servers.is_empty() {
            let _ = writeln!(text, "dns = {}", quoted(&self.name_servers));
        }
        for peer in &self.peers {
            let _ = write!(text, "\n[[peer]]\n{}networks = {}\n", peer.keys, quoted(&peer.networks));
            if let Some(endpoint) = &peer.endpoint {
                line_of(&mut text, "remote", endpoint);
            }
        }
        text
    }
}

/// Returns the first word of a line, unless it may be a key.
fn shown(text: &str) -> &str {
    text.split_whitespace().next().filter(|word| word.len() <= LONGEST_NAME).unwrap_or("the line")
}

/// Longer than every setting of wg-quick.
const LONGEST_NAME: usize = 24;

fn line_of(text: &mut String, key: &str, value: &str) {
    let _ = writeln!(text, "{key} = {value:?}");
}

fn quoted<T: ToString>(values: &[T]) -> String {
    let values: Vec<_> = values.iter().map(|value| format!("{:?}", value.to_string())).collect();
    format!("[{}]", values.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const FILE: &str = "# laptop
[Interface]
PrivateKey = dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=
Address = 10.77.0.2/24, fd77::2/64
DNS = 10.77.0.1, example.org
ListenPort = 51820
MTU = 1420
PostUp = iptables -A OUTPUT

[peer]
PublicKey = 3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08= # the server
AllowedIPs = 0.0.0.0/0, ::/0
Endpoint = home.example.org:51820
PersistentKeepalive = 25
";

    #[test]
    fn keys_networks_and_routes_are_carried_over_and_the_rest_is_noted() {
        assert!(is_wg_quick(FILE) && !is_wg_quick("address = []\n[[peer]]"));
        let imported = convert("wg0.conf", FILE).unwrap();
        let file = crate::config::parse(Path::new("t.toml"), &imported.text).unwrap_or_else(|problems| {
            panic!("{problems:?}\n{}", imported.text);
        });
        assert_eq!(*file.port, 51_820);
        assert_eq!(file.addresses.len(), 2);
        assert_eq!(file.dns.len(), 1);
        let routes: Vec<_> = file.routes.iter().map(|route| route.to_string()).collect();
        assert_eq!(routes, ["0.0.0.0/0", "::/0"]);
        assert_eq!(file.peers[0].networks.len(), 2);
        let lines: Vec<_> = imported.notes.iter().map(|note| note.line).collect();
        assert_eq!(lines, [5, 7, 8, 14], "{:?}", imported.notes);
    }

    #[test]
    fn networks_on_the_interface_need_no_route() {
        let lan = FILE.replace("0.0.0.0/0, ::/0", "10.77.0.1/32, 192.168.7.0/24");
        let text = convert("wg0.conf", &lan).unwrap().text;
        assert!(text.contains("routes = [\"192.168.7.0/24\"]\n"), "{text}");
        assert!(text.contains("networks = [\"10.77.0.1/32\", \"192.168.7.0/24\"]\n"), "{text}");
    }

    #[test]
    fn several_lines_of_a_key_add_up() {
        let lines = FILE
            .replace("10.77.0.2/24, fd77::2/64", "10.77.0.2/24\nAddress = fd77::2/64")
            .replace("10.77.0.1, example.org", "10.77.0.1\nDNS = example.org, fd77::1")
            .replace("0.0.0.0/0, ::/0", "0.0.0.0/0\nAllowedIPs = ::/0");
        let text = convert("wg0.conf", &lines).unwrap().text;
        for all in [
            "\naddress = [\"10.77.0.2/24\", \"fd77::2/64\"]\n",
            "\ndns = [\"10.77.0.1\", \"fd77::1\"]\n",
            "\nnetworks = [\"0.0.0.0/0\", \"::/0\"]\n",
        ] {
            assert!(text.contains(all), "{all} in {text}");
        }
    }

    #[test]
    fn what_is_no_setting_is_refused_with_its_line() {
        let wrong = FILE.replace("MTU = 1420", "Jc = 4").replace("10.77.0.2/24", "10.77.0.256/24");
        let problems = convert("wg0.conf", &wrong).map(|imported| imported.text).unwrap_err();
        let lines: Vec<_> = problems.iter().map(LegacyProblem::location_and_cause).collect();
        assert!(lines[1].contains("Jc"));
        let secret = convert("wg0.conf", "[Interface]\ndwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=").map(|_| ());
        assert!(!secret.unwrap_err()[0].location_and_cause().contains("dwdt"));
        assert!(lines.len() == 2 && lines[0].contains(":4") && lines[1].contains(":7"), "{lines:?}");
    }
}
