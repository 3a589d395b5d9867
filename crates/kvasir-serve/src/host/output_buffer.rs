//! A buffer from the engine's thread to the reader of one answer.
//!
//! Content accumulates until it is read, so a slow reader takes more at once. Reader and writer swap
//! two contents, whose memory is reused.
//!
//! Wake-up: the reader stores its waker under the lock under which it found nothing; `put` and
//! `close` take the waker under the same lock as they change the state. So a change either precedes
//! the look or finds the waker. Wakers are returned, for the writer to run after the last change of
//! a step. `loom/` checks that no reader sleeps forever.

use crate::host::lock::{Mutex, locked};
use std::task::{Context, Poll, Waker};

/// Content for one reader.
#[derive(Default)]
pub(crate) struct OutputBuffer<T>(Mutex<State<T>>);

#[derive(Default)]
struct State<T> {
    content: T,
    /// Whether `content` has been changed since it was last taken.
    is_filled: bool,
    /// No more content will come.
    is_closed: bool,
    waker: Option<Waker>,
}

/// The writer is gone, and all content has been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl<T> OutputBuffer<T> {
    /// Adds to the content. Returns the waker of a waiting reader, which the caller must run.
    pub(crate) fn put(&self, add: impl FnOnce(&mut T)) -> Option<Waker> {
        let mut state = locked(&self.0);
        add(&mut state.content);
        state.is_filled = true;
        state.waker.take()
    }

    /// Ends the buffer. Returns the waker of a waiting reader, which the caller must run.
    pub(crate) fn close(&self) -> Option<Waker> {
        let mut state = locked(&self.0);
        state.is_closed = true;
        state.waker.take()
    }

    /// Swaps the content into `into`, which must be empty; waits if nothing has been put.
    pub(crate) fn poll_take(&self, into: &mut T, context: &Context<'_>) -> Poll<Result<(), Closed>> {
        let mut state = locked(&self.0);
        if state.is_filled {
            state.is_filled = false;
            std::mem::swap(&mut state.content, into);
            return Poll::Ready(Ok(()));
        }
        if state.is_closed {
            return Poll::Ready(Err(Closed));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}
