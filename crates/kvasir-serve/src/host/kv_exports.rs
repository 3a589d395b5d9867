//! Receives the K/V blocks that an engine in this process exports.

use crate::host::lock::{Mutex, locked};
use kvasir_engine::{Engine, KvExport, KvTransferError};
use kvasir_exec::{Executor, KvLayout};
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The exports of an engine, for one receiver at a time.
#[derive(Clone, Debug)]
pub struct KvExports {
    /// Layout of the rows.
    pub(crate) layout: KvLayout,
    /// Tokens of a block.
    pub(crate) block_size: u32,
    receiver: Arc<Mutex<Option<UnboundedSender<KvExport>>>>,
}

impl KvExports {
    /// Takes over the exports of `engine`. Fails if it cannot export and import K/V blocks.
    pub fn of<E: Executor>(engine: &mut Engine<E>) -> Result<Self, KvTransferError> {
        let receiver = Arc::new(Mutex::new(None::<UnboundedSender<KvExport>>));
        let to = receiver.clone();
        let layout = engine.export_kv(Arc::new(move |export| {
            if let Some(to) = &*locked(&to) {
                // The request's client may have left.
                let _ = to.send(export);
            }
        }))?;
        Ok(Self { layout, block_size: engine.core().cache().shape().block_size, receiver })
    }

    /// Receives the exports from now on, in place of an earlier receiver. The caller bounds how much
    /// its requests export: nothing slows the engine down.
    pub(crate) fn receive(&self) -> UnboundedReceiver<KvExport> {
        let (sender, receiver) = unbounded_channel();
        *locked(&self.receiver) = Some(sender);
        receiver
    }
}
