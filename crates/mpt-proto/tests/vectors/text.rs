//! The text format of the vectors: sections of names and values. Octets are hexadecimal; a line that begins with spaces
//! continues the value of the line before.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

/// Hexadecimal digits on one line.
const WIDTH: usize = 96;

/// A file under construction.
#[derive(Default)]
pub struct Vectors(String);

impl Vectors {
    pub fn comment(&mut self, text: &str) {
        text.lines().for_each(|line| writeln!(self.0, "# {line}").unwrap());
    }

    pub fn section(&mut self, name: &str, text: &str) {
        write!(self.0, "\n[{name}]\n").unwrap();
        self.comment(text);
    }

    pub fn value(&mut self, name: &str, value: impl fmt::Display) {
        writeln!(self.0, "{name} = {value}").unwrap();
    }

    pub fn octets(&mut self, name: &str, octets: &[u8]) {
        let digits: Vec<char> =
            octets.iter().flat_map(|octet| format!("{octet:02x}").chars().collect::<Vec<_>>()).collect();
        let lines: Vec<String> = digits.chunks(WIDTH).map(|line| line.iter().collect()).collect();
        self.value(name, lines.join("\n    "));
    }
}

impl fmt::Display for Vectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A file that has been read: values by section and name.
pub struct Read(BTreeMap<String, BTreeMap<String, String>>);

impl Read {
    pub fn parse(text: &str) -> Self {
        let mut sections: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let (mut section, mut name) = (String::new(), String::new());
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(title) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = title.to_owned();
                continue;
            }
            let values = sections.entry(section.clone()).or_default();
            match line.strip_prefix("    ") {
                Some(more) => values.get_mut(&name).unwrap().push_str(more),
                None => {
                    let (key, value) = line.split_once(" = ").unwrap_or_else(|| (line.trim_end_matches(" ="), ""));
                    name = key.to_owned();
                    values.insert(name.clone(), value.to_owned());
                }
            }
        }
        Self(sections)
    }

    /// The sections whose names begin with `prefix`.
    pub fn sections<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.keys().map(String::as_str).filter(move |name| name.starts_with(prefix))
    }

    pub fn has(&self, section: &str, name: &str) -> bool {
        self.0.get(section).is_some_and(|values| values.contains_key(name))
    }

    pub fn text(&self, section: &str, name: &str) -> &str {
        self.0.get(section).and_then(|values| values.get(name)).unwrap_or_else(|| panic!("no {name} in [{section}]"))
    }

    pub fn number(&self, section: &str, name: &str) -> u64 {
        self.text(section, name).parse().unwrap()
    }

    pub fn octets(&self, section: &str, name: &str) -> Vec<u8> {
        let digits = self.text(section, name);
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    pub fn array<const N: usize>(&self, section: &str, name: &str) -> [u8; N] {
        self.octets(section, name).try_into().unwrap()
    }
}
