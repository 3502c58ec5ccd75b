//! Peers on demand: `peer_source` names the socket of a program that knows the peers, and answers with `[[peer]]`
//! tables. A table is read and checked like one of the file. The peer has to connect to this host, and a table names no
//! other file.

use std::path::Path;

use toml::de::DeTable;

use super::model::{File, Peer};
use super::problem::{Problem, ProblemLog};
use super::reader::Reader;
use super::schema;
pub use super::tables::PeerSource;
use super::tables::WireSettings;
use super::{checks, defaults, value_types};
use crate::files::{Files, Snapshot};

/// Reads the key at the top of the file.
pub(super) fn read(top: &mut Reader<'_, '_, '_>, wire: &WireSettings) -> Option<PeerSource> {
    let socket = top.read("peer_source", &value_types::socket("/run/mpt-fleet/peers.sock"))?;
    Some(PeerSource { socket, wire: *wire })
}

/// Reads and checks the body of one `[[peer]]` table. `file` has no peers.
///
/// # Errors
/// All problems, with the lines of the body.
pub fn peer(file: &File, source: &PeerSource, body: &str) -> Result<Peer, Vec<Problem>> {
    let path = Path::new(ORIGIN);
    let nothing = Files::of(Snapshot::default());
    let mut log = ProblemLog::new(path, body).with_files(&nothing);
    let (document, errors) = DeTable::parse_recoverable(body);
    errors.iter().for_each(|error| log.syntax(error));
    let mut table = Reader::new(document.get_ref(), "peer", 1, &mut log);
    for key in NOT_ON_DEMAND {
        table.refuse(key, "in a peer of a source", "leave it out: such a peer connects to this host");
    }
    let hint = "preshared_key = \"...\", the key itself";
    table.refuse("preshared_key_file", "in a peer of a source", hint);
    let peers = schema::peer(&mut table, &source.wire, defaults::PEER.to_owned(), true);
    if !table.has("name") {
        table.missing("name is missing", "name = \"site-17\"".to_owned());
    }
    table.finish();
    let whole = File { peers, ..file.clone() };
    if !log.is_broken() {
        checks::check(&whole, &mut log);
    }
    let (errors, _) = log.finish();
    match whole.peers.into_iter().next() {
        Some(peer) if errors.is_empty() => Ok(peer),
        _ => Err(errors),
    }
}

/// The name of the text in messages.
const ORIGIN: &str = "peer source";
/// Keys of peers that this host connects to, and of the original MPT.
const NOT_ON_DEMAND: [&str; 10] =
    ["remote", "interfaces", "ports", "pairs", "path", "server", "servers_key", "standby", "original", "local_port"];

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "private_key = \"ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00=\"\naddress = [\"10.77.0.1/24\"]\n\
                        peer_source = \"/run/mpt-fleet/peers.sock\"\nfec = \"off\"\n";
    const BODY: &str = "name = \"site-17\"\npublic_key = \"L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=\"\n\
                        networks = [\"10.77.0.17/32\"]\n";

    fn read(body: &str) -> Result<Peer, Vec<Problem>> {
        let file = crate::config::parse("a.toml".as_ref(), FILE).unwrap();
        let source = file.peer_source.clone().unwrap();
        peer(&file, &source, body)
    }

    #[test]
    fn a_table_is_read_like_one_of_the_file() {
        let whole = crate::config::parse("a.toml".as_ref(), &format!("{FILE}[[peer]]\n{BODY}")).unwrap();
        let lines_differ = |peer: &Peer| (peer.name.value.clone(), peer.protocol.value.clone(), peer.resequence);
        assert_eq!(lines_differ(&read(BODY).unwrap()), lines_differ(&whole.peers[0]));
    }

    #[test]
    fn problems_have_the_line_of_the_body_and_a_hint() {
        for (body, line, expected) in [
            ("name = 7", 1, "name: 7 is not"),
            (&BODY.replace("10.77.0.17/32", "x"), 3, "networks: \"x\" is not"),
            (&format!("{BODY}remote = \"203.0.113.7\""), 4, "remote has no meaning in a peer of a source"),
            (&format!("{BODY}preshared_key_file = \"/etc/shadow\""), 4, "preshared_key_file has no meaning"),
            (&format!("{BODY}[[path]]\nremote = \"192.0.2.1\""), 4, "path has no meaning"),
            (&format!("{BODY}netwoks = []"), 4, "unknown key \"netwoks\""),
            (&BODY.replace("networks", "# networks"), 1, "neither a path nor networks"),
            (&BODY.replace("name", "# name"), 1, "name is missing"),
            (&BODY.replace("L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=", "L9K"), 2, "public_key"),
            ("}{", 1, "not TOML"),
        ] {
            let problems = read(body).expect_err(body);
            let found = problems.iter().find(|problem| problem.what.contains(expected) && problem.line == Some(line));
            assert!(found.is_some_and(|problem| problem.hint.is_some()), "{body}: {problems:#?}");
        }
        assert!(read("").is_err());
    }
}
