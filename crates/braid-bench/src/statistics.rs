//! Medians, ratios of medians, and their confidence intervals.

/// A ratio of two medians and the interval in which 95 of 100 resamplings of the slices put it.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct Ratio {
    /// Median of the first over median of the second.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Returns the median of `values`: the middle value, or the mean of the two middle values. NaN if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Returns `median(a) / median(b)` with its interval, by resampling pairs: slice i of `a` ran beside slice i of `b`, and a disturbance of one
/// disturbed the other, so they are drawn together.
///
/// # Panics
/// The two have different lengths, or are empty.
pub fn ratio_of_medians(a: &[f64], b: &[f64]) -> Ratio {
    assert!(!a.is_empty() && a.len() == b.len(), "{} and {} slices are no pairs", a.len(), b.len());
    const RESAMPLINGS: usize = 2000;
    let mut random = super::pattern::Random::new(0x5eed); // constant, so that the interval is reproducible
    let mut ratios: Vec<f64> = (0..RESAMPLINGS)
        .map(|_| {
            let drawn: Vec<usize> = a.iter().map(|_| random.below(a.len() as u64) as usize).collect();
            let side = |of: &[f64]| median(&drawn.iter().map(|&i| of[i]).collect::<Vec<_>>());
            side(a) / side(b)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[((RESAMPLINGS - 1) as f64 * share).round() as usize];
    Ratio { value: median(a) / median(b), low: at(0.025), high: at(0.975) }
}

/// Returns the interval that holds the median of 95 of 100 resamplings of `values`. NaN if there are none.
pub fn interval_of_median(values: &[f64]) -> (f64, f64) {
    if values.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    const RESAMPLINGS: usize = 2000;
    let mut random = super::pattern::Random::new(0x5eed);
    let mut medians: Vec<f64> = (0..RESAMPLINGS)
        .map(|_| {
            let drawn = values.iter().map(|_| values[random.below(values.len() as u64) as usize]);
            median(&drawn.collect::<Vec<_>>())
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[((RESAMPLINGS - 1) as f64 * share).round() as usize];
    (at(0.025), at(0.975))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_steady_ratio_has_a_narrow_interval_and_a_noisy_one_a_wide_one() {
        let steady = ratio_of_medians(&[2.0, 2.0, 2.0, 2.0, 2.0], &[1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(steady, Ratio { value: 2.0, low: 2.0, high: 2.0 });
        let noisy = ratio_of_medians(&[1.0, 4.0, 2.0, 3.0, 9.0], &[1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(noisy.value, 3.0);
        assert!(noisy.low < 3.0 && noisy.high > 3.0 && noisy.low >= 1.0 && noisy.high <= 9.0, "{noisy:?}");
    }

    #[test]
    fn an_interval_holds_the_median_and_lies_within_the_values() {
        assert_eq!(interval_of_median(&[3.0]), (3.0, 3.0));
        // Of five, the least is the median of 5.8 in 100 resamplings (three or more draws of it), and so is the greatest.
        assert_eq!(interval_of_median(&[5.0, 1.0, 2.0, 4.0, 3.0]), (1.0, 5.0));
        // Of 101 the median's rank has a deviation of half a root of 101, about five: twice that to either side.
        let many: Vec<f64> = (0..101).map(f64::from).collect();
        let (low, high) = interval_of_median(&many);
        assert!((38.0..=42.0).contains(&low) && (58.0..=62.0).contains(&high), "{low} {high}");
        let ratio = ratio_of_medians(&many, &[1.0; 101]);
        assert!((38.0..=42.0).contains(&ratio.low) && (58.0..=62.0).contains(&ratio.high), "{ratio:?}");
        assert!(interval_of_median(&[]).0.is_nan());
    }

    #[test]
    fn what_disturbs_both_of_a_pair_does_not_widen_the_interval() {
        let load = [1.0, 5.0, 2.0, 8.0, 3.0];
        let twice: Vec<f64> = load.iter().map(|x| 2.0 * x).collect();
        assert_eq!(ratio_of_medians(&twice, &load), Ratio { value: 2.0, low: 2.0, high: 2.0 });
    }
}
