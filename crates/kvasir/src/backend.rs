use crate::Error;
use kvasir_cpu::CpuExecutor;
use kvasir_exec::{Abilities, Executor, PoolRow, Ran, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::PoolId;
use kvasir_plain::PlainExecutor;
use kvasir_sim::{Paced, Preset};
use std::sync::Arc;

/// `--backend`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum BackendKind {
    /// The fastest that is built in and runs here.
    #[default]
    Auto,
    /// The processor, with the best instructions it has.
    Cpu,
    /// f32, one thread, a mask for every query: the oracle.
    Plain,
    /// Computes nothing and says anything, as fast as this device would: for load tests of all that is around it.
    Sim(Box<Preset>),
}

/// An executor of whichever backend was chosen.
pub enum AnyExecutor {
    /// Of the processor's.
    Cpu(Box<CpuExecutor>),
    /// Of the plain one.
    Plain(PlainExecutor),
    /// Of the simulated one.
    Sim(Box<Paced>),
}

/// K and V of a frozen prefix, as one backend keeps them.
#[derive(Clone)]
pub enum AnyPool {
    /// The processor's.
    Cpu(Arc<kvasir_cpu::Pool>),
    /// The plain one's.
    Plain(Arc<kvasir_plain::Pool>),
}

impl AnyExecutor {
    /// Its pool, for others to read as a frozen prefix; the simulated one has none.
    pub(crate) fn into_pool(self) -> Option<AnyPool> {
        match self {
            Self::Cpu(executor) => Some(AnyPool::Cpu(executor.into_pool())),
            Self::Plain(executor) => Some(AnyPool::Plain(executor.into_pool())),
            Self::Sim(_) => None,
        }
    }

    /// Lets plans read a frozen pool.
    pub(crate) fn attach(&mut self, id: PoolId, pool: &AnyPool) -> Result<(), Error> {
        match (self, pool) {
            (Self::Cpu(executor), AnyPool::Cpu(pool)) => {
                executor.attach(id, Arc::clone(pool)).map_err(Error::Asked)
            }
            (Self::Plain(executor), AnyPool::Plain(pool)) => {
                executor.attach(id, Arc::clone(pool));
                Ok(())
            }
            _ => Err(Error::Failed("the prefix is another backend's".into())),
        }
    }
}

/// A step handed to one.
pub enum AnyPending {
    /// The processor's.
    Cpu(Ran),
    /// The plain one's.
    Plain(Ran),
    /// The simulated one's.
    Sim(u64),
}

impl Executor for AnyExecutor {
    type Pending = AnyPending;

    fn abilities(&self) -> Abilities {
        match self {
            Self::Cpu(executor) => executor.abilities(),
            Self::Plain(executor) => executor.abilities(),
            Self::Sim(executor) => executor.abilities(),
        }
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        match self {
            Self::Cpu(executor) => executor.bind(row, spec),
            Self::Plain(executor) => executor.bind(row, spec),
            Self::Sim(executor) => executor.bind(row, spec),
        }
    }

    fn submit(&mut self, step: Box<Step>) -> Result<AnyPending, Refused> {
        match self {
            Self::Cpu(executor) => executor.submit(step).map(AnyPending::Cpu),
            Self::Plain(executor) => executor.submit(step).map(AnyPending::Plain),
            Self::Sim(executor) => executor.submit(step).map(AnyPending::Sim),
        }
    }

    fn wait(&mut self, pending: AnyPending) -> (Box<Step>, Result<(), StepError>) {
        match (self, pending) {
            (Self::Cpu(executor), AnyPending::Cpu(ran)) => executor.wait(ran),
            (Self::Plain(executor), AnyPending::Plain(ran)) => executor.wait(ran),
            (Self::Sim(executor), AnyPending::Sim(ticket)) => executor.wait(ticket),
            // A step of another executor's is given back as it came, with what went wrong.
            (_, AnyPending::Cpu(ran) | AnyPending::Plain(ran)) => (ran.into_parts().0, Err(foreign())),
            // The simulated device keeps its steps itself; there is none to give back.
            (_, AnyPending::Sim(_)) => (Box::default(), Err(foreign())),
        }
    }
}

fn foreign() -> StepError {
    StepError::Failed("the step was submitted to another executor".into())
}
