//! Graceful shutdown of `kvasir serve`: its signals and its log messages.

use crate::chat::statistics::plural;
use tokio::signal;

/// The log message when shutdown begins with `open` running answers and `grace` seconds for them.
pub(super) fn stopping_message(open: u64, grace: u64) -> String {
    match (open, grace) {
        (0, _) => "stopping".into(),
        (_, 0) => format!("stopping; --grace 0 cuts {}", plural(open, "answer")),
        (1, _) => format!("stopping when 1 answer has ended, within {grace} s; again stops now"),
        _ => format!("stopping when {open} answers have ended, within {grace} s; again stops now"),
    }
}

/// The log message when the server has stopped and has cut `cut` answers.
pub(super) fn stopped_message(cut: u64) -> String {
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
        let lines = [
            stopping_message(0, 30),
            stopping_message(1, 30),
            stopping_message(2, 1),
            stopping_message(1, 0),
        ];
        let parts =
            ["stopping", "1 answer has ended, within 30 s", "2 answers have", "--grace 0 cuts 1 answer"];
        assert!(lines.iter().zip(parts).all(|(line, part)| line.contains(part)), "{lines:?}");
        assert!(
            stopped_message(1).contains("1 answer was cut")
                && stopped_message(2).contains("2 answers were cut")
        );
    }
}
