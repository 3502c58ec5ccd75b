//! The configuration files of all programs, as in `docs/guide/several-servers.md` and `docs/guide/fleet.md`.

use std::fmt::Write as _;
use std::path::Path;

use super::world::{ROUTERS, SERVERS, Server};

/// Returns the configuration of a site, whose first server is another one than that of its neighbours.
pub fn site(site: usize, key: &Path, servers: &[String]) -> String {
    let number = site + 1;
    let key = key.display();
    let mut text = format!(
        "private_key_file = \"{key}\"\naddress = [\"10.77.1.{number}/16\"]\nroutes = [\"10.89.0.0/24\"]\n\
         [[peer]]\nname = \"centre\"\nnetworks = [\"10.77.0.0/24\", \"10.89.0.0/24\"]\nstandby = 1\n"
    );
    for offset in 0..servers.len() {
        let server = Server((site + offset) % servers.len());
        write!(
            text,
            "[[peer.server]]\nname = \"s{}\"\npublic_key = \"{}\"\nremote = \"{}\"\n",
            server.number(),
            servers[server.0],
            server.address()
        )
        .expect("a string takes everything");
    }
    text
}

/// Returns the networks of a site inside the tunnel.
pub fn networks(site: usize) -> [String; 2] {
    [format!("10.77.1.{}/32", site + 1), format!("10.80.{}.0/24", site + 1)]
}

/// Returns the configuration of a server's tunnel.
pub fn server(server: Server, key: &Path, socket: &Path) -> String {
    let (key, socket, number) = (key.display(), socket.display(), server.number());
    format!(
        "private_key_file = \"{key}\"\naddress = [\"10.77.0.{number}/16\"]\nroutes = [\"10.80.0.0/16\"]\n\
         session_routes = 77\nserver_id = {number}\npeer_source = \"{socket}\"\n"
    )
}

/// Returns the configuration of a server's `mpt-fleet`.
pub fn fleet(server: Server, socket: &Path) -> String {
    let endpoints: Vec<_> = (0..SERVERS).map(|other| format!("\"http://{}:2379\"", Server(other).inner())).collect();
    format!(
        "cluster = \"demo\"\nserver_id = {}\naddresses = [\"{}:4754\"]\nsocket = \"{}\"\n\
         [etcd]\nendpoints = [{}]\nlease = 3\n[api]\nlisten = \"127.0.0.1:9476\"\ntokens = []\n",
        server.number(),
        server.address(),
        socket.display(),
        endpoints.join(", ")
    )
}

/// Returns the configuration of BIRD on a server, which announces the sites with a session there.
pub fn bird_of_server(server: Server) -> String {
    let own = server.inner();
    let mut text = format!(
        "router id {own};\nipv4 table sites;\nprotocol device {{}}\n\
         protocol bfd {{ interface \"lan0\" {{ interval 100 ms; multiplier 3; }}; }}\n\
         protocol kernel tunnel {{ learn; kernel table 77; ipv4 {{ table sites; import all; export none; }}; }}\n\
         template bgp centre {{ local {own} as 65010; direct; bfd on; ipv4 {{ table sites; import none; next hop self;\n\
         export filter {{ if krt_metric = 100 then bgp_local_pref = 200; else bgp_local_pref = 100; accept; }}; }}; }}\n"
    );
    for number in 1..=ROUTERS {
        writeln!(text, "protocol bgp router{number} from centre {{ neighbor 10.88.0.{number} as 65010; }}")
            .expect("a string takes everything");
    }
    text
}

/// Returns the configuration of BIRD on a router.
pub fn bird_of_router(router: usize) -> String {
    let own = format!("10.88.0.{router}");
    let mut text = format!(
        "router id {own};\nprotocol device {{}}\n\
         protocol bfd {{ interface \"lan0\" {{ interval 100 ms; multiplier 3; }}; }}\n\
         protocol kernel {{ ipv4 {{ import none; export all; }}; }}\n\
         template bgp server {{ local {own} as 65010; direct; bfd on; ipv4 {{ import all; export none; }}; }}\n"
    );
    for server in (0..SERVERS).map(Server) {
        let (number, address) = (server.number(), server.inner());
        writeln!(text, "protocol bgp server{number} from server {{ neighbor {address} as 65010; }}")
            .expect("a string takes everything");
    }
    text
}

/// Returns the configuration of FRR on a router.
pub fn frr_of_router(router: usize) -> String {
    let mut text = format!(
        "bfd\n profile fast\n  transmit-interval 100\n  receive-interval 100\n  detect-multiplier 3\n!\n\
         router bgp 65010\n bgp router-id 10.88.0.{router}\n"
    );
    for server in (0..SERVERS).map(Server) {
        let address = server.inner();
        writeln!(text, " neighbor {address} remote-as 65010\n neighbor {address} bfd profile fast")
            .expect("a string takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_with_frr_is_that_of_the_guide() {
        let guide = include_str!("../../../../docs/guide/fleet.md");
        let block = guide.split("```frr\n").nth(2).and_then(|rest| rest.split("```").next()).expect("a second block");
        // The guide has two servers.
        let third = Server(2).inner();
        let expected: String = frr_of_router(1).split_inclusive('\n').filter(|line| !line.contains(&third)).collect();
        assert_eq!(block, expected);
    }
}
