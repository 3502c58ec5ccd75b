//! Tokens as the server keeps them: a file for each, named after its hash.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use mpt_proto::crypto::handshake::enrolment::Token;
use mpt_proto::crypto::keys::PublicKey;
use serde::{Deserialize, Serialize};

use super::answer::EnrolmentRefusal;
use super::state::{StateFolder, TOKENS, cannot};
use super::{EnrolmentLine, Name};
use crate::Failure;
use crate::random;

/// A token without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name that the site gets.
    pub peer: Name,
    /// When it expires, in seconds of Unix time.
    pub expires: u64,
    /// The site that used it.
    pub used: Option<Used>,
}

/// The use of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// The public key of the site.
    pub key: String,
    /// When, in seconds of Unix time.
    pub at: u64,
    /// The inner addresses that the site got.
    pub addresses: Vec<IpNet>,
}

/// A right that a record gives a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    /// To become a peer.
    Join,
    /// To get the same answer again.
    Repeat(Vec<IpNet>),
}

impl Record {
    /// Decides about a site with this key.
    ///
    /// # Errors
    /// The token is used or expired.
    pub fn right_of(&self, site: &PublicKey, now: u64) -> Result<Right, EnrolmentRefusal> {
        match &self.used {
            Some(used) if used.key == site.to_string() && now < used.at + REPEAT_S => {
                Ok(Right::Repeat(used.addresses.clone()))
            }
            Some(_) => Err(EnrolmentRefusal::Used),
            None if now >= self.expires => Err(EnrolmentRefusal::Expired),
            None => Ok(Right::Join),
        }
    }

    /// Returns when the record permits nothing any more.
    pub fn ends(&self) -> u64 {
        self.used.as_ref().map_or(self.expires, |used| used.at + REPEAT_S)
    }
}

/// Makes a token for a peer, records it, and returns the line for the site.
///
/// # Errors
/// The record cannot be written.
pub fn issue(state: &StateFolder, peer: &Name, lifetime: Duration) -> Result<EnrolmentLine, Failure> {
    let server = state.server()?;
    let token = Token::from_bytes(*random::bytes()?);
    forget_ended(state)?;
    let record = Record { peer: peer.clone(), expires: now() + lifetime.as_secs(), used: None };
    state.write(&file(&token.hash()), &record)?;
    let key = *state.enrolment_key(&server)?.public();
    Ok(EnrolmentLine { hosts: server.addresses, port: server.port, key, token })
}

/// Returns the record of a token.
///
/// # Errors
/// It cannot be read.
pub fn find(state: &StateFolder, token: &Token) -> Result<Option<Record>, Failure> {
    state.read(&file(&token.hash()))
}

/// Records that a site used a token.
///
/// # Errors
/// It cannot be written; then the token is as it was.
pub fn mark_used(state: &StateFolder, token: &Token, record: &Record) -> Result<(), Failure> {
    state.write(&file(&token.hash()), record)
}

/// Returns the records, those that end first at the front.
///
/// # Errors
/// One cannot be read.
pub fn all(state: &StateFolder) -> Result<Vec<Record>, Failure> {
    let records: Result<Vec<Option<Record>>, _> =
        names(state)?.iter().map(|name| state.read(&format!("{TOKENS}/{name}"))).collect();
    let mut records: Vec<_> = records?.into_iter().flatten().collect();
    records.sort_by_key(Record::ends);
    Ok(records)
}

/// Removes the tokens of a peer. Returns true if there was one.
///
/// # Errors
/// The system's error.
pub fn revoke(state: &StateFolder, peer: &Name) -> Result<bool, Failure> {
    remove(state, |record| record.peer == *peer)
}

fn forget_ended(state: &StateFolder) -> Result<(), Failure> {
    let now = now();
    remove(state, |record| record.ends() + KEPT_S < now).map(drop)
}

fn remove(state: &StateFolder, selected: impl Fn(&Record) -> bool) -> Result<bool, Failure> {
    let mut removed = false;
    for name in names(state)? {
        let name = format!("{TOKENS}/{name}");
        if state.read::<Record>(&name)?.is_some_and(|record| selected(&record)) {
            let path = state.file(&name);
            fs::remove_file(&path).map_err(|error| cannot("remove", &path, &error))?;
            removed = true;
        }
    }
    Ok(removed)
}

/// Returns the names of the files.
fn names(state: &StateFolder) -> Result<Vec<String>, Failure> {
    let folder = folder(state);
    match fs::read_dir(&folder) {
        Ok(entries) => {
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            Ok(names.filter(|name| name.ends_with(".json")).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(cannot("read", &folder, &error)),
    }
}

/// Returns the folder of the records.
pub fn folder(state: &StateFolder) -> PathBuf {
    state.file(TOKENS)
}

fn file(hash: &[u8; 32]) -> String {
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{TOKENS}/{hex}.json")
}

/// Returns Unix time in seconds.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A site whose answer was lost repeats its request within this time.
const REPEAT_S: u64 = 600;
/// A used or expired token is known as such for a week, so that a site learns why it is refused.
const KEPT_S: u64 = 7 * 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_one_site_and_one_time() {
        let [site, other] = [PublicKey::from_bytes([1; 32]), PublicKey::from_bytes([2; 32])];
        let open = Record { peer: "site1".parse().unwrap(), expires: 1_000, used: None };
        assert_eq!(open.right_of(&site, 999), Ok(Right::Join));
        assert_eq!(open.right_of(&site, 1_000), Err(EnrolmentRefusal::Expired));
        let addresses = vec!["10.77.0.2/24".parse().unwrap()];
        let used = Used { key: site.to_string(), at: 990, addresses: addresses.clone() };
        let used = Record { used: Some(used), ..open };
        // Ten minutes from the use, whether the token has expired or not.
        assert_eq!(used.right_of(&site, 1_589), Ok(Right::Repeat(addresses)));
        assert_eq!(used.right_of(&site, 1_590), Err(EnrolmentRefusal::Used));
        assert_eq!(used.right_of(&other, 991), Err(EnrolmentRefusal::Used));
        assert_eq!(used.ends(), 1_590);
    }
}
