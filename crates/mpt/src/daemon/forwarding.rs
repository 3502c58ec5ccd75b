//! Forwarding of the kernel, which a gateway switches on, and the values from before.
//!
//! The previous values are saved in a file beside the control socket before they are changed. After a crash, the file
//! makes the next `mpt up` or `mpt down` restore them. Several tunnels can need forwarding: the last one restores it.
//!
//! A host that forwards IPv6 ignores router advertisements unless `accept_ra` is 2, and the kernel removes the default
//! routes that it has from them. So interfaces that accept advertisements continue to do so: the uplinks of a host that
//! gets its addresses in this way would lose the Internet. Shared interfaces are excluded: a router is no host there.

use std::fs;
use std::io;
use std::path::Path;

use crate::Failure;
use crate::config::File;
use crate::control::RunDir;

/// The settings of the kernel that a gateway needs.
#[derive(Debug)]
pub struct Forwarding {
    /// The names of settings below [`SYSCTL_ROOT`], each with its value, in the order in which they are written.
    values: Vec<(String, &'static str)>,
    /// Families that the host did not forward before any tunnel changed that.
    pub only_for_tunnel: Vec<&'static str>,
}

impl Forwarding {
    /// Saves the values that [`Self::switch_on`] will change, or those from before another tunnel changed them.
    ///
    /// # Errors
    /// A setting cannot be read, or the file cannot be written.
    pub fn save(file: &File, run: &RunDir) -> Result<Self, Failure> {
        let (name, others) = (&file.interface, other_states(&file.interface, run));
        let before = |sysctl: &str| {
            let known = others.iter().find_map(|other| value(other, sysctl));
            known.map_or_else(|| read(sysctl), Ok)
        };
        let ipv6 = file.addresses.iter().any(|address| address.addr().is_ipv6());
        let families = SYSCTLS.into_iter().take(if ipv6 { 2 } else { 1 });
        let mut saved = Vec::new();
        for sysctl in families.clone().map(|(sysctl, _)| sysctl) {
            saved.push((sysctl.to_owned(), before(sysctl)?));
        }
        let is_off = |sysctl: &str| saved.iter().any(|(saved, value)| saved == sysctl && value == "0");
        let only_for_tunnel = families.filter(|(sysctl, _)| is_off(sysctl)).map(|(_, family)| family).collect();
        let mut values: Vec<_> = saved.iter().map(|(sysctl, _)| (sysctl.clone(), "1")).collect();
        if is_off(IPV6) {
            for sysctl in advertisements_except(&[&[name.to_string()], file.share.as_slice()].concat()) {
                if let Some(value) = before(&sysctl).ok().filter(|value| value == "1") {
                    saved.push((sysctl.clone(), value));
                    // Before forwarding, with which the kernel removes routes.
                    values.insert(0, (sysctl, "2"));
                }
            }
        }
        let (path, text) = (run.undo_file(name), saved.iter().map(|(sysctl, value)| format!("{sysctl}={value}\n")));
        fs::write(&path, text.collect::<String>()).map_err(|error| cannot("write", &path, &error))?;
        Ok(Self { values, only_for_tunnel })
    }

    /// Switches forwarding on.
    ///
    /// # Errors
    /// A setting cannot be written.
    pub fn switch_on(&self) -> Result<(), Failure> {
        // An interface may have gone since.
        let exists = |sysctl: &str| !is_advertisement(sysctl) || Path::new(SYSCTL_ROOT).join(sysctl).exists();
        let mut present = self.values.iter().filter(|(sysctl, _)| exists(sysctl));
        present.try_for_each(|(sysctl, value)| write(sysctl, value))
    }

    /// Switches it on again where it is off. Returns true if it was anywhere.
    ///
    /// # Errors
    /// A setting cannot be read or written.
    pub fn restore(&self) -> Result<bool, Failure> {
        let mut restored = false;
        for (sysctl, value) in self.values.iter().filter(|(_, value)| *value == "1") {
            if read(sysctl)? == "0" {
                write(sysctl, value)?;
                restored = true;
            }
        }
        Ok(restored)
    }
}

/// Returns true if the tunnel with this name has changed settings.
pub fn is_saved(name: &str, run: &RunDir) -> bool {
    run.undo_file(name).exists()
}

/// Restores the settings from before the tunnel with this name, as far as no other tunnel needs them.
///
/// # Errors
/// One could not be restored. The file then stays for another attempt.
pub fn revert(name: &str, run: &RunDir) -> Result<(), Failure> {
    let state_file = run.undo_file(name);
    let text = fs::read_to_string(&state_file).map_err(|error| cannot("read", &state_file, &error))?;
    let others = other_states(name, run);
    for (sysctl, before) in text.lines().filter_map(|line| line.split_once('=')) {
        let still_needed = others.iter().any(|other| value(other, sysctl).is_some());
        let is_interface = is_advertisement(sysctl);
        // An interface may be gone.
        let exists = !is_interface || Path::new(SYSCTL_ROOT).join(sysctl).exists();
        if (is_interface || SYSCTLS.iter().any(|(known, _)| *known == sysctl)) && exists && !still_needed {
            write(sysctl, before)?;
        }
    }
    fs::remove_file(&state_file).map_err(|error| cannot("remove", &state_file, &error))
}

/// Returns the settings for router advertisements of all interfaces but these.
fn advertisements_except(names: &[String]) -> Vec<String> {
    let entries = fs::read_dir(Path::new(SYSCTL_ROOT).join(INTERFACES)).into_iter().flatten().flatten();
    let interfaces = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let others = interfaces.filter(|interface| *interface != "all" && !names.contains(interface));
    others.map(|interface| format!("{INTERFACES}/{interface}/{ADVERTISEMENTS}")).collect()
}

/// Returns true for the name of such a setting.
fn is_advertisement(sysctl: &str) -> bool {
    let rest = sysctl.strip_prefix(INTERFACES).and_then(|rest| rest.strip_suffix(ADVERTISEMENTS));
    let interface = rest.and_then(|rest| rest.strip_prefix('/')?.strip_suffix('/'));
    interface.is_some_and(|interface| !interface.contains('/') && ![".", ".."].contains(&interface))
}

/// Returns the saved states of other tunnels.
fn other_states(name: &str, run: &RunDir) -> Vec<String> {
    let names = run.names().into_iter().filter(|other| other != name);
    names.filter_map(|other| fs::read_to_string(run.undo_file(&other)).ok()).collect()
}

fn value(state: &str, sysctl: &str) -> Option<String> {
    state.lines().find_map(|line| Some(line.split_once('=').filter(|(name, _)| *name == sysctl)?.1.to_owned()))
}

fn read(sysctl: &str) -> Result<String, Failure> {
    let path = Path::new(SYSCTL_ROOT).join(sysctl);
    let text = fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))?;
    Ok(text.trim().to_owned())
}

fn write(sysctl: &str, value: &str) -> Result<(), Failure> {
    let path = Path::new(SYSCTL_ROOT).join(sysctl);
    fs::write(&path, value).map_err(|error| cannot("write", &path, &error))
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    let hint = "masquerade and share need root; a service of systemd needs the drop-in gateway.conf";
    Failure::new(format!("cannot {what} {}: {error}", path.display())).hint(hint)
}

/// Settings that enable forwarding, with the names of their families: IPv4, and IPv6 if the tunnel uses it.
const SYSCTLS: [(&str, &str); 2] = [("net/ipv4/ip_forward", "ipv4"), (IPV6, "ipv6")];
const IPV6: &str = "net/ipv6/conf/all/forwarding";
/// The folder with settings of interfaces, and the name of the one for router advertisements.
const INTERFACES: &str = "net/ipv6/conf";
const ADVERTISEMENTS: &str = "accept_ra";
const SYSCTL_ROOT: &str = "/proc/sys";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_is_read_from_its_own_line() {
        let state = "net/ipv4/ip_forward=0\nnet/ipv6/conf/all/forwarding=1\n";
        assert_eq!(value(state, SYSCTLS[0].0), Some("0".to_owned()));
        assert_eq!(value(state, IPV6), Some("1".to_owned()));
        assert_eq!(value(state, "net/ipv4"), None);
    }

    #[test]
    fn only_settings_for_advertisements_are_restored_by_name() {
        assert!(is_advertisement("net/ipv6/conf/eth0.7/accept_ra"));
        for wrong in ["net/ipv6/conf/../../core/accept_ra", "net/ipv6/conf/../accept_ra", "net/ipv6/conf/accept_ra"] {
            assert!(!is_advertisement(wrong), "{wrong}");
        }
    }
}
