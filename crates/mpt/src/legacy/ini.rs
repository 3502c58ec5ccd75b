//! The INI dialect of the original's files, that of the iniparser library.
//!
//! Section and key names are case-insensitive. A comment begins with `;` or `#`, also after a value; a value with one
//! of these must be quoted with `"` or `'`, without escapes. A backslash at the end of a line continues it. A line has
//! at most 1023 characters. Of duplicate keys the last one counts.
//!
//! The library drops a last line without a line end; this parser accepts it.

use super::problem::LegacyProblem;

/// The values of a file with their lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ini {
    /// The name of the file.
    pub file: String,
    /// True if the file had positional values instead of keys.
    pub positional: bool,
    /// The sections, in the order of the file.
    pub sections: Vec<IniSection>,
}

/// A section with its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IniSection {
    /// In lower case.
    pub name: String,
    /// Its first line.
    pub line: usize,
    /// In the order of the file.
    pub entries: Vec<Entry>,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// In lower case.
    pub key: String,
    /// Without quotes and comment.
    pub value: String,
    /// Its line.
    pub line: usize,
}

impl Ini {
    /// Parses a file. Adds mistakes to `problems` and continues.
    pub fn parse(file: &str, text: &str, problems: &mut Vec<LegacyProblem>) -> Self {
        let mut ini = Self { file: file.into(), ..Self::default() };
        for (line, content) in logical_lines(file, text, problems) {
            if let Err((what, hint)) = ini.take(line, content.trim()) {
                problems.push(LegacyProblem::new(file, line, what, hint));
            }
        }
        ini
    }

    /// Returns the last value of a key.
    pub fn entry(&self, section: &str, key: &str) -> Option<&Entry> {
        let entries = self.sections.iter().filter(|s| s.name == section).flat_map(|s| &s.entries);
        entries.rev().find(|entry| entry.key == key)
    }

    /// Returns the first line of a section.
    pub fn line_of(&self, section: &str) -> Option<usize> {
        self.sections.iter().find(|s| s.name == section).map(|s| s.line)
    }

    /// Adds a value to a section, which is created if needed.
    pub fn put(&mut self, section: &str, key: &str, value: &str, line: usize) {
        let entry = Entry { key: key.into(), value: value.into(), line };
        match self.sections.iter_mut().find(|s| s.name == section) {
            Some(known) => known.entries.push(entry),
            None => self.sections.push(IniSection { name: section.into(), line, entries: vec![entry] }),
        }
    }

    fn take(&mut self, line: usize, content: &str) -> Result<(), (String, &'static str)> {
        if content.is_empty() || content.starts_with([';', '#']) {
            return Ok(());
        }
        if let Some(rest) = content.strip_prefix('[') {
            let (name, _) = rest.split_once(']').ok_or(("expected `]` after the section's name".into(), "[path_0]"))?;
            self.sections.push(IniSection { name: name.trim().to_lowercase(), line, entries: vec![] });
            return Ok(());
        }
        let found = if content.to_lowercase().starts_with(SECRET) { SECRET } else { content };
        let expected = || format!("expected `key = value`, `[section]` or a comment, found `{found}`");
        let (key, value) = content.split_once('=').ok_or_else(|| (expected(), "comments begin with `;` or `#`"))?;
        let section = self.sections.last_mut();
        let section =
            section.ok_or_else(|| (format!("`{}` is in no section", key.trim()), "begin with `[connection]`"))?;
        let (key, value) = (key.trim().to_lowercase(), unquote(value.trim()).into());
        section.entries.push(Entry { key, value, line });
        Ok(())
    }
}

/// Removes the quotes, or the comment after a value.
fn unquote(value: &str) -> &str {
    for quote in ['"', '\''] {
        if let Some((inside, _)) = value.strip_prefix(quote).and_then(|rest| rest.split_once(quote)) {
            return inside;
        }
    }
    value.split([';', '#']).next().unwrap_or_default().trim_end()
}

/// Joins continued lines; each has the number of its first part.
fn logical_lines(file: &str, text: &str, problems: &mut Vec<LegacyProblem>) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut continued = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.len() > MAX_LINE {
            let what = format!("the line has {} characters, at most {MAX_LINE} are read", line.len());
            problems.push(LegacyProblem::new(file, number, what, "end it with `\\` and go on in the next line"));
        }
        let (content, goes_on) = line.strip_suffix('\\').map_or((line, false), |content| (content, true));
        match lines.last_mut().filter(|_| continued) {
            Some((_, begun)) => begun.push_str(content.trim_start()),
            None => lines.push((number, content.into())),
        }
        continued = goes_on;
    }
    lines
}

/// Messages never repeat the value of this key.
pub const SECRET: &str = "auth_key";

/// Maximum characters of a line: the library's buffer of 1024 less the final zero.
const MAX_LINE: usize = 1023;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Ini, Vec<LegacyProblem>) {
        let mut problems = vec![];
        (Ini::parse("c.conf", text, &mut problems), problems)
    }

    fn value(text: &str) -> String {
        let (ini, problems) = parse(&format!("[s]\n{text}"));
        assert_eq!(problems, []);
        ini.entry("s", "key").unwrap().value.clone()
    }

    #[test]
    fn names_of_sections_and_keys_are_lower_case_and_values_are_not() {
        let (ini, _) = parse("[Path_0]\nInterface_Name = Eth1\n");
        let entry = ini.entry("path_0", "interface_name").unwrap();
        assert_eq!((entry.value.as_str(), entry.line), ("Eth1", 2));
    }

    #[test]
    fn comments_begin_with_a_semicolon_or_a_hash_anywhere() {
        assert_eq!(value("; key = 1\n# key = 2\nkey = 3 ; and # more"), "3");
        assert_eq!(value("key = 4#5"), "4");
    }

    #[test]
    fn quotes_protect_comment_characters() {
        assert_eq!(value(r##"key = "a;b#c" ; d"##), "a;b#c");
        assert_eq!(value("key = 'say \"hello\"'"), "say \"hello\"");
        assert_eq!(value("key = \""), "\"");
    }

    #[test]
    fn a_value_may_be_empty_and_the_last_one_counts() {
        assert_eq!(value("key = 1\nkey ="), "");
        assert_eq!(value("key=1\nKEY=2"), "2");
        assert_eq!(value("key = a = b"), "a = b");
    }

    #[test]
    fn a_backslash_continues_a_line_and_numbers_stay_right() {
        let (ini, problems) = parse("[s]\nkey = one \\\n  two\nnext = 3");
        assert_eq!(problems, []);
        assert_eq!(ini.entry("s", "key").unwrap().value, "one two");
        assert_eq!(ini.entry("s", "next").unwrap().line, 4);
    }

    #[test]
    fn a_last_line_without_a_line_end_counts_and_so_do_dos_line_ends() {
        assert_eq!(value("other = 1\r\nkey = 2\r"), "2");
        assert_eq!(value("key = last"), "last");
    }

    #[test]
    fn no_mistake_repeats_a_key() {
        let (_, problems) = parse("[connection]\nauth_key : 5d3c8f1a\nAuth_Key 5d3c8f1a");
        assert_eq!(problems.len(), 2);
        assert!(problems.iter().all(|problem| problem.what.ends_with("found `auth_key`")), "{problems:?}");
    }

    #[test]
    fn every_mistake_is_reported_with_its_line() {
        let long = format!("key = {}", "x".repeat(1020));
        let (_, problems) = parse(&format!("early = 1\n[open\n[s]\nno value\n{long}\n"));
        let lines: Vec<_> = problems.iter().map(|p| p.line).collect();
        assert_eq!(lines, [5, 1, 2, 4]);
        assert_eq!(
            problems[3].to_string().lines().next(),
            Some("c.conf:4: expected `key = value`, `[section]` or a comment, found `no value`")
        );
    }
}
