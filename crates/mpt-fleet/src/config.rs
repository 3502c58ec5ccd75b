//! The configuration file, `/etc/mpt/fleet.toml`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use crate::Failure;
use crate::registry::{ServerId, networks};

/// The content of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the cluster: keys of etcd begin with `/mpt/CLUSTER/`.
    pub cluster: String,
    /// Number of this server in the cluster, 1 to 255; the same as in the file of the tunnel.
    pub server_id: ServerId,
    /// Addresses of this server, for the list of servers.
    #[serde(default)]
    pub addresses: Vec<SocketAddr>,
    /// The socket to which the tunnel connects.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// The file in which the tunnel finds the signed list of servers.
    #[serde(default = "default_server_list")]
    pub server_list: PathBuf,
    /// The registry.
    pub etcd: Etcd,
    /// HTTP for administrators and Prometheus.
    #[serde(default)]
    pub api: Api,
    /// For sites that are invited here.
    #[serde(default)]
    pub sites: Sites,
}

/// For sites that are invited by a command with this file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sites {
    /// Prefixes that they reach through the tunnel.
    #[serde(deserialize_with = "networks")]
    pub routes: Vec<IpNet>,
    /// Name servers that are offered to them.
    pub dns: Vec<IpAddr>,
}

/// The registry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Etcd {
    /// URLs of the members.
    pub endpoints: Vec<String>,
    /// Certificate of the authority that signed those of the members.
    pub ca: Option<PathBuf>,
    /// Certificate of this client.
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate.
    pub key: Option<PathBuf>,
    /// Seconds after which etcd forgets a server that does not report.
    #[serde(default = "default_lease")]
    pub lease: u64,
}

/// HTTP for administrators and Prometheus.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// Address and port.
    pub listen: SocketAddr,
    /// Hashes of the tokens that are admitted, as `mpt-fleet token` prints them.
    pub tokens: Vec<TokenHash>,
}

/// The SHA-256 of a token.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct TokenHash(pub [u8; 32]);

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, or has an unknown key or a value out of range.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let text = fs::read_to_string(path).map_err(|error| {
            Failure::new(format!("cannot read {name}: {error}"), "docs/guide/fleet.md has an example of the file")
        })?;
        let config: Self = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            Failure::new(format!("{name}:{line}: {}", error.message()), "docs/guide/fleet.md lists the keys")
        })?;
        config.check().map_err(|(what, hint)| Failure::new(format!("{name}: {what}"), hint))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), (String, &'static str)> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !(1..=32).contains(&self.cluster.len()) || !self.cluster.chars().all(is_plain) {
            return Err((
                format!("cluster = {:?} is no name", self.cluster),
                "1 to 32 letters, digits, \"-\" and \"_\"",
            ));
        }
        if self.etcd.endpoints.is_empty() {
            return Err(("etcd.endpoints is empty".into(), "endpoints = [\"http://127.0.0.1:2379\"]"));
        }
        if !(2..=60).contains(&self.etcd.lease) {
            return Err((format!("etcd.lease = {} is out of range", self.etcd.lease), "2 to 60 seconds"));
        }
        if self.etcd.certificate.is_some() != self.etcd.key.is_some() {
            return Err(("etcd.certificate and etcd.key belong together".into(), "set both, or none"));
        }
        // An answer to a site has 4 KiB.
        if self.sites.routes.len() > 16 || self.sites.dns.len() > 4 {
            return Err(("sites: 16 routes and 4 name servers are the most".into(), "use shorter prefixes"));
        }
        Ok(())
    }

    /// Returns the time after which etcd forgets a server that does not report.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.etcd.lease)
    }
}

impl Default for Api {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9476)), tokens: Vec::new() }
    }
}

impl TryFrom<String> for TokenHash {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64 && digits.is_ascii());
        let bytes = digits.and_then(|digits| {
            (0..32).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()).collect::<Option<Vec<_>>>()
        });
        match bytes.and_then(|bytes| bytes.try_into().ok()) {
            Some(hash) => Ok(Self(hash)),
            None => Err(format!("{text:?} is no hash of a token: \"sha256:\" and 64 hexadecimal digits")),
        }
    }
}

fn default_socket() -> PathBuf {
    "/run/mpt-fleet/peers.sock".into()
}

fn default_server_list() -> PathBuf {
    "/run/mpt-fleet/servers.signed".into()
}

fn default_lease() -> u64 {
    10
}

/// The file that is read without `--config`.
pub const DEFAULT_FILE: &str = "/etc/mpt/fleet.toml";

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fleet.toml");
        fs::write(&file, text).unwrap();
        Config::load(&file).map_err(|failure| failure.to_string())
    }

    const GOOD: &str = "cluster = \"north\"\nserver_id = 3\n[etcd]\nendpoints = [\"http://127.0.0.1:2379\"]\n";

    #[test]
    fn a_short_file_has_defaults() {
        let config = load(GOOD).unwrap();
        assert_eq!(config.api.listen.to_string(), "127.0.0.1:9476");
        assert_eq!(config.lease(), Duration::from_secs(10));
    }

    #[test]
    fn the_example_of_the_guide_is_right() {
        let page = include_str!("../../../docs/guide/fleet.md");
        let block = page.split("```").find(|block| block.contains("cluster = ")).unwrap();
        load(block.split_once('\n').unwrap().1).unwrap();
    }

    #[test]
    fn mistakes_are_refused_with_line_and_hint() {
        for (text, expected) in [
            (format!("{GOOD}leese = 5\n"), "fleet.toml:5: unknown field `leese`"),
            (GOOD.replace("= 3", "= 300"), "fleet.toml:2: invalid value"),
            (
                format!("{GOOD}[sites]\nroutes = [\"10.80.5.7/16\"]\n"),
                "fleet.toml:6: 10.80.5.7/16 has bits set beyond its length; the network is 10.80.0.0/16",
            ),
            (GOOD.replace("= 3", "= 0"), "fleet.toml:2: invalid value"),
            (GOOD.replace("north", "a/b"), "cluster = \"a/b\" is no name"),
            (format!("{GOOD}lease = 1\n"), "etcd.lease = 1 is out of range"),
            (format!("{GOOD}key = \"k\"\n"), "etcd.certificate and etcd.key belong together"),
            (format!("{GOOD}[sites]\ndns = {:?}\n", ["192.0.2.1"; 5]), "sites: 16 routes and 4 name servers"),
            (format!("{GOOD}[api]\ntokens = [\"abc\"]\n"), "fleet.toml:6: \"abc\" is no hash of a token"),
        ] {
            let error = load(&text).unwrap_err();
            assert!(error.contains(expected) && error.contains("hint:"), "{error}");
        }
    }
}
