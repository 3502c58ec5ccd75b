//! `mpt config new`: two matching files for two hosts, each as short as one written by hand.
//!
//! ```text
//!   flags --complete------------> Pair --write--> text --config::parse--> a.toml, b.toml (0600)
//!     '--incomplete--> ask -------^
//! ```
//!
//! A host with addresses can be reached at them, and the other one gets a path to each. A host without addresses, which
//! only native mode allows, connects to the other; that one has no path to it, and learns its address. Nothing is
//! written that `mpt config check` would reject.

mod ask;
pub mod flags;
mod write;

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::keys;
use crate::config::{self, Problem};
use crate::output::print;
use crate::{Failure, cli::render, random};
use flags::New;
use write::{Keys, Pair, PairHost};

/// Writes the pair.
pub fn run(mut new: New) -> Result<(), Failure> {
    let (force, files) = (new.force, ["a.toml", "b.toml"].map(|name| new.into.join(name)));
    if let Some(there) = files.iter().find(|file| !force && file.exists()) {
        let hint = "--force overwrites it, and the key in it is lost; --into DIRECTORY writes elsewhere";
        return Err(Failure::new(format!("{} exists already", there.display())).hint(hint));
    }
    new.complete()?;
    let texts = new.pair()?.texts()?;
    for (file, text) in files.iter().zip(&texts) {
        check(file, text)?;
    }
    for (file, text) in files.iter().zip(&texts) {
        save(file, text, force).map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display())))?;
        print(format_args!("{}\n", file.display()))?;
    }
    eprintln!("a.toml is for host A and b.toml for host B; start each with: mpt up FILE");
    Ok(())
}

impl New {
    /// Prompts for missing values, if there is a terminal.
    fn complete(&mut self) -> Result<(), Failure> {
        match self.missing() {
            None => Ok(()),
            Some(_) if io::stdin().is_terminal() => ask::ask_missing(self, &mut io::stdin().lock(), &mut io::stderr()),
            Some(missing) => Err(missing),
        }
    }

    /// Returns an error if a required value is missing.
    fn missing(&self) -> Option<Failure> {
        let (a, b) = (self.a_address.is_empty(), self.b_address.is_empty());
        if self.plain && (a || b) {
            let failure = Failure::new("plain mode needs the addresses of both hosts");
            return Some(failure.hint("--a-address IP --b-address IP, with several addresses for several paths"));
        }
        (a && b).then(|| {
            let failure = Failure::new("one host needs an address to which the other one can connect");
            failure.hint("for example --b-address 203.0.113.7 --a-interface eth1,wwan0")
        })
    }

    fn pair(self) -> Result<Pair, Failure> {
        for (flag, interfaces, far) in
            [("a", &self.a_interface, &self.b_address), ("b", &self.b_interface, &self.a_address)]
        {
            if far.is_empty() && !interfaces.is_empty() {
                let failure =
                    Failure::new(format!("--{flag}-interface has no meaning without an address of the other host"));
                return Err(failure.hint("a host that accepts connections answers on the interface of arrival"));
            }
        }
        let keys = match self.plain {
            true => None,
            false => Some(Keys {
                pairs: [random::key_pair()?, random::key_pair()?],
                shared: self.psk.then(keys::new_psk).transpose()?,
            }),
        };
        let a = PairHost { addresses: self.a_address, interfaces: self.a_interface };
        let b = PairHost { addresses: self.b_address, interfaces: self.b_interface };
        Ok(Pair { keys, hosts: [a, b], networks: self.network, port: self.port })
    }
}

/// Fails if the file would be invalid.
fn check(file: &Path, text: &str) -> Result<(), Failure> {
    let wrong =
        |problem: Problem| Failure { what: format!("the file would be invalid: {}", problem.what), hint: problem.hint };
    match config::parse(file, text) {
        Ok(file) => eprint!("{}", render::lines(&file.warnings)),
        Err(errors) => errors.into_iter().next().map_or(Ok(()), |first| Err(wrong(first)))?,
    }
    Ok(())
}

/// Writes a file that only its owner may read. An existing one is replaced, so that its permissions are not kept.
fn save(file: &Path, text: &str, force: bool) -> io::Result<()> {
    if force && file.exists() {
        fs::remove_file(file)?;
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?.write_all(text.as_bytes())
}
