//! The systemd unit and its filter of system calls, for a program that runs without systemd.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use syscalls::Sysno;

/// The lines of the unit and its drop-ins.
pub struct Unit(String);

impl Unit {
    pub fn plain() -> Self {
        Self(include_str!("../../../../packaging/systemd/mpt@.service").to_owned())
    }

    pub fn with_low_port() -> Self {
        Self(Self::plain().0 + include_str!("../../../../packaging/systemd/low-port.conf"))
    }

    pub fn web() -> Self {
        Self(include_str!("../../../../packaging/systemd/mpt-web.service").to_owned())
    }

    pub fn enrolment() -> Self {
        Self(include_str!("../../../../packaging/systemd/mpt-enroll@.service").to_owned())
    }

    /// Returns the values of all lines that begin with `key`.
    pub fn values(&self, key: &str) -> Vec<&str> {
        self.0.lines().filter_map(|line| line.strip_prefix(key)).flat_map(|values| values.split(' ')).collect()
    }

    /// Appends the program to the command, under the unit's filter if the groups of system calls are known here.
    pub fn run_filtered(&self, command: &mut Command, folder: &Path, program: [PathBuf; 3]) {
        let Some(allowed) = self.allowed() else {
            eprintln!("skipped: the filter of system calls needs systemd-analyze");
            command.args(program);
            return;
        };
        // The user cannot reach this program where it is.
        let copy = folder.join("exec");
        fs::copy(env::current_exe().expect("this program"), &copy).expect("a copy");
        let numbers: Vec<_> = allowed.iter().map(ToString::to_string).collect();
        let arguments = program.map(|argument| argument.into_os_string().into_string().expect("UTF-8"));
        command.env(ALLOWED, numbers.join(" ")).env(PROGRAM, arguments.join("\n"));
        command.arg(copy).args(["--exact", "unit::runs_a_program_under_a_filter", "--nocapture"]);
    }

    /// Returns the numbers of the system calls that the unit allows: the first line allows, `~` removes from that.
    fn allowed(&self) -> Option<BTreeSet<i64>> {
        let mut allowed = numbers_of("@default")?;
        for line in self.0.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
            let (removes, names) = line.strip_prefix('~').map_or((false, line), |names| (true, names));
            for name in names.split(' ') {
                let numbers = numbers_of(name)?;
                if removes {
                    allowed.retain(|number| !numbers.contains(number));
                } else {
                    allowed.extend(numbers);
                }
            }
        }
        Some(allowed)
    }
}

/// Returns the numbers of a system call or a group of them. Those of other architectures have none.
fn numbers_of(name: &str) -> Option<BTreeSet<i64>> {
    if !name.starts_with('@') {
        return Some(name.parse::<Sysno>().iter().map(|call| i64::from(call.id())).collect());
    }
    let listed = Command::new("systemd-analyze").args(["syscall-filter", "--no-pager", name]).output().ok()?;
    let text = String::from_utf8(listed.stdout).expect("UTF-8");
    // The first line repeats the name.
    let members = text.lines().skip(1).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let members: Option<Vec<_>> = members.map(numbers_of).collect();
    members.filter(|members| !members.is_empty()).map(|members| members.into_iter().flatten().collect())
}

/// No test: [`Unit::run_filtered`] runs this program again with these two variables, and it becomes the other program.
#[test]
fn runs_a_program_under_a_filter() {
    let (Ok(allowed), Ok(program)) = (env::var(ALLOWED), env::var(PROGRAM)) else { return };
    let rules: BTreeMap<_, _> =
        allowed.split(' ').map(|number| (number.parse().expect("a number"), Vec::new())).collect();
    assert!(rules.len() > 100, "{allowed}");
    let refused = SeccompAction::Errno(nix::libc::EPERM as u32);
    let architecture = env::consts::ARCH.try_into().expect("an architecture");
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture).expect("a filter");
    let filter: BpfProgram = filter.try_into().expect("a filter");
    apply_filter(&filter).expect("the filter in effect");
    let mut arguments = program.lines();
    let error = Command::new(arguments.next().expect("a program")).args(arguments).exec();
    panic!("{program}: {error}");
}

const ALLOWED: &str = "MPT_TEST_ALLOWED";
const PROGRAM: &str = "MPT_TEST_PROGRAM";
