//! Peers with names, looked up at a DNS server that this test runs on host B.

use crate::{
    enrolment::{Scene, arguments_of, assert_fails},
    native_host::Native,
    rig::{Rig, sh, text},
};
use mpt_lab::topology::{Family, Host, address};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

const NAME: &str = "home.example.org";

/// A DNS server on host B that knows one name, and the resolv.conf of host A that names it.
struct Dns {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    addresses: Vec<IpAddr>,
    silent: bool,
    queries: usize,
}

impl Dns {
    fn start(rig: &Rig, addresses: &[IpAddr]) -> Self {
        let at = address(Host::B, 0, Family::V4);
        let bound = rig.hosts.b.enter(|| UdpSocket::bind((at, 53))).expect("a namespace");
        let socket = bound.expect("a socket");
        let state = Arc::new(Mutex::new(State { addresses: addresses.to_vec(), ..State::default() }));
        let served = Arc::downgrade(&state);
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Some(state) = served.upgrade() {
                let Ok((len, from)) = socket.recv_from(&mut query) else { continue };
                let mut state = state.lock().expect("a state");
                state.queries += 1;
                if !state.silent {
                    socket.send_to(&answer(&query[..len], &state.addresses), from).expect("an answer");
                }
            }
        });
        // `ip netns exec` mounts the files of this folder over those of /etc.
        let folder = PathBuf::from("/etc/netns").join(rig.hosts.a.name());
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("resolv.conf"), format!("nameserver {at}\n")).expect("a file");
        Self { folder, state }
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("a state"));
    }

    fn queries(&self) -> usize {
        self.state.lock().expect("a state").queries
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        // Fails while other tests have folders there.
        let _ = fs::remove_dir("/etc/netns");
    }
}

/// Returns the answer to a query (RFC 1035 section 4.1, RFC 3596): the addresses of the type that the query names.
fn answer(query: &[u8], addresses: &[IpAddr]) -> Vec<u8> {
    let kind = query[query.len() - 3];
    let mut answer = query.to_vec();
    (answer[2], answer[3]) = (0x81, 0x80);
    for address in addresses {
        let (of, octets) = match address {
            IpAddr::V4(address) => (1, address.octets().to_vec()),
            IpAddr::V6(address) => (28, address.octets().to_vec()),
        };
        if of == kind {
            // The name at octet 12, the type, class IN, 60 s, and the address after its length.
            answer.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, octets.len() as u8]);
            answer.extend(octets);
            answer[7] += 1;
        }
    }
    answer
}

/// Returns host B's address on the only link, and others in the same network.
fn on_link(rig_path: usize) -> [IpAddr; 3] {
    let first = address(Host::B, rig_path, Family::V4);
    let IpAddr::V4(v4) = first else { panic!("an IPv4 address") };
    let [a, b, c, d] = v4.octets();
    [first, Ipv4Addr::new(a, b, c, d + 20).into(), Ipv4Addr::new(a, b, c, d + 40).into()]
}

fn initiator() -> Native {
    Native::initiator(&format!("remote = \"{NAME}\""))
}

#[test]
fn a_tunnel_follows_the_address_of_a_name_and_survives_a_silent_resolver() {
    let Some(mut rig) = Rig::build("name-follows", &["delay=1ms"]) else { return };
    let [first, second, nobody] = on_link(0);
    let dns = Dns::start(&rig, &[nobody, second]);
    sh(&rig.hosts.b, &format!("ip address add {second}/24 dev eth1"));
    rig.launch_with(Host::B, &Native::responder().text());
    dns.set(|state| state.silent = true);
    rig.launch_with(Host::A, &initiator().text());
    rig.wait_until("the silence is logged", |rig| rig.logged(Host::A, "no answer within 2 s") > 0);
    assert!(rig.mpt(Host::A, &["status"]).status.success(), "the daemon waits for no resolver");
    dns.set(|state| state.silent = false);
    // Nobody has the first address of the answer, so the second is tried.
    rig.wait_for_answer(&[], Family::V4, "at the second address of the answer");
    let path = rig.path(Host::A, 0);
    assert_eq!((path["remote"].as_str(), path["remote_name"].as_str()), (Some(&*format!("{second}:4754")), Some(NAME)));
    let table = String::from_utf8(rig.mpt(Host::A, &["path", "list"]).stdout).expect("text");
    assert!(table.contains(&format!("{second}:4754 ({NAME})")), "{table}");

    // The address changes in use, as DynDNS does it: the old one is gone.
    dns.set(|state| state.addresses = vec![first]);
    sh(&rig.hosts.b, &format!("ip address del {second}/24 dev eth1"));
    rig.wait_until("A uses the new address", |rig| rig.remotes(Host::A) == [format!("{first}:4754")]);
    rig.wait_for_answer(&[], Family::V4, "at the new address");
    assert_eq!(rig.logged(Host::A, "cannot look up the address of a peer"), 1, "at most once a minute");
}

#[test]
fn a_name_with_addresses_of_both_versions_is_reached_by_the_one_that_answers() {
    let Some(mut rig) = Rig::build("name-versions", &["delay=1ms"]) else { return };
    let ([v4, _, nobody], v6) = (on_link(0), address(Host::B, 0, Family::V6));
    let dns = Dns::start(&rig, &[nobody, v6]);
    rig.launch_with(Host::B, &Native::responder().text());
    rig.launch_with(Host::A, &initiator().text());
    rig.wait_for_answer(&[], Family::V4, "over IPv6, where nobody has the IPv4 address");
    assert_eq!(rig.remotes(Host::A), [format!("[{v6}]:4754")]);
    dns.set(|state| state.addresses = vec![v4]);
    sh(&rig.hosts.b, &format!("ip address del {v6}/64 dev eth1"));
    rig.wait_until("A uses IPv4", |rig| rig.remotes(Host::A) == [format!("{v4}:4754")]);
    rig.wait_for_answer(&[], Family::V4, "over IPv4");
}

#[test]
fn a_name_is_looked_up_under_the_kill_switch() {
    let Some(mut rig) = Rig::build("name-kill-switch", &["delay=1ms"]) else { return };
    let [first, ..] = on_link(0);
    let dns = Dns::start(&rig, &[first]);
    rig.launch_with(Host::B, &Native::responder().text());
    let lines = "routes = [\"0.0.0.0/0\", \"::/0\"]\nkill_switch = true\noutside = []";
    rig.launch_with(Host::A, &initiator().on_top(lines).text());
    rig.wait_for_answer(&[], Family::V4, "under the kill switch");
    let queries = dns.queries();
    assert!(queries >= 2, "{queries}");
    // Other programs cannot ask that resolver beside the tunnel.
    let at = address(Host::B, 0, Family::V4);
    let other = rig.hosts.a.enter(|| UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"?", (at, 53))));
    let sent = other.expect("a namespace");
    rig.wait_for_answer(&[], Family::V4, "the tunnel");
    assert!(sent.is_err() || dns.queries() == queries, "{sent:?}");
}

#[test]
fn a_site_joins_by_the_name_of_the_server_and_looks_it_up_later_too() {
    let Some(scene) = Scene::build("name-join") else { return };
    let [first, ..] = on_link(0);
    let dns = Dns::start(&scene.rig, &[]);
    // Host B has no name server.
    let set_up = scene.run(Host::B, &["setup", "server", "--address", "Home.example.org."]);
    let warning = text(&set_up.stderr);
    assert!(warning.contains("warning: home.example.org cannot be looked up: "), "{warning}");
    let line = arguments_of(&set_up);
    assert!(line[1].starts_with("mpt1/home.example.org/4754/"), "{line:?}");

    assert_fails(&scene.join(&line), &["home.example.org cannot be looked up: ", "dig NAME"]);
    dns.set(|state| state.addresses = vec![first]);
    let joined = scene.join(&line);
    let log = text(&joined.stderr);
    assert!(joined.status.success() && log.contains("192.168.11.2:4754 (home.example.org)"), "{log}");
    let file = fs::read_to_string(scene.path("config-A/mpt0.toml")).expect("a file");
    assert!(file.contains("remote = [\"home.example.org\"]"), "{file}");
    scene.rig.wait_until("the server answers", |rig| rig.ping(Host::A, &[], "10.77.0.1".parse().expect("an address")));
    assert_eq!(scene.rig.path(Host::A, 0)["remote_name"], NAME);
    let refused = text(&scene.run(Host::B, &["setup", "server", "--address", "host"]).stderr);
    assert!(refused.contains("neither an address nor a name with a dot"), "{refused}");
}

/// The resolver of the provider of one uplink is not in `/etc/resolv.conf`, but in the lease of that uplink.
#[test]
fn a_name_is_looked_up_at_the_resolver_of_an_uplinks_lease() {
    let Some(mut rig) = Rig::build("name-by-lease", &["delay=1ms"]) else { return };
    let [first, nobody, _] = on_link(0);
    let dns = Dns::start(&rig, &[first]);
    fs::write(dns.folder.join("resolv.conf"), format!("nameserver {nobody}\n")).expect("a file");
    rig.launch_with(Host::B, &Native::responder().text());
    let program = rig.program(Host::A);
    // In a mount namespace of its own: the host may have leases.
    let lease = format!("lease {{\\n  option domain-name-servers {first};\\n}}\\n");
    let script = format!(
        "mount -t tmpfs -o mode=755 tmpfs /var/lib && mkdir /var/lib/dhcp && \
         printf '{lease}' > /var/lib/dhcp/dhclient.eth1.leases && exec \"$0\" \"$@\""
    );
    let mut command = rig.hosts.a.command("unshare");
    command.args(["--mount", "sh", "-c", &script]).arg(crate::rig::program());
    command.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    rig.launch_by(Host::A, command, &initiator().text());
    rig.wait_for_answer(&[], Family::V4, "at the address that the resolver of the lease knows");
}
