//! The end of `kvasir serve`: the signals that begin it, and what the log says about it.

use crate::chat::statistics::plural;
use tokio::signal;

/// Says that the server is about to stop, with `open` answers under way.
pub(super) fn stopping(open: u64, grace: u64) -> String {
    match (open, grace) {
        (0, _) => "stopping".into(),
        (_, 0) => format!("stopping; --grace 0 cuts {}", plural(open, "answer")),
        (1, _) => format!("stopping when 1 answer has ended, within {grace} s; again stops now"),
        _ => format!("stopping when {open} answers have ended, within {grace} s; again stops now"),
    }
}

/// Says that the server has stopped, after it cut `cut` answers.
pub(super) fn stopped(cut: u64) -> String {
    match cut {
        0 => "stopped".into(),
        1 => "stopped; 1 answer was cut, and --grace gives it longer".into(),
        _ => format!("stopped; {cut} answers were cut, and --grace gives them longer"),
    }
}

/// Waits for SIGINT or SIGTERM.
pub(super) async fn shutdown_signal() {
    let interrupt = signal::ctrl_c();
    match signal::unix::signal(signal::unix::SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
        }
        // Without a handler, the signal terminates the process by default.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_at_the_end_count_answers_and_seconds() {
        let lines = [stopping(0, 30), stopping(1, 30), stopping(2, 1), stopping(1, 0)];
        let parts =
            ["stopping", "1 answer has ended, within 30 s", "2 answers have", "--grace 0 cuts 1 answer"];
        assert!(lines.iter().zip(parts).all(|(line, part)| line.contains(part)), "{lines:?}");
        assert!(stopped(1).contains("1 answer was cut") && stopped(2).contains("2 answers were cut"));
    }
}
