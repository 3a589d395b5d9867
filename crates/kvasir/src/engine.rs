use crate::{AnyExecutor, Error, Loaded};
use kvasir_cpu::KvType;
use kvasir_engine::{Core, Engine, Params, Request};
use kvasir_kv::{Rings, Token};
use std::time::Instant;

/// Most slots of a pool that nobody gave a size.
const DESK_SLOTS: u32 = 32768;

impl Loaded {
    /// An engine that runs a core over a pool of its own and the shared weights.
    pub fn engine(&self, core: Core, overlap: bool) -> Result<Engine<AnyExecutor>, Error> {
        self.engine_with(core, overlap, None)
    }

    /// The same, K and V stored as `kv`.
    pub(crate) fn engine_with(
        &self,
        core: Core,
        overlap: bool,
        kv: Option<KvType>,
    ) -> Result<Engine<AnyExecutor>, Error> {
        let cache = core.cache();
        // Some caches keep a dummy block beside those that they hand out.
        let slots = cache.capacity().saturating_add(cache.block_size());
        let limits = core.limits();
        let (tokens, rows) = (limits.max_num_batched_tokens, limits.max_num_seqs);
        let ring = cache.rings().map(Rings::longest_write);
        let executor = self.executor_with(slots, tokens, rows, kv, ring)?;
        // Only a simulated device runs beside the host. The others run a step while it is handed over: a next one before its tokens are taken in
        // would make everybody wait for two.
        let overlap = overlap && self.simulated().is_some();
        let started = Instant::now();
        let clock = move || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Engine::new(core, executor, clock).overlap(overlap))
    }

    /// A request for this model: refused if the prompt is not for it, and kept apart from prefixes that were turned by
    /// other angles.
    pub fn request(&self, prompt: Vec<Token>, params: Params) -> Result<Request, Error> {
        self.check_prompt(&prompt)?;
        if let Some((id, _)) = params.bias.iter().find(|(id, _)| *id as usize >= self.program().vocab) {
            return Err(Error::Asked(format!("the bias names id {id}, which is outside the vocabulary")));
        }
        let longest =
            prompt.len().saturating_add(params.max_tokens as usize).min(self.program().max_positions);
        // The lowest bit tells the two kinds of rows apart, the others keep tenants apart.
        let salt = params.salt.wrapping_shl(1) | self.program().prefix_salt(longest as u32);
        Ok(Request { tag: 0, prompt, params: Params { salt, ..params } })
    }

    /// Slots of a pool that nobody gave a size: a desk's memory is shared with everything else on it, so at most 32,768, and what fits into a
    /// share of what is free.
    pub fn desk_slots(&self, share: f64) -> u32 {
        self.slots_in_memory(share).map_or(DESK_SLOTS, |slots| slots.min(DESK_SLOTS))
    }

    /// Slots that a pool may have in a share of the memory that is free now; none where that is not known.
    pub fn slots_in_memory(&self, share: f64) -> Option<u32> {
        if let Some(preset) = self.simulated() {
            return Some(preset.slots(share));
        }
        let free = free_memory()? as f64;
        let slot = self.kv().slot_bytes(&self.program().layers) as f64;
        Some((free * share / slot.max(1.0)) as u32)
    }
}

/// Bytes that can be had without swapping, where the system says so.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
