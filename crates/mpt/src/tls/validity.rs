//! The end of the validity of a certificate, read from its DER.

/// Returns the last second in which a certificate (RFC 5280, section 4.1) is valid, counted from 1970; `None` if it is
/// no certificate.
pub fn not_after(certificate: &[u8]) -> Option<i64> {
    let (SEQUENCE, certificate, _) = element(certificate)? else { return None };
    let (SEQUENCE, signed, _) = element(certificate)? else { return None };
    let (tag, _, rest) = element(signed)?;
    // The version is optional. Serial number, algorithm and issuer follow.
    let rest = if tag == VERSION { element(rest)?.2 } else { rest };
    let rest = element(rest)?.2;
    let rest = element(rest)?.2;
    let (SEQUENCE, validity, _) = element(rest)? else { return None };
    let (tag, time, _) = element(element(validity)?.2)?;
    seconds(tag, time)
}

/// Splits off the first element: its tag and content, and what follows.
fn element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = input.split_first_chunk()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Parses `YYMMDDHHMMSSZ`, whose years are those from 1950 on, or `YYYYMMDDHHMMSSZ`.
fn seconds(tag: u8, time: &[u8]) -> Option<i64> {
    let digits = time.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let (year, rest) = digits.split_at(2);
            (number(year) + if number(year) < 50 { 2000 } else { 1900 }, rest)
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let mut fields = rest.chunks(2).map(number);
    let mut next = |least: i64, most: i64| fields.next().filter(|value| (least..=most).contains(value));
    let (month, day) = (next(1, 12)?, next(1, 31)?);
    let (hour, minute, second) = (next(0, 23)?, next(0, 59)?, next(0, 60)?);
    Some(days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

fn number(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// Returns the days from 1970 to a day: Hinnant's `days_from_civil`, whose years begin in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::certificate::Identity;

    #[test]
    fn the_end_of_a_certificate_is_read_in_both_forms_of_time() {
        // 2026-11-26 23:40:09, and the first second after the years of two digits.
        assert_eq!(seconds(UTC_TIME, b"261126234009Z"), Some(1_795_736_409));
        assert_eq!(seconds(UTC_TIME, b"700101000000Z"), Some(0));
        assert_eq!(seconds(UTC_TIME, b"500101000000Z"), Some(-631_152_000));
        assert_eq!(seconds(GENERALIZED_TIME, b"20500101000000Z"), Some(2_524_608_000));
        assert_eq!(seconds(GENERALIZED_TIME, b"20000229120000Z"), Some(951_825_600));
        for wrong in [&b"2611262340Z"[..], b"261326234009Z", b"261126234009", b"26112623400xZ", b""] {
            assert_eq!(seconds(UTC_TIME, wrong), None, "{wrong:?}");
        }
        let own = Identity::new().unwrap();
        // That of a certificate that MPT makes is 4096-01-01.
        assert_eq!(not_after(&own.parse().unwrap().0[0]), Some(67_090_118_400));
    }

    #[test]
    fn no_octets_make_it_panic() {
        let own = Identity::new().unwrap();
        let whole = own.parse().unwrap().0[0].to_vec();
        for length in 0..whole.len() {
            not_after(&whole[..length]);
            let mut changed = whole.clone();
            changed[length] = changed[length].wrapping_add(0x80);
            not_after(&changed);
            changed[length] = 0xff;
            not_after(&changed);
        }
    }
}
