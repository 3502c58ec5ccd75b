//! Removes what `mpt setup server` or `mpt join` created, by its manifest.

use std::fs;
use std::io::ErrorKind;

use super::host::Systemd;
use super::manifest::{Manifest, Step};
use super::state::{SERVER, StateFolder, cannot, config_file, part_of, require_root};
use super::{Name, admit};
use crate::Failure;
use crate::control::{ControlClient, RunDir};

/// Removes everything, and prints it.
///
/// # Errors
/// There is nothing to remove, or something could not be removed. It stays in the manifest.
pub fn run(name: &Name) -> Result<(), Failure> {
    require_root("setup undo")?;
    let state = StateFolder::of(name);
    if !state.path().exists() {
        let failure = Failure::new(format!("neither mpt setup server nor mpt join has set up {name} on this host"));
        return Err(failure.hint("mpt setup undo NAME, with the name of the tunnel"));
    }
    let _lock = state.lock()?;
    let is_server = state.file(SERVER).exists();
    roll_back(&state, |done| eprintln!("{done}"))?;
    state.remove()?;
    eprintln!("removed {}", state.path().display());
    Systemd::find().map_or(Ok(()), |systemd| systemd.reload())?;
    if !is_server {
        eprintln!("the server may still have this site as a peer; there, mpt peer remove ends that");
    }
    Ok(())
}

/// Runs `change`. If that fails, removes what it created.
///
/// # Errors
/// That of the change.
pub fn or_roll_back<T>(state: &StateFolder, change: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    change().map_err(|failure| match roll_back(state, |_| {}) {
        Ok(()) => Failure { what: format!("{}; nothing was changed", failure.what), ..failure },
        Err(second) => {
            let what = format!("{}; then {}", failure.what, second.what);
            Failure::new(what).hint(format!("mpt setup undo {}", state.name))
        }
    })
}

/// Undoes the steps of the manifest, the last first, and goes on after an error.
fn roll_back(state: &StateFolder, mut report: impl FnMut(String)) -> Result<(), Failure> {
    let mut manifest = Manifest::load(state)?;
    let mut first_failure = None;
    let (units, files): (Vec<_>, Vec<_>) =
        manifest.steps().iter().rev().cloned().partition(|step| matches!(step, Step::Unit(_)));
    let mut all: Vec<_> = units.into_iter().map(Some).collect();
    // `None` takes the tunnel down, between the units and the files: systemd may not have started it.
    all.extend(files.contains(&Step::File(config_file(&state.name))).then_some(None));
    for step in all.into_iter().chain(files.into_iter().map(Some)) {
        let undone = match &step {
            None => take_down(&state.name),
            Some(step) => undo(step),
        };
        match (undone, step) {
            (Ok(done), step) => {
                done.into_iter().for_each(&mut report);
                // The manifest may be on a full disk; a step that is undone twice does no harm.
                let _ = step.map(|step| manifest.forget(&step));
            }
            (Err(failure), _) => first_failure = first_failure.or(Some(failure)),
        }
    }
    match first_failure {
        Some(failure) => Err(failure),
        None => manifest.discard(),
    }
}

/// Returns what was done, if anything.
fn undo(step: &Step) -> Result<Option<String>, Failure> {
    match step {
        Step::File(path) => {
            let _ = fs::remove_file(part_of(path));
            match fs::remove_file(path) {
                Ok(()) => Ok(Some(format!("removed {}", path.display()))),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(cannot("remove", path, &error)),
            }
        }
        Step::Folder(path) => match fs::remove_dir(path) {
            Ok(()) => Ok(Some(format!("removed {}", path.display()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                Ok(Some(format!("kept {}, which has files of others", path.display())))
            }
            Err(error) => Err(cannot("remove", path, &error)),
        },
        Step::Unit(unit) => match Systemd::find() {
            Some(systemd) => systemd.disable(unit).map(|()| Some(format!("stopped and disabled {unit}"))),
            None => Ok(None),
        },
    }
}

fn take_down(name: &Name) -> Result<Option<String>, Failure> {
    if !admit::is_running(name) {
        return Ok(None);
    }
    ControlClient::connect(&RunDir::from_env(), Some(name.as_str()))?.down()?;
    Ok(Some(format!("took {name} down")))
}
