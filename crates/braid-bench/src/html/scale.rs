//! Scales of axes, which map values to positions, and their ticks.

/// The kind of a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Linear, from 0.
    Linear,
    /// Logarithmic.
    Log,
    /// Percentiles: each further nine takes the same room.
    Nines,
}

/// A scale from `low` to `high`, which are mapped to positions from 0 to 1.
#[derive(Clone, Debug)]
pub struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
}

/// Returns the number of nines of a percentile: 0 for 0, 1 for 90, 2 for 99.
fn nines(percentile: f64) -> f64 {
    -(1.0 - (percentile / 100.0).clamp(0.0, 0.999_999_99)).log10()
}

impl Scale {
    /// Returns a scale that covers all `values`, with some margin. Values that it cannot show (0 on a logarithmic scale) are left out.
    pub fn over(kind: Kind, values: impl IntoIterator<Item = f64>) -> Scale {
        let shown = values.into_iter().filter(|v| v.is_finite() && (kind != Kind::Log || *v > 0.0));
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            // There are no values: any scale will do.
            return Scale { kind, low: if kind == Kind::Log { 1.0 } else { 0.0 }, high: 10.0 };
        }
        match kind {
            Kind::Linear => Scale { kind, low: 0.0, high: if high > 0.0 { high * 1.08 } else { 1.0 } },
            Kind::Log if low == high => Scale { kind, low: low / 2.0, high: high * 2.0 },
            Kind::Log => Scale { kind, low, high },
            Kind::Nines => Scale { kind, low: 0.0, high: high.max(90.0) },
        }
    }

    /// Adds a margin at both ends of a logarithmic scale.
    pub fn roomy(mut self) -> Scale {
        if self.kind == Kind::Log {
            let room = (self.high / self.low).powf(0.06).max(1.05);
            self.low /= room;
            self.high *= room;
        }
        self
    }

    /// Returns the position of a value, from 0 to 1, or none if the value cannot be shown.
    pub fn position(&self, value: f64) -> Option<f64> {
        let position = match self.kind {
            Kind::Linear => (value - self.low) / (self.high - self.low),
            Kind::Log if value <= 0.0 => return None,
            Kind::Log => (value / self.low).ln() / (self.high / self.low).ln(),
            Kind::Nines => nines(value) / nines(self.high),
        };
        position.is_finite().then_some(position.clamp(0.0, 1.0))
    }

    /// Returns rising values for ticks, about eight at most.
    pub fn ticks(&self) -> Vec<f64> {
        match self.kind {
            Kind::Linear => {
                let rough = (self.high - self.low) / 5.0;
                let power = 10f64.powf(rough.log10().floor());
                let step =
                    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|&s| s >= rough).unwrap_or(rough);
                (0..=10).map(|n| f64::from(n) * step).take_while(|&v| v <= self.high * 1.000_1).collect()
            }
            Kind::Log => {
                let decades = (self.high / self.low).log10();
                let steps: &[f64] = match decades {
                    d if d < 1.3 => &[1.0, 2.0, 3.0, 5.0, 7.0],
                    d if d < 3.2 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                let powers = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
                let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
                all.filter(|&v| v >= self.low * 0.999 && v <= self.high * 1.001).collect()
            }
            Kind::Nines => {
                [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999].into_iter().filter(|&p| p <= self.high).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_rise_from_0_to_1() {
        for (kind, values) in [
            (Kind::Linear, vec![5.0, 10.0, 100.0]),
            (Kind::Log, vec![0.01, 3.0, 1e6]),
            (Kind::Log, vec![7.0, 7.0]),
            (Kind::Nines, vec![0.0, 50.0, 99.999]),
        ] {
            let scale = Scale::over(kind, values.clone()).roomy();
            let positions: Vec<f64> = values.iter().map(|&v| scale.position(v).expect("it can be shown")).collect();
            assert!(positions.iter().all(|position| (0.0..=1.0).contains(position)), "{kind:?} {positions:?}");
            assert!(positions.windows(2).all(|w| w[0] <= w[1]), "{kind:?} {positions:?}");
            let ticks = scale.ticks();
            assert!((2..=20).contains(&ticks.len()) && ticks.windows(2).all(|w| w[0] < w[1]), "{kind:?} {ticks:?}");
        }
    }

    #[test]
    fn values_that_cannot_be_shown_are_left_out() {
        let scale = Scale::over(Kind::Log, [0.0, f64::NAN, f64::INFINITY]);
        assert_eq!((scale.position(0.0), scale.position(-1.0), scale.position(f64::NAN)), (None, None, None));
        assert!(!scale.ticks().is_empty());
        let scale = Scale::over(Kind::Linear, [0.0]);
        assert_eq!(scale.position(0.0), Some(0.0));
        let scale = Scale::over(Kind::Linear, []);
        assert!(scale.position(3.0).is_some());
    }
}
