//! [`MemoryDivision`]: divides the memory that the weights leave among K/V slots of the full group
//! and of window groups, live recurrent states and checkpoints of states.
//!
//! `M` is the engine's share of that memory. A live state takes `live = state + tail` bytes, where
//! the tail has a row per draft token. Between steps, a sequence holds at most `W` slots of a window
//! group. Steps in flight write at most `S = max_num_batched_tokens` rows; `overlap` doubles `S`.
//!
//! 1. *Checkpoints*: `C = state_memory / state`. The default is `M / 8`, at most a checkpoint per
//!    256 slots of the requested K/V capacity, at least 4 checkpoints.
//! 2. *Sequences*: `n = (M - C state - S window) / (T full + W window + live)`, in
//!    `1 ..= max_num_seqs`, for sequences of `T = min(max_model_len, 8192)` tokens.
//! 3. *Live states*: `L = n`. *Windows*: `n W + S` slots, at most as many as the full group has.
//! 4. *Full group*: as many slots as the rest holds, at most `Facts::max_default_capacity`.
//!
//! If `kv_capacity` is set, `M` is all of the memory, and the full group takes its slots first. By
//! default, checkpoints then get at most half of the remainder, and `n` is the number of live states
//! and windows in the rest. If the memory is unknown or overcommitted, default checkpoints take at
//! most as much as the full group, and so do live states and windows together.
//!
//! Window layers that join the full group are part of its slots (`JoinReason`). Without states,
//! `C = L = 0`. Invariant: unless memory is overcommitted or unknown, the parts never exceed `M`;
//! `division_never_exceeds_the_memory` guards it.

mod kv_sizes;

use crate::config::EngineConfig;
use crate::config::error::{ConfigError, MAX_TOKENS, checked_count, ensure};
use crate::config::facts::{Facts, GroupFacts};
use crate::config::join_reason::JoinReason;
use crate::config::memory_division::kv_sizes::KvSizes;
use crate::scheduler::limits::Limits;
use kvasir_kv::{CacheKind, StateConfig, WindowConfig};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};

/// Maximum blocks of a pool.
const MAX_BLOCKS: u32 = 1 << 24;
/// Maximum checkpoints.
const MAX_CHECKPOINTS: u64 = 1 << 24;
/// Minimum checkpoints by default.
const MIN_CHECKPOINTS: u64 = 4;
/// Checkpoints get `1 / CHECKPOINT_DIVISOR` of the memory by default.
const CHECKPOINT_DIVISOR: u64 = 8;
/// Maximum sequence length for which step 2 counts K/V.
const TYPICAL_TOKENS: u32 = 8192;
/// Bounds of the default checkpoint interval. Storing a checkpoint takes little time, and those
/// that are rarely used are evicted first, so the interval stays short even for large states.
const MIN_INTERVAL: u64 = 256;
const MAX_INTERVAL: u64 = 512;

/// The pools of an engine's cache, with sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDivision {
    /// KV cache slots of the full group.
    pub slots: u32,
    /// Bytes of a slot of the full group: K and V of a token in its layers.
    pub slot_bytes: u64,
    /// Whether memory holds more slots than `Facts::max_default_capacity` allows.
    pub is_capped: bool,
    /// The window groups, from narrow to wide.
    #[serde(default)]
    pub windows: Vec<WindowDivision>,
    /// Why window layers store K and V of all tokens, if they join the full group.
    #[serde(default)]
    pub joined_windows: Option<JoinReason>,
    /// Recurrent states, if the model has any.
    pub states: Option<StateDivision>,
}

/// The pool of a window group, with sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowDivision {
    /// Window, slots and longest draft.
    pub config: WindowConfig,
    /// Bytes of a slot: K and V of a token in the layers of the group.
    pub slot_bytes: u64,
}

impl WindowDivision {
    /// Bytes of K and V.
    pub fn bytes(&self) -> u64 {
        self.slot_bytes.saturating_mul(self.config.capacity.into())
    }
}

/// The pool of recurrent states, with sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDivision {
    /// Numbers of live states, checkpoints and tail rows, and the interval of checkpoints.
    pub config: StateConfig,
    /// Bytes of a state.
    pub state_bytes: u64,
    /// Bytes of the tail of a live state.
    pub tail_bytes: u64,
}

impl StateDivision {
    /// Bytes of a live state with its tail.
    fn live_state_bytes(&self) -> u64 {
        self.state_bytes.saturating_add(self.tail_bytes)
    }

    /// Bytes of all live states with their tails.
    pub fn live_bytes(&self) -> u64 {
        self.live_state_bytes().saturating_mul(self.config.live.into())
    }

    /// Bytes of all checkpoints.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.state_bytes.saturating_mul(self.config.checkpoints.into())
    }

    /// Bytes of all live states and checkpoints.
    fn bytes(&self) -> u64 {
        self.live_bytes().saturating_add(self.checkpoint_bytes())
    }
}

/// Unassigned memory in bytes; `None` is unlimited.
#[derive(Clone, Copy)]
struct FreeMemory(Option<u64>);

impl FreeMemory {
    fn minus(self, bytes: u64) -> Self {
        Self(self.0.map(|free| free.saturating_sub(bytes)))
    }

    /// How many items of `item_bytes` bytes fit, at most `max`.
    fn count_fitting(self, item_bytes: u64, max: u32) -> u32 {
        let count = self.0.map_or(u64::MAX, |free| free / item_bytes.max(1));
        count.min(max.into()) as u32
    }
}

/// Properties of a cache on which the division of its memory depends.
#[derive(Clone, Copy)]
pub(super) struct CacheTraits {
    pub(super) kind: CacheKind,
    pub(super) block_size: u32,
    /// Whether a step is claimed while another one runs.
    pub(super) overlaps: bool,
}

impl MemoryDivision {
    /// Divides the memory of an engine. Fails if it holds less than one sequence, or less than the
    /// given capacity.
    pub(super) fn of(
        facts: &Facts,
        config: &EngineConfig,
        limits: &Limits,
        cache: CacheTraits,
    ) -> Result<Self, ConfigError> {
        let share = config.memory_share()?;
        let joined_windows = config.join_reason(facts, cache.kind);
        let step_rows = limits.max_num_batched_tokens.saturating_mul(1 + u32::from(cache.overlaps));
        let is_joined = joined_windows.is_some() || config.rings;
        let kv = KvSizes::new(facts, is_joined, cache.block_size, step_rows);
        let divider =
            Divider { facts, config, limits, block_size: cache.block_size, kv: &kv, joined_windows };
        divider.check_state_options()?;
        match config.kv_capacity {
            Some(slots) => divider.divide_with_capacity(slots),
            None => divider.divide_share(share),
        }
    }

    /// Bytes of K and V of the full group.
    fn full_bytes(&self) -> u64 {
        self.slot_bytes.saturating_mul(self.slots.into())
    }

    /// Bytes of K and V.
    pub fn kv_bytes(&self) -> u64 {
        let windows = self.windows.iter().map(WindowDivision::bytes);
        windows.fold(self.full_bytes(), u64::saturating_add)
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.kv_bytes().saturating_add(self.states.map_or(0, |states| states.bytes()))
    }
}

impl Display for MemoryDivision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots of K/V in {}", self.slots, Bytes(self.full_bytes()))?;
        self.windows.iter().try_for_each(|window| write!(f, "; {window}"))?;
        self.states.iter().try_for_each(|states| write!(f, "; {states}"))
    }
}

impl Display for WindowDivision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WindowConfig { window, capacity, .. } = self.config;
        write!(f, "{capacity} slots for windows of {window} tokens in {}", Bytes(self.bytes()))
    }
}

impl Display for StateDivision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StateConfig { live, checkpoints, interval, .. } = self.config;
        write!(f, "{live} live states in {}", Bytes(self.live_bytes()))?;
        write!(f, ", {checkpoints} checkpoints in {}", Bytes(self.checkpoint_bytes()))?;
        match interval {
            0 => write!(f, " without regular intervals"),
            _ => write!(f, " at intervals of {interval} tokens"),
        }
    }
}

/// A size, in the unit that leaves one to three digits before the point.
struct Bytes(u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} bytes", self.0),
            1_000..1_000_000 => write!(f, "{:.1} kB", bytes / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} MB", bytes / 1e6),
            _ => write!(f, "{:.2} GB", bytes / 1e9),
        }
    }
}

/// Number of sequences whose windows and live states fit into memory.
#[derive(Clone, Copy)]
struct SequenceDivision {
    count: u32,
    /// The state pool, with `count` live states.
    states: Option<StateDivision>,
}

/// Divides the memory of one engine.
#[derive(Clone, Copy)]
struct Divider<'a> {
    facts: &'a Facts,
    config: &'a EngineConfig,
    limits: &'a Limits,
    block_size: u32,
    kv: &'a KvSizes,
    joined_windows: Option<JoinReason>,
}

impl Divider<'_> {
    /// Refuses options of recurrent states for a model without any, and intervals beyond the
    /// maximum sequence length.
    fn check_state_options(self) -> Result<(), ConfigError> {
        if self.facts.states().is_some() {
            let interval = self.config.state_interval.unwrap_or(0);
            return ensure(interval <= MAX_TOKENS, || {
                ConfigError::invalid("state_interval", &interval, format!("is more than {MAX_TOKENS}"))
            });
        }
        let reason = "needs a model with recurrent layers";
        match self.config {
            EngineConfig { state_memory: Some(bytes), .. } => {
                Err(ConfigError::invalid("state_memory", bytes, reason))
            }
            EngineConfig { state_interval: Some(tokens), .. } => {
                Err(ConfigError::invalid("state_interval", tokens, reason))
            }
            _ => Ok(()),
        }
    }

    /// Maximum slots of a pool.
    fn max_slots(self) -> u32 {
        MAX_BLOCKS.saturating_mul(self.block_size)
    }

    /// Divides `share` of the memory.
    fn divide_share(self, share: f64) -> Result<MemoryDivision, ConfigError> {
        let bytes = self.facts.free_bytes.map(|bytes| (bytes as f64 * share) as u64);
        let bound = self.facts.max_default_capacity.unwrap_or(match bytes {
            Some(_) => u32::MAX,
            None => self.limits.max_model_len,
        });
        let mut bound = bound.min(self.max_slots());
        if self.kv.full_slot_bytes() == 0 {
            // Slots of a full group without layers take no memory: sequences bound their number.
            let Limits { max_num_seqs, max_model_len, .. } = *self.limits;
            bound = bound.min(max_num_seqs.saturating_mul(max_model_len.max(self.block_size)));
        }
        let memory = FreeMemory(bytes);
        let SequenceDivision { count, states } = self.divide_among_sequences(memory, bound)?;
        let kv_memory = memory.minus(states.map_or(0, |states| states.bytes()));
        let fitting = self.kv.slots_fitting(kv_memory, count, self.max_slots());
        let slots = fitting.min(bound);
        ensure(slots >= self.block_size, || {
            let reason = match (&states, bytes) {
                (Some(states), Some(bytes)) => format!("leaves {}", self.shortage(states, bytes)),
                _ => format!(
                    "leaves no room for a block of {} slots of {}",
                    self.block_size,
                    Bytes(self.kv.token_bytes())
                ),
            };
            ConfigError::invalid("memory_utilization", &share, reason)
        })?;
        let is_capped = self.facts.max_default_capacity.is_some() && bytes.is_some() && fitting > slots;
        Ok(MemoryDivision { is_capped, ..self.division(slots, SequenceDivision { count, states }) })
    }

    /// A division with `slots` slots in the full group, windows and live states for `sequences`.
    fn division(self, slots: u32, sequences: SequenceDivision) -> MemoryDivision {
        let windows = self.kv.window_configs(sequences.count, slots);
        MemoryDivision {
            slots,
            slot_bytes: self.kv.full_slot_bytes(),
            is_capped: false,
            windows: windows.map(|(config, slot_bytes)| WindowDivision { config, slot_bytes }).collect(),
            joined_windows: self.joined_windows,
            states: sequences.states,
        }
    }

    /// Gives the full group `slots` slots and divides the remaining memory among windows, live
    /// states and checkpoints.
    fn divide_with_capacity(self, slots: u32) -> Result<MemoryDivision, ConfigError> {
        checked_count("kv_capacity", Some(slots), slots, self.max_slots())?;
        ensure(slots >= self.block_size, || {
            let reason = format!("is less than a block of {} slots", self.block_size);
            ConfigError::invalid("kv_capacity", &slots, reason)
        })?;
        let bytes = self.facts.free_bytes.filter(|_| !self.config.overcommit);
        let needs_overcommit =
            |reason| Err(ConfigError::conflict(("kv_capacity", &slots), ("overcommit", &"off"), reason));
        let fitting = self.kv.slots_fitting(FreeMemory(bytes), 1, u32::MAX);
        if slots > fitting {
            let reason = format!("the memory that the weights leave free holds {fitting} slots");
            return needs_overcommit(reason);
        }
        let bytes = bytes.map(|bytes| bytes / u64::from(self.config.engines.max(1)));
        let sequences = self.divide_among_sequences(FreeMemory(bytes), slots)?;
        let division = self.division(slots, sequences);
        match (bytes, &division.states) {
            (Some(bytes), Some(states)) if division.bytes() > bytes => {
                needs_overcommit(format!("the weights leave {}", self.shortage(states, bytes)))
            }
            _ => Ok(division),
        }
    }

    /// Divides `memory` into checkpoints, live states and windows of sequences. The full group takes
    /// `bound` slots of it if `kv_capacity` is set, else at most `bound`. Counts at least one
    /// sequence, even if it does not fit.
    fn divide_among_sequences(self, memory: FreeMemory, bound: u32) -> Result<SequenceDivision, ConfigError> {
        let states = self.facts.states().map(|group| self.checkpoints_of(group, memory, bound));
        let mut states = states.transpose()?;
        let full_bytes = self.kv.full_slot_bytes().saturating_mul(bound.into());
        let free = memory.minus(states.map_or(0, |states| states.checkpoint_bytes()));
        let for_sequences = free.minus(self.kv.in_flight_bytes());
        let live_bytes = states.map_or(0, |states| states.live_state_bytes());
        let sequence_bytes = live_bytes.saturating_add(self.kv.window_bytes(u32::MAX));
        // Every running sequence owns at least one block.
        let max = self.limits.max_num_seqs.min(bound / self.block_size);
        let count = match (free.0, self.config.kv_capacity) {
            (None, _) if full_bytes == 0 => max,
            (None, _) => FreeMemory(Some(full_bytes)).count_fitting(sequence_bytes, max),
            (Some(_), Some(_)) => for_sequences.minus(full_bytes).count_fitting(sequence_bytes, max),
            (Some(_), None) => {
                let tokens = self.limits.max_model_len.min(TYPICAL_TOKENS);
                let full = self.kv.full_slot_bytes().saturating_mul(tokens.into());
                let kv = full.saturating_add(self.kv.window_bytes(tokens));
                for_sequences.count_fitting(kv.saturating_add(live_bytes), max)
            }
        };
        let count = count.max(1);
        states.iter_mut().for_each(|states| states.config.live = count);
        Ok(SequenceDivision { count, states })
    }

    /// A state pool with checkpoints and one live state; the caller sets the number of live states.
    fn checkpoints_of(
        self,
        group: &GroupFacts,
        memory: FreeMemory,
        bound: u32,
    ) -> Result<StateDivision, ConfigError> {
        let state_bytes = group.slot_bytes.max(1);
        let interval = self.config.state_interval;
        let config = StateConfig {
            live: 1,
            checkpoints: self.checkpoints(state_bytes, memory, bound)?,
            tail_rows: self.facts.longest_draft,
            interval: interval.unwrap_or_else(|| default_interval(state_bytes, self.kv.full_slot_bytes())),
        };
        let tail_bytes = group.tail_row_bytes.saturating_mul(self.facts.longest_draft.into());
        Ok(StateDivision { config, state_bytes, tail_bytes })
    }

    /// Number of checkpoints of `state_bytes` bytes in a pool of at most `bound` K/V slots.
    fn checkpoints(self, state_bytes: u64, memory: FreeMemory, bound: u32) -> Result<u32, ConfigError> {
        if let Some(bytes) = self.config.state_memory {
            let count = bytes / state_bytes;
            ensure(count <= MAX_CHECKPOINTS, || {
                let reason = format!("is more than {MAX_CHECKPOINTS} states of {}", Bytes(state_bytes));
                ConfigError::invalid("state_memory", &bytes, reason)
            })?;
            return Ok(count as u32);
        }
        let kv_bytes = self.kv.full_slot_bytes().saturating_mul(bound.into());
        let budget = match (memory.0, self.config.kv_capacity) {
            (None, _) => kv_bytes,
            (Some(bytes), None) => bytes / CHECKPOINT_DIVISOR,
            (Some(bytes), Some(_)) => (bytes / CHECKPOINT_DIVISOR).min(bytes.saturating_sub(kv_bytes) / 2),
        };
        let max_useful = (u64::from(bound) / MIN_INTERVAL).min(MAX_CHECKPOINTS);
        Ok((budget / state_bytes).min(max_useful).max(MIN_CHECKPOINTS) as u32)
    }

    /// Describes, for an error message, why `bytes` bytes hold less than one sequence.
    fn shortage(self, states: &StateDivision, bytes: u64) -> String {
        let (checkpoints, size) = (states.config.checkpoints, states.state_bytes);
        let slots = self.config.kv_capacity.unwrap_or(self.block_size);
        let mut windows = String::new();
        for (config, slot_bytes) in self.kv.window_configs(1, slots) {
            windows += &format!(" and {}", WindowDivision { config, slot_bytes });
        }
        format!(
            "{} for K/V and recurrent states, less than one sequence needs: {checkpoints} checkpoints \
             of {} each, a live state of {} and {slots} slots of K/V of {} each{windows}",
            Bytes(bytes),
            Bytes(size),
            Bytes(states.live_state_bytes()),
            Bytes(self.kv.full_slot_bytes()),
        )
    }
}

/// The interval in tokens at which regular checkpoints take about as much memory as K and V, within
/// its bounds: a power of two.
fn default_interval(state_bytes: u64, slot_bytes: u64) -> u32 {
    let tokens = state_bytes.div_ceil(slot_bytes.max(1)).clamp(MIN_INTERVAL, MAX_INTERVAL);
    tokens.next_power_of_two() as u32
}

#[cfg(test)]
mod tests;
