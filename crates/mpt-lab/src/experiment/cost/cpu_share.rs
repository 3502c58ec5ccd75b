//! Limits processes to a share of one processor, by the control groups of the kernel (version 1 or 2).

use crate::error::{Context, LabError, Result};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A group of processes with a limit; they move back when this is dropped.
pub(super) struct CpuShare {
    folder: PathBuf,
    /// The group that the processes return to.
    parent: PathBuf,
}

impl CpuShare {
    /// Limits `processes` together to `percent` of one processor.
    pub(super) fn limit(name: &str, processes: &[u32], percent: u32) -> Result<Self> {
        let parent = PathBuf::from(if fs::exists(V2).unwrap_or(false) { "/sys/fs/cgroup" } else { V1 });
        let group = Self { folder: parent.join(name), parent };
        fs::create_dir(&group.folder).context(group.folder.display().to_string())?;
        let period = QUOTA * 100 / percent;
        let write = |file: &str, text: String| {
            let file = group.folder.join(file);
            fs::write(&file, text).context(file.display().to_string())
        };
        if group.folder.join("cpu.max").exists() {
            write("cpu.max", format!("{QUOTA} {period}"))?;
        } else if group.folder.join("cpu.cfs_quota_us").exists() {
            write("cpu.cfs_period_us", period.to_string())?;
            write("cpu.cfs_quota_us", QUOTA.to_string())?;
        } else {
            return Err(LabError::Inapplicable("the kernel's cpu controller is not available in /sys/fs/cgroup"));
        }
        processes.iter().try_for_each(|process| write("cgroup.procs", process.to_string()))?;
        Ok(group)
    }
}

impl Drop for CpuShare {
    fn drop(&mut self) {
        for process in fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(self.parent.join("cgroup.procs"), process);
        }
        let _ = fs::remove_dir(Path::new(&self.folder));
    }
}

/// Microseconds that the group may run in each period: the shortest that the kernel takes, so that a process that has
/// used its share waits 4 ms at 20 %.
const QUOTA: u32 = 1_000;
const V1: &str = "/sys/fs/cgroup/cpu";
const V2: &str = "/sys/fs/cgroup/cgroup.controllers";
