//! The pages of the guide, their blocks, and the commands in these. Tests of `mpt-lab` and `mpt-fleet` use it, too.

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A block of a page: between fences, or indented by four columns after an empty line.
#[derive(Debug)]
pub struct Block {
    /// Page and line, for messages.
    pub place: String,
    /// The name of the language behind the fence; empty if it has none.
    pub language: String,
    pub text: String,
}

impl Block {
    /// Returns false for a block in another language than that of a shell.
    pub fn may_be_shell(&self) -> bool {
        ["", "sh", "text"].contains(&self.language.as_str())
    }

    /// Returns each command as its program and arguments. In a recorded terminal, `$ ` or `# ` is before a command, and
    /// the other lines are output.
    pub fn commands(&self) -> Vec<Vec<String>> {
        let prompt = |line: &str| {
            let after = line.strip_prefix("$ ").or(line.strip_prefix("# "))?;
            ["mpt", "systemctl"].iter().any(|program| after.starts_with(program)).then(|| after.to_owned())
        };
        if self.text.lines().next().and_then(prompt).is_none() {
            return commands(&self.text);
        }
        let unit = |line: &str| line.strip_prefix("ExecStart=/usr/bin/").map(str::to_owned);
        let lines: Vec<_> = self.text.lines().filter_map(|line| prompt(line).or_else(|| unit(line))).collect();
        commands(&lines.join("\n"))
    }
}

/// Returns the blocks of README.md, of all pages below `docs/guide`, and of the page about packages.
pub fn blocks() -> Vec<Block> {
    let mut files: Vec<_> =
        ["README.md", "packaging/README.md", "docs/introduction.md"].iter().map(|file| root().join(file)).collect();
    let mut folders = vec![root().join("docs/guide")];
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
    files.sort();
    let read = |file: &PathBuf| {
        let name = file.strip_prefix(root()).expect("below the root").display().to_string();
        blocks_of(&name, &fs::read_to_string(file).expect("a page"))
    };
    files.iter().flat_map(read).collect()
}

/// Returns the blocks of a page.
pub fn blocks_of(name: &str, page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_open, mut fence, mut after_blank) = (false, None::<usize>, true);
    for (number, line) in page.lines().enumerate() {
        let blank = line.trim().is_empty();
        let (columns, trimmed) = (line.len() - line.trim_start().len(), line.trim_start());
        let new = |language: &str, text: &str| Block {
            place: format!("{name}:{}", number + 1),
            language: language.to_owned(),
            text: text.to_owned(),
        };
        match (trimmed.strip_prefix("```"), fence) {
            (Some(language), None) => {
                (fence, is_open) = (Some(columns), false);
                blocks.push(new(language, ""));
            }
            (Some(_), Some(_)) => fence = None,
            (None, Some(indent)) => {
                let open = blocks.last_mut().expect("the block of the fence");
                open.text += line.get(indent..).filter(|_| columns >= indent).unwrap_or(trimmed);
                open.text += "\n";
            }
            (None, None) if columns >= 4 && (after_blank || is_open) && !blank => {
                let text = format!("{}\n", &line[4..]);
                match blocks.last_mut().filter(|_| is_open) {
                    Some(open) => open.text += &text,
                    None => blocks.push(new("", &text)),
                }
                is_open = true;
            }
            (None, None) => is_open &= blank,
        }
        after_blank = blank;
    }
    blocks
}

/// Returns each command of a shell text as its program and arguments. Comments, redirections, `sudo` and assignments
/// are removed, and a description that follows four spaces.
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let joined = text.split("\\\n").map(str::trim).collect::<Vec<_>>().join(" ");
    for line in joined.lines() {
        let command = line.split("    ").find(|part| !part.trim().is_empty()).unwrap_or_default();
        commands.extend(commands_of(command));
    }
    commands
}

fn commands_of(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut command, mut word) = (Vec::new(), Vec::<String>::new(), None::<String>);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\'' | '"' => {
                let inside: String = rest.by_ref().take_while(|next| *next != c).collect();
                word.get_or_insert_default().push_str(&inside);
            }
            '$' if rest.peek() == Some(&'(') => word.get_or_insert_default().push_str(&substitution(&mut rest)),
            '#' if word.is_none() => break,
            ' ' | '\t' => command.extend(word.take()),
            '|' | ';' | '&' | '(' | ')' => {
                command.extend(word.take());
                all.push(std::mem::take(&mut command));
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    command.extend(word);
    all.push(command);
    all.into_iter().map(program_first).filter(|words| !words.is_empty()).collect()
}

/// Returns `$(...)` up to the parenthesis that closes it; the dollar sign has been taken.
fn substitution(rest: &mut impl Iterator<Item = char>) -> String {
    let (mut text, mut depth) = ("$".to_owned(), 0_usize);
    for c in rest {
        text.push(c);
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    text
}

/// Removes redirections, and `sudo` and assignments before the program.
fn program_first(words: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let is_assignment = |word: &str| {
            word.split_once('=')
                .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        };
        match word.as_str() {
            ">" | "<" | ">>" | "2>" => drop(words.next()),
            "sudo" if kept.is_empty() => {}
            word if kept.is_empty() && is_assignment(word) => {}
            _ => kept.push(word),
        }
    }
    kept
}

/// Returns the program and arguments of a synopsis: with its optional parts, and with an example for each of
/// `placeholders`.
pub fn without_synopsis(words: &[String], placeholders: &[(&str, &str)]) -> Vec<String> {
    let plain = words.iter().map(|word| word.trim_matches(['[', ']'])).filter(|word| *word != "...");
    plain
        .map(|word| placeholders.iter().find(|(name, _)| *name == word).map_or(word, |(_, example)| example).to_owned())
        .collect()
}
