//! Shared prefixes of the library: K/V prefilled once, frozen, and read by any number of sessions
//! (cascade of frozen pools).
//!
//! With recurrent layers, the prefix also freezes their states at
//! [`state_positions`](kvasir_kv::SharedPrefix::state_positions). A session starts from the last
//! frozen state at a multiple of its block size.

use crate::backend::{AnyExecutor, AnyPool};
use crate::error::Error;
use crate::load::ExecutorSizes;
use crate::model::Model;
use crate::prefill::{CHUNK, feed};
use crate::prompt::Prompt;
use kvasir_cpu::KvType;
use kvasir_kv::{Cache, CacheConfig, CacheError, CacheKind, PoolId, StateConfig, Token, build};
use std::sync::Arc;

/// Options of a [`SharedPrefix`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixOptions {
    /// K/V data type; the model's default if `None`. Sessions on the prefix use the same.
    pub kv: Option<KvType>,
    /// Maximum length of conversations on it. Matters for models whose RoPE scaling depends on the
    /// final length; the prefix's own length if `None`.
    pub longest: Option<u32>,
}

/// A token prefix whose K/V is prefilled once and frozen, for any number of sessions.
///
/// Each session has its own cache, capacity and thread and reads the same K/V rows, which are
/// immutable and never copied. They are freed when this handle and the last session on it are
/// dropped.
///
/// ```
/// use kvasir::{CacheKind, CacheOptions, Kvasir, Options, Params, PrefixOptions};
/// # fn main() -> Result<(), kvasir::Error> {
/// let kvasir = Kvasir::built_in(Options::default())?;
/// let system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n";
/// let prefix = kvasir.freeze(system, PrefixOptions::default())?;
///
/// // Two independent conversations, each with its own type of cache.
/// let mut one = prefix.session(CacheOptions::new(CacheKind::Contiguous).capacity(512))?;
/// let mut other = prefix.session(CacheOptions::new(CacheKind::Cells).capacity(2048))?;
/// for (session, what) in [(&mut one, "2 + 2"), (&mut other, "7 + 8")] {
///     let main = session.main();
///     assert_eq!(session.tokens(main)?, prefix.tokens());
///     session.append(main, format!("<|im_start|>user\nWhat is {what}?<|im_end|>\n<|im_start|>assistant\n").as_str())?;
///     let answer = session.generate(main, &Params { max_tokens: 20, ..Params::default() })?;
///     println!("{:?}; {} tokens were there already", answer.text, answer.cached);
/// #   assert!(answer.cached > 0 && answer.text.is_some_and(|text| text.starts_with(what)));
/// }
/// # Ok(()) }
/// ```
pub struct SharedPrefix {
    model: Arc<Model>,
    frozen: kvasir_kv::SharedPrefix,
    tokens: Vec<Token>,
    kv: KvType,
    extent: Extent,
    /// Frozen pools: number 1 holds the first prefix, each further one an extension.
    pools: Vec<AnyPool>,
}

impl SharedPrefix {
    pub(crate) fn new(model: Arc<Model>, prompt: Prompt, options: PrefixOptions) -> Result<Self, Error> {
        if model.loaded.simulated().is_some() {
            return Err(Error::invalid("backend", "the sim backend keeps no K and V to share"));
        }
        let tokens = model.ids(prompt, true)?;
        model.loaded.check_prompt(&tokens)?;
        let (kv, rows) = (options.kv.unwrap_or(model.loaded.kv()), tokens.len() as u32);
        let extent = Extent { rows, longest: options.longest.unwrap_or(rows) };
        if extent.longest < rows {
            let reason = format!("`{}` is less than the prefix's {rows} tokens", extent.longest);
            return Err(Error::invalid("longest", reason));
        }
        let Prefill { mut executor, mut cache } = Prefill::new(&model, rows, kv)?;
        let marks = kvasir_kv::SharedPrefix::state_positions(rows);
        feed(&mut executor, &mut *cache, &tokens, extent.longest, &marks)?;
        let frozen = kvasir_kv::SharedPrefix::freeze(cache, PoolId(1)).map_err(broken)?;
        let pools = executor.into_pool().into_iter().collect();
        Ok(Self { model, frozen, tokens, kv, extent, pools })
    }

    /// Extends the prefix: only the new tokens are computed and stored.
    pub fn extend(&self, prompt: impl Into<Prompt>) -> Result<Self, Error> {
        let new = self.model.ids(prompt.into(), false)?;
        let tokens = [&self.tokens[..], &new].concat();
        self.model.loaded.check_prompt(&tokens)?;
        self.extent.check(&self.model, tokens.len())?;
        let rows = new.len() as u32;
        let Prefill { mut executor, cache } = Prefill::new(&self.model, rows, self.kv)?;
        self.attach(|id, pool| executor.attach(id, pool))?;
        let mut cache = self.frozen.under(cache).map_err(broken)?;
        let marks = kvasir_kv::SharedPrefix::state_positions(tokens.len() as u32);
        feed(&mut executor, &mut cache, &new, self.extent.longest, &marks)?;
        let number = PoolId(self.pools.len() as u32 + 1);
        let frozen = cache.freeze(number).map_err(|refused| broken(refused.1))?;
        let pools = self.pools.iter().cloned().chain(executor.into_pool()).collect();
        let extent = Extent { rows: tokens.len() as u32, ..self.extent };
        Ok(Self { model: Arc::clone(&self.model), frozen, tokens, kv: self.kv, extent, pools })
    }

    /// Tokens of the prefix.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// K/V data type.
    pub fn kv(&self) -> KvType {
        self.kv
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub(crate) fn frozen(&self) -> &kvasir_kv::SharedPrefix {
        &self.frozen
    }

    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }

    /// Calls `take` with every pool and its id.
    pub(crate) fn attach(
        &self,
        mut take: impl FnMut(PoolId, &AnyPool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        (1..).zip(&self.pools).try_for_each(|(number, pool)| take(PoolId(number), pool))
    }
}

/// Maximum checkpoints that a prefill holds at the same time: those at the three marks, at the last
/// two block boundaries, and at the next boundary, stored before the older of the two is evicted.
const CHECKPOINTS: u32 = 6;

/// The executor and the cache that prefill a prefix, or the extension of one.
struct Prefill {
    executor: AnyExecutor,
    cache: Box<dyn Cache>,
}

impl Prefill {
    fn new(model: &Model, slots: u32, kv: KvType) -> Result<Self, Error> {
        let config = StateConfig { live: 1, checkpoints: CHECKPOINTS, tail_rows: 0, interval: 0 };
        let states = model.loaded.program().is_recurrent().then_some(config);
        let (tokens, kv) = (CHUNK as u32, Some(kv));
        let sizes = ExecutorSizes { slots, tokens, rows: 1, kv, ring: None, group_slots: None, states };
        let executor = model.loaded.executor_with(sizes)?;
        let config = CacheConfig { states, ..CacheConfig::new(slots) };
        Ok(Self { executor, cache: build(CacheKind::Contiguous, &config).map_err(broken)? })
    }
}

/// Length of a shared prefix and of conversations on it.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    /// Length of the prefix in tokens.
    pub(crate) rows: u32,
    /// Maximum length of conversations on it.
    longest: u32,
}

impl Extent {
    /// Rejects conversations of `tokens` tokens if their RoPE angles differ from the prefix's.
    pub(crate) fn check(self, model: &Model, tokens: usize) -> Result<(), Error> {
        let program = model.loaded.program();
        let (tokens, longest) = (tokens.min(program.max_positions) as u32, self.longest);
        if program.prefix_salt(tokens) == program.prefix_salt(longest) {
            Ok(())
        } else {
            Err(Error::invalid(
                "longest",
                format!(
                    "the conversation may come to `{tokens}` tokens and its shared prefix was made for {longest}: \
                     this model rotates their rows by other angles (PrefixOptions::longest)"
                ),
            ))
        }
    }
}

fn broken(error: CacheError) -> Error {
    Error::Failed(error.to_string())
}
