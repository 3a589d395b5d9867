//! Builds engines over loaded weights, prepares requests, and sizes KV cache pools from free
//! memory.

use crate::{AnyExecutor, Error, Loaded};
use kvasir_cpu::KvType;
use kvasir_engine::{Core, Engine, Params, Request};
use kvasir_kv::{Rings, Token};
use std::time::Instant;

/// Default maximum pool size, in slots.
const DESK_SLOTS: u32 = 32768;

impl Loaded {
    /// An engine over the shared weights, with a KV pool of its own.
    pub fn engine(&self, core: Core, overlap: bool) -> Result<Engine<AnyExecutor>, Error> {
        self.engine_with(core, overlap, None)
    }

    /// Builds an engine whose K/V has the data type `kv`.
    pub(crate) fn engine_with(
        &self,
        core: Core,
        overlap: bool,
        kv: Option<KvType>,
    ) -> Result<Engine<AnyExecutor>, Error> {
        let cache = core.cache();
        // Some caches use a dummy block beyond their capacity.
        let slots = cache.capacity().saturating_add(cache.block_size());
        let limits = core.limits();
        let (tokens, rows) = (limits.max_num_batched_tokens, limits.max_num_seqs);
        let ring = cache.rings().map(Rings::longest_write);
        let executor = self.executor_with(slots, tokens, rows, kv, ring)?;
        // Only the simulated device runs asynchronously. The others run a step inside `submit`, so
        // overlap would delay output by a step.
        let overlap = overlap && self.simulated().is_some();
        let started = Instant::now();
        let clock = move || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Engine::new(core, executor, clock).overlap(overlap))
    }

    /// Builds a request; rejects prompts that do not fit the model. The prefix salt separates K/V
    /// rotated with different RoPE angles.
    pub fn request(&self, prompt: Vec<Token>, params: Params) -> Result<Request, Error> {
        self.check_prompt(&prompt)?;
        if let Some((id, _)) = params.bias.iter().find(|(id, _)| *id as usize >= self.program().vocab) {
            return Err(Error::Asked(format!("the bias names id {id}, which is outside the vocabulary")));
        }
        let longest =
            prompt.len().saturating_add(params.max_tokens as usize).min(self.program().max_positions);
        // The lowest bit separates RoPE variants, the others separate tenants.
        let salt = params.salt.wrapping_shl(1) | self.program().prefix_salt(longest as u32);
        Ok(Request { tag: 0, prompt, params: Params { salt, ..params } })
    }

    /// Default pool size: at most 32,768 slots, within `share` of free memory.
    pub fn desk_slots(&self, share: f64) -> u32 {
        self.slots_in_memory(share).map_or(DESK_SLOTS, |slots| slots.min(DESK_SLOTS))
    }

    /// Slots that fit into `share` of free memory; `None` if unknown.
    pub fn slots_in_memory(&self, share: f64) -> Option<u32> {
        if let Some(preset) = self.simulated() {
            return Some(preset.slots(share));
        }
        let free = free_memory()? as f64;
        let slot = self.kv().slot_bytes(&self.program().layers) as f64;
        Some((free * share / slot.max(1.0)) as u32)
    }
}

/// Available memory in bytes (`MemAvailable`), if known.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
