//! A configuration directory of the original, as the daemon runs from it: read as a whole, and written one connection at a
//! time.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::ini::Ini;
use super::model::Connection;
use super::toml::{self, Allowed};
use super::{LegacySetup, Note, write};
use crate::config::model::FileFormat;
use crate::config::{self, File};

/// Reads the directory the way `mpt import` and `mpt up` do one after the other. Notes say what has no effect here.
///
/// # Errors
/// Everything that is wrong with its files, as text.
pub fn load(folder: &Path, allowed: Allowed) -> Result<(File, Vec<Note>), Vec<String>> {
    let text = |problems: Vec<_>| problems.iter().map(super::LegacyProblem::to_string).collect::<Vec<_>>();
    let setup = LegacySetup::load(&[folder.to_owned()]).map_err(text)?;
    let toml::Imported { text, notes } = toml::write(&setup, allowed, template(&setup).as_deref());
    let read = config::parse(folder, &text);
    let file =
        read.map_err(|problems| problems.iter().map(|problem| without_line(problem).to_string()).collect::<Vec<_>>())?;
    Ok((File { format: FileFormat::Original, ..file }, notes))
}

/// Where a setup's template is, whatever the directory one looks from.
pub fn template(setup: &LegacySetup) -> Option<String> {
    let file = fs::canonicalize(&setup.template.as_ref()?.file).ok()?;
    Some(file.to_str()?.to_owned())
}

/// Writes a connection to its file. What has no effect, and is therefore not known, is taken from the file as it was.
///
/// # Errors
/// What the system says.
pub fn save(folder: &Path, connection: Connection) -> io::Result<()> {
    let file = connections(folder).join(&connection.file);
    let before = fs::read_to_string(&file).ok().and_then(|text| read(&text));
    let new = file.with_extension("conf.new");
    write_secret(&new, &write::file(&with_idle_keys(connection, before)))?;
    if let Ok(known) = fs::metadata(&file) {
        fs::set_permissions(&new, known.permissions())?;
    }
    fs::rename(new, file)
}

/// Writes a file that holds keys, and that only its owner may read. One that is there is replaced as a whole, so that neither its
/// permissions nor its owner stay; a device or a pipe is written to.
///
/// # Errors
/// What the system says.
pub fn write_secret(file: &Path, text: &str) -> io::Result<()> {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    if fs::metadata(&file).is_ok_and(|known| !known.is_file()) {
        return fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes());
    }
    let mut new = file.clone().into_os_string();
    new.push(".part");
    // One that is left over has somebody's permissions.
    let _ = fs::remove_file(&new);
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?.write_all(text.as_bytes())?;
    fs::rename(new, file)
}

/// Takes a connection's file out of use, as the original does: it is renamed.
///
/// # Errors
/// What the system says; a connection that was never saved has no file, which is none.
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

fn read(text: &str) -> Option<Connection> {
    let mut problems = Vec::new();
    let connection = Connection::read(&Ini::parse("", text, &mut problems), &mut problems, &mut Vec::new());
    problems.is_empty().then_some(connection)
}

/// `connection` with the keys that nothing here depends on as they were.
fn with_idle_keys(mut connection: Connection, before: Option<Connection>) -> Connection {
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
    Connection { name: before.name, permission: before.permission, status: before.status, ..connection }
}

/// The lines of the text in between are nobody's.
fn without_line(problem: &config::Problem) -> config::Problem {
    config::Problem { line: None, ..problem.clone() }
}
