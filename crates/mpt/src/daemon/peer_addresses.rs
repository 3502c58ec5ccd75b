//! Keeps the addresses of peers that connect to this host over a restart, after which the core initiates there: a peer
//! does not notice the restart before it sends, and this host has its address nowhere else.
//!
//! The file has a line for each path that is up: public key of the peer, local address, remote address and port.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use mpt_proto::crypto::keys::PublicKey;
use mpt_proto::path::LinkId;
use mpt_proto::peer::Peer;
use mpt_proto::time::Time;

use super::{Daemon, state_folder};

/// The file, and what is still to be recalled from it.
#[derive(Debug)]
pub(super) struct PeerAddresses {
    file: PathBuf,
    saved: String,
    next_save: Time,
    /// Addresses of the last run for which no socket has been opened yet.
    former: Vec<Address>,
}

/// One address of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address {
    peer: PublicKey,
    local: IpAddr,
    remote: SocketAddr,
}

impl PeerAddresses {
    /// Reads the file of a tunnel; it may not exist. Lines that are no addresses are skipped.
    pub(super) fn read(interface: &str) -> Self {
        let file = state_folder().join(format!("{interface}.addresses"));
        let saved = fs::read_to_string(&file).unwrap_or_default();
        let former = saved.lines().filter_map(Address::parse).collect();
        Self { file, saved, next_save: Time::START + SAVE_INTERVAL, former }
    }

    /// Writes a new file and renames it over the old one, so that a complete file exists at any time.
    fn save(&mut self, addresses: impl Iterator<Item = Address>) {
        let mut lines: Vec<_> = addresses.map(Address::line).collect();
        lines.sort_unstable();
        let text = lines.concat();
        if text == self.saved {
            return;
        }
        let next = self.file.with_extension("addresses.new");
        let write = || -> io::Result<()> {
            self.file.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&next, &text)?;
            fs::rename(&next, &self.file)
        };
        match write() {
            Ok(()) => self.saved = text,
            Err(error) => tracing::debug!(file = %self.file.display(), %error, "cannot save the addresses of peers"),
        }
    }
}

impl Daemon {
    /// Initiates at the addresses of the last run for which a socket is open.
    pub(super) fn recall_peers(&mut self, now: Time) {
        if now > Time::START + RECALL_TIME {
            self.peer_addresses.former.clear();
        }
        for address in std::mem::take(&mut self.peer_addresses.former) {
            let Address { peer, local, remote } = address;
            let Some(link) = self.listening_links().find(|(own, _)| *own == local).map(|(_, link)| link) else {
                self.peer_addresses.former.push(address);
                continue;
            };
            match self.workers.recall_path(now, &peer, link, remote) {
                Ok(()) => tracing::debug!(%peer, %remote, "address of the last run"),
                Err(error) => tracing::debug!(%peer, %remote, %error, "address of the last run not used"),
            }
        }
    }

    /// Saves the addresses if they have changed, at most once per [`SAVE_INTERVAL`].
    pub(super) fn poll_peer_addresses(&mut self, now: Time) {
        if now >= self.peer_addresses.next_save {
            self.peer_addresses.next_save = now + SAVE_INTERVAL;
            self.save_peer_addresses();
        }
    }

    pub(super) fn save_peer_addresses(&mut self) {
        let links: Vec<_> = self.listening_links().collect();
        // Those of a source are not known at the next start.
        let workers = &self.workers;
        let indexes = self.file.peers.iter().filter_map(|peer| workers.index_of(&peer.name));
        let paths = indexes.filter_map(|index| workers.peer(index)).flat_map(Peer::learned_paths);
        let addresses = paths.filter_map(|(peer, link, remote)| {
            let (local, _) = links.iter().find(|(_, id)| *id == link)?;
            Some(Address { peer: *peer, local: *local, remote })
        });
        self.peer_addresses.save(addresses);
    }

    /// Returns the local addresses and sockets to which peers may connect.
    fn listening_links(&self) -> impl Iterator<Item = (IpAddr, LinkId)> {
        let configured = self.sockets.configured().map(|(_, local, link)| (local.ip(), link));
        self.interface_sync.listening.iter().map(|(local, link)| (*local, *link)).chain(configured)
    }
}

impl Address {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let (peer, local, remote) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Self { peer: peer.parse().ok()?, local: local.parse().ok()?, remote: remote.parse().ok()? })
    }

    fn line(self) -> String {
        format!("{} {} {}\n", self.peer, self.local, self.remote)
    }
}

/// Interval between writes. A peer that connected later is not recalled after a crash.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);
/// The time after the start in which addresses of the last run are used: an interface may get its address late.
const RECALL_TIME: Duration = Duration::from_secs(90);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written_and_other_lines_are_skipped() {
        let peer = PublicKey::from_bytes([9; 32]);
        for (local, remote) in [("192.0.2.1", "198.51.100.7:4754"), ("2001:db8::1", "[2001:db8::7]:65535")] {
            let address = Address { peer, local: local.parse().unwrap(), remote: remote.parse().unwrap() };
            assert_eq!(Address::parse(address.line().trim_end()), Some(address));
        }
        let key = peer.to_string();
        for wrong in ["", &key, &format!("{key} 192.0.2.1"), &format!("{key} 192.0.2.1 192.0.2.1"), "x 192.0.2.1 y"] {
            assert_eq!(Address::parse(wrong), None, "{wrong:?}");
        }
    }
}
