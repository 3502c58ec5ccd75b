//! The listings of the papers, as printed and in other typographical forms: the TOML that they become.

use super::*;
use crate::legacy::toml::{self, Allowed};
use crate::legacy::{LegacySetup, SourceFile};

/// A paper's files, and the TOML that they become.
struct Listing {
    interface: &'static str,
    connection: &'static str,
    toml: &'static str,
}

const LISTINGS: [Listing; 2] = [
    Listing {
        interface: include_str!("../../tests/listings/p2014/interface.conf"),
        connection: include_str!("../../tests/listings/p2014/connections/IPv4overIPv4.conf"),
        toml: include_str!("../../tests/listings/p2014.toml"),
    },
    Listing {
        interface: include_str!("../../tests/listings/p2019/interface.conf"),
        connection: include_str!("../../tests/listings/p2019/connections/IPv4.conf"),
        toml: include_str!("../../tests/listings/p2019.toml"),
    },
];

fn setup(interface: &str, connection: &str) -> Result<LegacySetup, Vec<LegacyProblem>> {
    let source = |file: &str, text: &str| SourceFile { file: file.into(), text: text.into() };
    LegacySetup::read(&[source("conf/interface.conf", interface), source("conf/connections/c.conf", connection)])
}

fn toml_of(interface: &str, connection: &str) -> String {
    let setup = setup(interface, connection).unwrap_or_else(|problems| panic!("{problems:#?}"));
    toml::write(&setup, Allowed::default(), None).text
}

fn first_problem(interface: &str, connection: &str) -> LegacyProblem {
    setup(interface, connection).unwrap_err().remove(0)
}

/// Rewrites every line that has a value.
fn each_value(text: &str, write: impl Fn(&str) -> String) -> String {
    let line = |line: &str| match line.split(['#', ';']).next().unwrap().trim() {
        "" => format!("{line}\n"),
        value => write(value) + "\n",
    };
    text.lines().map(line).collect()
}

#[test]
fn the_listings_become_these_files_however_they_are_typed() {
    for Listing { interface, connection, toml } in LISTINGS {
        let forms: [&dyn Fn(&str) -> String; 6] = [
            &|text| text.to_owned(),
            &|text| text.replace('\n', "\r\n"),
            &|text| each_value(text, |value| format!("\t{value}\t\t# a label")),
            &|text| each_value(text, |value| format!("{value} ; REMOTE IP number of MAC paths, port 4")),
            &|text| each_value(text, str::to_owned),
            &|text| each_value(text, |value| format!("; INT. NAME\n\n#\n{value}\n  ; 7 = x")),
        ];
        for form in forms {
            assert_eq!(toml_of(&form(interface), &form(connection)), toml);
        }
        assert!(is_positional(interface) && is_positional(connection));
    }
}

#[test]
fn the_listings_are_complete_configurations() {
    for Listing { toml, .. } in LISTINGS {
        let parsed = crate::config::parse("listing.toml".as_ref(), toml);
        assert!(parsed.is_ok_and(|file| file.peers.len() == 1 && file.peers[0].paths.len() == 2));
    }
}

#[test]
fn a_file_without_sections_and_keys_is_positional() {
    assert!(!is_positional("; nothing\n"));
    assert!(!is_positional(crate::legacy::samples::CONNECTION));
    assert!(!is_positional("[connection]\nno equals sign\n"));
}

#[test]
fn a_file_may_hold_several_connections_and_networks() {
    let [_, Listing { interface, connection, .. }] = LISTINGS;
    let network = "4\n10.81.0.0/24\n10.82.0.0/24\n";
    let (_, one) = connection.split_once("MPT Connection").unwrap();
    let one = one.replacen("0                # Networks", "1 # Networks", 1) + network;
    let second = one.replacen("10.0.0.3", "10.0.0.4", 1);
    let setup = setup(interface, &format!("2\nfirst{one}second{second}")).unwrap();
    let names: Vec<_> = setup.connections.iter().map(|c| (c.name.as_str(), c.paths.len(), c.networks.len())).collect();
    assert_eq!(names, [("first", 2, 1), ("second", 2, 1)]);
    assert_eq!(setup.connections[1].networks[0].dst_addr.to_string(), "10.82.0.0/24");
}

#[test]
fn missing_and_surplus_values_are_mistakes_with_their_line() {
    let [old, Listing { interface, connection, .. }] = LISTINGS;
    let without = |text: &str, part: &str| -> String {
        text.lines().filter(|line| !line.contains(part)).map(|line| format!("{line}\n")).collect()
    };
    let shortened = first_problem(interface, &without(connection, "Path status"));
    assert_eq!(shortened.what, "expected a number for `status` of path_0, found `eth2`");
    assert!(shortened.hint.contains("fixed place") && shortened.line > 0);
    let cut = connection.trim_end().rsplit_once('\n').unwrap().0;
    let cut = first_problem(interface, cut);
    assert_eq!(cut.what, "expected `status of path_1` behind this line, and found the end of the file");
    assert_eq!(cut.line, connection.trim_end().lines().count() - 1);
    let more = first_problem(old.interface, &format!("{}7\n", old.connection));
    assert_eq!(more.what, "expected the end of the file, found `7`");
    assert_eq!(more.line, old.connection.lines().count() + 1);
    let count = first_problem(interface, &connection.replacen("2                # Paths", "two # Paths", 1));
    assert_eq!(count.what, "expected a number for `path_count` of connection, found `two`");
}

#[test]
fn a_file_of_comments_is_an_error() {
    for kind in [LegacyFileKind::Connection, LegacyFileKind::Interface] {
        let mut problems = vec![];
        assert_eq!(read("old.conf", "# nothing\n", kind, &mut problems), []);
        assert_eq!(problems.len(), 1);
    }
}
