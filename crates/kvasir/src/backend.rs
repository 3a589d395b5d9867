use kvasir_cpu::CpuExecutor;
use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use kvasir_plain::{PlainExecutor, Ran};

/// `--backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// The fastest that is built in and runs here.
    #[default]
    Auto,
    /// The processor, with the best instructions it has.
    Cpu,
    /// f32, one thread, a mask for every query: the oracle.
    Plain,
}

/// An executor of whichever backend was chosen.
pub enum AnyExecutor {
    /// Of the processor's.
    Cpu(Box<CpuExecutor>),
    /// Of the plain one.
    Plain(PlainExecutor),
}

/// A step handed to one.
pub enum AnyPending {
    /// The processor's.
    Cpu(kvasir_cpu::Ran),
    /// The plain one's.
    Plain(Ran),
}

impl Executor for AnyExecutor {
    type Pending = AnyPending;

    fn abilities(&self) -> Abilities {
        match self {
            Self::Cpu(executor) => executor.abilities(),
            Self::Plain(executor) => executor.abilities(),
        }
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        match self {
            Self::Cpu(executor) => executor.bind(row, spec),
            Self::Plain(executor) => executor.bind(row, spec),
        }
    }

    fn submit(&mut self, step: Box<Step>) -> Result<AnyPending, Refused> {
        match self {
            Self::Cpu(executor) => executor.submit(step).map(AnyPending::Cpu),
            Self::Plain(executor) => executor.submit(step).map(AnyPending::Plain),
        }
    }

    fn wait(&mut self, pending: AnyPending) -> (Box<Step>, Result<(), StepError>) {
        match (self, pending) {
            (Self::Cpu(executor), AnyPending::Cpu(ran)) => executor.wait(ran),
            (Self::Plain(executor), AnyPending::Plain(ran)) => executor.wait(ran),
            // A step of another executor's is given back as it came, with what went wrong.
            (_, AnyPending::Cpu(ran)) => (ran.into_step(), Err(foreign())),
            (_, AnyPending::Plain(ran)) => (ran.into_step(), Err(foreign())),
        }
    }
}

fn foreign() -> StepError {
    StepError::Failed("the step was submitted to another executor".into())
}
