//! Paths over TLS: `tls` in `[[peer.path]]`, and `[tls]` of the server.

use std::net::{Ipv6Addr, SocketAddr};

use super::model::File;
use super::problem::ProblemLog;
use super::reader::Reader;
use super::tables::TLS_PORT;
pub use super::tables::{TlsHost, TlsListen, TlsServer};
use super::value_types::{self, ValueType, parse_endpoint, parse_name};
use super::values::{At, Mode};

/// Reads the keys of a path.
pub fn server(table: &mut Reader<'_, '_, '_>) -> Option<At<TlsServer>> {
    let server = table.read("tls", &server_type());
    let certificate = table.read("tls_certificate", &fingerprint());
    let proxy = table.read("tls_proxy", &proxy_type());
    if !table.has("tls") {
        let line = certificate.as_ref().map(|at| ("tls_certificate", at.line));
        for (key, line) in line.into_iter().chain(proxy.as_ref().map(|at| ("tls_proxy", at.line))) {
            let hint = "add tls = \"203.0.113.7\", or leave it out".to_owned();
            table.log.error(line, format!("{key}: this path has no tls"), Some(hint));
        }
    }
    let (certificate, proxy) = (certificate.map(|certificate| certificate.value), proxy.map(|proxy| proxy.value));
    if table.has("tls") {
        for key in ["remote", "local", "gateway", "role", "limit", "reset_day", "beyond_limit"] {
            let hint =
                "leave it out: tls has the address of the server, and the path is used while no other one answers";
            table.refuse(key, "for a path over TLS", hint);
        }
    }
    server.map(|server| server.map(|server| TlsServer { certificate, proxy, ..server }))
}

/// Reads `[tls]`.
pub fn listen(top: &mut Reader<'_, '_, '_>) -> Option<TlsListen> {
    if !top.has("tls") {
        return None;
    }
    top.table("tls", "tls", |table| {
        let default = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), TLS_PORT);
        let listen = table.read_or("listen", &listen_type(), default);
        let path = table.read_or("path", &path_type(), DEFAULT_PATH.to_owned()).value;
        let certificate = table.read("certificate", &value_types::key_file("/etc/mpt/fullchain.pem"));
        let key = table.read("key", &value_types::key_file("/etc/mpt/privkey.pem"));
        if table.has("certificate") != table.has("key") {
            let line = table.line_of_key("certificate").or(table.line_of_key("key")).unwrap_or(table.line);
            let hint = "name both files, or neither: then MPT makes a certificate of its own".to_owned();
            table.log.error(line, "certificate, key: one of the two is missing".to_owned(), Some(hint));
        }
        let files = certificate.zip(key).map(|(certificate, key)| (certificate.value, key.value));
        TlsListen { listen, path, files }
    })
}

/// Checks what concerns other parts of the file.
pub fn check(file: &File, log: &mut ProblemLog<'_>) {
    for server in file.peers.iter().flat_map(|peer| &peer.paths).filter_map(|path| path.tls.as_ref()) {
        let TlsHost::Address(ip) = server.next_hop().0 else { continue };
        if let Some(net) = file.addresses.iter().find(|net| net.contains(ip)) {
            let key = if server.proxy.is_some() { "tls_proxy" } else { "tls" };
            let what = format!("{key}: {ip} is inside the tunnel, whose address in line {} is {net}", net.line);
            log.error(server.line, what, Some("name the address outside of the tunnel".to_owned()));
        }
    }
    let Some(tls) = &file.tls else { return };
    if *file.mode == Mode::Native && !file.accepts_incoming() {
        let hint = "a [[peer]] without remote and paths, with public_key and networks".to_owned();
        log.error(tls.listen.line, "[tls]: no peer connects to this host", Some(hint));
    }
}

const DEFAULT_PATH: &str = "/";

fn server_type() -> ValueType<TlsServer> {
    let description = "the address or the name of a server, with or without port and path";
    ValueType::text(description, "wss://server.example.org/path", |text| {
        let text = text.strip_prefix("wss://").unwrap_or(text);
        let (authority, path) = match text.find('/') {
            Some(at) => (&text[..at], parse_path(&text[at..])?),
            None => (text, DEFAULT_PATH.to_owned()),
        };
        let address = parse_endpoint(authority).filter(|(ip, port)| value_types::is_host(*ip) && *port != Some(0));
        let (host, port) = match address {
            Some((ip, port)) => (TlsHost::Address(ip.to_canonical()), port),
            None => parse_name(authority).map(|(name, port)| (TlsHost::Name(name), port))?,
        };
        Some(TlsServer { host, port: port.unwrap_or(TLS_PORT), path, certificate: None, proxy: None })
    })
}

fn listen_type() -> ValueType<SocketAddr> {
    ValueType::text("an address of this host and a TCP port", "0.0.0.0:443", |text| {
        text.parse().ok().filter(|address: &SocketAddr| address.port() > 0)
    })
}

fn path_type() -> ValueType<String> {
    ValueType::text("a path of 1 to 200 letters, digits and \"/-._~\", which begins with \"/\"", "/path", parse_path)
}

fn parse_path(text: &str) -> Option<String> {
    let is_plain = text.bytes().all(|c| c.is_ascii_alphanumeric() || b"/-._~".contains(&c));
    (text.starts_with('/') && text.len() <= 200 && is_plain).then(|| text.to_owned())
}

fn proxy_type() -> ValueType<(TlsHost, u16)> {
    ValueType::text("an HTTP proxy with its port", "http://proxy.example.org:3128", |text| {
        let authority = text.strip_prefix("http://").unwrap_or(text);
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let address = parse_endpoint(authority).filter(|(ip, _)| value_types::is_host(*ip));
        let address = address.map(|(ip, port)| (TlsHost::Address(ip.to_canonical()), port));
        let (host, port) = address.or_else(|| parse_name(authority).map(|(name, port)| (TlsHost::Name(name), port)))?;
        Some((host, port.filter(|port| *port > 0)?))
    })
}

/// As `openssl x509 -fingerprint -sha256` prints it, with or without colons.
fn fingerprint() -> ValueType<[u8; 32]> {
    let example = "9f:86:d0:81:88:4c:7d:65:9a:2f:ea:a0:c5:5a:d0:15:a3:bf:4f:1b:2b:0b:82:2c:d1:5d:6c:15:b0:f0:0a:08";
    ValueType::text("a SHA-256 fingerprint of 64 hexadecimal digits", example, |text| {
        let digits: Vec<u8> = text
            .chars()
            .filter(|c| *c != ':')
            .map(|c| c.to_digit(16).map(|digit| digit as u8))
            .collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        bytes.try_into().ok().filter(|_| digits.len() == 64)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(path: &str, top: &str) -> Result<File, String> {
        let text = format!(
            "private_key = \"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\"\naddress = [\"10.77.0.1/24\"]\n{top}\n\
             [[peer]]\nnetworks = [\"10.77.0.2/32\"]\n\
             public_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"\n{path}\n"
        );
        let problems = |problems: Vec<_>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        crate::config::parse(Path::new("a.toml"), &text).map_err(problems)
    }

    #[test]
    fn a_server_is_an_address_or_a_name_with_or_without_port_and_path() {
        let server = |text: &str| {
            let file = read(&format!("[[peer.path]]\ntls = \"{text}\""), "").unwrap();
            let server = file.peers[0].paths[0].tls.clone().unwrap().value;
            format!("{server} {} {}", server.authority(), server.path)
        };
        assert_eq!(server("203.0.113.7"), "203.0.113.7:443 203.0.113.7 /");
        assert_eq!(server("wss://Server.example.org/a/b"), "server.example.org:443 server.example.org /a/b");
        assert_eq!(server("server.example.org:8443"), "server.example.org:8443 server.example.org:8443 /");
        assert_eq!(server("[2001:db8::7]:8443"), "[2001:db8::7]:8443 [2001:db8::7]:8443 /");
        assert_eq!(server("wss://2001:db8::7"), "[2001:db8::7]:443 [2001:db8::7] /");
        for wrong in ["", "http://a.example", "a", "203.0.113.7:0", "a.example.org/?x", "0.0.0.0", "a.example/ b"] {
            let problem = read(&format!("[[peer.path]]\ntls = \"{wrong}\""), "").unwrap_err();
            assert!(problem.contains("is not the address or the name of a server"), "{wrong}: {problem}");
        }
    }

    #[test]
    fn a_path_over_tls_has_a_name_and_no_keys_of_others() {
        let path = |more: &str| read(&format!("[[peer.path]]\ntls = \"203.0.113.7\"\n{more}"), "");
        let file = path("interface = \"eth1\"\nrate = \"5mbit\"").unwrap();
        let own = &file.peers[0].paths[0];
        assert_eq!((own.name.as_str(), own.role.name()), ("tls", "standby"));
        for key in ["remote = \"192.0.2.1\"", "role = \"available\"", "limit = \"20GB\"", "local = \"192.0.2.2\""] {
            let problem = path(key).unwrap_err();
            assert!(problem.contains("has no meaning for a path over TLS"), "{key}: {problem}");
        }
        let colons = "AB:".repeat(31) + "AB";
        assert!(path(&format!("tls_certificate = \"{colons}\"")).is_ok());
        let proxy = |text: &str| path(&format!("tls_proxy = \"{text}\""));
        for right in ["http://Proxy.example.org:3128/", "192.0.2.9:8080", "http://[2001:db8::9]:8080"] {
            assert!(proxy(right).unwrap().peers[0].paths[0].tls.as_ref().unwrap().proxy.is_some(), "{right}");
        }
        for wrong in ["proxy.example.org", "https://192.0.2.9:8080", "http://user:word@192.0.2.9:80", "192.0.2.9:0"] {
            assert!(proxy(wrong).unwrap_err().contains("an HTTP proxy with its port"), "{wrong}");
        }
        assert!(proxy("10.77.0.9:80").unwrap_err().contains("tls_proxy: 10.77.0.9 is inside the tunnel"));
        assert!(path("tls_certificate = \"abcd\"").unwrap_err().contains("64 hexadecimal digits"));
        let alone = read("[[peer.path]]\nremote = \"192.0.2.1\"\ntls_certificate = \"00\"", "").unwrap_err();
        assert!(alone.contains("tls_certificate"), "{alone}");
    }

    #[test]
    fn a_server_has_defaults_and_needs_peers_that_connect() {
        let tls = read("", "[tls]").unwrap().tls.unwrap();
        assert_eq!((tls.listen.to_string(), tls.path.as_str(), tls.files), ("[::]:443".to_owned(), "/", None));
        assert!(read("remote = \"192.0.2.1\"", "[tls]").unwrap_err().contains("no peer connects to this host"));
        assert!(read("", "[tls]\nkey = \"/a.pem\"").unwrap_err().contains("one of the two is missing"));
        assert!(read("", "[tls]\nlisten = \"443\"").unwrap_err().contains("an address of this host and a TCP port"));
    }
}
