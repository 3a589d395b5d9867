//! `LoadObserver`: publishes K/V blocks in use and the hit rate of the prefix cache to Dynamo's
//! router, whenever they change.

use dynamo_backend_common::{ComponentSnapshot, SnapshotPublisher};
use kvasir_engine::{Core, Nanos, Observer};
use kvasir_exec::{Step, StepError};
use std::sync::{Arc, OnceLock};

/// Dynamo's publisher; empty until Dynamo has created it.
pub(crate) type PublisherCell = Arc<OnceLock<Arc<SnapshotPublisher>>>;

pub(crate) struct LoadObserver {
    publisher: PublisherCell,
    prompt_tokens: u64,
    hit_tokens: u64,
    last: Option<ComponentSnapshot>,
}

impl LoadObserver {
    pub(crate) fn new(publisher: PublisherCell) -> Self {
        Self { publisher, prompt_tokens: 0, hit_tokens: 0, last: None }
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
            kv_cache_hit_rate: (self.prompt_tokens > 0)
                .then(|| self.hit_tokens as f32 / self.prompt_tokens as f32),
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
            self.prompt_tokens += u64::from(prompt);
            self.hit_tokens += u64::from(admission.hit);
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
