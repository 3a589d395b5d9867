//! Relative error of the residual stream behind each layer: `‖x − x_exact‖ / ‖x_exact‖` over all
//! positions. It holds the errors of all layers before it.

use kvasir_program::Tap;
use serde::Serialize;
use std::iter::zip;

/// Error of one layer's output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerError {
    /// Index of the layer.
    pub layer: usize,
    /// Relative error of what leaves it.
    pub relative: f64,
}

/// Sums of squares so far, by layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerErrors(Vec<(f64, f64)>);

impl LayerErrors {
    /// Adds the rows of one step: exact and default rows of each tap, in the order of layers.
    pub(crate) fn add<'a>(&mut self, rows: impl Fn(Tap) -> Option<(&'a [f32], &'a [f32])>, taps: &[Tap]) {
        self.0.resize(taps.len(), (0.0, 0.0));
        for (sums, tap) in zip(&mut self.0, taps) {
            let Some((exact, default)) = rows(*tap) else { continue };
            for (exact, default) in zip(exact, default) {
                let (exact, default) = (f64::from(*exact), f64::from(*default));
                sums.0 += (default - exact).powi(2);
                sums.1 += exact.powi(2);
            }
        }
    }

    pub(crate) fn relative(&self) -> Vec<LayerError> {
        let relative = |(error, norm): &(f64, f64)| if *norm > 0.0 { (error / norm).sqrt() } else { 0.0 };
        self.0
            .iter()
            .enumerate()
            .map(|(layer, sums)| LayerError { layer, relative: relative(sums) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_add_up_over_steps() {
        let mut errors = LayerErrors::default();
        let taps = [Tap::IntoLayer(1), Tap::OutOfLastLayer];
        for (exact, default) in [([3.0, 0.0], [3.0, 0.0]), ([0.0, 4.0], [0.0, 3.5])] {
            errors.add(|tap| (tap == Tap::OutOfLastLayer).then_some((&exact[..], &default[..])), &taps);
        }
        let relative: Vec<f64> = errors.relative().iter().map(|error| error.relative).collect();
        assert_eq!(relative, [0.0, 0.1]);
    }
}
