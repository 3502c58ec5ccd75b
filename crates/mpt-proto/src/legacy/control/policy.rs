//! Who may change something here.
//!
//! The original lets anybody who can send a datagram take paths down: types 0 and 1 hold no secret, type 2 falls back to
//! a key that is printed in its source, and the server takes the authentication type from the message. Here the type is
//! the connection's, and what proves nothing is refused until the configuration says otherwise. Even then a message of
//! type 0 or 1 must come from the far address of one of the connection's paths.

use std::net::IpAddr;

use super::{LegacyConnection, Refused};
use crate::legacy::wire::{AuthKey, AuthType, ControlMessage, Opcode};

/// What is accepted from other hosts. The default accepts only messages signed with a key of one's own.
#[derive(Clone, Debug, Default)]
pub struct Accept {
    /// Authentication types 0 and 1: anybody on the way, or able to forge a source address, can take paths down.
    pub unauthenticated: bool,
    /// The original's built-in key, which everybody knows.
    pub public_key: bool,
    /// Connections may be created by peers that know this key: `accept_remote = 1`, with the template's `auth_key`.
    pub create: Option<AuthKey>,
}

impl Accept {
    /// Checks a request against the connection it names and the policy; the key is what the reply is signed with. An
    /// exchange that was begun with a key goes on with it, whatever has been configured meanwhile.
    pub(super) fn authenticate<'a>(
        &'a self,
        connection: Option<&'a LegacyConnection>,
        begun_with: Option<&'a AuthKey>,
        from: IpAddr,
        message: &ControlMessage<'_>,
        bytes: &[u8],
    ) -> Result<&'a AuthKey, Refused> {
        let (auth, key) = self.expected(connection, message.opcode)?;
        let key = begun_with.unwrap_or(key);
        if message.auth.kind() != auth {
            return Err(Refused::WrongAuthType);
        }
        match auth {
            AuthType::Sha256 => self.signed(key, bytes)?,
            AuthType::None | AuthType::Nonce => self.unsigned(connection, from)?,
        }
        Ok(key)
    }

    /// Whether an exchange may rest on this key.
    pub(super) fn key_may_be_used(&self, key: &AuthKey) -> Result<(), Refused> {
        if key.is_public() && !self.public_key { Err(Refused::PublicKey) } else { Ok(()) }
    }

    /// How a request must be authenticated: as the connection says, but creation always with a digest.
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

    fn signed(&self, key: &AuthKey, bytes: &[u8]) -> Result<(), Refused> {
        self.key_may_be_used(key)?;
        if key.verifies(bytes) { Ok(()) } else { Err(Refused::WrongDigest) }
    }

    fn unsigned(&self, connection: Option<&LegacyConnection>, from: IpAddr) -> Result<(), Refused> {
        if !self.unauthenticated {
            return Err(Refused::Unauthenticated);
        }
        let ours = connection.is_some_and(|known| known.paths.iter().any(|path| path.remote == from));
        if ours { Ok(()) } else { Err(Refused::UnknownSource) }
    }
}
