//! `mpt peer add|remove|show` on a server that `mpt setup server` set up.

use std::fs;
use std::time::Duration;

use mpt_proto::config::Protocol;

use super::fleet::FleetAdmission;
use super::host::{self, Systemd};
use super::manifest::{Manifest, Step};
use super::server::format_lifetime;
use super::state::{self, StateFolder, cannot};
use super::tokens::{self, Record};
use super::{Name, admit};
use crate::Failure;
use crate::config::File;

/// Makes a line for another site, and prints it.
///
/// # Errors
/// The server is not set up, or the peer exists.
pub fn add(tunnel: &Name, peer: Option<Name>, lifetime: Duration) -> Result<(), Failure> {
    state::require_root("peer add")?;
    if FleetAdmission::of(tunnel)?.is_some() {
        let failure = Failure::new(format!("{tunnel} has a peer_source, which decides who is a peer"));
        return Err(failure.hint("mpt-fleet invite prints a line for a site"));
    }
    let state = StateFolder::of(tunnel);
    state.server()?;
    let lock = state.lock()?;
    let file = admit::load(tunnel)?;
    let records = tokens::all(&state)?;
    let peer = match peer {
        Some(peer) => check_new(&file, &records, peer)?,
        None => next_name(&file, &records),
    };
    let line = tokens::issue(&state, &peer, lifetime)?;
    drop(lock);
    match Systemd::find() {
        Some(systemd) => systemd.start(&host::enroll_unit(tunnel)).inspect_err(|_| {
            // Without the enrolment, a site with this line gets no answer.
            let _ = tokens::revoke(&state, &peer);
        })?,
        None => eprintln!("unless it runs, start yourself: mpt enroll {tunnel}"),
    }
    if !admit::is_running(tunnel) {
        eprintln!("{tunnel} is not running: mpt up {}", state::config_file(tunnel).display());
    }
    eprintln!("run this on {peer} as root, within {}:", format_lifetime(lifetime));
    crate::output::print(format_args!("mpt join {line}\n"))
}

/// Removes a peer from the configuration and from the running tunnel, and its unused line.
///
/// # Errors
/// There is no such peer, or the tunnel refused the change; then the peer remains.
pub fn remove(tunnel: &Name, peer: &Name) -> Result<(), Failure> {
    state::require_root("peer remove")?;
    let state = StateFolder::of(tunnel);
    state.server()?;
    let _lock = state.lock()?;
    let path = state::peer_file(tunnel, peer);
    // First, because a used token would let the peer in again after a crash.
    let had_line = tokens::revoke(&state, peer)?;
    if !path.exists() {
        if !had_line {
            // A removal that was interrupted may have left it in the running tunnel.
            if admit::is_running(tunnel) {
                admit::reload(tunnel)?;
            }
            return Err(no_peer(tunnel, peer));
        }
        eprintln!("{peer} had not joined; its line is void");
        return Ok(());
    }
    // The include folder skips hidden files.
    let aside = state::part_of(&path);
    fs::rename(&path, &aside).map_err(|error| cannot("remove", &path, &error))?;
    if let Err(failure) = admit::reload(tunnel) {
        fs::rename(&aside, &path).map_err(|error| cannot("restore", &path, &error))?;
        return Err(Failure { what: format!("{peer} was not removed: {}", failure.what), ..failure });
    }
    fs::remove_file(&aside).map_err(|error| cannot("remove", &aside, &error))?;
    Manifest::load(&state)?.forget(&Step::File(path))?;
    eprintln!("{peer} is removed");
    Ok(())
}

/// Returns a text about a peer: its line, its key, its addresses.
///
/// # Errors
/// There is no such peer.
pub fn show(tunnel: &Name, peer: &Name) -> Result<String, Failure> {
    state::require_root("peer show")?;
    let state = StateFolder::of(tunnel);
    state.server()?;
    let file = admit::load(tunnel)?;
    let record = tokens::all(&state)?.into_iter().rfind(|record| record.peer == *peer);
    let Some(known) = file.peers.iter().find(|known| *known.name == peer.as_str()) else {
        let record = record.ok_or_else(|| no_peer(tunnel, peer))?;
        return Ok(format!("{peer}  {}\n", state_of(&record)));
    };
    let networks: Vec<_> = known.networks.iter().map(|network| network.to_string()).collect();
    let mut text = format!("{peer}  joined\n  networks    {}\n", networks.join(", "));
    if let Protocol::Native(native) = &known.protocol.value {
        text += &format!("  public key  {}\n", native.public_key);
    }
    let path = state::peer_file(tunnel, peer);
    let path = if path.exists() { path } else { file.path.clone() };
    Ok(text + &format!("  file        {}\n", path.display()))
}

/// Returns a line of text for each site that has not joined. Empty where no server is set up, or without root.
pub fn pending(tunnel: &str) -> Vec<String> {
    let Ok(name) = tunnel.parse::<Name>() else { return Vec::new() };
    let records = tokens::all(&StateFolder::of(&name)).unwrap_or_default();
    let unused = records.iter().filter(|record| record.used.is_none());
    unused.map(|record| format!("{}: {}", record.peer, state_of(record))).collect()
}

fn state_of(record: &Record) -> String {
    match (record.used.is_some(), record.expires.checked_sub(tokens::now())) {
        (true, _) => "its line is used, and its peer was removed".to_owned(),
        (false, Some(left @ 1..)) => format!("has not joined; its line is valid for {} min", left.div_ceil(60)),
        (false, _) => "has not joined; its line has expired".to_owned(),
    }
}

fn check_new(file: &File, records: &[Record], peer: Name) -> Result<Name, Failure> {
    let fail = |what: &str, hint: String| Err(Failure::new(format!("{peer} {what}")).hint(hint));
    if is_peer(file, &peer) {
        return fail("is a peer already", format!("another name; or mpt peer remove {peer}"));
    }
    if is_invited(records, &peer) {
        return fail(
            "has a line that is still valid",
            format!("another name; or mpt peer remove {peer} makes it void"),
        );
    }
    Ok(peer)
}

/// Returns the first of site1, site2, ... that is free.
fn next_name(file: &File, records: &[Record]) -> Name {
    let names = (1..=u32::MAX).filter_map(|number| format!("site{number}").parse::<Name>().ok());
    let mut free = names.filter(|name| !is_peer(file, name) && !is_invited(records, name));
    free.next().expect("there are fewer peers than numbers")
}

fn is_peer(file: &File, name: &Name) -> bool {
    file.peers.iter().any(|peer| *peer.name == name.as_str())
}

fn is_invited(records: &[Record], name: &Name) -> bool {
    records.iter().any(|record| record.peer == *name && record.used.is_none() && record.expires > tokens::now())
}

fn no_peer(tunnel: &Name, peer: &Name) -> Failure {
    let folder = state::config_folder().join(state::peer_folder(tunnel));
    Failure::new(format!("{tunnel} has no peer {peer} in {}", folder.display())).hint("mpt peer list")
}
