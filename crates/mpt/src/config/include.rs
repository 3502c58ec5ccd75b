//! Peers in separate files: `include = "peers.d"` reads every `*.toml` of that folder, ordered by name.
//!
//! Such a file has `[[peer]]` tables as in the main file, and nothing else. Problems are reported with its own name and
//! line. A peer is named after its file by default.

use std::path::{Path, PathBuf};

use toml::de::DeTable;

use super::model::Peer;
use super::problem::ProblemLog;
use super::reader::{NameGenerator, Reader};
use super::value_types;
use super::values::At;
use crate::secrets;

/// Reads a `[[peer]]` table; the string is the name of a peer that has none of its own.
pub type ReadPeer<'r> = &'r dyn Fn(&mut Reader<'_, '_, '_>, String) -> Vec<Peer>;

/// Reads the peers in a folder, whose path is relative to the including file.
pub fn peers(folder: &At<PathBuf>, read_peer: ReadPeer<'_>, log: &mut ProblemLog<'_>) -> Vec<Peer> {
    let path = log.path().parent().unwrap_or(Path::new("")).join(&folder.value);
    let folder_read = match log.files().folder(&path, is_included) {
        Ok(folder) => folder,
        Err(error) => {
            let what = format!("include: {} cannot be read: {error}", path.display());
            let hint = secrets::hint_for(&error, &format!("mkdir -m 700 {}", path.display()));
            log.error(folder.line, what, Some(hint));
            return Vec::new();
        }
    };
    if folder_read.may_be_changed_by_others {
        log.warn_loose(folder.line, &path);
    }
    folder_read.files.into_iter().flat_map(|file| read(file, folder.line, read_peer, log)).collect()
}

/// Skips backup files of editors and package managers.
fn is_included(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|extension| extension == "toml")
}

fn read(path: PathBuf, line: usize, read_peer: ReadPeer<'_>, log: &mut ProblemLog<'_>) -> Vec<Peer> {
    let read = match log.files().read(&path, u64::MAX) {
        Ok(read) => read,
        Err(error) => {
            let hint = secrets::hint_for(&error, "it must be readable UTF-8 text; or remove it");
            log.error(line, format!("include: {} cannot be read: {error}", path.display()), Some(hint));
            return Vec::new();
        }
    };
    let base = log.lines().include(path.clone());
    let mut own = ProblemLog::new(&path, &read.text)
        .with_permissions(read.permissions)
        .with_files(log.files())
        .counted_from(base);
    if read.may_be_changed_by_others {
        own.warn_loose(base + 1, &path);
    }
    let (document, errors) = DeTable::parse_recoverable(&read.text);
    errors.iter().for_each(|error| own.syntax(error));
    let mut top = Reader::new(document.get_ref(), "", base + 1, &mut own);
    let peers = tables(&mut top, &path, read_peer);
    top.finish();
    log.absorb(own);
    peers
}

fn tables(top: &mut Reader<'_, '_, '_>, path: &Path, read_peer: ReadPeer<'_>) -> Vec<Peer> {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    if !value_types::is_name(&stem) {
        let what = format!("the name of this file is not {}, and its peer is named after it", value_types::NAME);
        top.log.error(top.line, what, Some("rename it".to_owned()));
    }
    if top.is_absent_or_empty("peer") {
        top.missing("there is no peer in this file", "write [[peer]] on a line of its own".to_owned());
    }
    let mut names = NameGenerator::after(&stem);
    let peers = top.tables("peer", "peer", |table| {
        let name = names.next(table);
        read_peer(table, name)
    });
    peers.into_iter().flatten().collect()
}
