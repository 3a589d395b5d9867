//! [`MemoryDivision`]: divides the memory that the weights leave among K/V slots, live recurrent
//! states and checkpoints of states.
//!
//! `M` is the engine's share of that memory. A live state takes `live = state + tail` bytes, where
//! the tail has a row per draft token.
//!
//! 1. *Checkpoints*: `C = state_memory / state`. The default is `M / 8`, at most a checkpoint per
//!    256 slots of the requested K/V capacity, at least 4 checkpoints.
//! 2. *Live states*: `L = (M - C state) / (T kv + live)`, in `1 ..= max_num_seqs`: as many as there
//!    are sequences of `T = min(max_model_len, 8192)` tokens in the rest.
//! 3. *K/V*: `(M - C state - L live) / kv` slots, at most `Facts::max_default_capacity`.
//!
//! If `kv_capacity` is set, `M` is all of the memory, and K/V takes its slots first. By default,
//! checkpoints then get at most half of the remainder, and live states the rest. If the memory is
//! unknown or overcommitted, live states and default checkpoints each take at most as much as K/V.
//!
//! A model without states has step 3 only, with `C = L = 0`. Invariant: unless memory is
//! overcommitted or unknown, the parts never exceed `M`; `division_never_exceeds_the_memory` guards
//! it.

use crate::config::EngineConfig;
use crate::config::error::{ConfigError, MAX_TOKENS, checked_count, ensure};
use crate::config::facts::{Facts, GroupFacts};
use crate::scheduler::limits::Limits;
use kvasir_kv::StateConfig;
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
/// Bounds of the default checkpoint interval.
const MIN_INTERVAL: u64 = 256;
const MAX_INTERVAL: u64 = 4096;

/// The memory of an engine's cache, by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDivision {
    /// KV cache slots.
    pub slots: u32,
    /// Bytes of a slot: K and V of a token in all layers.
    pub slot_bytes: u64,
    /// Whether memory holds more slots than `Facts::max_default_capacity` allows.
    pub is_capped: bool,
    /// Recurrent states, if the model has any.
    pub states: Option<StateDivision>,
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
    fn live(&self) -> u64 {
        self.state_bytes.saturating_add(self.tail_bytes)
    }

    /// Bytes of all live states with their tails.
    pub fn live_bytes(&self) -> u64 {
        self.live().saturating_mul(self.config.live.into())
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

impl MemoryDivision {
    /// Divides the memory of an engine whose cache has blocks of `block_size` slots. Fails if it
    /// holds less than one sequence, or less than the given capacity.
    pub fn of(
        facts: &Facts,
        config: &EngineConfig,
        limits: &Limits,
        block_size: u32,
    ) -> Result<Self, ConfigError> {
        let share = config.memory_share()?;
        let divider = Divider { facts, config, limits, block_size, slot_bytes: facts.kv_slot_bytes() };
        divider.check_state_options()?;
        match config.kv_capacity {
            Some(slots) => divider.divide_with_capacity(slots),
            None => divider.divide_share(share),
        }
    }

    /// Bytes of K and V.
    pub fn kv_bytes(&self) -> u64 {
        self.slot_bytes.saturating_mul(self.slots.into())
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.kv_bytes().saturating_add(self.states.map_or(0, |states| states.bytes()))
    }
}

impl Display for MemoryDivision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots of K/V in {}", self.slots, Bytes(self.kv_bytes()))?;
        self.states.iter().try_for_each(|states| write!(f, "; {states}"))
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

/// Divides the memory of one engine.
#[derive(Clone, Copy)]
struct Divider<'a> {
    facts: &'a Facts,
    config: &'a EngineConfig,
    limits: &'a Limits,
    block_size: u32,
    slot_bytes: u64,
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
        let bound = bound.min(self.max_slots());
        let memory = FreeMemory(bytes);
        let states = self.facts.states().map(|group| self.divide_states(group, memory, bound)).transpose()?;
        let kv_memory = memory.minus(states.map_or(0, |states| states.bytes()));
        let fitting = kv_memory.count_fitting(self.slot_bytes, self.max_slots());
        let slots = fitting.min(bound);
        ensure(slots >= self.block_size, || {
            let reason = match (&states, bytes) {
                (Some(states), Some(bytes)) => format!("leaves {}", self.shortage(states, bytes)),
                _ => format!(
                    "leaves no room for a block of {} slots of {}",
                    self.block_size,
                    Bytes(self.slot_bytes)
                ),
            };
            ConfigError::invalid("memory_utilization", &share, reason)
        })?;
        let is_capped = self.facts.max_default_capacity.is_some() && bytes.is_some() && fitting > slots;
        Ok(MemoryDivision { slots, slot_bytes: self.slot_bytes, is_capped, states })
    }

    /// Gives K/V `slots` slots and divides the remaining memory between live states and
    /// checkpoints.
    fn divide_with_capacity(self, slots: u32) -> Result<MemoryDivision, ConfigError> {
        checked_count("kv_capacity", Some(slots), slots, self.max_slots())?;
        ensure(slots >= self.block_size, || {
            let reason = format!("is less than a block of {} slots", self.block_size);
            ConfigError::invalid("kv_capacity", &slots, reason)
        })?;
        let bytes = self.facts.free_bytes.filter(|_| !self.config.overcommit);
        let needs_overcommit =
            |reason| Err(ConfigError::conflict(("kv_capacity", &slots), ("overcommit", &"off"), reason));
        let fitting = FreeMemory(bytes).count_fitting(self.slot_bytes, u32::MAX);
        if slots > fitting {
            let reason = format!("the memory that the weights leave free holds {fitting} slots");
            return needs_overcommit(reason);
        }
        let division = MemoryDivision { slots, slot_bytes: self.slot_bytes, is_capped: false, states: None };
        let Some(group) = self.facts.states() else { return Ok(division) };
        let bytes = bytes.map(|bytes| bytes / u64::from(self.config.engines.max(1)));
        let states = self.divide_states(group, FreeMemory(bytes), slots)?;
        let division = MemoryDivision { states: Some(states), ..division };
        match bytes {
            Some(bytes) if division.bytes() > bytes => {
                needs_overcommit(format!("the weights leave {}", self.shortage(&states, bytes)))
            }
            _ => Ok(division),
        }
    }

    /// Divides `memory` between live states and checkpoints. K/V takes `bound` slots of it if
    /// `kv_capacity` is set, else at most `bound`. At least one live state, even if it does not
    /// fit.
    fn divide_states(
        self,
        group: &GroupFacts,
        memory: FreeMemory,
        bound: u32,
    ) -> Result<StateDivision, ConfigError> {
        let (config, state_bytes) = (self.config, group.slot_bytes.max(1));
        let kv_bytes = self.slot_bytes.saturating_mul(bound.into());
        let tail_bytes = group.tail_row_bytes.saturating_mul(self.facts.longest_draft.into());
        let state_config = StateConfig {
            live: 1,
            checkpoints: self.checkpoints(state_bytes, memory, bound)?,
            tail_rows: self.facts.longest_draft,
            interval: config.state_interval.unwrap_or_else(|| default_interval(state_bytes, self.slot_bytes)),
        };
        let mut states = StateDivision { config: state_config, state_bytes, tail_bytes };
        let free = memory.minus(states.checkpoint_bytes());
        // Every running sequence owns at least one block.
        let max_live = self.limits.max_num_seqs.min(bound / self.block_size);
        let live = match (free.0, config.kv_capacity) {
            (None, _) => FreeMemory(Some(kv_bytes)).count_fitting(states.live(), max_live),
            (Some(_), Some(_)) => free.minus(kv_bytes).count_fitting(states.live(), max_live),
            (Some(_), None) => {
                let tokens = self.limits.max_model_len.min(TYPICAL_TOKENS);
                let kv = self.slot_bytes.saturating_mul(tokens.into());
                free.count_fitting(kv.saturating_add(states.live()), max_live)
            }
        };
        states.config.live = live.max(1);
        Ok(states)
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
        let kv_bytes = self.slot_bytes.saturating_mul(bound.into());
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
        let (checkpoints, size, block) = (states.config.checkpoints, states.state_bytes, self.block_size);
        format!(
            "{} for K/V and recurrent states, less than one sequence needs: {checkpoints} checkpoints \
             of {} each, a live state of {} and {} slots of K/V of {} each",
            Bytes(bytes),
            Bytes(size),
            Bytes(states.live()),
            self.config.kv_capacity.unwrap_or(block),
            Bytes(self.slot_bytes),
        )
    }
}

/// The interval in tokens at which regular checkpoints take about as much memory as K and V: a
/// power of two.
fn default_interval(state_bytes: u64, slot_bytes: u64) -> u32 {
    let tokens = state_bytes.div_ceil(slot_bytes.max(1)).clamp(MIN_INTERVAL, MAX_INTERVAL);
    tokens.next_power_of_two() as u32
}

#[cfg(test)]
mod tests;
