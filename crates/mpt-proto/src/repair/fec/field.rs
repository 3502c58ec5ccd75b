//! GF(256) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (RFC 8681 section 3.7.1), on slices.
//!
//! A product with one factor is linear in the bits of the other, so it is the sum of up to eight constants. That needs
//! no table in memory, and the compiler vectorizes it.

/// Adds `factor` times `source` to `sum`, which is at least as long. Most of the cost of forward error correction is
/// here.
pub fn add_multiple(sum: &mut [u8], factor: u8, source: &[u8]) {
    let products = products_of_bits(factor);
    for (sum, byte) in sum.iter_mut().zip(source) {
        *sum ^= product(&products, *byte);
    }
}

/// Multiplies every byte by `factor`.
pub fn scale(bytes: &mut [u8], factor: u8) {
    let products = products_of_bits(factor);
    for byte in bytes {
        *byte = product(&products, *byte);
    }
}

/// Returns the product of two elements.
pub fn multiply(a: u8, b: u8) -> u8 {
    product(&products_of_bits(a), b)
}

/// Returns the products of `factor` and each bit of a byte: x^0 to x^7.
fn products_of_bits(factor: u8) -> [u8; 8] {
    let mut products = [factor; 8];
    for bit in 1..8 {
        let (previous, carry) = (products[bit - 1], products[bit - 1] >> 7);
        // x^8 = x^4 + x^3 + x^2 + 1.
        products[bit] = (previous << 1) ^ (0x1d * carry);
    }
    products
}

/// Returns the product of `byte` and the factor whose products with the bits are given.
#[inline(always)]
fn product(products: &[u8; 8], byte: u8) -> u8 {
    products.iter().enumerate().fold(0, |sum, (bit, product)| sum ^ if byte & 1 << bit != 0 { *product } else { 0 })
}

/// Returns the multiplicative inverse of `a`; zero for zero, which has none.
pub fn inverse(a: u8) -> u8 {
    // a^254: the group has 255 elements.
    let (mut result, mut power) = (1, a);
    for _ in 0..7 {
        power = multiply(power, power);
        result = multiply(result, power);
    }
    result
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_generator_runs_through_all_elements_as_the_tables_of_rfc_8681_begin() {
        let powers: Vec<u8> =
            (0..255).scan(1, |power, _| Some(std::mem::replace(power, multiply(*power, 2)))).collect();
        // RFC 5510 section 8.2 has a table of powers of the same field.
        assert_eq!(powers[..14], [1, 2, 4, 8, 16, 32, 64, 128, 29, 58, 116, 232, 205, 135]);
        let mut all = powers.clone();
        all.sort_unstable();
        assert_eq!(all, (1..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        (1..=255).for_each(|a| assert_eq!(multiply(a, inverse(a)), 1, "{a}"));
        assert_eq!(inverse(0), 0);
    }

    proptest! {
        #[test]
        fn it_is_a_field(a in any::<u8>(), b in any::<u8>(), c in any::<u8>()) {
            prop_assert_eq!(multiply(a, b), multiply(b, a));
            prop_assert_eq!(multiply(a, multiply(b, c)), multiply(multiply(a, b), c));
            prop_assert_eq!(multiply(a, b ^ c), multiply(a, b) ^ multiply(a, c));
        }

        #[test]
        fn slice_operations_equal_those_on_single_bytes(factor in any::<u8>(), source in prop::collection::vec(any::<u8>(), 0..40), more in 0..9usize) {
            let mut sum = vec![7; source.len() + more];
            add_multiple(&mut sum, factor, &source);
            let expected: Vec<u8> = (0..sum.len()).map(|i| 7 ^ multiply(factor, source.get(i).copied().unwrap_or(0))).collect();
            prop_assert_eq!(sum, expected);
            let mut scaled = source.clone();
            scale(&mut scaled, factor);
            prop_assert_eq!(scaled, source.iter().map(|byte| multiply(factor, *byte)).collect::<Vec<_>>());
        }
    }
}
