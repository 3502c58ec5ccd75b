//! One seed per run, forked by label.
//!
//! Each part of a run that needs randomness forks the run's seed by its own name, so a new part does not change the
//! random numbers of the others, and two links of a scenario are independent.

use rand::SeedableRng;
pub use rand_pcg::Pcg64Mcg as Rng;

/// The seed of all random numbers of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// Returns the seed of the part called `label`.
    pub fn fork(self, label: &str) -> Self {
        let named =
            label.bytes().fold(FNV_OFFSET ^ mix(self.0), |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
        Self(mix(named))
    }

    /// Returns a number from 0 to 1 (exclusive) that depends only on this seed, uniformly distributed over seeds that
    /// come from [`Self::fork`].
    pub fn unit(self) -> f64 {
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a generator with this seed.
    pub fn rng(self) -> Rng {
        Rng::seed_from_u64(self.0)
    }
}

/// Finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// FNV-1a, 64 bits (RFC 9923).
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng as _;

    #[test]
    fn the_same_seed_and_label_give_the_same_draws() {
        assert_eq!(Seed(7).fork("a").rng().next_u64(), Seed(7).fork("a").rng().next_u64());
    }

    #[test]
    fn units_of_forks_are_uniform() {
        let units: Vec<f64> = (0..10_000).map(|n| Seed(3).fork(&format!("{n}")).unit()).collect();
        assert!(units.iter().all(|unit| (0.0..1.0).contains(unit)));
        // The standard error of the mean of 10,000 uniform numbers is 0.0029.
        let mean = units.iter().sum::<f64>() / units.len() as f64;
        assert!((mean - 0.5).abs() < 0.012, "{mean}");
    }

    #[test]
    fn another_label_or_another_seed_gives_other_draws() {
        let draw = |seed: u64, label| Seed(seed).fork(label).rng().next_u64();
        assert_ne!(draw(7, "a"), draw(7, "b"));
        assert_ne!(draw(7, "a"), draw(8, "a"));
        assert_ne!(Seed(7).fork("a").fork("b"), Seed(7).fork("b").fork("a"));
    }
}
