//! Parses a Spyre case into policy, limits, cache config and synthetic prompts.

use crate::case::{Case, CaseError};
use kvasir_engine::rectangular::Rules;
use kvasir_engine::{Limits, RectangularConfig};
use kvasir_kv::Token;
use kvasir_kv::blocks::BlockConfig;
use serde::Deserialize;
use serde_json::Value;

/// The EOS token, with which the script ends a completion before its cap.
pub(crate) const EOS: Token = 1;
/// Upper bound on prompt lengths, outputs, rows and blocks of a case.
pub(crate) const MOST: u32 = 1 << 20;
/// Upper bound on the number of requests.
pub(crate) const MOST_REQUESTS: usize = 64;

/// The case's `config` object.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Config {
    pub(super) max_num_seqs: u32,
    pub(super) max_model_len: u32,
    pub(super) chunk_size: u32,
    pub(super) block_size: u32,
    max_batch_tkv_limit: Option<u64>,
    effective_batch_tkv_limit: Option<u64>,
    usable_blocks: Option<u32>,
    num_blocks_override: Option<u32>,
    prefix_caching: Option<bool>,
    interleave: Option<bool>,
    pausing: Option<bool>,
    long_output_priority: Option<bool>,
}

/// A part of a prompt: a token range of one stream.
#[derive(Clone, Debug, Deserialize)]
struct Segment {
    seed: Option<u32>,
    text: Option<u32>,
    unseeded: Option<u32>,
    output_of: Option<String>,
    from: u32,
    to: u32,
}

/// One entry of the case's `requests`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RequestSpec {
    pub(super) id: String,
    #[serde(default)]
    pub(super) add_step: u64,
    pub(super) max_tokens: u32,
    pub(super) stop_after_tokens: Option<u32>,
    prompt: Vec<Segment>,
}

/// A parsed case.
pub(crate) struct Scenario {
    pub(super) config: Config,
    pub(super) requests: Vec<RequestSpec>,
    pub(super) policy: RectangularConfig,
    pub(super) limits: Limits,
    pub(super) blocks: BlockConfig,
}

/// Token `at` of a stream. Different streams share no tokens.
pub(crate) fn stream(kind: u32, seed: u32, at: u32) -> Token {
    2 + (kind * 64 + seed % 64) * MOST + at
}

/// Output token `at` of the given request.
pub(crate) fn output(request: usize, at: u32) -> Token {
    stream(3, request as u32, at)
}

impl Scenario {
    /// Parses a case. `rules` and `pausing` are defaults where the case does not set them.
    pub(super) fn read(case: &Case, rules: Rules, pausing: bool) -> Result<Self, CaseError> {
        let part = |name: &str| case.body.get(name).cloned().unwrap_or(Value::Array(Vec::new()));
        let bad = |name: &str, e: serde_json::Error| case.error(format!("field `{name}`: {e}"));
        let config: Config =
            serde_json::from_value(case.field("config")?.clone()).map_err(|e| bad("config", e))?;
        let requests: Vec<RequestSpec> =
            serde_json::from_value(part("requests")).map_err(|e| bad("requests", e))?;
        let too_long = |r: &RequestSpec| {
            let tokens = |s: &Segment| u64::from(s.to.saturating_sub(s.from));
            r.max_tokens > MOST
                || r.prompt.iter().any(|s| s.to > MOST || s.from > s.to)
                || r.prompt.iter().map(tokens).sum::<u64>() > u64::from(MOST)
        };
        if requests.len() > MOST_REQUESTS || requests.iter().any(too_long) {
            return Err(case.error("field `requests`: more or longer than a replay takes"));
        }
        let Config { max_num_seqs: rows, max_model_len: length, chunk_size, block_size, .. } = config;
        let sizes = [rows, length, block_size, chunk_size];
        if !sizes.iter().all(|size| (1..=MOST).contains(size)) || !chunk_size.is_multiple_of(block_size) {
            return Err(
                case.error(format!("field `config`: sizes must be 1 to {MOST} and a chunk whole blocks"))
            );
        }
        let volume = config.effective_batch_tkv_limit.or(config.max_batch_tkv_limit);
        let policy = RectangularConfig {
            chunk_size,
            max_batch: rows,
            max_batch_tkv: volume.unwrap_or(u64::from(rows) * u64::from(length)),
            interleave: config.interleave.unwrap_or(true),
            rules,
            pausing: config.pausing.unwrap_or(pausing),
            long_output_first: config.long_output_priority.unwrap_or(false),
        };
        let sharing = config.prefix_caching.unwrap_or(false);
        let limits = Limits {
            // Paused requests count against the core's limit but not against the policy's.
            max_num_seqs: 4 * rows + 64,
            max_num_batched_tokens: chunk_size.max(4 * rows),
            max_model_len: length,
            prefix_cache: sharing,
            ..Limits::default()
        };
        // The same number of blocks for every row, including the dummy block.
        let default = (rows.saturating_mul(length / block_size) + 1).next_multiple_of(rows);
        let total = config.num_blocks_override.map_or(default, |blocks| blocks / rows * rows);
        let usable = config.usable_blocks.unwrap_or(total.saturating_sub(1));
        if usable > MOST {
            return Err(case.error(format!("field `config`: more than {MOST} blocks")));
        }
        let blocks = BlockConfig {
            block_size,
            blocks: usable,
            max_sequences: 1 << 12,
            sharing,
            dummy: true,
            ..BlockConfig::default()
        };
        Ok(Self { config, requests, policy, limits, blocks })
    }

    /// The prompt of request `which`.
    pub(super) fn prompt(&self, which: usize) -> Vec<Token> {
        let segments = self.requests.get(which).map(|request| request.prompt.as_slice()).unwrap_or_default();
        let mut prompt = Vec::new();
        for s in segments {
            let by_name = |id: &String| self.requests.iter().position(|request| request.id == *id);
            let (kind, number) = match (s.seed, s.text, s.unseeded) {
                (Some(seed), ..) => (0, seed),
                (_, Some(text), _) => (1, text),
                (.., Some(i)) => (2, i),
                _ => (3, s.output_of.as_ref().and_then(by_name).unwrap_or(63) as u32),
            };
            prompt.extend((s.from..s.to).map(|at| stream(kind, number, at)));
        }
        prompt
    }
}
