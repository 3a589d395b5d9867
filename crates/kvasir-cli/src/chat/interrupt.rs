//! Signal handling of `kvasir chat`: Ctrl-C stops an answer; termination signals restore the
//! terminal first.
//!
//! One thread listens for SIGINT, SIGTERM, SIGHUP and SIGQUIT and alone decides the effect of each.
//! The effect of SIGINT depends on the phase:
//!
//! | phase | SIGINT |
//! |---|---|
//! | idle: a prompt, or between two phases | ignored |
//! | answering | stops the answer; if that takes longer than [`STUCK`], the next one exits |
//! | a command that may block | exits |
//!
//! At a prompt, Ctrl-C raises no signal: the line editor reads it as a key. A SIGINT in the idle
//! phase was therefore meant for an answer that has just ended, and must not exit.
//!
//! The phase changes and is read under one lock, so a signal either stops an answer or finds it
//! ended. Every exit restores the terminal first.
//!
//! Guarded by `tests/terminal.rs`.

use crate::chat::terminal::restore;
use std::{
    io,
    process::exit,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// Time for an answer to stop before another Ctrl-C exits.
const STUCK: Duration = Duration::from_secs(2);
/// Exit code base of a process ended by a signal (128 + signal number).
const ENDED_BY_SIGNAL: i32 = 128;

/// Current phase of the chat.
enum Phase {
    Idle,
    Answering {
        /// Stops the answer; `None` once used.
        stop: Option<oneshot::Sender<()>>,
        /// Time of the first stop request.
        first_interrupt: Option<Instant>,
    },
    Command,
}

/// Effect of a SIGINT.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    Nothing,
    Stop,
    Exit,
}

impl Phase {
    /// Handles a SIGINT at `now`.
    fn interrupt(&mut self, now: Instant) -> Effect {
        match self {
            Self::Idle => Effect::Nothing,
            Self::Command => Effect::Exit,
            Self::Answering { stop, first_interrupt } => {
                let first = *first_interrupt.get_or_insert(now);
                if let Some(stop) = stop.take() {
                    // The answer may have ended and dropped its receiver.
                    let _ = stop.send(());
                    return Effect::Stop;
                }
                if now.duration_since(first) > STUCK { Effect::Exit } else { Effect::Nothing }
            }
        }
    }
}

type SharedPhase = Arc<Mutex<Phase>>;

fn lock(phase: &Mutex<Phase>) -> MutexGuard<'_, Phase> {
    phase.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handle of the signal listener.
pub(crate) struct Interrupts(SharedPhase);

impl Interrupts {
    /// Starts the listener thread, for the lifetime of the process.
    pub(super) fn listen() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut quit = signal(SignalKind::quit())?;
        drop(entered);
        let phase: SharedPhase = Arc::new(Mutex::new(Phase::Idle));
        let seen = phase.clone();
        let listen = async move {
            loop {
                let kind = tokio::select! {
                    _ = interrupt.recv() => SignalKind::interrupt(),
                    _ = terminate.recv() => SignalKind::terminate(),
                    _ = hangup.recv() => SignalKind::hangup(),
                    _ = quit.recv() => SignalKind::quit(),
                };
                let ends =
                    kind != SignalKind::interrupt() || lock(&seen).interrupt(Instant::now()) == Effect::Exit;
                if ends {
                    restore();
                    exit(ENDED_BY_SIGNAL + kind.as_raw_value());
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(move || runtime.block_on(listen))?;
        Ok(Self(phase))
    }

    /// Enters the answering phase, in which SIGINT stops the answer. Ends when the guard is
    /// dropped.
    pub(super) fn answering(&self) -> Answering {
        let (stop, stopped) = oneshot::channel();
        Answering {
            stopped,
            _phase: self.enter(Phase::Answering { stop: Some(stop), first_interrupt: None }),
        }
    }

    /// Enters the command phase, in which SIGINT exits. Ends when the guard is dropped.
    pub(super) fn command(&self) -> PhaseGuard {
        self.enter(Phase::Command)
    }

    fn enter(&self, phase: Phase) -> PhaseGuard {
        *lock(&self.0) = phase;
        PhaseGuard(self.0.clone())
    }
}

/// Returns to the idle phase on drop.
pub(super) struct PhaseGuard(SharedPhase);

impl Drop for PhaseGuard {
    fn drop(&mut self) {
        *lock(&self.0) = Phase::Idle;
    }
}

/// Guard of the answering phase.
pub(crate) struct Answering {
    stopped: oneshot::Receiver<()>,
    _phase: PhaseGuard,
}

impl Answering {
    /// Resolves when the answer must stop. Must not be awaited again afterwards.
    pub(super) async fn stopped(&mut self) {
        if (&mut self.stopped).await.is_err() {
            // The sender lives as long as the phase.
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_ignores_interrupts_and_a_command_exits() {
        let now = Instant::now();
        assert_eq!(Phase::Idle.interrupt(now), Effect::Nothing);
        assert_eq!(Phase::Command.interrupt(now), Effect::Exit);
    }

    #[test]
    fn a_second_interrupt_exits_only_if_the_answer_is_stuck() {
        let (stop, mut stopped) = oneshot::channel();
        let mut phase = Phase::Answering { stop: Some(stop), first_interrupt: None };
        let first = Instant::now();
        assert_eq!(phase.interrupt(first), Effect::Stop);
        assert_eq!(stopped.try_recv(), Ok(()));
        assert_eq!(phase.interrupt(first), Effect::Nothing);
        assert_eq!(phase.interrupt(first + STUCK), Effect::Nothing);
        assert_eq!(phase.interrupt(first + STUCK + Duration::from_millis(1)), Effect::Exit);
    }

    #[test]
    fn an_answer_stops_before_it_is_awaited() {
        let phase: SharedPhase = Arc::new(Mutex::new(Phase::Idle));
        let interrupts = Interrupts(phase.clone());
        let mut answering = interrupts.answering();
        assert_eq!(lock(&phase).interrupt(Instant::now()), Effect::Stop);
        runtime::Builder::new_current_thread().build().unwrap().block_on(answering.stopped());
        drop(answering);
        assert_eq!(lock(&phase).interrupt(Instant::now()), Effect::Nothing);
    }
}
