//! Means and deviations of repetitions; and estimates from pairs of measurements on a machine that
//! is not quiet: the median of their ratios, and its bootstrap interval.

use serde::Serialize;

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;

/// The median of a set of numbers and the interval that holds it with 95 % confidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Estimate {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The mean; 0 of nothing.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The standard deviation of samples; none of a single one.
pub(crate) fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values);
    let sum: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (values.len() > 1).then(|| (sum / (values.len() - 1) as f64).sqrt())
}

/// The median; 0 of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Returns the median of a field.
pub(crate) fn median_of<T>(all: &[T], field: impl Fn(&T) -> f64) -> f64 {
    median(&all.iter().map(field).collect::<Vec<f64>>())
}

impl Estimate {
    /// The median and its bootstrap interval (percentiles, always the same resamples).
    pub(crate) fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Estimate::default();
        }
        let mut rng = fastrand::Rng::with_seed(0x10ca1);
        let mut resample = vec![0.0; values.len()];
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                resample.fill_with(|| values[rng.usize(..values.len())]);
                median(&resample)
            })
            .collect();
        medians.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| medians[((RESAMPLES - 1) as f64 * share).round() as usize];
        Estimate { median: median(values), low: at(0.025), high: at(0.975) }
    }

    /// The median of ratios of paired values, and its bootstrap interval.
    pub(crate) fn of_ratios(pairs: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let ratios: Vec<f64> = pairs
            .into_iter()
            .filter(|(_, below)| *below > 0.0)
            .map(|(above, below)| above / below)
            .collect();
        Estimate::of(&ratios)
    }
}

impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} [{:.2}, {:.2}]", self.median, self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_small_sets() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn deviations_are_of_samples() {
        assert_eq!(deviation(&[5.0]), None);
        assert_eq!(deviation(&[1.0, 3.0]), Some(2.0_f64.sqrt()));
    }

    #[test]
    fn intervals_hold_the_median_and_shrink_with_agreement() {
        let spread: Vec<f64> = (0..15).map(f64::from).collect();
        let wide = Estimate::of(&spread);
        assert_eq!(wide.median, 7.0);
        assert!(wide.low < 7.0 && wide.high > 7.0, "{wide}");
        assert!(wide.low > 0.0 && wide.high < 14.0, "{wide}");
        assert_eq!(Estimate::of(&[2.0; 15]), Estimate { median: 2.0, low: 2.0, high: 2.0 });
        let ratios = Estimate::of_ratios([(1.0, 2.0), (3.0, 6.0), (1.0, 0.0)]);
        assert_eq!(ratios.median, 0.5);
    }
}
