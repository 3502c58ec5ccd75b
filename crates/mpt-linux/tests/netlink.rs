//! rtnetlink tests in a network namespace with a veth pair.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::IpAddr;
use std::time::Duration;

use mpt_linux::netlink::{Change, Event, Hop, Link, MAIN_TABLE, Monitor, Netlink, Prefix, Route, Rule, TableMonitor};
use mpt_linux::reactor::{Clock, Interest, Reactor, Token};
use mpt_linux::udp::{Datagrams, SendStatus, Socket, SocketSpec};
use nix::libc;
use support::{in_own_namespace, ip, output_of};

#[test]
fn a_link_is_found_by_name_and_changed() {
    with_veth(|mut netlink, veth| {
        netlink.set_mtu(veth, 1400).unwrap();
        netlink.set_queue_length(veth, 77).unwrap();

        let link = netlink.link("veth0").unwrap().unwrap();
        assert_eq!(link, Link { index: veth, name: "veth0".into(), mtu: 1400, up: true, running: true });
        assert!(output_of("ip", "link show veth0").contains("qlen 77"));
        netlink.set_up(veth, false).unwrap();
        assert!(!netlink.link_by_index(veth).unwrap().unwrap().up);
        assert_eq!(netlink.links().unwrap().len(), 3);
        assert_eq!(netlink.link("no-such-link").unwrap(), None);
        assert_eq!(netlink.link_by_index(9999).unwrap(), None);
    });
}

#[test]
fn an_address_is_added_and_removed_once() {
    with_veth(|mut netlink, veth| {
        for address in ["10.9.2.1/24", "fd09:2::1/64"].map(prefix) {
            assert_eq!(netlink.add_address(veth, address).unwrap(), Change::Applied);
            assert_eq!(netlink.add_address(veth, address).unwrap(), Change::Unchanged);
            assert_eq!(netlink.remove_address(veth, address).unwrap(), Change::Applied);
            assert_eq!(netlink.remove_address(veth, address).unwrap(), Change::Unchanged);
        }
        let address = prefix("10.9.3.1/32");
        netlink.add_address(veth, address).unwrap();
        assert!(netlink.addresses(veth).unwrap().contains(&address));
        ip("link delete veth0");
        assert_eq!(netlink.remove_address(veth, address).unwrap(), Change::Unchanged, "the link is gone");
    });
}

#[test]
fn a_route_is_added_and_removed_once() {
    with_veth(|mut netlink, veth| {
        netlink.add_address(veth, prefix("10.9.1.1/24")).unwrap();
        ip("address add fd09:1::1/64 dev veth0 nodad");
        for (to, via) in [("198.51.100.0/24", "10.9.1.2"), ("2001:db8::/32", "fd09:1::2")] {
            for table in [MAIN_TABLE, 100, 100_000] {
                let route = Route { table, metric: 7, ..route(to, Some(via), veth) };
                assert_eq!(netlink.add_route(&route).unwrap(), Change::Applied, "{route}");
                assert_eq!(netlink.add_route(&route).unwrap(), Change::Unchanged, "{route}");
                assert_eq!(netlink.remove_route(&route).unwrap(), Change::Applied, "{route}");
                assert_eq!(netlink.remove_route(&route).unwrap(), Change::Unchanged, "{route}");
            }
        }
    });
}

#[test]
fn a_route_gets_another_mtu_in_its_place() {
    with_veth(|mut netlink, veth| {
        netlink.add_address(veth, prefix("10.9.1.1/24")).unwrap();
        ip("address add fd09:1::1/64 dev veth0 nodad");
        for to in ["10.9.1.7/32", "fd09:1::7/128"] {
            let shown = || output_of("ip", &format!("route get {}", prefix(to).address));
            for mtu in [Some(1_300), Some(1_400), None] {
                netlink.replace_route(&Route { mtu, ..route(to, None, veth) }).unwrap();
                let expected = mtu.map_or("mtu".to_owned(), |mtu| format!("mtu {mtu}"));
                assert_eq!(shown().contains(&expected), mtu.is_some(), "{mtu:?}: {}", shown());
            }
            assert_eq!(netlink.add_route(&route(to, None, veth)).unwrap(), Change::Unchanged, "it is one route");
        }
    });
}

#[test]
fn only_our_routes_are_stale_routes() {
    with_veth(|mut netlink, veth| {
        netlink.add_address(veth, prefix("10.9.1.1/24")).unwrap();
        let stale = route("198.51.100.7/32", Some("10.9.1.2"), veth);
        netlink.add_route(&stale).unwrap();
        let replacement = route("198.51.100.7/32", Some("10.9.1.3"), veth);
        assert_eq!(netlink.add_route(&replacement).unwrap(), Change::Unchanged);
        assert_eq!(netlink.remove_stale_route(&replacement).unwrap(), Change::Applied);
        assert_eq!(netlink.add_route(&replacement).unwrap(), Change::Applied);

        ip("route add 198.51.100.8/32 via 10.9.1.2");
        assert_eq!(netlink.remove_stale_route(&route("198.51.100.8/32", None, veth)).unwrap(), Change::Unchanged);
    });
}

#[test]
fn a_destination_is_reached_by_the_best_route() {
    with_veth(|mut netlink, veth| {
        netlink.add_address(veth, prefix("10.9.1.1/24")).unwrap();
        netlink.add_address(veth, prefix("10.9.9.9/32")).unwrap();
        let to = "198.51.100.7".parse().unwrap();
        assert_eq!(netlink.route_to(to, None).unwrap(), None);

        let source = Some("10.9.9.9".parse().unwrap());
        netlink.add_route(&Route { source, ..route("0.0.0.0/0", Some("10.9.1.2"), veth) }).unwrap();

        let gateway = Some("10.9.1.2".parse().unwrap());
        assert_eq!(netlink.route_to(to, None).unwrap(), Some(Hop { device: veth, source, gateway, mtu: 1500 }));
        assert_eq!(netlink.route_to(to, Some(veth)).unwrap().unwrap().device, veth);
        let near = netlink.route_to("10.9.1.5".parse().unwrap(), None).unwrap().unwrap();
        assert_eq!((near.gateway, near.source), (None, Some("10.9.1.1".parse().unwrap())));
    });
}

#[test]
fn a_rule_is_added_and_removed_once() {
    with_veth(|mut netlink, _| {
        for ipv6 in [false, true] {
            let marked = Rule {
                ipv6,
                priority: 100,
                mark: Some(0x6d70),
                invert: ipv6,
                table: 51_820,
                suppress_prefix_length: None,
            };
            let main = Rule {
                mark: None,
                invert: false,
                priority: 101,
                table: MAIN_TABLE,
                suppress_prefix_length: Some(0),
                ..marked
            };
            for rule in [marked, main] {
                assert_eq!(netlink.add_rule(&rule).unwrap(), Change::Applied, "{rule}");
                assert_eq!(netlink.add_rule(&rule).unwrap(), Change::Unchanged, "{rule}");
            }
            let shown = output_of("ip", if ipv6 { "-6 rule show" } else { "-4 rule show" });
            let not = if ipv6 { "not " } else { "" };
            assert!(shown.contains(&format!("100:\t{not}from all fwmark 0x6d70 lookup 51820")), "{shown}");
            assert!(shown.contains("101:\tfrom all lookup main suppress_prefixlength 0"), "{shown}");
            assert_eq!(netlink.rules_for_mark(0x6d70, ipv6).unwrap(), [marked]);
            for rule in [marked, main] {
                assert_eq!(netlink.remove_rule(&rule).unwrap(), Change::Applied, "{rule}");
                assert_eq!(netlink.remove_rule(&rule).unwrap(), Change::Unchanged, "{rule}");
            }
        }
    });
}

#[test]
fn a_marked_socket_follows_the_rule_for_its_mark() {
    with_veth(|mut netlink, veth| {
        netlink.add_address(veth, prefix("10.9.1.1/24")).unwrap();
        netlink.add_route(&Route { table: 100, ..route("198.51.100.0/24", None, veth) }).unwrap();
        let mark = Some(0x6d70);
        let rule = Rule { ipv6: false, priority: 100, mark, invert: false, table: 100, suppress_prefix_length: None };
        netlink.add_rule(&rule).unwrap();
        let batch = Datagrams { to: "198.51.100.7:9".parse().unwrap(), tos: 0, segment: 5, bytes: b"hello" };

        let marked = Socket::open(&SocketSpec { mark, ..SocketSpec::default() }).unwrap().send(&batch);
        let unmarked = Socket::open(&SocketSpec::default()).unwrap().send(&batch);

        assert!(matches!(marked.status, SendStatus::Complete), "{marked:?}");
        assert!(matches!(unmarked.status, SendStatus::Failed(_)), "{unmarked:?}");
    });
}

#[test]
fn an_address_is_reachable_only_by_an_existing_route() {
    with_veth(|mut netlink, veth| {
        netlink.add_address(veth, prefix("10.9.1.1/24")).unwrap();
        let reaches = |netlink: &mut Netlink, to: &str, from: &str| {
            netlink.reaches(to.parse().unwrap(), from.parse().unwrap(), veth).unwrap()
        };
        assert!(reaches(&mut netlink, "10.9.1.7", "10.9.1.1"));
        assert!(!reaches(&mut netlink, "198.51.100.7", "10.9.1.1"), "the kernel would send it all the same");
        assert!(!reaches(&mut netlink, "10.9.1.7", "10.9.1.2"), "an address of somebody else");
        assert!(!reaches(&mut netlink, "2001:db8::7", "fd09::1"));
        netlink.add_route(&Route { metric: 700, ..route("0.0.0.0/0", Some("10.9.1.7"), veth) }).unwrap();
        assert!(reaches(&mut netlink, "198.51.100.7", "10.9.1.1"));
    });
}

#[test]
fn a_table_with_an_unreachable_route_is_the_last_one_searched() {
    with_veth(|mut netlink, veth| {
        for (ipv6, to) in [(false, "198.51.100.7"), (true, "2001:db8::7")] {
            let default = if ipv6 { "::/0" } else { "0.0.0.0/0" };
            netlink.add_route(&route(default, None, veth)).unwrap();
            let rule =
                Rule { ipv6, priority: 100, mark: Some(7), invert: true, table: 100, suppress_prefix_length: None };
            netlink.add_rule(&rule).unwrap();
            let to: IpAddr = to.parse().unwrap();
            assert_eq!(netlink.route_to(to, None).unwrap().map(|hop| hop.device), Some(veth), "an empty table");

            assert_eq!(netlink.add_unreachable_route(100, ipv6).unwrap(), Change::Applied);
            assert_eq!(netlink.add_unreachable_route(100, ipv6).unwrap(), Change::Unchanged);
            assert_eq!(netlink.route_to(to, None).unwrap(), None);
            let marked = Netlink::open_for(Some(7)).unwrap().route_to(to, None).unwrap();
            assert_eq!(marked.map(|hop| hop.device), Some(veth));

            assert_eq!(netlink.remove_unreachable_route(100, ipv6).unwrap(), Change::Applied);
            assert_eq!(netlink.remove_unreachable_route(100, ipv6).unwrap(), Change::Unchanged);
        }
    });
}

#[test]
fn an_error_has_the_operation_and_the_kernels_message() {
    with_veth(|mut netlink, veth| {
        let error = netlink.add_route(&route("198.51.100.0/24", Some("192.0.2.1"), veth)).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENETUNREACH));
        let text = error.to_string();
        assert!(text.starts_with(&format!("add route 198.51.100.0/24 via 192.0.2.1 on link {veth}")), "{text}");
        assert!(text.ends_with("Nexthop has invalid gateway"), "{text}");
    });
}

#[test]
fn the_loss_of_a_carrier_is_reported() {
    with_veth(|_, veth| {
        let mut monitor = Monitor::open().unwrap();
        ip("link set veth1 down");
        let lost = wait_for(&mut monitor, |event| matches!(event, Event::Link(l) if l.index == veth && !l.running));
        assert!(matches!(lost, Event::Link(link) if link.up), "the link itself was not set down");

        ip("link set veth1 up");
        wait_for(&mut monitor, |event| matches!(event, Event::Link(l) if l.index == veth && l.running));
    });
}

#[test]
fn changes_of_addresses_routes_and_links_are_reported() {
    with_veth(|mut netlink, veth| {
        let mut monitor = Monitor::open().unwrap();
        let address = prefix("10.9.4.1/24");
        netlink.add_address(veth, address).unwrap();
        wait_for(&mut monitor, |event| *event == Event::AddressAdded(veth, address));
        netlink.remove_address(veth, address).unwrap();
        wait_for(&mut monitor, |event| *event == Event::AddressRemoved(veth, address));
        netlink.add_route(&route("198.51.100.0/24", None, veth)).unwrap();
        wait_for(&mut monitor, |event| *event == Event::Routes);
        ip("link delete veth0");
        wait_for(&mut monitor, |event| *event == Event::LinkGone(veth));
    });
}

#[test]
fn a_removed_route_is_reported_with_its_link() {
    with_veth(|mut netlink, veth| {
        let address = prefix("10.9.4.1/24");
        netlink.add_address(veth, address).unwrap();
        let own = [prefix("10.9.4.1/32"), prefix("10.9.4.0/24")];
        assert!(own.iter().all(|route| netlink.kernel_routes(veth).unwrap().contains(route)));
        let mut monitor = Monitor::open().unwrap();
        ip("route del local 10.9.4.1 dev veth0 table local");
        wait_for(&mut monitor, |event| *event == Event::RouteGone(veth));
        assert!(!netlink.kernel_routes(veth).unwrap().contains(&own[0]));
        assert!(netlink.addresses(veth).unwrap().contains(&address), "the address stays");
    });
}

#[test]
fn an_ipv6_address_is_reported_after_duplicate_address_detection() {
    with_veth(|mut netlink, veth| {
        let mut monitor = Monitor::open().unwrap();
        let address = prefix("fd09:4::1/64");
        netlink.add_address(veth, address).unwrap();
        assert!(!netlink.addresses(veth).unwrap().contains(&address), "before duplicate address detection");
        wait_for(&mut monitor, |event| *event == Event::AddressAdded(veth, address));
        assert!(netlink.addresses(veth).unwrap().contains(&address));
    });
}

#[test]
fn a_port_that_leaves_a_bridge_is_not_a_link_that_is_gone() {
    with_veth(|_, veth| {
        ip("link add br0 type bridge");
        ip("link set veth0 master br0");
        let mut monitor = Monitor::open().unwrap();
        ip("link set veth0 nomaster");
        ip("link delete br0");
        let gone = wait_for(&mut monitor, |event| matches!(event, Event::LinkGone(_)));
        assert_ne!(gone, Event::LinkGone(veth));
    });
}

#[test]
fn deleted_rules_and_changed_tables_are_reported() {
    with_veth(|mut netlink, _| {
        let (mut monitor, mut tables) = (Monitor::open().unwrap(), TableMonitor::open().unwrap());
        for ipv6 in [false, true] {
            let rule =
                Rule { ipv6, priority: 9, mark: Some(7), invert: true, table: 100, suppress_prefix_length: None };
            netlink.add_rule(&rule).unwrap();
            let version = if ipv6 { "-6" } else { "-4" };
            assert!(output_of("ip", &format!("{version} rule show proto kernel")).contains("fwmark 0x7"));
            ip(&format!("{version} rule delete pref 9"));
            wait_for(&mut monitor, |event| *event == Event::RuleGone);
        }
        assert!(!tables.take_changed(&["mine"]).unwrap());
        for command in ["add table inet mine", "add chain inet mine some", "delete table inet mine"] {
            output_of("nft", command);
            output_of("nft", "add table inet other");
            assert!(tables.take_changed(&["none", "mine"]).unwrap(), "{command}");
            output_of("nft", command.replace("mine", "min").as_str());
            assert!(!tables.take_changed(&["mine"]).unwrap(), "{command}");
        }
        output_of("nft", "add table inet mine; add set inet mine seen { type ipv4_addr; }");
        assert!(tables.take_changed(&["mine"]).unwrap());
        for change in ["add", "delete"] {
            output_of("nft", &format!("{change} element inet mine seen {{ 192.0.2.1 }}"));
            assert!(!tables.take_changed(&["mine"]).unwrap(), "a resolver adds addresses of names all the time");
        }
    });
}

#[test]
fn lost_events_are_reported() {
    with_veth(|mut netlink, veth| {
        let mut monitor = Monitor::open().unwrap();
        for _ in 0..2_000 {
            netlink.add_address(veth, prefix("10.9.4.1/24")).unwrap();
            netlink.remove_address(veth, prefix("10.9.4.1/24")).unwrap();
        }
        wait_for(&mut monitor, |event| *event == Event::Resync);
    });
}

/// Runs `test` with the index of a link `veth0` that is up and has a carrier.
fn with_veth(test: impl FnOnce(Netlink, u32) + Send + 'static) {
    in_own_namespace(|| {
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth0 up");
        let mut monitor = Monitor::open().unwrap();
        ip("link set veth1 up");
        wait_for(&mut monitor, |event| matches!(event, Event::Link(link) if link.name == "veth0" && link.running));
        let mut netlink = Netlink::open().unwrap();
        let veth = netlink.link("veth0").unwrap().unwrap().index;
        test(netlink, veth);
    });
}

/// Waits for a matching event; the kernel delays some by a second.
fn wait_for(monitor: &mut Monitor, matches: impl Fn(&Event) -> bool) -> Event {
    let mut reactor = Reactor::new(Clock::start()).unwrap();
    let (mut ready, mut seen) = (Vec::new(), Vec::new());
    reactor.add(&*monitor, Token(0), Interest::Read).unwrap();
    let until = reactor.now() + Duration::from_secs(5);
    while reactor.now() < until {
        while let Some(event) = monitor.next_event().unwrap() {
            if matches(&event) {
                return event;
            }
            seen.push(event);
        }
        reactor.wait(Some(until), &mut ready).unwrap();
    }
    panic!("heard only of {seen:?}");
}

fn prefix(text: &str) -> Prefix {
    let (address, length) = text.split_once('/').unwrap();
    Prefix { address: address.parse().unwrap(), length: length.parse().unwrap() }
}

fn route(to: &str, via: Option<&str>, device: u32) -> Route {
    let via = via.map(|via| via.parse::<IpAddr>().unwrap());
    Route { to: prefix(to), via, device, table: MAIN_TABLE, metric: 0, source: None, mtu: None }
}
