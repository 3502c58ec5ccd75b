//! Means with 95 % confidence intervals by Student's t distribution.

/// A mean and the half width of its two-sided 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of the interval's width; none if a single value gives no interval.
    pub half: Option<f64>,
}

impl Estimate {
    /// Returns the mean of independent values.
    pub fn of(values: &[f64]) -> Self {
        let half = variance(values).map(|var| {
            let count = values.len();
            t_quantile(count as f64 - 1.0) * (var / count as f64).sqrt()
        });
        Self { mean: mean(values), half }
    }

    /// Returns the mean over fixed groups, each of which has several independent values. The variance of the mean is
    /// the sum of those of the groups' means; its degrees of freedom are Welch's and Satterthwaite's.
    pub fn of_groups(groups: &[Vec<f64>]) -> Self {
        let means: Vec<f64> = groups.iter().map(|group| mean(group)).collect();
        let scale = (groups.len() as f64).powi(2);
        let terms: Option<Vec<(f64, f64)>> = groups
            .iter()
            .map(|group| Some((variance(group)? / group.len() as f64 / scale, group.len() as f64 - 1.0)))
            .collect();
        let half = terms.filter(|terms| !terms.is_empty()).map(|terms| {
            let sum: f64 = terms.iter().map(|(var, _)| var).sum();
            let weight: f64 = terms.iter().map(|(var, freedom)| var * var / freedom).sum();
            let freedom = if weight > 0.0 { sum * sum / weight } else { 1.0 };
            if sum > 0.0 { t_quantile(freedom) * sum.sqrt() } else { 0.0 }
        });
        Self { mean: mean(&means), half }
    }

    /// Returns the lower end of the interval.
    pub fn low(self) -> Option<f64> {
        Some(self.mean - self.half?)
    }

    /// Returns the upper end of the interval.
    pub fn high(self) -> Option<f64> {
        Some(self.mean + self.half?)
    }
}

/// Returns the median; of an even number of values, the mean of the two in the middle. NaN if there is none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[half],
        _ => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the variance of the population by a sample of at least two values.
fn variance(values: &[f64]) -> Option<f64> {
    let centre = mean(values);
    let sum: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
    (values.len() >= 2).then(|| sum / (values.len() as f64 - 1.0))
}

/// Returns the 97.5 % quantile of the t distribution. Degrees of freedom between two rows are rounded down, so that
/// intervals are never too narrow.
fn t_quantile(freedom: f64) -> f64 {
    let row = T_TABLE.iter().rev().find(|(row, _)| *row <= freedom + ROUNDING);
    row.unwrap_or(&T_TABLE[0]).1
}

/// Tolerance for the rounding of a sum of fractions, so that 2 degrees of freedom are not taken for 1.
const ROUNDING: f64 = 1e-6;

/// Degrees of freedom and the 97.5 % quantile (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
const T_TABLE: [(f64, f64); 24] = [
    (1.0, 12.706),
    (2.0, 4.303),
    (3.0, 3.182),
    (4.0, 2.776),
    (5.0, 2.571),
    (6.0, 2.447),
    (7.0, 2.365),
    (8.0, 2.306),
    (9.0, 2.262),
    (10.0, 2.228),
    (11.0, 2.201),
    (12.0, 2.179),
    (13.0, 2.160),
    (14.0, 2.145),
    (15.0, 2.131),
    (16.0, 2.120),
    (17.0, 2.110),
    (18.0, 2.101),
    (19.0, 2.093),
    (20.0, 2.086),
    (25.0, 2.060),
    (30.0, 2.042),
    (60.0, 2.000),
    (100.0, 1.984),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_that_of_students_t() {
        // Mean 3, variance 10 / 4, standard error sqrt(0.5), t of 4 degrees of freedom 2.776.
        let estimate = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(estimate.mean, 3.0);
        assert!((estimate.half.unwrap() - 2.776 * 0.5f64.sqrt()).abs() < 1e-9);
        assert!((estimate.low().unwrap() - 1.037).abs() < 1e-3 && (estimate.high().unwrap() - 4.963).abs() < 1e-3);
    }

    #[test]
    fn one_value_has_no_interval_and_equal_values_one_without_width() {
        assert_eq!(Estimate::of(&[2.0]), Estimate { mean: 2.0, half: None });
        assert_eq!(Estimate::of(&[2.0; 3]), Estimate { mean: 2.0, half: Some(0.0) });
        assert_eq!(Estimate::of_groups(&[vec![0.0; 2], vec![0.0; 2]]), Estimate { mean: 0.0, half: Some(0.0) });
        assert_eq!(Estimate::of_groups(&[vec![1.0], vec![3.0]]), Estimate { mean: 2.0, half: None });
    }

    #[test]
    fn groups_of_equal_variance_add_their_degrees_of_freedom() {
        // Each group has variance 1 and two values, so that the mean of both has variance (1/2 + 1/2) / 4 and two
        // degrees of freedom. The distance of the groups' means does not count.
        let spread = 0.5f64.sqrt();
        let groups = [vec![1.0 - spread, 1.0 + spread], vec![9.0 - spread, 9.0 + spread]];
        let estimate = Estimate::of_groups(&groups);
        assert!((estimate.mean - 5.0).abs() < 1e-9);
        assert!((estimate.half.unwrap() - 4.303 * 0.5).abs() < 1e-6, "{estimate:?}");
    }

    #[test]
    fn degrees_of_freedom_between_two_rows_are_rounded_down() {
        assert_eq!([0.5, 1.0, 3.9, 29.0, 1e6].map(t_quantile), [12.706, 12.706, 3.182, 2.060, 1.984]);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_two_values() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
    }
}
