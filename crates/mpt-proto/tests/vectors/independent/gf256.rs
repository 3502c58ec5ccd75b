//! GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1, bit by bit.

pub fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

pub fn inverse(a: u8) -> u8 {
    (1..=255).find(|b| multiply(a, *b) == 1).unwrap()
}

pub fn add_multiple(sum: &mut [u8], factor: u8, source: &[u8]) {
    sum.iter_mut().zip(source).for_each(|(sum, octet)| *sum ^= multiply(factor, *octet));
}

/// The coefficient of a datagram in a repair symbol.
pub fn coefficient(seed: u64, number: u64) -> u8 {
    let mut z = number.wrapping_mul(64).wrapping_add(seed).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (1 + z % 255) as u8
}
