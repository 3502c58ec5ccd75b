//! Prompts on the terminal for values that the flags lack.

use std::io::{BufRead, Write};
use std::net::IpAddr;
use std::str::FromStr;

use super::flags::New;
use crate::Failure;

/// Prompts for missing values.
///
/// # Errors
/// [`Failure`] at the end of input.
pub fn ask_missing(new: &mut New, answers: &mut impl BufRead, out: &mut impl Write) -> Result<(), Failure> {
    let mut dialogue = Dialogue { answers, out };
    if new.b_address.is_empty() {
        new.b_address =
            dialogue.list("Addresses at which host B can be reached, one for each path or one for all", true)?;
    }
    if new.a_address.is_empty() {
        let question = match new.plain {
            true => "Addresses at which host A can be reached, one for each path or one for all",
            false => "The same for host A, or nothing if it has none and connects to host B",
        };
        new.a_address = dialogue.list::<IpAddr>(question, new.plain)?;
    }
    if new.a_interface.is_empty() {
        let question =
            "Interfaces by which host A reaches the Internet, one for each path, or nothing to use its routes";
        new.a_interface = dialogue.list(question, false)?;
    }
    Ok(())
}

struct Dialogue<'d, A, O> {
    answers: &'d mut A,
    out: &'d mut O,
}

impl<A: BufRead, O: Write> Dialogue<'_, A, O> {
    /// Prompts until the answer is a list; non-empty if it is `needed`.
    fn list<T: FromStr>(&mut self, question: &str, needed: bool) -> Result<Vec<T>, Failure> {
        loop {
            let answer = self.ask(question)?;
            let words = || answer.split([',', ' ', '\t', '\n']).filter(|word| !word.is_empty());
            match words().find(|word| word.parse::<T>().is_err()) {
                Some(wrong) => self.print(&format!("{wrong:?} is not valid.\n"))?,
                None if needed && words().next().is_none() => self.print("At least one is needed.\n")?,
                None => return Ok(words().filter_map(|word| word.parse().ok()).collect()),
            }
        }
    }

    fn ask(&mut self, question: &str) -> Result<String, Failure> {
        self.print(&format!("{question}: "))?;
        let mut answer = String::new();
        match self.answers.read_line(&mut answer) {
            Ok(0) => {
                Err(Failure::new("no answer").hint("mpt config new --help lists the flags that answer everything"))
            }
            Ok(_) => Ok(answer),
            Err(error) => Err(Failure::new(format!("cannot read the answer: {error}"))),
        }
    }

    fn print(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(|error| Failure::new(format!("cannot print: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Typed {
        #[command(flatten)]
        new: New,
    }

    /// Returns the flags after these answers, and the prompts.
    fn answered(flags: &[&str], answers: &str) -> (Result<New, Failure>, String) {
        let mut new = Typed::parse_from([&["new"], flags].concat()).new;
        let mut prompts = Vec::new();
        let done = ask_missing(&mut new, &mut answers.as_bytes(), &mut prompts);
        (done.map(|()| new), String::from_utf8(prompts).unwrap())
    }

    #[test]
    fn only_missing_values_are_prompted() {
        let (new, prompts) = answered(&["--a-interface", "eth1"], "203.0.113.7\n\n");
        let new = new.unwrap();
        assert_eq!((new.b_address, new.a_address), (vec!["203.0.113.7".parse::<IpAddr>().unwrap()], vec![]));
        assert_eq!((new.a_interface, prompts.matches(": ").count()), (vec!["eth1".to_owned()], 2));
    }

    #[test]
    fn a_wrong_answer_is_prompted_again() {
        let (new, prompts) = answered(&[], "office\n\n192.0.2.1, 2001:db8::1\n\neth1 wwan0\n");
        let new = new.unwrap();
        assert_eq!((new.b_address.len(), new.a_interface), (2, vec!["eth1".to_owned(), "wwan0".to_owned()]));
        assert!(
            prompts.contains("\"office\" is not valid.\n") && prompts.contains("At least one is needed.\n"),
            "{prompts}"
        );
    }

    #[test]
    fn plain_mode_needs_both_addresses() {
        let (new, prompts) = answered(&["--plain"], "192.0.2.1\n\n192.0.2.2\n\n");
        assert_eq!(new.unwrap().a_address, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
        assert!(prompts.contains("At least one is needed.\n"));
    }

    #[test]
    fn end_of_input_is_a_failure() {
        let (new, _) = answered(&[], "192.0.2.1\n");
        assert_eq!(new.unwrap_err().what, "no answer");
    }
}
