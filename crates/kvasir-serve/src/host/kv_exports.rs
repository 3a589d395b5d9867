//! The K/V blocks that an engine in this process exports, as a channel.

use crate::host::lock::{Mutex, locked};
use kvasir_engine::{Engine, KvExport, KvTransferError};
use kvasir_exec::{Executor, KvLayout};
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The K/V exports of an engine, with one subscriber at a time.
#[derive(Clone, Debug)]
pub struct KvExports {
    /// Layout of the rows.
    pub(crate) layout: KvLayout,
    /// Tokens per block.
    pub(crate) block_size: u32,
    subscriber: Arc<Mutex<Option<UnboundedSender<KvExport>>>>,
}

impl KvExports {
    /// Registers as the receiver of the exports of `engine`. Fails if the engine cannot export and
    /// import K/V blocks.
    pub fn of<E: Executor>(engine: &mut Engine<E>) -> Result<Self, KvTransferError> {
        let subscriber = Arc::new(Mutex::new(None::<UnboundedSender<KvExport>>));
        let to = subscriber.clone();
        let layout = engine.export_kv(Arc::new(move |export| {
            if let Some(sender) = &*locked(&to) {
                // The subscriber may have been dropped, if its client has disconnected.
                let _ = sender.send(export);
            }
        }))?;
        Ok(Self { layout, block_size: engine.core().cache().shape().block_size, subscriber })
    }

    /// Receives all later exports and replaces an earlier subscriber. The channel is unbounded: the
    /// caller must bound how much its requests export.
    pub(crate) fn subscribe(&self) -> UnboundedReceiver<KvExport> {
        let (sender, receiver) = unbounded_channel();
        *locked(&self.subscriber) = Some(sender);
        receiver
    }
}
