//! Replays `atom.sequence`: sequence fields, appends and truncation, without a scheduler.
//!
//! Also maps the recorded field names of sequences and sampling parameters to ours, for other
//! runners.

use crate::case::{Case, CaseError};
use crate::compare::compare;
use crate::engine::{about, number, tokens};
use crate::outcome::Outcome;
use kvasir_engine::{Params, Request, Sequence};
use kvasir_kv::Token;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Sets a request parameter by its recorded name.
pub(crate) fn set(params: &mut Params, field: &str, value: &Value) -> Result<(), String> {
    let wrong = || format!("`{field}` cannot be {value}");
    match field {
        "max_tokens" => {
            let tokens = value.as_u64().and_then(|n| u32::try_from(n).ok());
            params.max_tokens = tokens.ok_or_else(wrong)?;
        }
        "ignore_eos" => params.ignore_eos = value.as_bool().ok_or_else(wrong)?,
        "temperature" => params.sampling.temperature = value.as_f64().ok_or_else(wrong)? as f32,
        "top_p" => params.sampling.top_p = value.as_f64().ok_or_else(wrong)? as f32,
        // The recorded engines use -1 for "no top-k limit"; ours is 0.
        "top_k" => {
            let k = value.as_i64().ok_or_else(wrong)?.max(0);
            params.sampling.top_k = u32::try_from(k).map_err(|_| wrong())?;
        }
        "stop_token_ids" => params.stop_ids = tokens(value)?,
        "stop_token_sequences" => {
            let runs = value.as_array().ok_or_else(wrong)?;
            params.stop_sequences = runs.iter().map(tokens).collect::<Result<_, _>>()?;
        }
        _ => return Err(format!("field `{field}` cannot be set")),
    }
    Ok(())
}

/// Parameters of a sequence: its own fields, then the case's config, then the suite's defaults.
pub(crate) fn params(case: &Case, config: &Value, given: &Value) -> Result<Params, String> {
    let defaults = &case.meta["defaults"];
    let of = |key: &str| given.get(key).or_else(|| config.get(key)).or_else(|| defaults["sampling"].get(key));
    let eos = config.get("eos").or_else(|| defaults.get("eos"));
    let stop_ids = config.get("stop_token_ids").or_else(|| defaults.get("stop_token_ids"));
    let mut params = Params {
        max_tokens: of("max_tokens").and_then(Value::as_u64).unwrap_or(64).min(u64::from(u32::MAX)) as u32,
        ignore_eos: of("ignore_eos").and_then(Value::as_bool).unwrap_or(false),
        eos: eos.and_then(Value::as_u64).map(|id| vec![id as u32]).unwrap_or_default(),
        stateful: given.get("stateful").and_then(Value::as_bool).unwrap_or(false),
        stop_ids: stop_ids.map(tokens).transpose()?.unwrap_or_default(),
        ..Params::default()
    };
    params.sampling.temperature = of("temperature").and_then(Value::as_f64).unwrap_or(1.0) as f32;
    for field in ["top_k", "top_p", "stop_token_sequences"] {
        if let Some(value) = given.get(field).filter(|value| !value.is_null()) {
            set(&mut params, field, value)?;
        }
    }
    // The recorded stop ids come from the model's configuration: `ignore_eos` switches them off, too.
    if params.ignore_eos {
        params.stop_ids.clear();
    }
    Ok(params)
}

struct Held {
    id: u64,
    params: Params,
    sequence: Sequence,
}

/// `atom.sequence`: fields of sequences that are not scheduled.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    replay(case).map_err(about(case))
}

fn replay(case: &Case) -> Result<Outcome, String> {
    let given = case.body.get("given").ok_or("field `given` is missing")?;
    let config = &given["config"];
    let block = number(config, "block_size", number(&case.meta["defaults"], "block_size", 4)?)?.max(1);
    let mut held = BTreeMap::new();
    let mut next = 0;
    for (name, of) in given["seqs"].as_object().ok_or("`seqs` must be an object")? {
        let id = of.get("id").and_then(Value::as_u64).unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        let params = params(case, config, of)?;
        let request = Request { tag: id, prompt: tokens(&of["prompt"])?, params: params.clone() };
        held.insert(name.clone(), Held { id, params, sequence: Sequence::new(request) });
    }
    let expected = super::list(&Value::Object(case.body.clone()), "expected")?.to_vec();
    for (i, op) in super::list(given, "ops")?.iter().enumerate() {
        let got = step(&mut held, op, block)?;
        let Some(expected) = expected.get(i) else { break };
        let at = format!("op {i} {}", op["op"].as_str().unwrap_or("?"));
        if expected.get("raises").is_some() {
            if got.get("raises").is_none() {
                let wrong = compare(&at, expected, &got);
                return Ok(wrong.err().map_or(Outcome::Passed, Outcome::Failed));
            }
            continue;
        }
        if let Err(wrong) = compare(&at, expected, &got) {
            return Ok(Outcome::Failed(wrong));
        }
    }
    Ok(Outcome::Passed)
}

fn step(held: &mut BTreeMap<String, Held>, op: &Value, block: u32) -> Result<Value, String> {
    let name = op["seq"].as_str().ok_or("`seq` must be a name")?;
    let one = held.get_mut(name).ok_or_else(|| format!("no sequence {name}"))?;
    match op["op"].as_str().unwrap_or_default() {
        "get" => Ok(
            json!({ "returns": field(&one.sequence, &one.params, one.id, op["field"].as_str().unwrap_or_default(), block)? }),
        ),
        "append" => {
            one.sequence.append(&tokens(&op["tokens"])?);
            Ok(json!({ "returns": null, "state": state(name, &one.sequence) }))
        }
        "set" if op["field"] == "num_tokens" => {
            let len = number(op, "value", 0)?;
            if len < one.sequence.prompt_len() {
                let prompt = one.sequence.prompt()[..len as usize].to_vec();
                one.sequence = Sequence::new(Request { tag: one.id, prompt, params: one.params.clone() });
            }
            one.sequence.truncate(len);
            Ok(json!({ "returns": null, "state": state(name, &one.sequence) }))
        }
        "set" => {
            set(&mut one.params, op["field"].as_str().unwrap_or_default(), &op["value"])?;
            Ok(json!({ "returns": null, "state": state(name, &one.sequence) }))
        }
        "block" => Ok(match block_tokens(&one.sequence, number(op, "i", 0)?, block) {
            Some(tokens) => json!({ "returns": tokens }),
            None => json!({ "raises": "no such block" }),
        }),
        other => Err(format!("unknown operation `{other}`")),
    }
}

fn state(name: &str, sequence: &Sequence) -> Value {
    json!({ format!("seq:{name}"): { "num_tokens": sequence.tokens().len(), "completion": sequence.outputs() } })
}

/// The f64 with the shortest decimal form of an f32, so that 0.1 compares equal to 0.1.
fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, |number| json!(number))
}

/// The tokens of the `i`-th block; none beyond the last.
pub(crate) fn block_tokens(sequence: &Sequence, i: u32, block: u32) -> Option<Vec<Token>> {
    sequence.tokens().chunks(block as usize).nth(i as usize).map(<[Token]>::to_vec)
}

/// Reads a sequence field by its recorded name.
pub(crate) fn field(
    sequence: &Sequence,
    params: &Params,
    id: u64,
    name: &str,
    block: u32,
) -> Result<Value, String> {
    Ok(match name {
        "id" => json!(id),
        "token_ids" => json!(sequence.tokens()),
        "num_tokens" => json!(sequence.tokens().len()),
        "prompt_token_ids" => json!(sequence.prompt()),
        "num_prompt_tokens" => json!(sequence.prompt_len()),
        "completion_token_ids" | "output_tokens" => json!(sequence.outputs()),
        "num_completion_tokens" => json!(sequence.outputs().len()),
        "last_token" => json!(sequence.tokens().last()),
        "num_cached_tokens" => json!(sequence.computed().min(sequence.prompt_len())),
        "num_hashed_tokens" => json!(sequence.published()),
        "num_blocks" => json!(sequence.tokens().len().div_ceil(block as usize)),
        "last_block_num_tokens" => json!(sequence.tokens().len().saturating_sub(1) % block as usize + 1),
        "is_partial_prefill" => json!(sequence.cache_id().is_some() && sequence.is_prefilling()),
        "is_finished" => json!(sequence.finish().is_some()),
        "status" if sequence.finish().is_some() => json!("FINISHED"),
        "status" => json!(if sequence.cache_id().is_some() { "RUNNING" } else { "WAITING" }),
        "type" => json!("DUMMY"),
        "block_table" => json!([]),
        "temperature" => decimal(params.sampling.temperature),
        "top_p" => decimal(params.sampling.top_p),
        "top_k" if params.sampling.top_k == 0 => json!(-1),
        "top_k" => json!(params.sampling.top_k),
        "max_tokens" => json!(params.max_tokens),
        "ignore_eos" => json!(params.ignore_eos),
        "stop_token_sequences" => json!(params.stop_sequences),
        "stop_token_ids" => json!(params.stop_ids),
        "arrive_time" => json!(sequence.timings().arrived as f64 / 1e9),
        other => return Err(format!("unknown field `{other}`")),
    })
}
