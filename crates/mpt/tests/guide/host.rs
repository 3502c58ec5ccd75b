//! The commands of the guide that are not ours: the files, units, keys and rules that they name exist here.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::pages::{Block, root};

/// Checks the arguments of a command, and returns false if no check knows its program.
pub fn check(place: &str, words: &[String]) -> bool {
    let arguments: Vec<_> = words[1..].iter().map(String::as_str).collect();
    match words[0].as_str() {
        "systemctl" => systemctl(place, &arguments),
        "install" => install(place, &arguments),
        "sysctl" => sysctl(place, &arguments),
        "make" => arguments.iter().for_each(|target| has_target(place, target)),
        "cargo" => cargo(place, &arguments),
        script if script.starts_with("./scripts/") => assert!(root().join(script).is_file(), "{place}: {script}"),
        // In a namespace, by `in_a_namespace`.
        "ip" | "nft" => {}
        program => return FOREIGN.contains(&program),
    }
    true
}

/// Programs whose arguments are not checked: packages, downloads, other hosts, and what every shell has.
const FOREIGN: [&str; 29] = [
    ".",
    "[",
    "apt",
    "apt-get",
    "cd",
    "cp",
    "curl",
    "deluser",
    "dnf",
    "echo",
    // The tests of `mpt-fleet` run these commands.
    "etcd",
    "jq",
    "openssl",
    "ping",
    "pip",
    "podman",
    "python3",
    "rm",
    "rustup",
    "scp",
    "sha256sum",
    "socat",
    "ssh",
    "systemd-sysusers",
    "tar",
    "tshark",
    "umask",
    "wireshark",
    "xdg-open",
];

/// Each unit is in the packages; `mpt@home` is one of `mpt@.service`.
fn systemctl(place: &str, arguments: &[&str]) {
    let (verb, units) = arguments.split_first().expect("a verb");
    assert!(
        ["daemon-reload", "enable", "restart", "reload", "stop", "edit", "status"].contains(verb),
        "{place}: {verb}"
    );
    for unit in units.iter().filter(|word| !word.starts_with("--")) {
        assert!(is_unit(unit), "{place}: there is no unit {unit}");
    }
}

fn is_unit(unit: &str) -> bool {
    let unit = unit.strip_suffix(".service").unwrap_or(unit);
    let file = match unit.split_once('@') {
        Some((template, _)) => format!("{template}@.service"),
        None => format!("{unit}.service"),
    };
    ["systemd", "fleet"].iter().any(|folder| root().join("packaging").join(folder).join(&file).is_file())
}

/// The files to install are in the packages or are built; a drop-in belongs to a unit.
fn install(place: &str, arguments: &[&str]) {
    let mut names = Vec::new();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match *word {
            "-m" | "-g" | "-o" => drop(rest.next()),
            option if option.starts_with('-') => {}
            name => names.push(name),
        }
    }
    let to = names.last().expect("a destination");
    for from in &names[..names.len() - 1] {
        let packaged = from.replace("/usr/share/mpt/systemd/", "packaging/systemd/");
        let is_known = match packaged.strip_prefix("target/release/") {
            Some(program) => root().join("crates").join(program).is_dir(),
            None if packaged.starts_with("packaging/") => root().join(&packaged).is_file(),
            // Files of an earlier step.
            None => {
                ["tunnel.toml", "a.toml", "$RENEWED_LINEAGE/", "/tmp/mpt.bash"].iter().any(|own| from.starts_with(own))
            }
        };
        assert!(is_known, "{place}: {from} is in no package");
        if let Some(unit) = to.strip_prefix("/etc/systemd/system/") {
            let unit = unit.split(".d/").next().unwrap_or_default();
            assert!(is_unit(unit), "{place}: there is no unit {unit}");
        }
    }
}

/// Each key is one of this kernel.
fn sysctl(place: &str, arguments: &[&str]) {
    for setting in arguments.iter().filter(|word| !word.starts_with('-')) {
        let (key, value) = setting.split_once('=').unwrap_or_else(|| panic!("{place}: {setting}"));
        let file = Path::new("/proc/sys").join(key.replace('.', "/"));
        assert!(file.is_file() && value.parse::<u32>().is_ok(), "{place}: {setting}");
    }
}

fn has_target(place: &str, target: &str) {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    assert!(makefile.lines().any(|line| line.starts_with(&format!("{target}:"))), "{place}: make {target}");
}

/// Packages, tests and examples of ours exist.
fn cargo(place: &str, arguments: &[&str]) {
    let after = |option: &str| arguments.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1]);
    let Some(package) = after("-p") else {
        assert!(["new", "add", "install"].contains(&arguments[0]), "{place}: cargo {arguments:?}");
        return;
    };
    let package = root().join("crates").join(package);
    assert!(package.is_dir(), "{place}: {package:?}");
    for (option, folder) in [("--test", "tests"), ("--example", "examples")] {
        if let Some(name) = after(option) {
            let file = package.join(folder).join(name);
            assert!(file.is_dir() || file.with_extension("rs").is_file(), "{place}: {file:?}");
        }
    }
}

/// Runs each `ip` command, and checks each `nft` command and each block of rules, in a network namespace of its own.
/// The kernel may refuse what the host lacks; the programs must understand it.
pub fn in_a_namespace(commands: &[(String, Vec<String>)], blocks: &[Block]) {
    let devices = ["lan0", "eth0", "mpt0", "br0"]
        .map(|name| format!("ip link add {name} type veth peer name far-{name} && ip link set {name} up"));
    let devices = devices.join("; ");
    for (place, words) in commands {
        let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
        let command = match words[0].as_str() {
            "ip" => {
                format!("ip link add {0} type veth peer name far-{0} 2>/dev/null; {1}", device(words), quoted.join(" "))
            }
            "nft" => format!(
                "nft 'table inet filter {{ chain input {{ type filter hook input priority 0; }}; }}' && nft -c {}",
                quoted[1..].join(" ")
            ),
            _ => continue,
        };
        let done = run(&format!("{devices}; {command}"), "");
        // `ip` ends with 2 if the kernel refuses, and with 1 or 255 if it does not understand.
        let code = done.status.code();
        let is_right = code == Some(0) || words[0] == "ip" && code == Some(2);
        assert!(is_right, "{place}: {words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    for block in blocks.iter().filter(|block| block.language == "nft") {
        let done = run(&format!("{devices}; nft -c -f -"), &block.text);
        assert!(done.status.success(), "{}: {}", block.place, String::from_utf8_lossy(&done.stderr));
    }
}

/// Returns the device that a command changes; it may come from an earlier command.
fn device(words: &[String]) -> &str {
    let after = |name: &str| words.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str());
    after("set").or(after("dev")).unwrap_or("lo")
}

fn run(script: &str, input: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("input");
    fs::write(&file, input).expect("a file");
    let input = fs::File::open(file).expect("a file");
    let script = format!("mount -t sysfs none /sys; {script}");
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount"]).args(["sh", "-c", &script]).stdin(input).output().expect("unshare")
}
