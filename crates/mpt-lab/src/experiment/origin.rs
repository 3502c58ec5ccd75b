//! Where, when and by which command a run was made.

use serde::{Deserialize, Serialize};
use std::{env, fs, path::Path, process::Command, thread};

/// Origin of a run. It differs between runs that are otherwise the same, so it is no part of the options.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunOrigin {
    /// Processor, number of processors, memory.
    pub machine: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Start of the run, UTC.
    pub date: String,
    /// Command line.
    pub command: String,
}

impl RunOrigin {
    /// Returns the origin of a run that begins now. What cannot be read is empty.
    pub fn now() -> Self {
        let date = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
        let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        Self { machine: machine(), kernel, date, command: command_line(env::args()) }
    }
}

fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // ARM has the name of the board elsewhere.
    let board = fs::read_to_string("/sys/firmware/devicetree/base/model").unwrap_or_default();
    let model = field(&cpu, "model name").unwrap_or(board.trim_end_matches('\0'));
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = field(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let parts = [
        (!model.is_empty()).then(|| model.to_owned()),
        thread::available_parallelism().ok().map(|count| format!("{count} processors")),
        kib.map(|kib| format!("{:.1} GiB", kib / 1_048_576.0)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns the first value of a field in a file of `/proc`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(field, value)| (field.trim(), value.trim())).find(|(field, _)| *field == name).map(|(_, value)| value)
}

/// Returns a command line that a shell reads as these arguments, with the name of the program without its folder.
fn command_line(mut arguments: impl Iterator<Item = String>) -> String {
    let program = arguments.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./,:=+@%".contains(character);
    let quoted = |argument: String| match !argument.is_empty() && argument.chars().all(is_plain) {
        true => argument,
        false => format!("'{}'", argument.replace('\'', "'\\''")),
    };
    [name].into_iter().chain(arguments.map(quoted)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_repeated() {
        let arguments = ["/usr/bin/mpt-lab", "run", "E1.I/50", "--out", "my results", "it's"].map(str::to_owned);
        assert_eq!(command_line(arguments.into_iter()), "mpt-lab run E1.I/50 --out 'my results' 'it'\\''s'");
    }

    #[test]
    fn this_machine_has_a_kernel_a_date_and_processors() {
        let origin = RunOrigin::now();
        assert!(origin.kernel.contains('.') && origin.date.ends_with("UTC"), "{origin:?}");
        assert!(origin.machine.contains("processors") && origin.machine.contains("GiB"), "{origin:?}");
    }

    #[test]
    fn a_field_is_found_whatever_surrounds_its_colon() {
        let text = "processor\t: 0\nmodel name\t: A 1\nprocessor\t: 1\nmodel name\t: A 2\n";
        assert_eq!((field(text, "model name"), field(text, "MemTotal")), (Some("A 1"), None));
    }
}
