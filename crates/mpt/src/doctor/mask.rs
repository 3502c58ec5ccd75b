//! Removes secrets, addresses and names of hosts from a text.
//!
//! Each address gets a label that is the same in all texts of a bundle, so that two of them can be compared:
//! `public4-1`, `private4-2`, `link6-1`. Every run of 40 or more characters of Base64 or hexadecimal is removed,
//! because it may be a key, a token or a line for a site. Some runs that are no secrets are removed as well.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The labels so far.
#[derive(Debug, Default)]
pub struct Mask {
    /// Texts that are replaced wherever they occur, with their replacement.
    hidden: Vec<(String, String)>,
    labels: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
}

impl Mask {
    /// Replaces this secret wherever it occurs. A secret of less than [`SHORTEST_SECRET`] characters is not replaced,
    /// because ordinary words may contain it.
    pub fn hide(&mut self, secret: &str) {
        if secret.len() >= SHORTEST_SECRET {
            self.hidden.push((secret.to_owned(), REMOVED.to_owned()));
        }
    }

    /// Replaces this name of a host by a label.
    pub fn hide_name(&mut self, name: &str) {
        let label = self.label("name", name);
        self.hidden.push((name.to_owned(), label));
    }

    /// Returns the text without secrets, addresses and hidden names.
    pub fn apply(&mut self, text: &str) -> String {
        // A longer text may contain a shorter one, so it is replaced first.
        self.hidden.sort_by_key(|(hidden, _)| std::cmp::Reverse(hidden.len()));
        let text = self.hidden.iter().fold(text.to_owned(), |text, (hidden, label)| text.replace(hidden, label));
        let text = replace_runs(&text, is_encoded, |run| is_secret(run).then(|| REMOVED.to_owned()));
        let text = replace_runs(&text, |c| c.is_ascii_alphanumeric(), |run| self.interface(run));
        let text = replace_runs(&text, |c| c.is_ascii_digit() || c == '.', |run| self.ipv4(run));
        replace_runs(&text, |c| c.is_ascii_hexdigit() || c == ':' || c == '.', |run| self.colons(run))
    }

    /// Returns a label for the name of an interface that contains its Ethernet address, as systemd names USB modems.
    fn interface(&mut self, run: &str) -> Option<String> {
        let kind = ["enx", "wlx", "wwx"].into_iter().find(|kind| run.starts_with(kind))?;
        let octets = &run[kind.len()..];
        let is_address = octets.len() == 2 * ETHERNET_OCTETS && octets.chars().all(|c| c.is_ascii_hexdigit());
        is_address.then(|| self.label(kind, run))
    }

    /// Returns the run with a label in place of an IPv4 address.
    fn ipv4(&mut self, run: &str) -> Option<String> {
        let trimmed = run.trim_matches('.');
        let address: Ipv4Addr = trimmed.parse().ok()?;
        let label = self.address(address.into())?;
        Some(run.replace(trimmed, &label))
    }

    /// Returns the run with a label in place of an IPv6 or Ethernet address.
    fn colons(&mut self, run: &str) -> Option<String> {
        // A colon before or after an address belongs to the text, but two of them may begin or end one.
        let start = usize::from(run.starts_with(':') && !run.starts_with("::"));
        let trimmed = run[start..].trim_end_matches('.');
        let trimmed = trimmed.strip_suffix(':').filter(|rest| !rest.ends_with(':')).unwrap_or(trimmed);
        let colons = trimmed.matches(':').count();
        // Two colons at the start and no more separate parts of a name, as in a path of a module.
        if colons < 2 || colons == 2 && trimmed.starts_with("::") {
            return None;
        }
        let octets: Vec<&str> = trimmed.split(':').collect();
        if octets.len() == ETHERNET_OCTETS && octets.iter().all(|octet| octet.len() == 2) {
            return Some(run.replace(trimmed, &self.label("ethernet", trimmed)));
        }
        match trimmed.parse::<Ipv6Addr>() {
            Ok(address) => Some(run.replacen(trimmed, &self.address(address.into())?, 1)),
            // An address with a port behind it, or something else that is no time.
            Err(_) => (colons > 2).then(|| run.replacen(trimmed, REMOVED, 1)),
        }
    }

    /// Returns a label; `None` for addresses that are the same on all hosts.
    fn address(&mut self, address: IpAddr) -> Option<String> {
        let kind = match address {
            _ if address.is_loopback() || address.is_unspecified() || address.is_multicast() => return None,
            IpAddr::V4(v4) if v4.is_link_local() => "link4",
            IpAddr::V4(v4) if v4.is_private() || v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64 => "private4",
            IpAddr::V4(v4) if v4.is_broadcast() => return None,
            IpAddr::V4(_) => "public4",
            IpAddr::V6(v6) if v6.segments()[0] & 0xffc0 == 0xfe80 => "link6",
            IpAddr::V6(v6) if v6.segments()[0] & 0xfe00 == 0xfc00 => "private6",
            IpAddr::V6(_) => "public6",
        };
        Some(self.label(kind, &address.to_string()))
    }

    fn label(&mut self, kind: &'static str, value: &str) -> String {
        if let Some(label) = self.labels.get(value) {
            return label.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let label = format!("{kind}-{count}");
        self.labels.insert(value.to_owned(), label.clone());
        label
    }
}

/// Replaces each longest run of these characters for which there is a replacement.
fn replace_runs(
    text: &str,
    is_part: impl Fn(char) -> bool,
    mut replacement: impl FnMut(&str) -> Option<String>,
) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(&is_part) {
        let (before, from) = rest.split_at(start);
        let (run, after) = from.split_at(from.find(|c| !is_part(c)).unwrap_or(from.len()));
        result += before;
        match replacement(run) {
            Some(label) => result += &label,
            None => result += run,
        }
        rest = after;
    }
    result + rest
}

/// The characters of both alphabets of Base64, and of a line for a site.
fn is_encoded(c: char) -> bool {
    c.is_ascii_alphanumeric() || "+/=_-".contains(c)
}

/// Returns true if a run of encoded characters is at least as long as a key and has a digit, a capital letter or `=`.
fn is_secret(run: &str) -> bool {
    let has_digit_or_capital = run.contains(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase() || c == '=');
    run.len() >= KEY && has_digit_or_capital
}

/// In place of a secret.
pub const REMOVED: &str = "(removed)";
/// Characters of 32 octets in Base64, without the sign at the end, less some that a log may have cut.
const KEY: usize = 40;
const SHORTEST_SECRET: usize = 6;
const ETHERNET_OCTETS: usize = 6;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_get_the_same_label_everywhere() {
        let mut mask = Mask::default();
        let text = "path eth1:192.0.2.7:4754 [2001:db8::7]:4754 10.77.0.1/24, fe80::1%eth1 fd77::1/64 192.0.2.7.";
        let expected = "path eth1:public4-1:4754 [public6-1]:4754 private4-1/24, link6-1%eth1 private6-1/64 public4-1.";
        assert_eq!(mask.apply(text), expected);
        assert_eq!(
            mask.apply("from 2001:db8:0:0::7 via 100.64.3.4 02:00:00:00:01:02 enx020000000102 enx1"),
            "from public6-1 via private4-2 ethernet-1 enx-1 enx1"
        );
    }

    #[test]
    fn what_is_no_address_stays() {
        let text = "2026-11-25T19:25:40.123 mpt 0.1.0 mpt::daemon 127.0.0.1 0.0.0.0/0 ::/0 ::1 1.5 ms, 12:34:56";
        assert_eq!(Mask::default().apply(text), text);
    }

    #[test]
    fn addresses_of_other_forms_are_removed() {
        let text =
            "to:fd77::1: 2001:db8:1:2:3:4:5:6:4754 ::ffff:c000:207 ::ffff:192.0.2.7 7.2.0.192.in-addr.arpa 2001:db8::";
        let expected = "to:private6-1: (removed) public6-1 ::ffff:public4-1 public4-2.in-addr.arpa public6-2";
        assert_eq!(Mask::default().apply(text), expected);
    }

    proptest! {
        #[test]
        fn no_address_stays(v4: [u8; 4], v6: [u16; 8], before in "[ a-z=:\\[/'\"]?", after in "[ ,:\\]/'\"]") {
            let (v4, v6) = (Ipv4Addr::from(v4), Ipv6Addr::from(v6));
            prop_assume!(!v4.is_loopback() && !v4.is_multicast() && !v4.is_broadcast() && !v4.is_unspecified());
            prop_assume!(!v6.is_loopback() && !v6.is_multicast() && !v6.is_unspecified());
            for address in [v4.to_string(), v6.to_string()] {
                let masked = Mask::default().apply(&format!("x{before}{address}{after}4754 y"));
                prop_assert!(!masked.contains(&address), "{}", masked);
            }
        }
    }

    #[test]
    fn keys_tokens_lines_and_hidden_words_are_removed() {
        let mut mask = Mask::default();
        mask.hide("a pass phrase");
        mask.hide("abc");
        mask.hide_name("home.example.org");
        let key = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let line = format!("mpt1/192.0.2.1,2001:db8::1/4754/{}/{}", "Zm9vYmFy".repeat(5), "YWJjZGVm".repeat(5));
        let text = format!("key {key}; hex {}; {line}; 'a pass phrase' abc home.example.org:4754", "ab12".repeat(16));
        let masked = mask.apply(&text);
        assert_eq!(masked.matches(REMOVED).count(), 4, "{masked}");
        for secret in [key, "Zm9v", "YWJj", "ab12", "pass phrase", "home.example", "192.0.2.1", "2001:db8"] {
            assert!(!masked.contains(secret), "{secret} in {masked}");
        }
        assert!(masked.ends_with("abc name-1:4754"), "{masked}");
    }
}
