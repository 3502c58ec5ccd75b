//! Commands that wait for peers that run the original: the creation of a connection, and status changes of paths.

use mpt_proto::legacy::control::{AddressPair, Code, LegacyPath};

use super::{Daemon, control_port};
use crate::Failure;
use crate::control::{ClientToken, Response};

/// A command whose response follows after the answers of peers.
#[derive(Debug)]
pub(super) struct PendingCommand {
    client: ClientToken,
    awaited: Vec<Awaited>,
    /// The first failure.
    failure: Option<Failure>,
}

/// An exchange: the creation of a connection, or the status change of one of its paths.
pub(super) type Awaited = (AddressPair, Option<LegacyPath>);

impl Daemon {
    /// Responds to a client when these exchanges have ended.
    pub(super) fn respond_after(&mut self, client: ClientToken, awaited: Vec<Awaited>) {
        self.pending.push(PendingCommand { client, awaited, failure: None });
    }

    /// Returns the status changes of these paths that are being sent to peers.
    pub(super) fn status_changes(&mut self, names: &[(String, String)]) -> Vec<Awaited> {
        let Some(port) = &mut self.control_port else { return Vec::new() };
        let mut awaited = Vec::new();
        for peer in &self.file.peers {
            let Some(original) = &peer.original else { continue };
            let pair = control_port::pair(original);
            let named = peer.paths.iter().filter(|path| {
                names.iter().any(|(of, name)| (of.as_str(), name.as_str()) == (peer.name.as_str(), path.name.as_str()))
            });
            let sent = named.filter_map(control_port::wire_name);
            let sent = sent.filter(|path| port.control().is_sending_status(pair, *path));
            awaited.extend(sent.map(|path| (pair, Some(path))));
        }
        awaited
    }

    /// Ends an exchange, and responds to clients that wait for nothing else.
    pub(super) fn end_exchange(&mut self, ended: Awaited, result: &Result<(), Failure>) {
        self.end_exchanges(|awaited| *awaited == ended, result);
    }

    /// As [`Self::end_exchange`], for all exchanges with a peer that was removed.
    pub(super) fn end_exchanges_of(&mut self, pair: AddressPair) {
        let gone = Failure::new("the connection ended before the peer answered");
        self.end_exchanges(|(of, _)| *of == pair, &Err(gone));
    }

    fn end_exchanges(&mut self, has_ended: impl Fn(&Awaited) -> bool, result: &Result<(), Failure>) {
        for pending in &mut self.pending {
            let before = pending.awaited.len();
            pending.awaited.retain(|awaited| !has_ended(awaited));
            if let (Err(failure), true) = (result, pending.awaited.len() < before) {
                pending.failure.get_or_insert_with(|| failure.clone());
            }
        }
        for done in self.pending.extract_if(.., |pending| pending.awaited.is_empty()) {
            self.control.respond(done.client, &done.failure.map_or(Response::Done {}, Response::from));
        }
    }
}

/// Returns the failure of a status change at the peer. This end has applied it.
pub(super) fn status_failure(path: LegacyPath, code: Code) -> Failure {
    let LegacyPath { public, remote } = path;
    let what = format!("the path from {public} to {remote} changed here, but the peer did not confirm it: {code}");
    Failure::new(what).hint(match code {
        Code::TIMEOUT => {
            "check the peer's control port, and whether it accepts control messages of this `auth`; \
             it finds a silent path down after its dead time"
        }
        Code::AUTHENTICATION => "`auth` and `key` of both ends must be the same",
        _ => "the peer finds a silent path down after its dead time",
    })
}

/// Returns a hint for a creation that failed.
pub(super) fn create_hint(code: Code) -> &'static str {
    match code {
        Code::TIMEOUT => "check that the peer is up, its control port reachable, accept_remote = 1, and the keys equal",
        Code::AUTHENTICATION => {
            "the keys of both ends must be the same; an original that has the connection already continues with the \
             public key, which --public-key, or public_key = true in [original], accepts"
        }
        Code::EXISTS => "the peer has this connection; mpt restart uses it",
        _ => "see the peer's log",
    }
}
