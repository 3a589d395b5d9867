//! The load of the engine, as Dynamo's router reads it: K/V blocks in use and the hit rate of the
//! prefix cache.

use dynamo_backend_common::{ComponentSnapshot, SnapshotPublisher};
use kvasir_engine::{Core, Nanos, Observer};
use kvasir_exec::{Step, StepError};
use std::sync::{Arc, OnceLock};

/// The publisher, once Dynamo has made it.
pub(crate) type PublisherCell = Arc<OnceLock<Arc<SnapshotPublisher>>>;

/// Publishes the load after each step that changes it.
pub(crate) struct LoadObserver {
    publisher: PublisherCell,
    queried: u64,
    hit: u64,
    last: Option<ComponentSnapshot>,
}

impl LoadObserver {
    pub(crate) fn new(publisher: PublisherCell) -> Self {
        Self { publisher, queried: 0, hit: 0, last: None }
    }

    fn publish(&mut self, core: &Core) {
        let Some(publisher) = self.publisher.get() else { return };
        let (usage, shape) = (core.cache().usage(), core.cache().shape());
        let block = u64::from(shape.block_size.max(1));
        let (used, total) = (u64::from(usage.held + usage.leased), u64::from(shape.capacity));
        let snapshot = ComponentSnapshot {
            kv_used_blocks: used.div_ceil(block),
            kv_total_blocks: total / block,
            gpu_cache_usage: used as f32 / total.max(1) as f32,
            kv_cache_hit_rate: (self.queried > 0).then(|| self.hit as f32 / self.queried as f32),
            dp_rank: 0,
        };
        if self.last != Some(snapshot) {
            publisher.publish(0, snapshot);
            self.last = Some(snapshot);
        }
    }
}

impl Observer for LoadObserver {
    fn scheduled(&mut self, core: &Core, _: &Step) {
        for admission in &core.record().admitted {
            let prompt = core.sequence(admission.request).map_or(0, |sequence| sequence.len());
            self.queried += u64::from(prompt);
            self.hit += u64::from(admission.hit);
        }
        self.publish(core);
    }

    fn completed(&mut self, core: &Core, _: &Step, _: &Result<(), StepError>, _: Nanos) {
        self.publish(core);
    }

    fn idle(&mut self, core: &Core) {
        self.publish(core);
    }
}
