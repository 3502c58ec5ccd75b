//! Looks up names in DNS, in a thread of its own: a resolver may be silent for seconds, and the event loop never waits.
//!
//! Queries carry the mark of the tunnel's own datagrams, so they leave by the physical links, also under the kill
//! switch. They go to the host's own resolvers alone: those of `/etc/resolv.conf`, or of systemd-resolved where that
//! file lists a resolver on loopback alone, whose own queries have no mark. Unless one of them answers over the route
//! of the main table, each is queried over each interface, because the default route may lead to a link that is dead.
//! There the resolvers of the interface's own DHCP lease come first: a provider's resolver often answers only its own
//! customers.
//!
//! The thread has the rights of the tunnel's user. A wrong answer can only contain wrong addresses, and nobody there
//! has the key of the peer.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, Question, TYPE};

/// A name to look up, and the interfaces over which resolvers are queried if the main route has no answer.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    pub(crate) name: String,
    pub(crate) interfaces: Vec<String>,
    /// Name servers in the tunnel, which are not queried.
    pub(crate) inside: Vec<IpAddr>,
    /// The file from before the tunnel, if it has replaced `/etc/resolv.conf`.
    pub(crate) former: PathBuf,
    /// The resolvers from before the tunnel, for a host whose other files list those in the tunnel alone.
    pub(crate) before: Vec<IpAddr>,
}

/// The result of a lookup: at least one address, or the reason why there is none.
#[derive(Debug)]
pub(super) struct DnsAnswer {
    pub(super) name: String,
    pub(super) addresses: Result<Vec<IpAddr>, String>,
}

/// The thread, which ends with this value. Its descriptor is readable when there is an answer.
#[derive(Debug)]
pub(super) struct Resolver {
    lookups: mpsc::Sender<Lookup>,
    answers: mpsc::Receiver<DnsAnswer>,
    wake: UnixStream,
}

impl Resolver {
    /// Starts the thread. `mark` is that of the tunnel's own datagrams.
    ///
    /// # Errors
    /// The system refused a thread or a descriptor.
    pub(super) fn start(mark: Option<u32>) -> io::Result<Self> {
        let (wake, mut far) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let (lookups, queue) = mpsc::channel::<Lookup>();
        let (results, answers) = mpsc::channel();
        let serve = move || {
            for lookup in queue {
                let addresses = look_up(&lookup, mark);
                // Both fail only if the tunnel is ending.
                if results.send(DnsAnswer { name: lookup.name, addresses }).is_err() || far.write_all(&[0]).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("resolver".to_owned()).spawn(serve)?;
        Ok(Self { lookups, answers, wake })
    }

    /// Queues a lookup. It has an answer [`ANSWER_TIMEOUT`] after [`LIMIT`] at the latest, beside the time
    /// of those before it.
    pub(super) fn look_up(&self, lookup: Lookup) {
        let _ = self.lookups.send(lookup);
    }

    /// Returns the answers that have come.
    pub(super) fn take_answers(&mut self) -> Vec<DnsAnswer> {
        while matches!((&self.wake).read(&mut [0; 64]), Ok(1..)) {}
        self.answers.try_iter().collect()
    }
}

impl AsFd for Resolver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Queries the resolvers one after the other: over the main table's route, then over each interface.
pub(crate) fn look_up(lookup: &Lookup, mark: Option<u32>) -> Result<Vec<IpAddr>, String> {
    let read = |path: &Path| fs::read_to_string(path);
    let listed = resolvers(&read, &lookup.inside, &[Path::new(RESOLV_CONF), &lookup.former]);
    let resolvers = if listed.is_empty() { lookup.before.clone() } else { listed };
    let (end, mut failures) = (Instant::now() + LIMIT, Vec::new());
    for device in [None].into_iter().chain(lookup.interfaces.iter().map(Some)) {
        let own = device.map(|device| of_link(&read, device, if_nametoindex(device.as_str()).ok())).unwrap_or_default();
        let others = resolvers.iter().filter(|resolver| !own.contains(resolver));
        for resolver in own.iter().chain(others) {
            if Instant::now() >= end {
                break;
            }
            match query(*resolver, device, mark, &lookup.name) {
                Ok(addresses) => return Ok(addresses),
                Err(why) => {
                    let over = device.map_or_else(String::new, |device| format!(" over {device}"));
                    failures.push(format!("{resolver}{over}: {why}"));
                }
            }
        }
    }
    if failures.is_empty() {
        return Err(format!("{RESOLV_CONF} lists no resolver"));
    }
    Err(failures.join("; "))
}

/// Returns the resolvers of an interface's DHCP lease, at most [`MAX_RESOLVERS`]: that of systemd-networkd, or else the
/// last one of dhclient.
fn of_link(read: &dyn Fn(&Path) -> io::Result<String>, interface: &str, index: Option<u32>) -> Vec<IpAddr> {
    let networkd = index.and_then(|index| read(&Path::new(LEASES_OF_NETWORKD).join(index.to_string())).ok());
    let dhclient = || read(&Path::new(LEASES_OF_DHCLIENT).join(format!("dhclient.{interface}.leases"))).ok();
    let last = |text: &str, key: &str| -> Option<String> {
        text.lines().filter_map(|line| line.trim().strip_prefix(key)).next_back().map(str::to_owned)
    };
    let listed = networkd.and_then(|text| last(&text, "DNS="));
    let listed = listed.or_else(|| last(&dhclient()?, "option domain-name-servers ")).unwrap_or_default();
    let words = listed.split([' ', ',', ';']).filter_map(|word| word.parse().ok());
    words.filter(|resolver: &IpAddr| !resolver.is_loopback()).take(MAX_RESOLVERS).collect()
}

/// Returns the resolvers of this host.
pub(crate) fn of_host() -> Vec<IpAddr> {
    resolvers(&|path| fs::read_to_string(path), &[], &[Path::new(RESOLV_CONF)])
}

/// Returns the resolvers of this host but for those in the tunnel, at most [`MAX_RESOLVERS`]: those of the first file
/// that lists any.
fn resolvers(read: &dyn Fn(&Path) -> io::Result<String>, inside: &[IpAddr], files: &[&Path]) -> Vec<IpAddr> {
    let listed = |path: &Path| -> Vec<IpAddr> {
        let text = read(path).unwrap_or_default();
        let outside = parse_resolv_conf(&text).into_iter().filter(|resolver| !inside.contains(resolver));
        outside.take(MAX_RESOLVERS).collect()
    };
    let all = files.iter().map(|path| listed(path)).find(|listed| !listed.is_empty()).unwrap_or_default();
    let of_links = listed(Path::new(OF_SYSTEMD_RESOLVED));
    if all.iter().all(IpAddr::is_loopback) && !of_links.is_empty() { of_links } else { all }
}

/// Returns the resolvers that a file lists.
pub fn parse_resolv_conf(text: &str) -> Vec<IpAddr> {
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let address = |words: Vec<&str>| match words[..] {
        ["nameserver", address, ..] => address.parse().ok(),
        _ => None,
    };
    words.filter_map(address).collect()
}

/// Queries one resolver for the addresses of both families. One of the two is enough.
fn query(resolver: IpAddr, device: Option<&String>, mark: Option<u32>, name: &str) -> Result<Vec<IpAddr>, String> {
    let socket = open(resolver, device, mark).map_err(|error| error.to_string())?;
    let mut ids = [0; 4];
    getrandom::fill(&mut ids).map_err(|error| error.to_string())?;
    let ids = [u16::from_be_bytes([ids[0], ids[1]]), u16::from_be_bytes([ids[2], ids[3]])];
    for (id, family) in ids.into_iter().zip([TYPE::A, TYPE::AAAA]) {
        socket.send(&encode_query(id, name, family)?).map_err(|error| error.to_string())?;
    }
    let (end, mut found, mut open) = (Instant::now() + ANSWER_TIMEOUT, Vec::new(), ids.to_vec());
    let mut why = format!("no answer within {} s", ANSWER_TIMEOUT.as_secs());
    let mut buffer = [0; 4_096];
    while !open.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        socket.set_read_timeout(Some(left)).map_err(|error| error.to_string())?;
        let len = match socket.recv(&mut buffer) {
            Ok(len) => len,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => continue,
            Err(error) => return if found.is_empty() { Err(error.to_string()) } else { Ok(interleave(found)) },
        };
        let Some((id, addresses)) = read_answer(&buffer[..len], name) else { continue };
        let Some(at) = open.iter().position(|other| *other == id) else { continue };
        open.swap_remove(at);
        match addresses {
            Ok(addresses) => found.extend(addresses),
            Err(error) => why = error,
        }
    }
    if found.is_empty() { Err(why) } else { Ok(interleave(found)) }
}

/// Opens a socket that receives from this resolver alone. Its port is random.
fn open(resolver: IpAddr, device: Option<&String>, mark: Option<u32>) -> io::Result<UdpSocket> {
    let family = if resolver.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    if let Some(mark) = mark {
        setsockopt(&socket, sockopt::Mark, &mark)?;
    }
    if let Some(device) = device {
        setsockopt(&socket, sockopt::BindToDevice, &OsString::from(device))?;
    }
    let socket = UdpSocket::from(socket);
    socket.connect(SocketAddr::new(resolver, PORT))?;
    Ok(socket)
}

fn encode_query(id: u16, name: &str, family: TYPE) -> Result<Vec<u8>, String> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).map_err(|error| format!("{error:?}"))?;
    packet.questions.push(Question::new(name, QTYPE::TYPE(family), CLASS::IN.into(), false));
    packet.build_bytes_vec().map_err(|error| format!("{error:?}"))
}

/// Returns the id and the addresses of an answer about this name, or the error that it reports. `None` for another
/// datagram.
fn read_answer(bytes: &[u8], name: &str) -> Option<(u16, Result<Vec<IpAddr>, String>)> {
    let packet = Packet::parse(bytes).ok()?;
    let is_about = |question: &Question<'_>| question.qname.to_string().eq_ignore_ascii_case(name);
    if !packet.has_flags(PacketFlag::RESPONSE) || !packet.questions.iter().any(is_about) {
        return None;
    }
    let address = |data: &RData<'_>| match data {
        RData::A(v4) => Some(IpAddr::from(Ipv4Addr::from(v4.address))),
        RData::AAAA(v6) => Some(IpAddr::from(Ipv6Addr::from(v6.address))),
        _ => None,
    };
    let found: Vec<_> = packet.answers.iter().filter_map(|record| address(&record.rdata)).take(MAX_ANSWERS).collect();
    let addresses = match found.is_empty() {
        true => Err(format!("no address ({:?})", packet.rcode())),
        false => Ok(found),
    };
    Some((packet.id(), addresses))
}

/// Returns addresses of both families in turn, IPv6 first (RFC 8305 section 4), so that the second is tried if the
/// network of the first is broken.
fn interleave(found: Vec<IpAddr>) -> Vec<IpAddr> {
    let (v6, v4): (Vec<_>, Vec<_>) = found.into_iter().partition(IpAddr::is_ipv6);
    let longest = v6.len().max(v4.len());
    (0..longest).flat_map(|at| [v6.get(at), v4.get(at)]).flatten().copied().collect()
}

pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The resolvers of all links, which systemd-resolved writes beside its own.
pub const OF_SYSTEMD_RESOLVED: &str = "/run/systemd/resolve/resolv.conf";
/// One file for each interface, with its index as the name.
const LEASES_OF_NETWORKD: &str = "/run/systemd/netif/leases";
/// Of ISC dhclient, which ifupdown uses.
const LEASES_OF_DHCLIENT: &str = "/var/lib/dhcp";
const PORT: u16 = 53;
/// As many as the C library uses, resolv.conf(5).
const MAX_RESOLVERS: usize = 3;
/// Addresses that are used of one family: more than any host has links.
const MAX_ANSWERS: usize = 8;
/// Timeout of a resolver's answer. A recursive lookup over a slow link takes about 1 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// No further query starts after this time.
const LIMIT: Duration = Duration::from_secs(12);

#[cfg(test)]
mod tests {
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, CNAME};

    use super::*;

    #[test]
    fn the_resolvers_of_the_links_are_queried_where_only_a_local_one_is_listed() {
        let list = |main: &'static str, links: Option<&'static str>| {
            let read = |path: &Path| match (path.to_str(), links) {
                (Some(RESOLV_CONF), _) => Ok(main.to_owned()),
                (Some(OF_SYSTEMD_RESOLVED), Some(links)) => Ok(links.to_owned()),
                (Some("former"), _) => Ok("nameserver 192.168.8.1\n".to_owned()),
                _ => Err(io::ErrorKind::NotFound.into()),
            };
            let inside = ["10.77.0.1".parse().unwrap()];
            resolvers(&read, &inside, &[Path::new(RESOLV_CONF), Path::new("former")])
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let stub = "# comment\nnameserver 127.0.0.53\noptions edns0\nsearch example.org\n";
        assert_eq!(
            list(stub, Some("nameserver 192.168.1.1\nnameserver 2001:db8::53\n")),
            ["192.168.1.1", "2001:db8::53"]
        );
        assert_eq!(list(stub, None), ["127.0.0.53"]);
        assert_eq!(list("nameserver 9.9.9.9\nnameserver x\n", Some("nameserver 192.168.1.1\n")), ["9.9.9.9"]);
        for in_the_tunnel in ["", "nameserver 10.77.0.1\n"] {
            assert_eq!(list(in_the_tunnel, None), ["192.168.8.1"], "those in the tunnel cannot find its peer");
        }
        assert_eq!(list(stub, Some("nameserver 10.77.0.1\nnameserver 192.168.1.1\n")), ["192.168.1.1"]);
    }

    #[test]
    fn queries_noise_and_answers_about_other_names_are_ignored() {
        let query = encode_query(7, "home.example.org", TYPE::A).unwrap();
        assert!(read_answer(&query, "home.example.org").is_none());
        assert!(read_answer(&query[..9], "home.example.org").is_none());
        assert!(read_answer(&[0xff; 300], "home.example.org").is_none());
        let mut answer = query;
        answer[2] |= 0x80;
        assert!(read_answer(&answer, "other.example.org").is_none());
        let (id, addresses) = read_answer(&answer, "home.example.org").unwrap();
        assert_eq!((id, addresses), (7, Err("no address (NoError)".to_owned())));
    }

    #[test]
    fn an_answer_has_the_addresses_behind_an_alias_and_at_most_8() {
        let question = encode_query(7, "home.example.org", TYPE::A).unwrap();
        let mut answer = Packet::parse(&question).unwrap();
        answer.set_flags(PacketFlag::RESPONSE);
        let mut add = |name: &'static str, data| {
            answer.answers.push(ResourceRecord::new(Name::new_unchecked(name), CLASS::IN, 60, data));
        };
        add("home.example.org", RData::CNAME(CNAME(Name::new_unchecked("a.example.net"))));
        (1..=9).for_each(|last| add("a.example.net", RData::A(A::from(Ipv4Addr::new(192, 0, 2, last)))));
        let (_, addresses) = read_answer(&answer.build_bytes_vec().unwrap(), "HOME.example.org").unwrap();
        let expected: Vec<_> = (1..=8).map(|last| IpAddr::from([192, 0, 2, last])).collect();
        assert_eq!(addresses, Ok(expected));
    }

    #[test]
    fn families_take_turns() {
        let parse = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let found = parse(&["192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"]);
        assert_eq!(interleave(found), parse(&["2001:db8::1", "192.0.2.1", "192.0.2.2", "192.0.2.3"]));
    }

    #[test]
    fn an_interface_has_the_resolvers_of_its_lease() {
        let networkd =
            "# This is private data. Do not parse.\nADDRESS=192.0.2.7\nDNS=192.0.2.53 2001:db8::53 127.0.0.1\n";
        let dhclient = "lease {\n  interface \"wwan0\";\n  option domain-name-servers 198.51.100.1;\n}\n\
                        lease {\n  option routers 203.0.113.1;\n  option domain-name-servers 203.0.113.5,203.0.113.6;\n}\n";
        let read = |path: &Path| match path.to_str() {
            Some("/run/systemd/netif/leases/3") => Ok(networkd.to_owned()),
            Some("/run/systemd/netif/leases/4") => Ok("ADDRESS=192.0.2.8\n".to_owned()),
            Some("/var/lib/dhcp/dhclient.wwan0.leases") => Ok(dhclient.to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let addresses = |all: &[&str]| all.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!(of_link(&read, "eth0", Some(3)), addresses(&["192.0.2.53", "2001:db8::53"]));
        assert_eq!(of_link(&read, "wwan0", Some(4)), addresses(&["203.0.113.5", "203.0.113.6"]));
        assert_eq!(of_link(&read, "wwan0", None), addresses(&["203.0.113.5", "203.0.113.6"]));
        assert!(of_link(&read, "eth9", Some(9)).is_empty());
    }
}
