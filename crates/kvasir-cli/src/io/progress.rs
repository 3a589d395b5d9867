//! Progress bar on stderr, shown on terminals only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar of requests.
pub(crate) fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos} of {len} requests, {eta} left") {
        bar.set_style(style);
    }
    bar
}
