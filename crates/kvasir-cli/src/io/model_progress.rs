//! Status lines of a model: while it loads, and while it reads a prompt.

use crate::io::status_line::{StatusLine, remaining, with_commas};
use kvasir::{OpenedModel, PrefillProgress};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Draws how far loading is, until the line is dropped. `name` is the model's.
pub(crate) fn loading(opened: OpenedModel, name: String) -> (OpenedModel, StatusLine) {
    let counts: Arc<[AtomicUsize; 2]> = Arc::default();
    let line = StatusLine::start({
        let counts = Arc::clone(&counts);
        move |elapsed| {
            let [done, all] = [0, 1].map(|at| counts[at].load(Ordering::Relaxed));
            let share = done as f64 / all.max(1) as f64;
            Some(format!("loading {name}{}", remaining(share, elapsed)))
        }
    });
    let opened = opened.watch_load(move |done, all| {
        counts[0].store(done, Ordering::Relaxed);
        counts[1].store(all, Ordering::Relaxed);
    });
    (opened, line)
}

/// Draws how much of a prompt has been read, until the line is dropped.
pub(crate) fn reading(progress: PrefillProgress) -> StatusLine {
    StatusLine::start(move |elapsed| {
        let state = progress.state()?;
        Some(format!("reading {} tokens{}", with_commas(state.tokens), remaining(state.share, elapsed)))
    })
}
