//! Static dispatch over the execution backends (CPU, plain reference, simulated), behind one
//! `Executor`.

use crate::error::Error;
use kvasir_cpu::CpuExecutor;
use kvasir_exec::{
    Abilities, Background, Executor, KvAccess, KvLayout, NoKvAccess, PoolRow, Ran, RankExecutor, Refused,
    SequenceSpec, Step, StepError,
};
use kvasir_kv::{GroupId, PoolId, Slot};
use kvasir_plain::PlainExecutor;
use kvasir_sim::{Paced, Preset};
use std::{ops::Range, sync::Arc};

/// `--backend`: which executor runs the model.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum BackendKind {
    /// The fastest backend available on this machine.
    #[default]
    Auto,
    /// The CPU backend, with the best instruction set detected.
    Cpu,
    /// The reference backend: f32, single-threaded, an explicit mask per query. The test oracle.
    Plain,
    /// Simulated device: computes nothing and emits arbitrary tokens with this preset's timing. For
    /// load tests.
    Sim(Box<Preset>),
}

/// An executor of the chosen backend.
#[non_exhaustive]
pub enum AnyExecutor {
    /// CPU backend.
    Cpu(Box<CpuExecutor>),
    /// Reference backend.
    Plain(Box<PlainExecutor>),
    /// CPU or reference backend as the leading rank of a tensor-parallel group, or as an
    /// expert-parallel replica.
    Ranked(Box<RankExecutor>),
    /// CPU, reference or ranked backend, on its own thread.
    Background(Background),
    /// Simulated device.
    Sim(Box<Paced>),
}

/// K/V and recurrent states of a frozen shared prefix, in one backend's layout.
#[derive(Clone)]
#[non_exhaustive]
pub enum AnyPool {
    /// CPU backend.
    Cpu(kvasir_cpu::FrozenPool),
    /// Reference backend.
    Plain(Arc<kvasir_plain::FrozenPool>),
}

impl AnyExecutor {
    /// The executor on a thread of its own, so that steps overlap with scheduling; the simulated
    /// device is none of this process anyway. Fails if the system gives no thread.
    pub fn on_thread(self) -> Result<Self, Error> {
        let started = match self {
            Self::Cpu(executor) => Background::start(*executor),
            Self::Plain(executor) => Background::start(*executor),
            Self::Ranked(executor) => Background::start(*executor),
            Self::Background(_) | Self::Sim(_) => return Ok(self),
        };
        started.map(Self::Background).map_err(|e| Error::Failed(format!("no thread for steps: {e}")))
    }

    /// Converts the executor into its pools, to be read as a frozen prefix; `None` for the
    /// simulated device, for tensor-parallel ranks, and while another thread owns the pool.
    pub(crate) fn into_pool(self) -> Option<AnyPool> {
        match self {
            Self::Cpu(executor) => Some(AnyPool::Cpu(executor.into_pool())),
            Self::Plain(executor) => Some(AnyPool::Plain(executor.into_pool())),
            Self::Ranked(_) | Self::Background(_) | Self::Sim(_) => None,
        }
    }

    /// Attaches a frozen pool under `id`, so that plans can read it. Fails if the pool is another
    /// backend's.
    pub(crate) fn attach(&mut self, id: PoolId, pool: &AnyPool) -> Result<(), Error> {
        match (self, pool) {
            (Self::Cpu(executor), AnyPool::Cpu(pool)) => {
                executor.attach(id, pool.clone()).map_err(|why| Error::invalid("prefix", why))
            }
            (Self::Plain(executor), AnyPool::Plain(pool)) => {
                executor.attach(id, Arc::clone(pool));
                Ok(())
            }
            (Self::Background(_), _) => Err(Error::Failed("the pool belongs to another thread".into())),
            (Self::Ranked(_), _) => Err(Error::Failed(
                "a frozen prefix cannot be attached to a tensor-parallel rank; load it with one rank".into(),
            )),
            (Self::Cpu(_) | Self::Plain(_) | Self::Sim(_), _) => {
                Err(Error::Failed("the prefix is another backend's".into()))
            }
        }
    }
}

/// An in-flight step.
#[non_exhaustive]
pub enum AnyPending {
    /// CPU backend.
    Cpu(Ran),
    /// Reference backend.
    Plain(Ran),
    /// Leading rank of a tensor-parallel group.
    Ranked(Ran),
    /// A backend on a thread of its own.
    Background,
    /// Simulated device.
    Sim(u64),
}

impl Executor for AnyExecutor {
    type Pending = AnyPending;

    fn abilities(&self) -> Abilities {
        match self {
            Self::Cpu(executor) => executor.abilities(),
            Self::Plain(executor) => executor.abilities(),
            Self::Ranked(executor) => executor.abilities(),
            Self::Background(executor) => executor.abilities(),
            Self::Sim(executor) => executor.abilities(),
        }
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        match self {
            Self::Cpu(executor) => executor.bind(row, spec),
            Self::Plain(executor) => executor.bind(row, spec),
            Self::Ranked(executor) => executor.bind(row, spec),
            Self::Background(executor) => executor.bind(row, spec),
            Self::Sim(executor) => executor.bind(row, spec),
        }
    }

    fn submit(&mut self, step: Box<Step>) -> Result<AnyPending, Refused> {
        match self {
            Self::Cpu(executor) => executor.submit(step).map(AnyPending::Cpu),
            Self::Plain(executor) => executor.submit(step).map(AnyPending::Plain),
            Self::Ranked(executor) => executor.submit(step).map(AnyPending::Ranked),
            Self::Background(executor) => executor.submit(step).map(|()| AnyPending::Background),
            Self::Sim(executor) => executor.submit(step).map(AnyPending::Sim),
        }
    }

    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) {
        match self {
            Self::Cpu(executor) => executor.release(group, slots),
            Self::Plain(executor) => executor.release(group, slots),
            Self::Ranked(executor) => executor.release(group, slots),
            Self::Background(executor) => executor.release(group, slots),
            Self::Sim(executor) => executor.release(group, slots),
        }
    }

    fn kv_layout(&self) -> Result<KvLayout, NoKvAccess> {
        match self {
            Self::Cpu(executor) => executor.kv_layout(),
            Self::Plain(executor) => executor.kv_layout(),
            Self::Ranked(executor) => executor.kv_layout(),
            Self::Background(executor) => executor.kv_layout(),
            Self::Sim(_) => Err(NoKvAccess("a simulated device stores no K and V")),
        }
    }

    fn access_kv(&mut self, access: KvAccess) {
        match self {
            Self::Cpu(executor) => executor.access_kv(access),
            Self::Plain(executor) => executor.access_kv(access),
            Self::Ranked(executor) => executor.access_kv(access),
            Self::Background(executor) => executor.access_kv(access),
            Self::Sim(executor) => executor.access_kv(access),
        }
    }

    fn wait(&mut self, pending: AnyPending) -> (Box<Step>, Result<(), StepError>) {
        match (self, pending) {
            (Self::Cpu(executor), AnyPending::Cpu(ran)) => executor.wait(ran),
            (Self::Plain(executor), AnyPending::Plain(ran)) => executor.wait(ran),
            (Self::Ranked(executor), AnyPending::Ranked(ran)) => executor.wait(ran),
            (Self::Background(executor), AnyPending::Background) => executor.wait(()),
            (Self::Sim(executor), AnyPending::Sim(ticket)) => executor.wait(ticket),
            // A foreign step is returned unchanged, with an error.
            (_, AnyPending::Cpu(ran) | AnyPending::Plain(ran) | AnyPending::Ranked(ran)) => {
                (ran.into_parts().0, Err(foreign()))
            }
            // The others keep their steps, so there is none to return.
            (_, AnyPending::Background | AnyPending::Sim(_)) => (Box::default(), Err(foreign())),
        }
    }
}

fn foreign() -> StepError {
    StepError::Failed("the step was submitted to another executor".into())
}
