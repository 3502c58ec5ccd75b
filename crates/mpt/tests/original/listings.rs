//! The papers' listings as they are, on the hosts that they describe.

use std::fs;

use super::hosts::{Hosts, directory};

/// Swaps two endings, such as `.1` and `.2`, of all addresses, short ones too.
fn with_swapped_ends(text: &str, [near, far]: [&str; 2]) -> String {
    let swap = |word: &str| {
        let (address, length) = word.split_once('/').map_or((word, String::new()), |(a, len)| (a, format!("/{len}")));
        let other = |from: &str, to: &str| Some(address.strip_suffix(from)?.to_owned() + to + &length);
        let is_address = address.contains(['.', ':'])
            && address.bytes().all(|byte| b".:/".contains(&byte) || byte.is_ascii_hexdigit());
        is_address.then(|| other(near, far).or_else(|| other(far, near))).flatten().unwrap_or_else(|| word.to_owned())
    };
    let line = |line: &str| {
        line.split_inclusive([' ', '\t'])
            .map(|word| {
                let value = word.trim_end();
                swap(value) + &word[value.len()..]
            })
            .collect::<String>()
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

/// Runs the listing in `folder` on host 0 and its mirror on host 1; `far` is the tunnel address there.
fn ping(folder: &str, ends: [&str; 2], interfaces: [&str; 2], far: &str, form: impl Fn(&str) -> String) -> Option<()> {
    let mut hosts = Hosts::make()?;
    for (interface, network) in ["eth1", "eth2"].into_iter().zip(interfaces) {
        hosts.link(interface, [0, 1].map(|host| format!("{network}{}/24", ends[host])));
    }
    let listing = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/listings").join(folder);
    for host in 0..2 {
        let conf = hosts.folder(host).join("conf");
        fs::create_dir_all(conf.join("connections")).unwrap();
        let files = fs::read_dir(listing.join("connections")).unwrap().map(|entry| entry.unwrap().path());
        for file in files.chain([listing.join("interface.conf")]) {
            let text = form(&fs::read_to_string(&file).unwrap());
            let text = if host == 0 { text } else { with_swapped_ends(&text, ends) };
            fs::write(conf.join(file.strip_prefix(&listing).unwrap()), text).unwrap();
        }
    }
    hosts.up_legacy(&[]);
    hosts.reaches(0, None, far);
    for host in 0..2 {
        let log = hosts.log(host);
        assert!(!log.contains("bypass route"), "{log}");
        hosts.expect(host, "eth1", "up");
        hosts.expect(host, "eth2", "up");
    }
    Some(())
}

fn with_dos_line_ends(text: &str) -> String {
    text.replace('\n', "\r\n")
}

#[test]
fn two_hosts_with_the_listing_of_2014_reach_each_other() {
    for form in [str::to_owned, with_dos_line_ends] {
        let Some(()) = ping("p2014", [".1", ".2"], ["10.0.0", "10.1.1"], "192.168.200.2", form) else { return };
    }
}

#[test]
fn two_hosts_with_the_listing_of_2019_reach_each_other() {
    for form in [str::to_owned, with_dos_line_ends] {
        let Some(()) = ping("p2019", [".2", ".3"], ["10.1.1", "10.2.2"], "10.0.0.3", form) else { return };
    }
}

#[test]
fn the_mirror_of_a_listing_has_the_other_addresses() {
    let text = "\t10.0.2/24 # IPv4, 2 of 3\nfd00:de:201::1/64\n10.1.1.2 # x\n2 # paths\n00:15:17:54:d7:30\n";
    let swapped = with_swapped_ends(text, [".2", ".3"]);
    assert_eq!(swapped, "\t10.0.3/24 # IPv4, 2 of 3\nfd00:de:201::1/64\n10.1.1.3 # x\n2 # paths\n00:15:17:54:d7:30\n");
}

#[test]
fn a_gateway_that_is_an_address_of_the_host_means_none() {
    let Some(mut hosts) = Hosts::make() else { return };
    hosts.sh(0, "ip addr add 192.168.11.7/24 dev v1");
    for (host, [first, second]) in [["192.168.10.1", "192.168.11.7"], ["0.0.0.0", "192.168.11.2"]].iter().enumerate() {
        // Path 0 has no address of its own that the gateway could equal.
        directory(&hosts.folder(host), host, |text| {
            let text = text.replace(&format!("private_ipaddr = 192.168.10.{}", host + 1), "private_ipaddr = 0.0.0.0");
            let far = 2 - host;
            let text = text.replace(&format!("gw_ipaddr = 192.168.10.{far}"), &format!("gw_ipaddr = {first}"));
            text.replace(&format!("gw_ipaddr = 192.168.11.{far}"), &format!("gw_ipaddr = {second}"))
        });
        let text = fs::read_to_string(hosts.folder(host).join("conf/connections/c.conf")).unwrap();
        assert!(text.contains(&format!("gw_ipaddr = {first}")) && text.contains(&format!("gw_ipaddr = {second}")));
    }
    hosts.up_legacy(&[]);
    hosts.reaches(0, None, "10.77.0.2");
    hosts.sh(0, "ip link set v1 down; ip link set v1 up");
    hosts.expect(0, "v1", "up");
    for host in 0..2 {
        assert!(!hosts.log(host).contains("bypass route"), "{}", hosts.log(host));
        assert_eq!(hosts.sh(host, "ip route show 192.168.11.0/24 table main | grep -c via || true").trim(), "0");
    }
}
