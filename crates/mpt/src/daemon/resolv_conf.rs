//! `/etc/resolv.conf`, replaced while a tunnel is up.
//!
//! The former file, or the link, is kept beside it under a name with the tunnel's interface. The first line of our file
//! contains that name, so each tunnel recognizes its own file: in `/etc/resolv.conf`, or among the former files if
//! another tunnel started later. If another program has replaced our file, its file stays.

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The file, which tests have elsewhere.
#[derive(Debug)]
pub struct ResolvConf {
    pub path: PathBuf,
}

impl ResolvConf {
    /// Replaces the file by one with these name servers. An earlier one of the tunnel is replaced as well.
    ///
    /// # Errors
    /// The system's error. The former file is in effect then.
    pub fn set(&self, interface: &str, servers: &[IpAddr]) -> io::Result<()> {
        self.restore(interface)?;
        let lines: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
        let text = format!("{}\n{lines}", self.marker(interface));
        let former = self.former(interface);
        match fs::hard_link(&self.path, &former).or_else(|_| fs::rename(&self.path, &former)) {
            Ok(()) => self.replace(&text).inspect_err(|_| drop(fs::rename(&former, &self.path))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.replace(&text),
            // The file is a mount of its own, as in containers.
            Err(_) => {
                write_new(&former, &fs::read(&self.path)?)?;
                fs::write(&self.path, &text).inspect_err(|_| drop(fs::remove_file(&former)))
            }
        }
    }

    /// Restores the former file. Returns true if the tunnel had left anything.
    ///
    /// # Errors
    /// The system's error. The former file is kept for another attempt.
    pub fn restore(&self, interface: &str) -> io::Result<bool> {
        let (former, marker) = (self.former(interface), self.marker(interface));
        let others = self.former_files()?.into_iter().filter(|path| *path != former);
        let ours = [self.path.clone()].into_iter().chain(others).find(|path| first_line(path) == Some(marker.clone()));
        match (ours, former.symlink_metadata().is_ok()) {
            (None, false) => return Ok(false),
            // Another program has replaced our file.
            (None, true) => fs::remove_file(former)?,
            // There was no file before.
            (Some(ours), false) => fs::remove_file(ours)?,
            (Some(ours), true) if fs::rename(&former, &ours).is_err() => {
                fs::write(ours, fs::read(&former)?)?;
                fs::remove_file(former)?;
            }
            (Some(_), true) => {}
        }
        Ok(true)
    }

    /// Returns true if the file is one of ours.
    pub fn is_of_a_tunnel(&self) -> bool {
        first_line(&self.path).is_some_and(|line| line.starts_with(MARKER))
    }

    /// Returns the path of the former file of a tunnel.
    pub fn former(&self, interface: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(FORMER);
        path.push(interface);
        path.into()
    }

    fn marker(&self, interface: &str) -> String {
        format!("{MARKER} {interface}; the former file is {}", self.former(interface).display())
    }

    /// Returns the former files of all tunnels.
    fn former_files(&self) -> io::Result<Vec<PathBuf>> {
        let prefix = self.former("");
        let entries = fs::read_dir(self.path.parent().unwrap_or(Path::new("/")))?;
        let paths: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
        let is_former =
            |path: &PathBuf| path.as_os_str().as_encoded_bytes().starts_with(prefix.as_os_str().as_encoded_bytes());
        Ok(paths?.into_iter().filter(is_former).collect())
    }

    /// Puts a new file in place of the file or the link, which other programs read at any moment.
    fn replace(&self, text: &str) -> io::Result<()> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new-mpt");
        // A start that was killed may have left it.
        let _ = fs::remove_file(&new);
        write_new(Path::new(&new), text.as_bytes())?;
        fs::rename(&new, &self.path).inspect_err(|_| drop(fs::remove_file(&new)))
    }
}

/// Creates a file that all users may read.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::options().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(bytes)?;
    // The umask of a service may be stricter.
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
}

fn first_line(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.to_owned())
}

const MARKER: &str = "# mpt: name servers of the tunnel";
const FORMER: &str = ".before-";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn servers(text: &str) -> Vec<IpAddr> {
        text.split(' ').map(|server| server.parse().unwrap()).collect()
    }

    /// Returns a folder with a link `resolv.conf` to a file, as network managers make it.
    fn folder() -> (tempfile::TempDir, ResolvConf) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("of-the-uplink"), "nameserver 192.168.1.1\n").unwrap();
        let path = folder.path().join("resolv.conf");
        symlink("of-the-uplink", &path).unwrap();
        (folder, ResolvConf { path })
    }

    fn names(folder: &tempfile::TempDir) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_former_link_is_restored_and_its_target_is_not_changed() {
        let (folder, conf) = folder();
        for list in ["10.77.0.1 fd77::1", "10.77.0.9"] {
            conf.set("mpt0", &servers(list)).unwrap();
            let text = fs::read_to_string(&conf.path).unwrap();
            let listed: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("nameserver ")).collect();
            assert_eq!(listed.join(" "), list);
            assert!(conf.is_of_a_tunnel() && !conf.path.is_symlink());
        }
        assert!(conf.restore("mpt0").unwrap() && !conf.restore("mpt0").unwrap());
        assert_eq!(fs::read_link(&conf.path).unwrap(), Path::new("of-the-uplink"));
        assert_eq!(fs::read_to_string(&conf.path).unwrap(), "nameserver 192.168.1.1\n");
        assert_eq!(names(&folder), ["of-the-uplink", "resolv.conf"]);
    }

    #[test]
    fn two_tunnels_end_in_any_order() {
        for order in [["mpt0", "mpt1"], ["mpt1", "mpt0"]] {
            let (folder, conf) = folder();
            conf.set("mpt0", &servers("10.77.0.1")).unwrap();
            conf.set("mpt1", &servers("10.78.0.1")).unwrap();
            assert!(conf.restore(order[0]).unwrap());
            let left = if order[0] == "mpt0" { "10.78.0.1" } else { "10.77.0.1" };
            assert!(fs::read_to_string(&conf.path).unwrap().contains(left), "{order:?}");
            assert!(conf.restore(order[1]).unwrap());
            assert_eq!(names(&folder), ["of-the-uplink", "resolv.conf"], "{order:?}");
            assert!(conf.path.is_symlink(), "{order:?}");
        }
    }

    #[test]
    fn the_file_of_another_program_stays_and_a_missing_one_is_missing_again() {
        let (folder, conf) = folder();
        conf.set("mpt0", &servers("10.77.0.1")).unwrap();
        fs::write(folder.path().join("lease"), "nameserver 192.168.8.1\n").unwrap();
        fs::rename(folder.path().join("lease"), &conf.path).unwrap();
        assert!(!conf.is_of_a_tunnel() && conf.restore("mpt0").unwrap());
        assert_eq!(fs::read_to_string(&conf.path).unwrap(), "nameserver 192.168.8.1\n");
        fs::remove_file(&conf.path).unwrap();
        conf.set("mpt0", &servers("10.77.0.1")).unwrap();
        assert!(conf.path.exists() && conf.restore("mpt0").unwrap());
        assert_eq!(names(&folder), ["of-the-uplink"]);
    }
}
