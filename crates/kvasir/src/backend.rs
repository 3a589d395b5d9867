use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use kvasir_plain::{PlainExecutor, Ran};

/// `--backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// The fastest that is built in and runs here.
    #[default]
    Auto,
    /// f32, one thread, a mask for every query: the oracle.
    Plain,
}

/// An executor of whichever backend was chosen.
pub enum AnyExecutor {
    /// Of the plain one.
    Plain(PlainExecutor),
}

/// A step handed to one.
pub enum AnyPending {
    /// The plain one's.
    Plain(Ran),
}

impl Executor for AnyExecutor {
    type Pending = AnyPending;

    fn abilities(&self) -> Abilities {
        match self {
            Self::Plain(executor) => executor.abilities(),
        }
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        match self {
            Self::Plain(executor) => executor.bind(row, spec),
        }
    }

    fn submit(&mut self, step: Box<Step>) -> Result<AnyPending, Refused> {
        match self {
            Self::Plain(executor) => executor.submit(step).map(AnyPending::Plain),
        }
    }

    fn wait(&mut self, pending: AnyPending) -> (Box<Step>, Result<(), StepError>) {
        match (self, pending) {
            (Self::Plain(executor), AnyPending::Plain(ran)) => executor.wait(ran),
        }
    }
}
