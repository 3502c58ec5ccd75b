//! Paths over TLS, between hosts whose network drops UDP.

use crate::{
    capture::Capture,
    internet::{CLIENT, SERVER, internet, reaches},
    native_host::Native,
    rig::{Rig, inside, sh, text as text_of},
};
use mpt_lab::topology::{Family, Host};
use mpt_proto::packet::ip::{Ip, TCP, UDP};
use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::Stdio,
};

/// Starts a server with `[tls]`, and a client that has a UDP path and one over TLS.
fn start(rig: &mut Rig) {
    rig.launch_with(Host::B, &Native::responder().on_top("tls.listen = \"0.0.0.0:443\"").text());
    let paths = "[[peer.path]]\nremote = \"192.168.11.2\"\n[[peer.path]]\ntls = \"192.168.11.2\"\ninterface = \"eth1\"";
    rig.launch_with(Host::A, &Native::initiator(paths).text());
}

/// Drops UDP between the hosts, in both directions.
const DROP_UDP: &str =
    "nft 'table inet wall { chain i { type filter hook input priority 0; iifname eth1 meta l4proto udp drop; };
    chain o { type filter hook output priority 0; oifname eth1 meta l4proto udp drop; }; }'";

fn tls_path(rig: &Rig, host: Host) -> serde_json::Value {
    let status = rig.status(host);
    let paths = status["peers"][0]["paths"].as_array().expect("paths").clone();
    paths.into_iter().find(|path| path["tls"].is_object()).unwrap_or_default()
}

/// Sends a few megabytes by TCP through the tunnel, and returns what arrived.
fn transfer(rig: &Rig) -> usize {
    let to = inside(Host::B, Family::V4);
    let program = format!(
        "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('{to}', 9)); \
         s.listen(); print('ready', flush=True); c, _ = s.accept(); n = 0\nwhile d := c.recv(65536): n += len(d)\nprint(n)"
    );
    let mut server = rig.hosts.b.command("python3");
    let mut server = server.args(["-c", &program]).stdout(Stdio::piped()).spawn().expect("python3");
    let mut ready = [0; 6];
    server.stdout.as_mut().expect("stdout").read_exact(&mut ready).expect("it is ready");
    let sent = rig.hosts.a.enter(|| -> std::io::Result<()> {
        let mut stream = TcpStream::connect((to, 9))?;
        (0..32).try_for_each(|_| stream.write_all(&[7; 65_536]))
    });
    sent.expect("a namespace").expect("a transfer");
    text_of(&server.wait_with_output().expect("an end").stdout).trim().parse().expect("a number")
}

#[test]
fn without_udp_the_tunnel_goes_over_tls_and_with_udp_again_it_leaves() {
    let Some(mut rig) = Rig::build("overtls", &["delay=1ms"]) else { return };
    let mut wire = Capture::open(&rig.hosts.b, "eth1");
    start(&mut rig);
    rig.wait_for_answer(&[], Family::V4, "over UDP");
    assert_eq!(tls_path(&rig, Host::A)["cause"], "unused");
    assert!(rig.mpt(Host::A, &["status"]).stdout.windows(6).any(|word| word == b"unused"));
    let is_tcp = |frame: &[u8]| Ip::parse(frame.get(14..).unwrap_or_default()).is_ok_and(|ip| ip.protocol == TCP);
    assert!(!wire.frames().iter().any(|frame| is_tcp(frame)), "no TCP while UDP answers");

    for host in [&rig.hosts.a, &rig.hosts.b] {
        sh(host, DROP_UDP);
    }
    rig.wait_until("the tunnel answers over TLS", |rig| {
        tls_path(rig, Host::A)["up"] == true && rig.ping(Host::A, &[], inside(Host::B, Family::V4))
    });
    let before = wire.frames().len();
    assert_eq!(transfer(&rig), 32 * 65_536);
    let parsed = wire.frames()[before..].iter().filter_map(|frame| Ip::parse(frame.get(14..)?).ok());
    let protocols: BTreeSet<_> =
        parsed.map(|ip| ip.protocol).filter(|protocol| [TCP, UDP].contains(protocol)).collect();
    assert_eq!(protocols, BTreeSet::from([TCP]), "the outside is TCP alone");
    let (near, far) = (tls_path(&rig, Host::A), tls_path(&rig, Host::B));
    assert_eq!((&near["remote"], &near["role"]), (&"192.168.11.2:443".into(), &"standby".into()));
    assert!(near["tls"]["connected_s"].is_u64() && near["sent_bytes"].as_u64() > Some(32 * 65_536), "{near}");
    assert_eq!(far["up"], true, "the server shows it, too: {far}");
    assert!(far["remote"].as_str().is_some_and(|remote| remote.starts_with("127.")), "{far}");

    for host in [&rig.hosts.a, &rig.hosts.b] {
        sh(host, "nft delete table inet wall");
    }
    rig.wait_until("UDP is used again", |rig| {
        let before = tls_path(rig, Host::A)["sent_packets"].as_u64();
        let sum = |rig: &Rig| rig.path(Host::A, 0)["sent_packets"].as_u64();
        let udp = sum(rig);
        rig.ping(Host::A, &[], inside(Host::B, Family::V4)) && sum(rig) > udp && {
            let after = tls_path(rig, Host::A)["sent_packets"].as_u64();
            after <= before.map(|count| count + 1)
        }
    });
    for line in ["connecting over TLS", "connected over TLS"] {
        assert_eq!(rig.logged(Host::A, line), 1, "{line}");
    }
    assert!(rig.mpt(Host::A, &["path", "down", "tls"]).status.success());
    rig.wait_until("the connection ends", |rig| rig.logged(Host::A, "left TLS") == 1);
    rig.wait_until("the server notices", |rig| rig.logged(Host::B, "TLS connection of") == 1);
}

#[test]
fn under_the_kill_switch_without_udp_nothing_but_tls_leaves() {
    let Some(mut rig) = Rig::build("tlskill", &["delay=1ms"]) else { return };
    let _far = internet(&rig);
    for host in [&rig.hosts.a, &rig.hosts.b] {
        sh(host, DROP_UDP);
    }
    let mut wire = Capture::open(&rig.hosts.b, "eth1");
    rig.launch_with(Host::B, &SERVER.replace("masquerade = true", "masquerade = true\ntls.listen = \"0.0.0.0:8443\""));
    let client = CLIENT.replace("KILL", "true\noutside = []") + "[[peer.path]]\ntls = \"wss://192.168.11.2:8443/\"\n";
    rig.launch_with(Host::A, &client);
    rig.wait_until("the Internet answers over TLS", |rig| reaches(rig, "198.51.100.2"));
    let from_a = wire.frames().iter().filter_map(|frame| {
        let packet = frame.get(14..)?;
        let ip = Ip::parse(packet).ok().filter(|ip| ip.source.to_string() == "192.168.11.1")?;
        Some((ip.destination.to_string(), ip.protocol, ip.ports(packet).map(|(_, to)| to)))
    });
    let expected = BTreeSet::from([("192.168.11.2".to_owned(), TCP, Some(8443))]);
    assert_eq!(from_a.collect::<BTreeSet<_>>(), expected);
    assert!(rig.logged(Host::A, "no UDP path answers") >= 1);
    // Root has become the tunnel's user before it wrote there.
    let state = rig.state_dir(Host::B);
    let owner = |path: &Path| fs::metadata(path).expect("it exists").uid();
    assert_ne!(owner(&state), 0);
    assert_eq!(owner(&state.join("mpt0.tls")), owner(&state));
}

#[test]
fn a_renewed_certificate_is_used_with_and_without_a_reload_and_no_connection_ends() {
    let Some(mut rig) = Rig::build("tlsrenew", &["delay=1ms"]) else { return };
    for host in [&rig.hosts.a, &rig.hosts.b] {
        sh(host, DROP_UDP);
    }
    let folder = rig.folder.path().display().to_string();
    // Only root reads the key. The running tunnel is another user.
    let make = |name: &str, days: u32| {
        let script = format!(
            "cd {folder} && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days {days} \
             -subj /CN={name} -keyout {name}.key -out {name}.pem 2>/dev/null && chmod 600 {name}.key"
        );
        sh(&rig.hosts.b, &script);
    };
    [("first", 90), ("second", 90), ("third", 2)].into_iter().for_each(|(name, days)| make(name, days));
    let renew = |rig: &Rig, certificate: &str, key: &str| {
        sh(&rig.hosts.b, &format!("cd {folder} && cp {certificate} chain.pem && cp --preserve=mode {key} key.pem"))
    };
    renew(&rig, "first.pem", "first.key");
    let tls = format!("tls = {{ certificate = \"{folder}/chain.pem\", key = \"{folder}/key.pem\" }}");
    rig.launch_with(Host::B, &Native::responder().on_top(&tls).text());
    rig.launch_with(Host::A, &Native::initiator("[[peer.path]]\ntls = \"192.168.11.2\"").text());
    rig.wait_for_answer(&[], Family::V4, "over TLS");
    let subject = |rig: &Rig| {
        let script = "timeout 5 openssl s_client -connect 192.168.11.2:443 </dev/null 2>/dev/null \
                      | openssl x509 -noout -subject || true";
        sh(&rig.hosts.a, script).trim().replace(' ', "")
    };
    let certificate = |rig: &Rig| rig.status(Host::B)["tls_certificate"].clone();
    let used = |rig: &Rig| rig.logged(Host::B, "new certificate for paths over TLS");
    assert_eq!(subject(&rig), "subject=CN=first");
    assert!(certificate(&rig)["expires_s"].as_i64() > Some(80 * 86_400), "{}", certificate(&rig));

    // The key of another certificate: a reload fails, and without one the log has the reason.
    renew(&rig, "second.pem", "first.key");
    let why = "key.pem: the private key is not that of the certificate";
    let refused = rig.mpt(Host::B, &["reload"]);
    let stderr = text_of(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains(why), "{stderr}");
    assert!(stderr.contains("nothing was changed") && stderr.contains("hint: PEM, as certbot writes"), "{stderr}");
    let logged = format!("the certificate in use stays: {folder}/chain.pem and {folder}/{why}; hint: ");
    rig.wait_until("the files are noticed", |rig| rig.logged(Host::B, &logged) == 1);
    assert!(certificate(&rig)["problem"].as_str().is_some_and(|problem| problem.contains(why)));
    assert!(text_of(&rig.mpt(Host::B, &["status"]).stdout).contains("TLS: the certificate in use stays: "));
    assert_eq!((subject(&rig).as_str(), used(&rig)), ("subject=CN=first", 0));

    // Without a reload, the right key is noticed; with one, the next certificate is used at once.
    renew(&rig, "second.pem", "second.key");
    rig.wait_until("the new one is used", |rig| subject(rig) == "subject=CN=second");
    rig.wait_until("the problem is gone", |rig| certificate(rig)["problem"].is_null());
    renew(&rig, "third.pem", "third.key");
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    rig.wait_until("the third one is used", |rig| subject(rig) == "subject=CN=third");
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    assert_eq!((used(&rig), rig.logged(Host::B, &logged)), (2, 1));
    rig.wait_until("its end is near", |rig| rig.logged(Host::B, "[tls]: the certificate expires in ") == 1);
    assert!(text_of(&rig.mpt(Host::B, &["status"]).stdout).contains("TLS: the certificate expires in "));
    let doctor = text_of(&rig.mpt(Host::B, &["doctor"]).stdout);
    assert!(doctor.contains("tls_certificate\n  the certificate for paths over TLS expires in "), "{doctor}");
    assert_eq!(transfer(&rig), 32 * 65_536);
    assert_eq!((rig.logged(Host::A, "left TLS"), rig.logged(Host::A, "connected over TLS")), (0, 1));

    // Other files, then none.
    let text = fs::read_to_string(rig.file(Host::B)).expect("a file");
    fs::write(rig.file(Host::B), text.replace("chain.pem", "first.pem").replace("key.pem", "first.key"))
        .expect("a file");
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    rig.wait_until("the files that are named now are used", |rig| subject(rig) == "subject=CN=first");
    fs::write(rig.file(Host::B), text.replace(&tls, "tls = {}")).expect("a file");
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    rig.wait_until("the own certificate is used", |rig| subject(rig).contains("rcgen"));
    fs::write(rig.file(Host::B), text.replace("tls = {", "tls = { path = \"/x\",")).expect("a file");
    let refused = rig.mpt(Host::B, &["reload"]);
    let why = text_of(&refused.stderr);
    assert!(!refused.status.success() && why.contains("listen or path of [tls] cannot change"), "{why}");
}

/// A proxy for one connection after the other, with the status that a file has. Prints the first line of each request.
const PROXY: &str = "import socket, sys, threading
def carry(a, b):
    while d := a.recv(65536): b.sendall(d)
listener = socket.create_server(('192.168.11.2', 3128)); print('ready', flush=True)
while True:
    near, _ = listener.accept(); head = b''
    while b'\\r\\n\\r\\n' not in head: head += near.recv(4096)
    request, status = head.split(b'\\r\\n')[0].decode(), open(sys.argv[1]).read()
    near.sendall(f'HTTP/1.1 {status} x\\r\\nVia: a\\r\\n\\r\\n'.encode())
    if status != '200' or request != 'CONNECT 192.168.11.2:443 HTTP/1.1': near.close(); continue
    far = socket.create_connection(('192.168.11.2', 443))
    for pair in [(near, far), (far, near)]: threading.Thread(target=carry, args=pair, daemon=True).start()
";

#[test]
fn a_proxy_carries_the_connection_and_its_refusal_is_logged_with_a_hint() {
    let Some(mut rig) = Rig::build("tlsproxy", &["delay=1ms"]) else { return };
    // Nothing but the proxy can be reached.
    let wall =
        DROP_UDP.replacen("meta l4proto udp drop;", "meta l4proto udp drop; iifname eth1 tcp dport != 3128 drop;", 1);
    sh(&rig.hosts.b, &wall);
    let status = rig.folder.path().join("status");
    fs::write(&status, "407").expect("a file");
    let mut proxy = rig.hosts.b.command("python3");
    let mut proxy = proxy.args(["-c", PROXY]).arg(&status).stdout(Stdio::piped()).spawn().expect("python3");
    proxy.stdout.as_mut().expect("stdout").read_exact(&mut [0; 6]).expect("it is ready");
    rig.launch_with(Host::B, &Native::responder().on_top("tls.listen = \"0.0.0.0:443\"").text());
    let path = "[[peer.path]]\ntls = \"192.168.11.2\"\ntls_proxy = \"http://192.168.11.2:3128\"";
    rig.launch_with(Host::A, &Native::initiator(path).text());
    let why = "proxy 192.168.11.2:3128: it answered with HTTP status 407; hint: it wants a name and a password";
    rig.wait_until("the refusal is logged", |rig| rig.logged(Host::A, why) > 0);
    fs::write(&status, "200").expect("a file");
    rig.wait_for_answer(&[], Family::V4, "through the proxy");
    assert_eq!(tls_path(&rig, Host::A)["remote"], "192.168.11.2:3128");
    proxy.kill().and_then(|()| proxy.wait()).expect("an end");
    rig.wait_until("the end is noticed", |rig| rig.logged(Host::A, "left TLS") == 1);
}

#[test]
fn without_a_connection_over_tls_the_log_names_that_and_no_interface() {
    let Some(mut rig) = Rig::build("tlsalone", &["delay=1ms"]) else { return };
    rig.launch_with(Host::A, &Native::initiator("[[peer.path]]\ntls = \"192.168.11.2\"").text());
    let why = "no path can be used: tls is not connected over TLS to 192.168.11.2:443";
    rig.wait_until("the log has the reason", |rig| rig.logged(Host::A, why) == 1);
    assert!(rig.logged(Host::A, "cannot connect over TLS: 192.168.11.2:443") > 0);
    assert!(rig.mpt(Host::A, &["path", "down", "tls"]).status.success());
    assert_eq!((rig.logged(Host::A, "carrier"), rig.logged(Host::A, "to=down (not connected)")), (0, 1));
}

#[test]
fn a_stranger_gets_404_or_nothing_and_is_bounded() {
    let Some(mut rig) = Rig::build("tlsstranger", &["delay=1ms"]) else { return };
    start(&mut rig);
    let request = |head: &str| {
        let script = format!(
            "printf '{head}' | timeout 5 openssl s_client -quiet -alpn http/1.1 -connect 192.168.11.2:443 2>/dev/null || true"
        );
        sh(&rig.hosts.a, &script)
    };
    for head in [
        "GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n",
        "POST /x HTTP/1.1\\r\\n\\r\\n",
        "\\001\\002nonsense\\r\\n\\r\\n",
        "GET /other HTTP/1.1\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Version: 13\\r\\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n",
    ] {
        let answer = request(head);
        assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{head}: {answer:?}");
    }
    // The right request, then a text message without a mask: the connection ends, and the tunnel is not disturbed.
    let upgrade = "GET / HTTP/1.1\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Version: 13\\r\\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n\\201\\005Hello";
    let answer = request(upgrade);
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{answer:?}");

    // Connections that send nothing: those above the limit of a source are closed at once.
    let connect = || TcpStream::connect("192.168.11.2:443");
    let silent = rig.hosts.a.enter(|| (0..24).map(|_| connect()).collect::<Result<Vec<_>, _>>());
    let silent = silent.expect("a namespace").expect("connections");
    let is_open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).expect("a socket");
        matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    rig.wait_until("the surplus is closed", |_| silent.iter().filter(|stream| is_open(stream)).count() <= 16);
    rig.wait_until("the others, too, after 10 s", |_| !silent.iter().any(is_open));
    rig.wait_for_answer(&[], Family::V4, "the tunnel goes on");
    assert_eq!(rig.logged(Host::B, "TLS connection of"), 0, "strangers cause no line");

    // A process that is killed is started again.
    let pids = "pgrep -P $(ip netns pids $(ip netns identify $$) | tr '\\n' ',' | sed 's/,$//') -f 'tls-listen'";
    let listening = |rig: &Rig| sh(&rig.hosts.b, &format!("{pids} || true")).trim().to_owned();
    let first = listening(&rig);
    let pid = first.parse().expect("one process");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).expect("a signal");
    rig.wait_until("another one listens", |rig| {
        let now = listening(rig);
        !now.is_empty() && now != first
    });
    let status = fs::read_to_string(format!("/proc/{}/status", listening(&rig))).expect("a status");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
}
