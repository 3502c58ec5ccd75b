//! Extracts values from a TOML table and reports problems.
//!
//! Every key that is never requested from a [`Reader`] is unknown, so the list of known keys is the code that reads
//! them and cannot become stale. `None` means that the key is absent, or that an error has been reported.

use std::ops::Range;

use ipnet::IpNet;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{ProblemLog, nearest};
use super::value_types::ValueType;
use super::values::At;

type TomlItem<'a> = Spanned<DeValue<'a>>;

/// One table of the file.
pub struct Reader<'l, 't, 'a> {
    table: &'a DeTable<'a>,
    /// Its dotted name, empty for the top of the file.
    name: &'static str,
    /// The line of its header.
    pub line: usize,
    requested: Vec<&'static str>,
    /// The log for problems.
    pub log: &'l mut ProblemLog<'t>,
}

impl<'l, 't, 'a> Reader<'l, 't, 'a> {
    /// Makes a reader of the table `name`, whose header is in `line`.
    pub fn new(table: &'a DeTable<'a>, name: &'static str, line: usize, log: &'l mut ProblemLog<'t>) -> Self {
        Self { table, name, line, requested: Vec::new(), log }
    }

    /// Returns the value of `key`.
    pub fn read<T: 'static>(&mut self, key: &'static str, value_type: &ValueType<T>) -> Option<At<T>> {
        let item = self.take(key)?;
        self.accept(key, item, value_type, value_type.example(key))
    }

    /// Returns the value of `key`, which must be present.
    pub fn require<T: 'static>(&mut self, key: &'static str, value_type: &ValueType<T>) -> Option<At<T>> {
        if !self.has(key) {
            self.missing(&format!("{key} is missing"), value_type.example(key));
        }
        self.read(key, value_type)
    }

    /// Returns the value of `key`, or a default.
    pub fn read_or<T: 'static>(&mut self, key: &'static str, value_type: &ValueType<T>, default: T) -> At<T> {
        self.read(key, value_type).unwrap_or_else(|| self.at(default))
    }

    /// Returns the values of the list `key`, without invalid ones.
    pub fn list<T: 'static>(&mut self, key: &'static str, value_type: &ValueType<T>) -> Vec<At<T>> {
        let Some(item) = self.take(key) else { return Vec::new() };
        if let DeValue::Array(items) = item.get_ref() {
            return items
                .iter()
                .filter_map(|item| self.accept(key, item, value_type, value_type.example_list(key)))
                .collect();
        }
        let shown = self.log.shown(item.span());
        let hint = format!("in brackets, even when there is only one: {key} = [{shown}]");
        self.log.error(self.line_of(item), format!("{key}: {shown} is not a list"), Some(hint));
        Vec::new()
    }

    /// Returns the values of the list `key`, which must be present.
    pub fn require_list<T: 'static>(&mut self, key: &'static str, value_type: &ValueType<T>) -> Vec<At<T>> {
        if !self.has(key) {
            self.missing(&format!("{key} is missing"), value_type.example_list(key));
        }
        self.list(key, value_type)
    }

    /// Reads the table `[key]`, whose full name is `name`. An absent table is read as an empty one.
    pub fn table<T>(
        &mut self,
        key: &'static str,
        name: &'static str,
        read: impl FnOnce(&mut Reader<'_, 't, '_>) -> T,
    ) -> Option<T> {
        let Some(item) = self.take(key) else {
            return Some(read(&mut Reader::new(&DeTable::new(), name, self.line, self.log)));
        };
        match item.get_ref() {
            DeValue::Table(table) => Some(self.descend(table, name, item.span(), read)),
            _ => {
                self.not_a_table(key, item, format!("write [{name}] on a line of its own"));
                None
            }
        }
    }

    /// Reads each of the tables `[[key]]`, whose full name is `name`.
    pub fn tables<T>(
        &mut self,
        key: &'static str,
        name: &'static str,
        mut read: impl FnMut(&mut Reader<'_, 't, '_>) -> T,
    ) -> Vec<T> {
        let Some(item) = self.take(key) else { return Vec::new() };
        let hint = || format!("write [[{name}]] on a line of its own, once for each");
        let Some(items) = item.get_ref().as_array() else {
            self.not_a_table(key, item, hint());
            return Vec::new();
        };
        let mut all = Vec::new();
        for item in items {
            match item.get_ref() {
                DeValue::Table(table) => all.push(self.descend(table, name, item.span(), &mut read)),
                _ => self.not_a_table(key, item, hint()),
            }
        }
        all
    }

    /// Returns the number of tables `[[key]]`.
    pub fn count(&self, key: &str) -> usize {
        self.table.get(key).and_then(|item| item.get_ref().as_array()).map_or(0, |items| items.len())
    }

    /// Wraps a value that is not in the file.
    pub fn at<T>(&self, value: T) -> At<T> {
        At { value, line: self.line }
    }

    /// Reports that something is missing.
    pub fn missing(&mut self, what: &str, hint: String) {
        self.log.structure(self.line, what, hint);
    }

    /// Returns true if `key` is present, valid or not.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Returns true if `key` is absent or an empty list.
    pub fn is_absent_or_empty(&self, key: &str) -> bool {
        let is_empty = |item: &TomlItem<'_>| item.get_ref().as_array().is_some_and(|items| items.is_empty());
        self.table.get(key).is_none_or(is_empty)
    }

    /// Returns the line of the value of `key`; for a table, that of its header.
    pub fn line_of_key(&self, key: &str) -> Option<usize> {
        self.table.get(key).map(|item| self.line_of(item))
    }

    /// Reports that `key`, if present, has no meaning, with the reason `why`.
    pub fn refuse(&mut self, key: &'static str, why: &str, hint: &str) {
        if let Some(line) = self.take(key).map(|item| self.line_of(item)) {
            self.log.structure(line, &format!("{key} has no meaning {why}"), hint.to_owned());
        }
    }

    /// Reports the unknown keys.
    pub fn finish(&mut self) {
        for (key, _) in self.table.iter().filter(|(key, _)| !self.requested.contains(&key.get_ref().as_ref())) {
            let line = self.log.line(key.span().start);
            self.log.unknown(self.name, key.get_ref(), line);
        }
    }

    fn take(&mut self, key: &'static str) -> Option<&'a TomlItem<'a>> {
        self.requested.push(key);
        self.log.add_known(self.name, key);
        self.table.get(key)
    }

    fn accept<T: 'static>(
        &mut self,
        key: &str,
        item: &TomlItem<'_>,
        value_type: &ValueType<T>,
        example: String,
    ) -> Option<At<T>> {
        let line = self.line_of(item);
        match value_type.parse(item.get_ref()) {
            Some(value) => Some(At { value, line }),
            None if value_type.hidden => {
                let shape = shape(item.get_ref());
                self.log.error(line, format!("{key}: {shape} is not {}", value_type.description), Some(example));
                None
            }
            None => {
                let shown = self.log.shown(item.span());
                let hint = suggest(key, item.get_ref(), value_type).unwrap_or(example);
                self.log.error(line, format!("{key}: {shown} is not {}", value_type.description), Some(hint));
                None
            }
        }
    }

    fn descend<T>(
        &mut self,
        table: &'a DeTable<'a>,
        name: &'static str,
        span: Range<usize>,
        read: impl FnOnce(&mut Reader<'_, 't, '_>) -> T,
    ) -> T {
        let line = self.log.line(span.start);
        let mut reader = Reader::new(table, name, line, self.log);
        let value = read(&mut reader);
        reader.finish();
        value
    }

    fn not_a_table(&mut self, key: &str, item: &TomlItem<'_>, hint: String) {
        let what = match item.get_ref() {
            DeValue::Table(_) => format!("{key}: a single table where there can be several"),
            _ => format!("{key}: {} is not a table", self.log.shown(item.span())),
        };
        let has_only_paths =
            matches!(item.get_ref(), DeValue::Table(table) if table.keys().all(|key| key.get_ref() == "path"));
        let hint = if key == "peer" && has_only_paths {
            "a [[peer.path]] belongs below its [[peer]]".to_owned()
        } else {
            hint
        };
        self.log.error(self.line_of(item), what, Some(hint));
    }

    fn line_of(&self, item: &TomlItem<'_>) -> usize {
        self.log.line(item.span().start)
    }
}

/// Names for unnamed peers: `peer`, `peer2`, `peer3`... A peer that is appended changes no other name.
pub struct NameGenerator {
    base: String,
    given: usize,
}

impl NameGenerator {
    /// Makes names that begin with `base`.
    pub fn after(base: &str) -> Self {
        Self { base: base.to_owned(), given: 0 }
    }

    /// Returns the name of the next peer, used if it has none of its own.
    pub fn next(&mut self, table: &Reader<'_, '_, '_>) -> String {
        if !table.has("name") {
            self.given += 1;
        }
        if self.given > 1 { format!("{}{}", self.base, self.given) } else { self.base.clone() }
    }
}

/// Describes a value that must not be repeated.
fn shape(value: &DeValue<'_>) -> String {
    match value.as_str() {
        Some(text) => format!("a text of length {}", text.chars().count()),
        None => "this value".to_owned(),
    }
}

/// Suggests the intended value.
fn suggest<T: 'static>(key: &str, value: &DeValue<'_>, value_type: &ValueType<T>) -> Option<String> {
    let text = value.as_str()?;
    if let Some(word) = nearest(text, value_type.choices.iter().copied()) {
        return Some(format!("did you mean {word:?}?"));
    }
    let fits = |value: &str| {
        let line = format!("x = {value}");
        DeTable::parse(&line)
            .is_ok_and(|table| table.get_ref().values().all(|item| value_type.parse(item.get_ref()).is_some()))
    };
    if key == "scheduler" {
        return Some("\"earliest\" is the default in native mode, and \"weighted\" in plain mode".to_owned());
    }
    if let Some(network) = text.parse().ok().map(|net: IpNet| net.trunc()).filter(|net| fits(&format!("\"{net}\""))) {
        return Some(format!("the bits behind the prefix must be zero: \"{network}\""));
    }
    let zoned = without_zone(text).filter(|address| address.contains(':'));
    if let Some(address) = zoned.filter(|address| fits(&format!("{address:?}"))) {
        return Some(format!("without the zone: {key} = {address:?}; interface = \"eth1\" says which link it is on"));
    }
    if key == "role" && ["backup", "reserve", "spare", "failover"].contains(&text) {
        return Some("did you mean \"standby\"? It is used while no other path is alive".to_owned());
    }
    if let Some(name) = host_name(text).filter(|_| value_type.description.starts_with("the IP address of a host")) {
        return Some(match value_type.description.contains("name") {
            true => "a name has letters, digits, hyphens and dots: remote = \"home.example.org:4754\"".to_owned(),
            false => format!("names are looked up for remote in [[peer]] only: `dig +short {name}` prints its address"),
        });
    }
    fits(text).then(|| format!("without quotes: {key} = {text}"))
}

/// Returns the name of a host, without a port, if the text has the form of one.
fn host_name(text: &str) -> Option<&str> {
    let name = text.split_once(':').map_or(text, |(name, _)| name);
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    (name.contains(|c: char| c.is_ascii_alphabetic()) && name.contains('.') && name.chars().all(is_name))
        .then_some(name)
}

/// Returns an IPv6 address, possibly in brackets, without its zone (RFC 4007 section 11).
fn without_zone(text: &str) -> Option<String> {
    let (address, rest) = text.split_once('%')?;
    Some(format!("{address}{}", rest.find(']').map_or("", |end| &rest[end..])))
}
