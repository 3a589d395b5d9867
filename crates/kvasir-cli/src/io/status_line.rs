//! A line on stderr while something takes longer than half a second, redrawn on a thread of its own and erased at the
//! end. Nothing is drawn if stderr is no terminal, or a dumb one.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::{self, IsTerminal},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Time before the line is drawn for the first time.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time between two drawings.
const REDRAW: Duration = Duration::from_millis(200);

/// A line that is drawn until this is dropped. The drop waits for the drawing thread, so nothing is written behind it.
pub(crate) struct StatusLine {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StatusLine {
    /// Draws what `text` returns at each moment, given the time since the start.
    pub(crate) fn start(text: impl Fn(Duration) -> Option<String> + Send + 'static) -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        if is_dumb || !io::stderr().is_terminal() {
            return Self { stop: None, thread: None };
        }
        let (stop, stopped) = mpsc::channel();
        let began = Instant::now();
        let draw = move || {
            let (mut wait, mut line) = (PATIENCE, None);
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = REDRAW;
                match text(began.elapsed()) {
                    Some(text) => line.get_or_insert_with(empty_line).set_message(text),
                    None => erase(line.take()),
                }
            }
            erase(line);
        };
        // Without a thread there is no line.
        let thread = thread::Builder::new().name("status".into()).spawn(draw).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the drawing thread has been printed.
            let _ = thread.join();
        }
    }
}

fn empty_line() -> ProgressBar {
    let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg:.dim}") {
        line.set_style(style);
    }
    line
}

fn erase(line: Option<ProgressBar>) {
    if let Some(line) = line {
        line.finish_and_clear();
    }
}

/// Formats progress and the estimated time left, such as ` · 12 % · 40 s left`, after `share` of
/// the work took `elapsed`. Empty if `share` is 0.
pub(crate) fn remaining(share: f64, elapsed: Duration) -> String {
    if share <= 0.0 {
        return String::new();
    }
    let percent = (share * 100.0).min(100.0);
    // An estimate from less is worth nothing.
    if share < 0.01 {
        return format!(" · {percent:.0} %");
    }
    let seconds = elapsed.as_secs_f64() * (1.0 - share).max(0.0) / share;
    let left = match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    };
    format!(" · {percent:.0} % · {left} left")
}

/// A number with commas between thousands.
pub(crate) fn with_commas(number: u32) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_estimated_from_the_share() {
        let after = |share, seconds| remaining(share, Duration::from_secs(seconds));
        assert_eq!(after(0.0, 5), "");
        assert_eq!(after(0.001, 5), " · 0 %");
        assert_eq!(after(0.12, 6), " · 12 % · 44 s left");
        assert_eq!(after(0.5, 600), " · 50 % · 10 min left");
        assert_eq!(after(0.5, 7200), " · 50 % · 2.0 h left");
        assert_eq!(after(1.0, 9), " · 100 % · 0 s left");
    }

    #[test]
    fn thousands_are_separated() {
        let written: Vec<String> = [0, 999, 1000, 8192, 1_234_567].into_iter().map(with_commas).collect();
        assert_eq!(written, ["0", "999", "1,000", "8,192", "1,234,567"]);
    }
}
