//! [`Background`]: runs a synchronous executor on a thread of its own, so that the engine schedules
//! step n + 1 while step n runs.
//!
//! Steps, binds and accesses to the pool go to the thread through one queue, in order. So a step
//! sees the sampled tokens of all earlier ones, and a row is bound only after the steps before it.

use crate::batch::PoolRow;
use crate::executor::{Abilities, Executor, Ran, Refused, SequenceSpec, Step, StepError};
use crate::kv_rows::{KvAccess, KvLayout, NoKvAccess};
use kvasir_kv::{GroupId, Slot};
use std::io;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// What the thread is to do.
enum Work {
    Bind(PoolRow, Box<SequenceSpec>),
    Release(GroupId, Vec<Range<Slot>>),
    AccessKv(KvAccess),
    Run(Box<Step>),
}

/// A step that has run, and its result.
type Done = (Box<Step>, Result<(), StepError>);

/// An executor on a thread of its own.
pub struct Background {
    abilities: Abilities,
    layout: Result<KvLayout, NoKvAccess>,
    /// `None` while it is dropped: the end of the queue ends the thread.
    work: Option<SyncSender<Work>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Moves an executor to a new thread. Fails if the system gives none.
    pub fn start<E: Executor<Pending = Ran> + Send + 'static>(mut executor: E) -> io::Result<Self> {
        let (abilities, layout) = (executor.abilities(), executor.kv_layout());
        // Each row is bound at most once between two steps, so a full queue does not occur.
        let (work, queue) = sync_channel::<Work>((abilities.pool_rows + abilities.depth) as usize);
        let (finished, done) = sync_channel(abilities.depth as usize);
        let run = move || {
            for work in queue {
                match work {
                    Work::Bind(row, spec) => executor.bind(row, *spec),
                    Work::Release(group, slots) => executor.release(group, &slots),
                    Work::AccessKv(access) => executor.access_kv(access),
                    Work::Run(step) => {
                        let ran = match executor.submit(step) {
                            Ok(pending) => executor.wait(pending),
                            Err(Refused { step, error }) => (step, Err(error)),
                        };
                        if finished.send(ran).is_err() {
                            return;
                        }
                    }
                }
            }
        };
        let thread = Builder::new().name("kvasir-steps".into()).spawn(run)?;
        Ok(Self { abilities, layout, work: Some(work), done, thread: Some(thread) })
    }

    /// Queues work. Panics as the thread has, if it has.
    fn send(&mut self, work: Work) {
        if self.work.as_ref().is_none_or(|queue| queue.send(work).is_err()) {
            self.propagate();
        }
    }

    /// Panics as the thread has. It ends in no other way while this value lives.
    fn propagate(&mut self) -> ! {
        let ended = self.thread.take().map(JoinHandle::join);
        resume_unwind(match ended {
            Some(Err(panic)) => panic,
            _ => Box::new("the thread that runs steps has ended"),
        })
    }
}

impl Executor for Background {
    type Pending = ();

    fn abilities(&self) -> Abilities {
        self.abilities.clone()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.send(Work::Bind(row, Box::new(spec)));
    }

    fn submit(&mut self, step: Box<Step>) -> Result<(), Refused> {
        self.send(Work::Run(step));
        Ok(())
    }

    fn wait(&mut self, (): ()) -> Done {
        match self.done.recv() {
            Ok(done) => done,
            Err(_) => self.propagate(),
        }
    }

    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) {
        self.send(Work::Release(group, slots.to_vec()));
    }

    fn kv_layout(&self) -> Result<KvLayout, NoKvAccess> {
        self.layout.clone()
    }

    fn access_kv(&mut self, access: KvAccess) {
        self.send(Work::AccessKv(access));
    }
}

impl Drop for Background {
    /// Ends the thread after the steps in flight, so that its memory is free afterwards.
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // A panic that no `wait` has reported ends with the thread.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread::{self, ThreadId};

    /// Notes the rows bound so far in each step's output; fails at batches with `logits`, panics at
    /// `spec_steps` 9.
    struct Noting {
        caller: ThreadId,
        bound: Vec<u32>,
    }

    impl Executor for Noting {
        type Pending = Ran;
        fn abilities(&self) -> Abilities {
            Abilities::all(2, 8, 4)
        }
        fn bind(&mut self, row: PoolRow, _: SequenceSpec) {
            self.bound.push(row.0);
        }
        fn submit(&mut self, step: Box<Step>) -> Result<Ran, Refused> {
            assert_ne!(self.caller, thread::current().id());
            Ok(Ran::now(step, |step| {
                assert_ne!(step.batch.spec_steps, 9, "a bug");
                step.output.tokens.clone_from(&self.bound);
                if step.batch.logits { Err(StepError::Failed("no".into())) } else { Ok(()) }
            }))
        }
        fn wait(&mut self, pending: Ran) -> (Box<Step>, Result<(), StepError>) {
            pending.into_parts()
        }
    }

    fn started() -> io::Result<Background> {
        Background::start(Noting { caller: thread::current().id(), bound: Vec::new() })
    }

    #[test]
    fn steps_and_binds_run_in_order_on_another_thread() -> io::Result<()> {
        let mut executor = started()?;
        assert_eq!(executor.abilities(), Abilities::all(2, 8, 4));
        let mut refused = Box::<Step>::default();
        refused.batch.logits = true;
        executor.bind(PoolRow(3), SequenceSpec::default());
        let first = executor.submit(Box::default()).is_ok();
        executor.bind(PoolRow(1), SequenceSpec::default());
        let second = executor.submit(refused).is_ok();
        assert!(first && second);
        let (step, result) = executor.wait(());
        assert_eq!((step.output.tokens, result), (vec![3], Ok(())));
        let (step, result) = executor.wait(());
        assert_eq!((step.output.tokens, result), (vec![3, 1], Err(StepError::Failed("no".into()))));
        Ok(())
    }

    #[test]
    fn a_panic_of_the_thread_is_the_callers() -> io::Result<()> {
        let mut executor = started()?;
        let mut step = Box::<Step>::default();
        step.batch.spec_steps = 9;
        assert!(executor.submit(step).is_ok());
        let panicked = catch_unwind(AssertUnwindSafe(|| executor.wait(())));
        assert!(
            panicked.is_err_and(|why| why.downcast_ref::<String>().is_some_and(|why| why.contains("a bug")))
        );
        Ok(())
    }
}
