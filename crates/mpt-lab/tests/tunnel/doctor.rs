//! `mpt doctor`: each check is proved by the fault that it names, made with system programs; without it, the check has
//! no finding.

use crate::{
    internet::{FAR, internet, reaches},
    native_host::{A, B, Native, OTHER},
    rig::{Daemon, Rig, program, sh, text},
    transfer::Transfer,
};
use mpt_lab::topology::{Family, Host, Netns, Topology, address};
use mpt_proto::crypto::keys::KeyPair;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Output},
};

/// A fault, made on a host and undone there, or only for the command: `ip netns exec` gives it mounts of its own.
struct Fault {
    check: &'static str,
    result: &'static str,
    on: Host,
    make: &'static str,
    undo: &'static str,
    /// Shell commands before the command runs, as in its place in `$@`.
    before: &'static str,
}

const fn lasting(check: &'static str, result: &'static str, on: Host, make: &'static str, undo: &'static str) -> Fault {
    Fault { check, result, on, make, undo, before: "" }
}

const fn mounted(check: &'static str, result: &'static str, on: Host, before: &'static str) -> Fault {
    Fault { check, result, on, make: "true", undo: "true", before }
}

const FAULTS: &[Fault] = &[
    lasting("configuration", "failed", Host::A, "chmod 644 $FILE", "chmod 600 $FILE"),
    lasting("responds", "failed", Host::A, "kill -STOP $PID", "kill -CONT $PID"),
    lasting("interface", "warning", Host::A, "ip link set eth2 down", "ip link set eth2 up"),
    lasting("path_down", "warning", Host::A, "$MPT path down eth2", "$MPT path up eth2"),
    lasting("same_network", "warning", Host::A, "ip address add 192.168.11.77/24 dev lan", "ip address flush dev lan"),
    lasting("address_clash", "warning", Host::A, "ip address add 10.77.0.9/28 dev lan", "ip address flush dev lan"),
    lasting("clock_behind", "warning", Host::A, "touch -d '+2 hours' $FILE", "touch $FILE"),
    lasting(
        "reverse_path_filter",
        "failed",
        Host::A,
        "echo 1 > /proc/sys/net/ipv4/conf/eth2/rp_filter",
        "echo 0 > /proc/sys/net/ipv4/conf/eth2/rp_filter",
    ),
    lasting("rules_missing", "failed", Host::A, "kill -STOP $PID; ip rule del pref 32001", "kill -CONT $PID"),
    lasting(
        "foreign_rules",
        "warning",
        Host::A,
        "ip rule add pref 5 to 203.0.113.0/24 lookup 99",
        "ip rule del pref 5",
    ),
    lasting(
        "ipv6_leak",
        "warning",
        Host::A,
        "sed -i 's/, \"::.0\"//' $FILE; $MPT reload",
        "sed -i 's/\"0.0.0.0.0\"/&, \"::\\/0\"/' $FILE; $MPT reload",
    ),
    lasting(
        "kill_switch",
        "failed",
        Host::A,
        "sed -i '1i kill_switch = true' $FILE; $MPT reload; kill -STOP $PID
            nft delete table inet mptkill_mpt0",
        "kill -CONT $PID; sed -i 1d $FILE; $MPT reload",
    ),
    mounted("tun_device", "failed", Host::A, "mount -t tmpfs none /dev/net"),
    mounted(
        "state_directory",
        "warning",
        Host::A,
        "user=$(stat -c %u $STATE); mount -t tmpfs -o size=4k,uid=$user none $STATE
        head -c 4096 /dev/zero > $STATE/full",
    ),
    mounted(
        "dns_leak",
        "warning",
        Host::A,
        "echo nameserver 192.168.11.2 > $TMP/resolv; mount --bind $TMP/resolv /etc/resolv.conf",
    ),
    mounted(
        "managed_interface",
        "warning",
        Host::A,
        "links=/run/systemd/netif/links; mount -t tmpfs none /run; mkdir -p $links
        echo NETWORK_FILE=/etc/systemd/network/all.network > $links/$(cat /sys/class/net/mpt0/ifindex)",
    ),
    mounted(
        "foreign_routes",
        "warning",
        Host::A,
        "mount -t tmpfs none /run; mkdir -p /run/systemd/netif; echo > /run/systemd/netif/state",
    ),
    mounted(
        "aes",
        "warning",
        Host::A,
        "sed 's/ aes / /' /proc/cpuinfo > $TMP/cpuinfo; mount --bind $TMP/cpuinfo /proc/cpuinfo",
    ),
    lasting(
        "no_answer",
        "failed",
        Host::A,
        "nft 'table inet lost { chain in { type filter hook input priority 0; udp dport 4754 drop; }; }'",
        "nft delete table inet lost",
    ),
    lasting("masquerade", "failed", Host::B, "kill -STOP $PID; nft delete table inet mpt_mpt0", "kill -CONT $PID"),
    lasting(
        "forwarding",
        "failed",
        Host::B,
        "kill -STOP $PID; echo 0 > /proc/sys/net/ipv4/ip_forward",
        "kill -CONT $PID",
    ),
    lasting(
        "forward_policy",
        "warning",
        Host::B,
        "nft 'table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }'",
        "nft delete table ip filter",
    ),
    mounted(
        "conntrack",
        "warning",
        Host::B,
        "echo 1 > $TMP/max; echo 1 > $TMP/count
        for name in max count; do mount --bind $TMP/$name /proc/sys/net/netfilter/nf_conntrack_$name; done",
    ),
];

/// Two hosts with two paths: A sends all traffic through the tunnel, and B forwards it to the Internet.
struct Scene {
    rig: Rig,
    _far: Netns,
}

impl Scene {
    fn build(test: &str) -> Option<Self> {
        let mut rig = Rig::build(test, &["delay=1ms", "delay=2ms"])?;
        let far = internet(&rig);
        rig.hosts.a.ip("link add lan type veth peer name lan2\nlink set lan up\nlink set lan2 up").expect("a network");
        rig.launch_with(Host::B, &Native::responder().on_top("masquerade = true").text());
        rig.launch_with(Host::A, &caller().text());
        let scene = Self { rig, _far: far };
        scene.rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
        scene.rig.wait_until_up(Host::A, &["eth1", "eth2"]);
        Some(scene)
    }

    /// Runs shell commands on a host, with names for its files and its daemon.
    fn run(&self, host: Host, script: &str, arguments: &[&str]) -> Output {
        let pid = fs::read_to_string(self.rig.run_dir(host).join("mpt0.lock")).unwrap_or_default();
        let mut command = self.rig.hosts.host(host).command("sh");
        let folder = self.rig.folder.path();
        command.args(["-ec", script, "sh"]).args(arguments);
        command.env("MPT_RUN_DIR", self.rig.run_dir(host)).env("PID", pid.trim()).env("TMP", folder);
        command.env("FILE", self.rig.file(host)).env("MPT", program());
        let state = folder.join(format!("state-{host:?}"));
        command.env("MPT_STATE_DIR", &state).env("STATE", &state);
        command.output().expect("sh runs")
    }

    /// Returns the results of all checks, after these shell commands.
    fn doctor(&self, host: Host, before: &str) -> Value {
        let script = format!("{before}\nexec \"$@\"");
        let (program, file) = (program().display().to_string(), self.rig.file(host).display().to_string());
        let output = self.run(host, &script, &[&program, "doctor", &file, "--json"]);
        let failed = text(&output.stderr).contains("failed");
        let checked: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((output.status.code(), failed), (Some(i32::from(failed)), has(&checked, "failed")), "{checked:#}");
        checked
    }

    fn assert_healthy(&self) {
        for host in [Host::A, Host::B] {
            self.rig.wait_until("no check has a finding", |_| {
                let checked = self.doctor(host, "");
                let bad = named(&checked, "failed").chain(named(&checked, "warning"));
                let bad: Vec<_> = bad.filter(|name| !OF_THE_MACHINE.contains(&&**name)).collect();
                if !bad.is_empty() {
                    eprintln!("{host:?}: {bad:?}");
                }
                bad.is_empty()
            });
        }
    }
}

/// Properties of the machine on which this test runs, not of the hosts in it.
const OF_THE_MACHINE: [&str; 4] = ["clock_synchronised", "offload", "receive_buffer", "aes"];

fn caller() -> Native {
    let path = |number: usize| {
        format!(
            "[[peer.path]]\ninterface = \"eth{}\"\nremote = \"{}\"\n",
            number + 1,
            address(Host::B, number, Family::V4)
        )
    };
    Native::initiator(&(path(0) + &path(1))).on_top("routes = [\"0.0.0.0/0\", \"::/0\"]")
}

fn path(path: PathBuf) -> String {
    path.display().to_string()
}

/// Returns the names of the checks with a result.
fn named<'v>(checked: &'v Value, result: &'v str) -> impl Iterator<Item = String> + 'v {
    let checks = checked["checks"].as_array().expect("a list").iter().filter(move |check| check["result"] == result);
    checks.map(|check| check["name"].as_str().expect("a name").to_owned())
}

fn has(checked: &Value, result: &str) -> bool {
    named(checked, result).next().is_some()
}

#[test]
fn each_fault_is_found_by_its_check_and_a_healthy_tunnel_has_none() {
    let Some(scene) = Scene::build("doctor-all") else { return };
    scene.assert_healthy();
    for Fault { check, result, on, make, undo, before } in FAULTS {
        let succeeds = |script: &str| {
            let output = scene.run(*on, script, &[]);
            assert!(output.status.success(), "{check}: {}", text(&output.stderr));
        };
        succeeds(make);
        scene.rig.wait_until(&format!("{check} {result}"), |_| {
            let checked = scene.doctor(*on, before);
            named(&checked, result).any(|name| name == *check)
        });
        succeeds(undo);
        scene.rig.wait_until(&format!("no finding of {check}"), |_| {
            let checked = scene.doctor(*on, "");
            named(&checked, result).all(|name| name != *check || OF_THE_MACHINE.contains(check))
        });
    }
    scene.assert_healthy();
}

#[test]
fn a_tunnel_that_does_not_run_is_named_and_so_is_its_kill_switch() {
    let Some(mut scene) = Scene::build("doctor-end") else { return };
    assert!(scene.rig.mpt(Host::B, &["down"]).status.success());
    scene.rig.wait_until("A finds the closed port", |_| {
        let checked = scene.doctor(Host::A, "");
        let ports = checked["checks"].as_array().expect("a list").iter().find(|check| check["name"] == "port_closed");
        ports.expect("the check")["findings"][0]["cause"]
            .as_str()
            .is_some_and(|cause| cause.contains("the port is closed"))
    });
    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
    let cause = |scene: &Scene| {
        let file = scene.rig.file(Host::A).display().to_string();
        let output = scene.rig.mpt(Host::A, &["doctor", &file, "--json"]);
        assert_eq!(output.status.code(), Some(1));
        let checked: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(named(&checked, "failed").any(|name| name == "running"), "{checked:#}");
        checked["checks"][1]["findings"][0]["cause"].as_str().expect("a cause").to_owned()
    };
    assert_eq!(cause(&scene), "the tunnel mpt0 is not running");
    let hint = |scene: &Scene| text(&scene.rig.mpt(Host::A, &["status", "mpt0"]).stderr);
    assert!(!hint(&scene).contains("kill switch"));

    scene.rig.launch_with(Host::A, &caller().on_top("kill_switch = true").text());
    scene.rig.signal(Host::A, Signal::SIGKILL);
    assert!(cause(&scene).ends_with("its kill switch keeps this host off the net"));
    let expected = "its kill switch keeps this host off the net; mpt down mpt0 removes it";
    assert!(hint(&scene).contains(expected), "{}", hint(&scene));
    assert!(scene.rig.mpt(Host::A, &["down", "mpt0"]).status.success());
    assert!(!hint(&scene).contains("kill switch"));
}

#[test]
fn a_server_names_refused_handshakes() {
    let Some(mut scene) = Scene::build("doctor-keys") else { return };
    let finds = |scene: &Scene, check: &str| {
        scene.rig.wait_until(check, |_| named(&scene.doctor(Host::B, ""), "warning").any(|name| name == check));
    };
    scene.rig.launch_with(Host::A, &caller().keys(OTHER, B).text());
    finds(&scene, "unknown_key");
    scene.rig.launch_with(Host::A, &caller().keys(A, OTHER).text());
    finds(&scene, "wrong_key");
    // A clock that was ahead leaves a timestamp in the future at B; without the record, A follows its clock again.
    let hour = "printf %016x%08x $(( $(date +%s) + 4611686018427387914 + 3600 )) 0";
    let record = format!("{hour} > $STATE/mpt0.handshake; chown --reference=$STATE $STATE/mpt0.handshake");
    scene.rig.signal(Host::A, Signal::SIGTERM);
    assert!(scene.run(Host::A, &record, &[]).status.success());
    scene.rig.launch_with(Host::A, &caller().text());
    scene.rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    scene.rig.signal(Host::A, Signal::SIGTERM);
    assert!(scene.run(Host::A, "rm $STATE/mpt0.handshake", &[]).status.success());
    scene.rig.launch_with(Host::A, &caller().text());
    finds(&scene, "old_handshake");
}

#[test]
fn a_site_names_a_preshared_key_that_differs() {
    let Some(mut rig) = Rig::build("doctor-psk", &["delay=1ms"]) else { return };
    let key = |letter: &str| format!("preshared_key = \"{}=\"", letter.repeat(43));
    rig.launch_with(Host::B, &Native::responder().line(&key("A")).text());
    rig.launch_with(Host::A, &Native::initiator("remote = \"192.168.11.2\"").line(&key("E")).text());
    rig.wait_until("the answers are found", |rig| {
        let doctor = text(&rig.mpt(Host::A, &["doctor"]).stdout);
        doctor.contains("FAILED   preshared_key\n") && !doctor.contains("does not answer")
    });
    assert!(rig.status(Host::A)["drops"]["not_authentic"].as_u64().is_some_and(|count| count > 0));
}

#[test]
fn bad_links_are_found_under_load() {
    let Some(mut scene) = Scene::build("doctor-load") else { return };
    let finds = |scene: &Scene, check: &str| {
        scene.rig.wait_until(check, |_| named(&scene.doctor(Host::A, ""), "warning").any(|name| name == check));
    };
    scene.rig.hosts.change(0, "rate=40mbit,delay=5ms".parse().expect("a path"));
    scene.rig.hosts.change(1, "rate=40mbit,delay=5ms,loss=8%".parse().expect("a path"));
    let transfer = Transfer::start(&scene.rig, Family::V4);
    finds(&scene, "loss");
    scene.rig.hosts.change(1, "rate=40mbit,delay=5ms".parse().expect("a path"));
    // The other limits UDP alone: what exceeds the rate is dropped, without a queue.
    let policer = "nft 'table inet policer { chain in { type filter hook prerouting priority 0
        iifname eth2 udp dport 4754 limit rate over 250 kbytes/second burst 20 kbytes drop; }; }'";
    sh(&scene.rig.hosts.b, policer);
    finds(&scene, "throttled");
    transfer.finish();
    sh(&scene.rig.hosts.b, "nft delete table inet policer");
    drop(scene);

    let narrow = ["delay=2ms", "delay=2ms,mtu=1300B"];
    let Some(mut rig) = Rig::build("doctor-mtu", &narrow) else { return };
    rig.launch_with(Host::B, &Native::responder().text());
    rig.launch_with(Host::A, &caller().text());
    scene = Scene { rig, _far: Netns::create(&format!("{}-x", Topology::unique_name())).expect("a namespace") };
    finds(&scene, "path_mtu");
    drop(scene);

    let Some(mut rig) = Rig::build("doctor-bbr", &["delay=2ms", "delay=30ms"]) else { return };
    rig.launch_with(Host::B, &Native::responder().text());
    rig.launch_with(Host::A, &caller().text());
    scene = Scene { rig, _far: Netns::create(&format!("{}-x", Topology::unique_name())).expect("a namespace") };
    let with_bbr = "echo bbr > $TMP/cc; mount --bind $TMP/cc /proc/sys/net/ipv4/tcp_congestion_control";
    scene.rig.wait_until("bbr", |_| named(&scene.doctor(Host::A, with_bbr), "warning").any(|name| name == "bbr"));
    assert!(named(&scene.doctor(Host::A, ""), "warning").all(|name| name != "bbr"), "the hosts have CUBIC");
}

#[test]
fn a_name_without_an_address_and_a_replaced_program_are_found() {
    let Some(scene) = Scene::build("doctor-name") else { return };
    let file = scene.rig.folder.path().join("name.toml");
    fs::write(&file, Native::initiator("remote = \"nowhere.example.org\"").text()).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
    // No resolver listens at host B.
    let resolvers =
        "echo nameserver 192.168.11.2 > $TMP/resolv; mount --bind $TMP/resolv /etc/resolv.conf; exec \"$@\"";
    let output = scene.run(Host::A, resolvers, &[&path(program()), "doctor", &path(file)]);
    let expected = "FAILED   names\n  nowhere.example.org has no address: 192.168.11.2: ";
    assert!(text(&output.stdout).contains(expected), "{}", text(&output.stdout));
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), "error: 1 check failed\n".to_owned()));

    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
    let copy = scene.rig.folder.path().join("mpt");
    fs::copy(program(), &copy).expect("a copy");
    let mut old = Command::new("ip");
    old.args(["netns", "exec", scene.rig.hosts.a.name()]).arg(&copy).env("MPT_RUN_DIR", scene.rig.run_dir(Host::A));
    let log = scene.rig.folder.path().join("old.log");
    let _daemon = Daemon::start(old, &caller().text(), &scene.rig.file(Host::A), &log);
    scene.rig.wait_until("the daemon answers", |rig| rig.mpt(Host::A, &["status"]).status.success());
    fs::remove_file(&copy).expect("the copy");
    assert!(named(&scene.doctor(Host::A, ""), "warning").any(|name| name == "version"));
}

#[test]
fn another_user_gets_a_warning_and_the_checks_that_need_no_rights() {
    let Some(scene) = Scene::build("doctor-user") else { return };
    let copy = scene.rig.folder.path().join("mpt");
    fs::copy(program(), &copy).expect("a copy");
    let as_nobody = "exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
    let output = scene.run(Host::A, as_nobody, &[&path(copy), "doctor", "mpt0", "--json"]);
    assert!(text(&output.stderr).starts_with("warning: not root: "), "{}", text(&output.stderr));
    let checked: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), has(&checked, "failed")), (Some(0), false), "{checked:#}");
    assert!(named(&checked, "ok").any(|name| name == "conntrack"), "{checked:#}");
    let skipped: Vec<_> = named(&checked, "skipped").collect();
    assert!(["configuration", "running", "masquerade"].iter().all(|name| skipped.contains(&(*name).to_owned())));
}

#[test]
fn a_bundle_has_no_keys_tokens_and_addresses() {
    let Some(scene) = Scene::build("doctor-bundle") else { return };
    let folder = scene.rig.folder.path().to_owned();
    let [own, peer] = [A, B].map(|number| KeyPair::generate([number; 32]));
    let (secret, psk) = (own.secret_base64().to_string(), KeyPair::generate([9; 32]).secret_base64().to_string());
    let config = scene.rig.file(Host::A);
    let text_of = fs::read_to_string(&config).expect("a file");
    let with_psk = text_of.replace("public_key", &format!("preshared_key = \"{psk}\" # not the pass word\npublic_key"));
    fs::write(&config, with_psk).expect("a file");
    let line = format!("mpt1/203.0.113.9/4754/{}/{}", peer.public(), "Zm9vYmFyYmF6".repeat(3) + "Zm9vYmF");
    // A journal with everything that must not be in the folder; the laboratory has no service manager.
    let journal = format!(
        "#!/bin/sh\necho \"$*\"\n\
         printf '%s\\n' 'key {secret}' 'psk {psk}' 'join {line}' 'from 203.0.113.7:4754 fd77::1'\n"
    );
    fs::create_dir(folder.join("bin")).expect("a folder");
    fs::write(folder.join("bin/journalctl"), journal).expect("a program");
    fs::set_permissions(folder.join("bin/journalctl"), fs::Permissions::from_mode(0o755)).expect("its mode");
    let (program, file) = (path(program()), path(scene.rig.file(Host::A)));
    let arguments = [&*program, "doctor", &file, "--bundle"];
    let script = "PATH=$TMP/bin:$PATH; exec \"$@\" $TMP/report";
    let output = scene.run(Host::A, script, &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));

    let report = folder.join("report");
    assert_eq!(fs::metadata(&report).expect("a folder").permissions().mode() & 0o777, 0o700);
    let read = |name: &str| fs::read_to_string(report.join(name)).expect(name);
    let names = ["checks.json", "config.json", "journal.txt", "status.json"];
    let all = names.map(read).concat();
    let public = peer.public().to_string();
    for secret in [&*secret, &psk, &public, "pass word", "Zm9v", "203.0.113.", "192.168.1", "10.77.", "fd77:"] {
        assert!(!all.contains(secret), "{secret} in {all}");
    }
    let status: Value = serde_json::from_str(&read("status.json")).expect("JSON");
    assert_eq!(status["peers"][0]["paths"][0]["remote"], "private4-1:4754", "{all}");
    assert!(read("config.json").contains("\"private_key\": \"(removed)\""), "{all}");
    assert!(read("journal.txt").contains("--unit mpt@A\nkey (removed)\n"), "{all}");
    let again = scene.run(Host::A, script, &arguments);
    assert!(!again.status.success() && text(&again.stderr).contains("File exists"), "{}", text(&again.stderr));
}

#[test]
fn a_link_that_loses_much_is_not_taken_for_a_limit() {
    let Some(scene) = Scene::build("doctor-loss") else { return };
    scene.rig.hosts.change(0, "rate=40mbit,delay=5ms".parse().expect("a path"));
    scene.rig.hosts.change(1, "rate=40mbit,delay=5ms,loss=45%".parse().expect("a path"));
    let transfer = Transfer::start(&scene.rig, Family::V4);
    // If its first packets arrived before the change, its lost probes make it silent and flapping.
    scene.rig.wait_until("the path is left out for its loss", |rig| {
        ["lossy", "flapping"].iter().any(|cause| rig.path(Host::A, 1)["cause"] == *cause)
    });
    let checked = scene.doctor(Host::A, "");
    assert!(named(&checked, "warning").all(|name| name != "throttled"), "{checked:#}");
    transfer.finish();
}
