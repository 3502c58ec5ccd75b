//! The configuration directory of the original, written one connection at a time.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::import::LegacySetup;
use super::ini::Ini;
use super::model::ConnectionConfig;
use super::write;

/// Returns the absolute path of a setup's template.
pub fn template(setup: &LegacySetup) -> Option<String> {
    let file = fs::canonicalize(&setup.template.as_ref()?.file).ok()?;
    Some(file.to_str()?.to_owned())
}

/// Writes a connection to its file. Keys without effect here keep their values from the existing file.
///
/// # Errors
/// The system's error.
pub fn save(folder: &Path, connection: ConnectionConfig) -> io::Result<()> {
    let file = connections(folder).join(&connection.file);
    let before = fs::read_to_string(&file).ok().and_then(|text| read(&text));
    let new = file.with_extension("conf.new");
    write_secret(&new, &write::file(&with_idle_keys(connection, before)))?;
    if let Ok(known) = fs::metadata(&file) {
        fs::set_permissions(&new, known.permissions())?;
    }
    fs::rename(new, file)
}

/// Writes a file with keys that only its owner may read. Replaces an existing file, so that neither its permissions nor
/// its owner are kept; writes into a device or pipe.
///
/// # Errors
/// The system's error.
pub fn write_secret(file: &Path, text: &str) -> io::Result<()> {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    if fs::metadata(&file).is_ok_and(|known| !known.is_file()) {
        return fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes());
    }
    let mut new = file.clone().into_os_string();
    new.push(".part");
    // A leftover file may have other permissions.
    let _ = fs::remove_file(&new);
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?.write_all(text.as_bytes())?;
    fs::rename(new, file)
}

/// Disables a connection's file by renaming it, as the original does.
///
/// # Errors
/// The system's error. A connection that was never saved has no file; that is no error.
pub fn disable(folder: &Path, name: &str) -> io::Result<()> {
    let file = connections(folder).join(name);
    match fs::rename(&file, connections(folder).join(format!("{name}.disabled"))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn connections(folder: &Path) -> PathBuf {
    let conf = folder.join("conf");
    if conf.is_dir() { conf.join("connections") } else { folder.join("connections") }
}

/// Reads a connection; `None` if there is a mistake in it.
pub(crate) fn read(text: &str) -> Option<ConnectionConfig> {
    let mut problems = Vec::new();
    let connection = ConnectionConfig::read(&Ini::parse("", text, &mut problems), &mut problems, &mut Vec::new());
    problems.is_empty().then_some(connection)
}

/// Returns `connection` with the previous values of keys that have no effect here.
fn with_idle_keys(mut connection: ConnectionConfig, before: Option<ConnectionConfig>) -> ConnectionConfig {
    let Some(before) = before else { return connection };
    for (path, before) in connection.paths.iter_mut().zip(before.paths) {
        path.window_size = before.window_size;
        path.interface_name = before.interface_name;
        if before.status != 0 && path.status != 0 {
            path.status = before.status;
        }
    }
    if connection.reorder_window == 0 {
        connection.max_buffdelay_msec = before.max_buffdelay_msec;
    }
    ConnectionConfig { name: before.name, permission: before.permission, status: before.status, ..connection }
}
