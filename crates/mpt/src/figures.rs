//! Figures for people: three digits and a unit.

/// Formats a number of bytes in decimal units.
pub fn bytes(count: u64) -> String {
    let (mut value, mut unit) = (count as f64, "B");
    for larger in ["kB", "MB", "GB", "TB", "PB", "EB"] {
        // Values that round to 1000 are printed as 1 of the next unit.
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1e3, larger);
    }
    if unit == "B" { format!("{count} B") } else { format!("{} {unit}", digits(value)) }
}

/// Formats three digits; two decimals for small numbers.
pub fn digits(value: f64) -> String {
    match value {
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let all = [0, 999, 1_000, 12_345, 999_499, 999_500, 123_456_789, u64::MAX].map(bytes);
        assert_eq!(all, ["0 B", "999 B", "1.00 kB", "12.3 kB", "999 kB", "1.00 MB", "123 MB", "18.4 EB"]);
        assert_eq!([0.05, 9.994, 9.996, 99.94, 99.96].map(digits), ["0.05", "9.99", "10.0", "99.9", "100"]);
    }
}
