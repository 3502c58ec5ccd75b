//! Invitations: an administrator makes a line for a site, which `mpt join` presents to a server. The registry has the
//! hash of its token, and what the site gets.

use std::net::IpAddr;
use std::time::Duration;

use base64ct::{Base64, Base64UrlUnpadded, Encoding as _};
use blake2::{Blake2s256, Digest as _};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::edit::{Registry, away, check_new, read};
use crate::etcd::{Change, Condition};
use crate::join::now;
use crate::registry::{Key, Name, Peer, Place, Server, ServerId};

/// `invitations/HASH`: what a site gets that presents the token. It has a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invitation {
    /// The peer that the site becomes.
    pub peer: Peer,
    /// The time from which it admits nobody, in seconds of Unix time.
    pub expires: u64,
    /// Prefixes that the site reaches through the tunnel.
    #[serde(default)]
    pub routes: Vec<IpNet>,
    /// Name servers that are offered to the site.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    /// The site that used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Used>,
}

/// The use of an invitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Used {
    /// The public key of the site.
    pub key: Key,
    /// When, in seconds of Unix time.
    pub at: u64,
}

impl Registry {
    /// Makes an invitation to a server, and returns the line for the site.
    ///
    /// # Errors
    /// The server cannot be joined; the name or a network is in use; etcd does not answer.
    pub async fn invite(&self, invitation: &Invitation, server: ServerId) -> Result<String, Failure> {
        let Invitation { peer, .. } = invitation;
        if peer.networks.len() > MAX_NETWORKS {
            let what = format!("{} has {} networks; {MAX_NETWORKS} is the most", peer.name, peer.networks.len());
            return Err(Failure::new(what, "use shorter prefixes; or mpt-fleet peer add"));
        }
        let servers = self.servers().await?;
        let known = servers.get(&server).map(|(server, _)| server);
        let prefix = line_prefix(server, known)?;
        check_new(&self.peers().await?, None, peer).map_err(|(_, failure)| failure)?;
        for (_, other) in self.open_invitations().await? {
            let network = peer.networks.iter().find(|network| other.peer.networks.contains(network));
            if other.peer.name == peer.name || network.is_some() {
                let what =
                    network.map_or_else(|| format!("name {}", peer.name), |network| format!("network {network}"));
                let what = format!("a line for {} that is still valid has the {what}", other.peer.name);
                let hint = format!("use another; or mpt-fleet uninvite {} makes that line void", other.peer.name);
                return Err(Failure::new(what, hint));
            }
        }
        let mut token = [0; 32];
        getrandom::fill(&mut token)
            .map_err(|error| Failure::new(format!("no random numbers: {error}"), "try again"))?;
        let place = self.prefix.key(&Place::Invitation(hash(&token)));
        let value = serde_json::to_vec(invitation).map_err(|error| Failure::new(error.to_string(), "report this"))?;
        let left = Duration::from_secs(invitation.expires.saturating_sub(now()) + KEPT_S);
        let lease = self.etcd.grant(left).await.map_err(|error| away(&error))?;
        let is_made = self.etcd.put_all(&[Condition::Is(&place, 0)], &[(&place, &value, lease)]).await;
        match is_made.map_err(|error| away(&error))? {
            true => Ok(format!("{prefix}/{}", Base64UrlUnpadded::encode_string(&token))),
            false => Err(Failure::new("the random token exists already", "try again")),
        }
    }

    /// Makes the unused lines for a name void.
    ///
    /// # Errors
    /// There is none; etcd does not answer.
    pub async fn uninvite(&self, name: &Name) -> Result<(), Failure> {
        let mut is_found = false;
        for (item, invitation) in self.open_invitations().await? {
            if invitation.peer.name != *name {
                continue;
            }
            is_found = true;
            let change = Change { key: &item.key, expected: item.revision, value: None };
            if !self.etcd.change(&change).await.map_err(|error| away(&error))?.is_made {
                let hint = format!("mpt-fleet peer list shows whether {name} has joined");
                return Err(Failure::new(format!("the line for {name} was used meanwhile"), hint));
            }
        }
        match is_found {
            true => Ok(()),
            false => {
                Err(Failure::new(format!("no line for {name} is valid"), "mpt-fleet peer list shows those that are"))
            }
        }
    }

    /// Returns the invitations that a site may still use.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn open_invitations(&self) -> Result<Vec<(crate::etcd::Item, Invitation)>, Failure> {
        let items = self.below("invitations/").await?.into_iter();
        let all = items.filter_map(|item| read::<Invitation>(&item).map(|invitation| (item, invitation)));
        let now = now();
        Ok(all.filter(|(_, invitation)| invitation.used.is_none() && now < invitation.expires).collect())
    }
}

/// Returns the line of a server without its token: `mpt1/ADDRESS,.../PORT/KEY`.
fn line_prefix(id: ServerId, server: Option<&Server>) -> Result<String, Failure> {
    let list = "mpt-fleet server list shows the servers that run; --at ID chooses another one";
    let server = server.ok_or_else(|| Failure::new(format!("server {id} is not registered"), list))?;
    let Some(port) = server.addresses.first().map(std::net::SocketAddr::port) else {
        let hint =
            "addresses = [\"IP:PORT\"] in its fleet.toml, then restart mpt-fleet there; --at ID chooses another one";
        return Err(Failure::new(format!("server {id} has no addresses in the registry"), hint));
    };
    let Some(key) = &server.enrolment_key else {
        let hint = "its tunnel must run, with peer_source, and be of this version; --at ID chooses another server";
        return Err(Failure::new(format!("the tunnel of server {id} has sent no enrolment key"), hint));
    };
    let addresses = server.addresses.iter().filter(|address| address.port() == port);
    let addresses: Vec<_> = addresses.map(|address| address.ip().to_string()).collect();
    let key = Base64::decode_vec(&key.to_string()).map_err(|error| Failure::new(error.to_string(), list))?;
    Ok(format!("mpt1/{}/{port}/{}", addresses.join(","), Base64UrlUnpadded::encode_string(&key)))
}

/// Returns the hash of a token as the enrolment of the tunnel computes it, in hexadecimal.
fn hash(token: &[u8; 32]) -> String {
    let hash = Blake2s256::new().chain_update(b"mpt-token").chain_update(token).finalize();
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses the time for which a line is valid.
///
/// # Errors
/// It is no time, or too short or too long.
pub fn lifetime(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
    let seconds = units.iter().find_map(|(unit, factor)| {
        let digits = text.strip_suffix(unit).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
        digits.parse::<u64>().ok()?.checked_mul(*factor)
    });
    let seconds = seconds.filter(|seconds| (1..=LONGEST_S).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "a time from 1s to 30d, such as 30m, 1h or 7d".to_owned())
}

/// An answer to a site has 4 KiB.
const MAX_NETWORKS: usize = 8;
const LONGEST_S: u64 = 30 * 86_400;
/// A used or expired invitation is known as such for a week, so that a site learns why it is refused.
const KEPT_S: u64 = 7 * 86_400;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Load;

    #[test]
    fn the_hash_is_that_of_the_tunnel() {
        // crates/mpt-proto/src/crypto/handshake/enrolment.rs has the same test.
        assert_eq!(&hash(&[1; 32])[..16], "aba5874bb4ba3fe8");
    }

    #[test]
    fn a_lifetime_is_a_number_with_a_unit() {
        let seconds = |text| lifetime(text).map(|time| time.as_secs());
        assert_eq!(["2s", "30m", "1h", "30d"].map(|text| seconds(text).unwrap()), [2, 1_800, 3_600, 2_592_000]);
        for wrong in ["", "h", "0s", "31d", "1", "1.5h", "-1h", "+1h", "1w", "99999999999999999999h", "1hé"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_needs_a_server_that_can_be_joined() {
        let id = ServerId::new(3).unwrap();
        let key: Key = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=".parse().unwrap();
        let addresses = ["203.0.113.3:4754", "[2001:db8::3]:4754", "203.0.113.4:9"].map(|text| text.parse().unwrap());
        let good = Server {
            addresses: addresses.to_vec(),
            public_key: Some(key.clone()),
            enrolment_key: Some(key),
            load: Load::default(),
            instance: String::new(),
        };
        let line = line_prefix(id, Some(&good)).unwrap();
        assert_eq!(line, "mpt1/203.0.113.3,2001:db8::3/4754/sHPDD7Vu50boeUMKXgJe7lrDM_vVYbodEmjG4KDHYSQ");
        let silent = Server { enrolment_key: None, ..good.clone() };
        let nowhere = Server { addresses: Vec::new(), ..good };
        for (server, expected) in
            [(None, "is not registered"), (Some(&silent), "enrolment key"), (Some(&nowhere), "has no addresses")]
        {
            let error = line_prefix(id, server).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("hint: "), "{error}");
        }
    }
}
