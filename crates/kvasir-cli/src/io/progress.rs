//! Progress bar on stderr, shown on terminals only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar of requests.
pub(crate) fn bar(total: u64) -> ProgressBar {
    with_template(Some(total), "{bar:40} {pos} of {len} requests, {eta} left")
}

/// A progress bar of tokens.
pub(crate) fn tokens(total: u64) -> ProgressBar {
    with_template(Some(total), "{bar:40} {pos} of {len} tokens, {eta} left")
}

/// A progress bar in percent of a total that is set later.
pub(crate) fn percent() -> ProgressBar {
    with_template(None, "{bar:40} {percent} %, {eta} left")
}

fn with_template(total: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
