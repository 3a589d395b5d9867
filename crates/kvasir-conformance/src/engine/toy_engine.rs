//! Replays `atom.toy_engine`: whole workloads on the toy device, for every cache, policy and
//! overlap mode.
//!
//! Completions and final free blocks must be the recorded ones in each combination. The toy device
//! must report no violation of the KV cache contract.

use crate::case::{Case, CaseError};
use crate::compare::compare;
use crate::engine::{about, list, number, sequence, switch, tokens};
use crate::outcome::Outcome;
use kvasir_engine::{
    Chunked, Chunking, Core, Engine, EventOutput, Limits, Mixing, Order, Policy, PrefillFirst, Rectangular,
    RectangularConfig, Request, Turn,
};
use kvasir_kv::{Cache, Cells, Contiguous, Paged, Radix, TreeCache, blocks::BlockConfig};
use kvasir_sim::Toy;
use serde_json::{Map, Value, json};

const CACHES: [&str; 5] = ["paged", "radix", "cells", "contiguous", "tree"];
const POLICIES: [&str; 4] = ["prefill-first", "chunked", "mixed", "rectangular"];

/// Upper bound on engine steps; a workload that exceeds it counts as stuck.
const MOST_TURNS: u32 = 100_000;

/// `atom.toy_engine`: a whole workload under every combination of cache, policy and overlap
/// scheduling.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    replay(case).map_err(about(case))
}

fn replay(case: &Case) -> Result<Outcome, String> {
    let given = case.body.get("given").ok_or("field `given` is missing")?;
    let expected = case.body.get("expected").ok_or("field `expected` is missing")?;
    for cache in CACHES {
        for policy in POLICIES {
            for overlap in [false, true] {
                let got = complete(case, given, cache, policy, overlap)?;
                let at = format!("{cache}, {policy}, overlap {overlap}");
                if let Err(wrong) = compare(&at, expected, &got) {
                    return Ok(Outcome::Failed(wrong));
                }
            }
        }
    }
    Ok(Outcome::Passed)
}

fn complete(case: &Case, given: &Value, cache: &str, policy: &str, overlap: bool) -> Result<Value, String> {
    let (config, defaults) = (&given["config"], &case.meta["defaults"]);
    let of = |key: &str, default: u32| number(config, key, number(defaults, key, default)?);
    let sharing = switch(config, "prefix_caching", switch(defaults, "prefix_caching", false));
    let block_size = of("block_size", 4)?.max(1);
    let dummy = policy == "rectangular";
    let blocks =
        BlockConfig { block_size, blocks: of("num_blocks", 10)?, sharing, dummy, ..BlockConfig::default() };
    let slots = blocks.blocks.saturating_mul(block_size);
    let cache: Box<dyn Cache> = match cache {
        "paged" => Box::new(Paged::new(blocks).map_err(|error| error.to_string())?),
        "radix" => Box::new(Radix::new(blocks).map_err(|error| error.to_string())?),
        "cells" => {
            Box::new(Cells::new(slots, blocks.max_sequences, None).map_err(|error| error.to_string())?)
        }
        "contiguous" => Box::new(Contiguous::new(slots)),
        _ => Box::new(TreeCache::new(slots)),
    };
    let budget = of("max_num_batched_tokens", 64)?;
    // A static-shape (rectangular) step always computes a whole chunk.
    let chunk_size = (budget / block_size).max(1) * block_size;
    let chunking = if switch(config, "chunked_prefill", switch(defaults, "chunked_prefill", true)) {
        Chunking::On { cap: None }
    } else {
        Chunking::Off
    };
    let policy: Box<dyn Policy> = match policy {
        "prefill-first" => Box::new(PrefillFirst::new(chunking, 0.0)),
        "chunked" => Box::new(Chunked::new(budget, Mixing::Off)),
        "rectangular" => Box::new(Rectangular::new(RectangularConfig {
            chunk_size,
            max_batch: of("max_num_seqs", 4)?,
            ..RectangularConfig::default()
        })),
        _ => Box::new(Chunked::new(budget, Mixing::On { target: None })),
    };
    let limits = Limits {
        max_num_seqs: of("max_num_seqs", 4)?,
        max_num_batched_tokens: budget.max(chunk_size),
        max_model_len: of("max_model_len", 64)?,
        max_prompt: Some(of("max_model_len", 64)?),
        prefix_cache: sharing,
        ..Limits::default()
    };
    let core = Core::new(limits, Order::Fcfs, policy, cache);
    let mut engine = Engine::new(core, Toy::new(), || 0).overlap(overlap);
    let requests = list(given, "requests")?;
    let mut completions = vec![Vec::new(); requests.len()];
    for turn in 0..MOST_TURNS {
        let mut later = false;
        for (tag, of) in requests.iter().enumerate() {
            let arrives = number(of, "arrives_before_step", 0)?;
            later |= arrives > turn;
            if arrives == turn {
                let mut params = sequence::params(case, config, of)?;
                params.eos = vec![Toy::EOS];
                let request = Request { tag: tag as u64, prompt: tokens(&of["prompt"])?, params };
                engine.add_request(request).map_err(|refusal| refusal.to_string())?;
            }
        }
        let done = engine.step().map_err(|exit| exit.to_string())?;
        for EventOutput { event, tokens: new, .. } in engine.core_mut().outbox().iter() {
            completions[event.tag as usize].extend_from_slice(new);
        }
        engine.core_mut().outbox().clear();
        if let Some(breach) = engine.executor().violations().first() {
            return Ok(json!({ "completions": breach }));
        }
        if done == Turn::Idle && !later {
            break;
        }
    }
    engine.core().check_invariants()?;
    let named = requests.iter().zip(&completions);
    let named = named.map(|(of, tokens)| (of["name"].as_str().unwrap_or("?").to_owned(), json!(tokens)));
    let free = engine.core().cache().usage().available() / block_size;
    Ok(json!({ "completions": named.collect::<Map<_, _>>(), "free_blocks_at_end": free }))
}
