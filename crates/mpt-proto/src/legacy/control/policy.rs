//! Authentication and authorization of requests.
//!
//! The original lets any sender of a datagram take paths down: types 0 and 1 have no secret, type 2 falls back to a key
//! that is printed in its source, and the server takes the authentication type from the message. Here the type is that
//! of the connection, and messages that prove nothing are refused unless the configuration accepts them. Even then a
//! message of type 0 or 1 must come from the remote address of one of the connection's paths.

use std::net::IpAddr;

use super::{LegacyConnection, Refused};
use crate::legacy::wire::{AuthKey, AuthType, ControlMessage, Opcode};

/// The messages accepted from other hosts. The default accepts only those signed with the connection's own key.
#[derive(Clone, Debug, Default)]
pub struct Accept {
    /// Accepts types 0 and 1: an attacker on the path, or one that forges a source address, can take paths down.
    pub unauthenticated: bool,
    /// Accepts the original's built-in key, which is public.
    pub public_key: bool,
    /// Accepts the creation of connections by peers with this key: `accept_remote = 1`, with the template's `auth_key`.
    pub create: Option<AuthKey>,
}

impl Accept {
    /// Checks a request against its connection and the policy, and returns the key that signs the reply. An exchange
    /// keeps the key with which it started, even if the configuration has changed since: `exchange_keys` are those of
    /// the exchanges that a round 3 may belong to.
    pub(super) fn authenticate<'a>(
        &'a self,
        connection: Option<&'a LegacyConnection>,
        exchange_keys: Vec<&'a AuthKey>,
        from: IpAddr,
        message: &ControlMessage<'_>,
        bytes: &[u8],
    ) -> Result<&'a AuthKey, Refused> {
        let (auth, key) = self.expected(connection, message.opcode)?;
        if message.auth.kind() != auth {
            return Err(Refused::WrongAuthType);
        }
        match auth {
            AuthType::Sha256 if exchange_keys.is_empty() => self.signed(&self.keys(connection, key), bytes),
            AuthType::Sha256 => self.signed(&exchange_keys, bytes),
            AuthType::None | AuthType::Nonce => self.unsigned(connection, from).map(|()| key),
        }
    }

    /// Returns the public key, if an original at the other end of this connection may have continued with it.
    pub(super) fn other_key(&self, connection: &LegacyConnection) -> Option<&'static AuthKey> {
        (connection.created && self.public_key && !connection.key.is_public()).then_some(&AuthKey::PUBLIC)
    }

    /// Checks that an exchange may use this key.
    pub(super) fn key_may_be_used(&self, key: &AuthKey) -> Result<(), Refused> {
        if key.is_public() && !self.public_key { Err(Refused::PublicKey) } else { Ok(()) }
    }

    /// Returns the required authentication of a request: that of the connection, but always a digest for creation.
    fn expected<'a>(
        &'a self,
        connection: Option<&'a LegacyConnection>,
        opcode: Opcode,
    ) -> Result<(AuthType, &'a AuthKey), Refused> {
        match opcode {
            Opcode::Create => {
                let global = self.create.as_ref().ok_or(Refused::CreateNotAccepted)?;
                Ok((AuthType::Sha256, connection.map_or(global, |known| &known.key)))
            }
            Opcode::PathStatus | Opcode::Keepalive => {
                let known = connection.ok_or(Refused::UnknownConnection)?;
                Ok((known.auth, &known.key))
            }
        }
    }

    fn keys<'a>(&self, connection: Option<&'a LegacyConnection>, key: &'a AuthKey) -> Vec<&'a AuthKey> {
        let other = connection.and_then(|known| self.other_key(known));
        std::iter::once(key).chain(other).collect()
    }

    /// Returns the key with which a message was signed.
    fn signed<'a>(&self, keys: &[&'a AuthKey], bytes: &[u8]) -> Result<&'a AuthKey, Refused> {
        keys.iter().try_for_each(|key| self.key_may_be_used(key))?;
        let refused = || if AuthKey::PUBLIC.verifies(bytes) { Refused::PublicKey } else { Refused::WrongDigest };
        keys.iter().copied().find(|key| key.verifies(bytes)).ok_or_else(refused)
    }

    fn unsigned(&self, connection: Option<&LegacyConnection>, from: IpAddr) -> Result<(), Refused> {
        if !self.unauthenticated {
            return Err(Refused::Unauthenticated);
        }
        let ours = connection.is_some_and(|known| known.paths.iter().any(|path| path.remote == from));
        if ours { Ok(()) } else { Err(Refused::UnknownSource) }
    }
}
