//! Statistics of samples.

use std::time::Duration;

/// Returns the mean; 0 for an empty list.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the population variance; 0 for an empty list.
pub(super) fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len().max(1) as f64
}

/// Returns a quantile; `values` must not be empty.
pub(super) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * q).round() as usize]
}

/// Converts a duration to milliseconds.
pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_variance_and_quantiles_match_known_values() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!((mean(&values), variance(&values)), (5.0, 4.0));
        assert_eq!((quantile(&values, 0.0), quantile(&values, 1.0), quantile(&[3.0], 0.5)), (2.0, 9.0, 3.0));
    }
}
