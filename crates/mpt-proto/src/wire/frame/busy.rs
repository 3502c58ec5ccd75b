//! The value of CONTROL of an end whose processor limits the tunnel; see `peer/native/processor_load.rs`.
//!
//! ```text
//! type            value
//! 7 busy          none; octets of later versions are skipped
//! ```

use super::read::Tlvs;

/// The body of a CONTROL frame with this message: type, length.
pub const BUSY_BODY: [u8; 3] = [BUSY, 0, 0];

impl Tlvs<'_> {
    /// Returns true if the sender is busy.
    pub fn is_busy(mut self) -> bool {
        self.any(|(kind, _)| kind == BUSY)
    }
}

const BUSY: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_value_of_its_type_is_a_busy_end() {
        let is_busy = |body: &[u8]| Tlvs::decode(body).unwrap().is_busy();
        assert!(is_busy(&BUSY_BODY) && is_busy(&[9, 0, 1, 7, 7, 0, 1, 0]));
        assert!(!is_busy(&[]) && !is_busy(&[9, 0, 3, 7, 0, 0]));
    }
}
