//! Tunnels beside the null tunnel, round by round.

use super::{Row, range};
use std::fmt::Write;

/// Returns a table of the rows that have a null tunnel beside them: median, minimum and maximum over the rounds.
pub fn ratios(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let null = row.baseline.and_then(|name| rows.iter().find(|other| other.name == name));
        let Some(null) = null else { continue };
        let [rate, cost] = [0, 1].map(|figure| {
            let of = |(own, null): (&[f64; 2], &[f64; 2])| own[figure] / null[figure];
            let [median, least, most] = range(&row.rounds.iter().zip(&null.rounds).map(of).collect::<Vec<_>>());
            format!("{median:.2} ({least:.2}-{most:.2})")
        });
        let name = format!("{} / {}", row.name, null.name);
        writeln!(text, "{name:<36} {rate:>20} {cost:>22}").expect("a string takes everything");
    }
    if text.is_empty() {
        return text;
    }
    format!("{:<36} {:>20} {:>22}\n{text}{NOTE}", "of the null tunnel", "goodput (range)", "tunnel's CPU (range)")
}

/// The calls of a tunnel run the receive path of the kernel, which is the same in all tunnels.
const NOTE: &str = "The CPU of a tunnel includes TCP and packet processing that runs inside its calls. With --one-cpu the \
                    inverse of the goodput ratio\nis that of the processor time of the whole machine.\n";

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, baseline: Option<&'static str>, rounds: [[f64; 2]; 3]) -> Row {
        let [goodput, total] = [0, 1].map(|figure| range(&rounds.map(|round| round[figure])));
        Row { name: name.into(), baseline, goodput, total, rounds: rounds.into(), ends: Default::default(), call: None }
    }

    #[test]
    fn a_ratio_is_that_of_the_same_round() {
        let own = row("mpt plain", Some("null plain"), [[5.0, 2.0], [8.0, 2.0], [9.0, 4.0]]);
        let null = row("null plain", None, [[10.0, 1.0], [10.0, 1.0], [10.0, 1.0]]);
        let text = ratios(&[own.clone(), null]);
        assert!(text.contains("0.80 (0.50-0.90)") && text.contains("2.00 (2.00-4.00)"), "{text}");
        assert_eq!(ratios(&[own]), "");
    }
}
