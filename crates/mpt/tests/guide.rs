//! Tests that configurations in the guide are valid, and that its commands exist.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use clap::Parser as _;
use clap::error::ErrorKind;
use mpt::{cli::Cli, config};

/// Returns README.md and all pages below `docs/guide`, and the page about packages, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md"), root.join("packaging/README.md"), root.join("docs/introduction.md")];
    let mut folders = vec![root.join("docs/guide")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of the guide") {
            let path = entry.expect("an entry").path();
            match path.extension() {
                Some(extension) if extension == "md" => files.push(path),
                None if path.is_dir() => folders.push(path),
                _ => {}
            }
        }
    }
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(file).expect("a page"))).collect()
}

/// Returns the blocks of a page: those between fences, and those that are indented by four columns after an empty line.
fn blocks(page: &str) -> Vec<String> {
    let (mut blocks, mut block, mut fenced, mut indented, mut after_blank) =
        (Vec::new(), String::new(), false, false, true);
    for line in page.lines() {
        let begins_code = line.starts_with("    ") && (after_blank || indented) && !fenced;
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            blocks.push(std::mem::take(&mut block));
        } else if fenced || begins_code {
            block += line.strip_prefix("    ").filter(|_| !fenced).unwrap_or(line);
            block += "\n";
        } else if !line.trim().is_empty() || !indented {
            blocks.push(std::mem::take(&mut block));
        }
        indented = begins_code || (indented && line.trim().is_empty());
        after_blank = line.trim().is_empty();
    }
    blocks.push(block);
    blocks.retain(|block| !block.is_empty());
    blocks
}

/// Returns true for a configuration of ours, or a part of one. That of `mpt-fleet` is loaded by its own tests.
fn is_configuration(block: &str) -> bool {
    if block.contains("[etcd]") {
        return false;
    }
    let first = block.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or("");
    let is_key =
        first.split_once(" = ").is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
    is_key || first.starts_with("[[")
}

/// Completes a part: the key of the end that the peer belongs to, and a peer.
fn completed(block: &str) -> String {
    let mut text = block.to_owned();
    if !["private_key", "mode = \"plain\""].iter().any(|key| block.contains(key)) {
        let key = if block.contains(PUBLIC_A) { PRIVATE_B } else { PRIVATE_A };
        text = format!("private_key = \"{key}\"\naddress = [\"10.77.0.9/24\"]\n{text}");
    }
    if !block.contains("[[peer]]") && !block.contains("include") {
        text += &format!("[[peer]]\npublic_key = \"{PUBLIC_B}\"\nremote = \"203.0.113.7\"\n");
    }
    text
}

#[test]
fn every_configuration_in_the_guide_is_right() {
    let folder = tempfile::tempdir().unwrap();
    DirBuilder::new().mode(0o700).create(folder.path().join("peers.d")).unwrap();
    let mut count = 0;
    for (page, text) in pages() {
        for block in blocks(&text).iter().filter(|block| is_configuration(block)) {
            let file = folder.path().join("tunnel.toml");
            fs::write(&file, completed(block)).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
            let loaded = config::load(&file).unwrap_or_else(|problems| panic!("{page:?}: {block}{problems:?}"));
            assert!(loaded.warnings.is_empty(), "{page:?}: {block}{:?}", loaded.warnings);
            count += 1;
        }
    }
    assert!(count >= 30, "{count} configurations were found");
}

/// Returns the words of each `mpt` command in a shell line.
fn commands(line: &str) -> Vec<Vec<String>> {
    let code = line.split(" #").next().unwrap_or_default();
    let parts = code.split(['|', ';', '&', '(', ')', '`']).map(str::trim);
    let parts = parts.map(|part| part.strip_prefix("sudo ").unwrap_or(part)).filter(|part| part.starts_with("mpt "));
    parts
        .map(|part| {
            let mut words = Vec::new();
            let mut rest = part.split_whitespace();
            while let Some(word) = rest.next() {
                match word {
                    ">" | "<" | ">>" | "2>" => drop(rest.next()),
                    _ => words.push(word.trim_matches(['"', '\'']).to_owned()),
                }
            }
            words
        })
        .collect()
}

#[test]
fn every_command_in_the_guide_is_accepted_by_the_command_line() {
    let mut count = 0;
    for (page, text) in pages() {
        for line in blocks(&text).iter().flat_map(|block| block.lines()) {
            for words in commands(line) {
                // The synopsis of a command has brackets and alternatives.
                if words.iter().any(|word| word.contains(['[', '\u{2026}']) || word == "...") {
                    continue;
                }
                if let Err(error) = Cli::try_parse_from(&words) {
                    let is_output = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
                    assert!(is_output, "{page:?}: {line}\n{error}");
                }
                count += 1;
            }
        }
    }
    assert!(count >= 60, "{count} commands were found");
}

#[test]
fn a_block_ends_where_its_fence_or_its_indentation_ends() {
    let page =
        "text\n\n    mpt up a\n\n    mpt up b # comment\n\n- item\n    not code\n\n```toml\nmtu = 1400\n```\nend\n";
    assert_eq!(blocks(page), ["mpt up a\nmpt up b # comment\n", "mtu = 1400\n"]);
    let words = commands("umask 077 && mpt key psk > file; (mpt watch --json | jq .) # mpt up");
    assert_eq!(words, [vec!["mpt", "key", "psk"], vec!["mpt", "watch", "--json"]]);
}

// The keys of the guide.
const PRIVATE_A: &str = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00=";
const PUBLIC_A: &str = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=";
const PRIVATE_B: &str = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForB00=";
const PUBLIC_B: &str = "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=";
