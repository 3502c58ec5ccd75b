//! Percentiles of a sample with confidence intervals.

/// Values in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Distribution(Vec<f64>);

/// A percentile with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentile {
    /// The value.
    pub value: f64,
    /// Lower and upper end of the interval.
    pub interval: (f64, f64),
}

impl Distribution {
    /// Sorts the values.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// Returns the percentile `share`, 0 to 1, by the nearest rank. The interval is that of order statistics with the
    /// normal approximation of the binomial distribution (Conover, Practical Nonparametric Statistics, section 3.2).
    pub fn percentile(&self, share: f64) -> Percentile {
        let count = self.0.len() as f64;
        let half = NORMAL_QUANTILE * (count * share * (1.0 - share)).sqrt();
        let at = |rank: f64| {
            let index = (rank.ceil().max(1.0) as usize).min(self.0.len()) - 1;
            self.0[index]
        };
        let middle = count * share;
        Percentile { value: at(middle), interval: (at(middle - half), at(middle + half + 1.0)) }
    }

    /// Returns the number of values below `limit`.
    pub fn below(&self, limit: f64) -> usize {
        self.0.partition_point(|value| *value < limit)
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the cumulative distribution as points: value, and percent of the sample up to it.
    pub fn cumulative(&self) -> Vec<(f64, f64)> {
        let count = self.0.len() as f64;
        self.0.iter().enumerate().map(|(index, value)| (*value, (index + 1) as f64 / count * 100.0)).collect()
    }
}

/// 97.5 % quantile of the normal distribution.
const NORMAL_QUANTILE: f64 = 1.96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_sample_within_their_interval() {
        let hundred = Distribution::new((1..=100).rev().map(f64::from));
        // 1.96 x sqrt(100 x 0.25) is 9.8.
        assert_eq!(hundred.percentile(0.5), Percentile { value: 50.0, interval: (41.0, 61.0) });
        assert_eq!(hundred.percentile(0.0).value, 1.0);
        assert_eq!(hundred.percentile(1.0), Percentile { value: 100.0, interval: (100.0, 100.0) });
        assert_eq!((hundred.below(50.0), hundred.count()), (49, 100));
        assert_eq!(hundred.cumulative()[24], (25.0, 25.0));
    }
}
