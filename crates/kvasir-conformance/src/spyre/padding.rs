//! Replays `spyre.tkv_steps`: padding arithmetic alone, with the schedule given by the case.

use crate::case::{Case, CaseError};
use crate::compare::compare;
use crate::outcome::Outcome;
use crate::spyre::scenario::{MOST, Scenario};
use kvasir_engine::rectangular::{PrefillShape, Rectangle, Rules};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct New {
    id: String,
    prompt_len: u32,
}

#[derive(Deserialize)]
struct Cached {
    id: String,
    num_computed_tokens: u32,
}

/// A step with given rows; only its padding is computed.
#[derive(Deserialize)]
struct Inputs {
    #[serde(default)]
    new: Vec<New>,
    #[serde(default)]
    cached: Vec<Cached>,
}

/// Checks `tkv` (padded context length) and the number of sampled tokens per step.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    let scenario = Scenario::read(case, Rules::Later, true)?;
    let (block, chunk) = (scenario.config.block_size, scenario.config.chunk_size);
    let Value::Array(steps) = case.field("steps")? else {
        return Err(case.error("field `steps` must be a list"));
    };
    let mut prompts: BTreeMap<String, u32> = BTreeMap::new();
    for (i, step) in steps.iter().enumerate() {
        let given: Inputs =
            serde_json::from_value(step.clone()).map_err(|error| case.error(format!("step {i}: {error}")))?;
        let mut rows = Vec::new();
        for new in given.new {
            prompts.insert(new.id, new.prompt_len);
            rows.push((new.prompt_len, 0));
        }
        for row in given.cached {
            let Some(&prompt) = prompts.get(&row.id) else {
                return Err(case.error(format!("step {i}: request {} is not known", row.id)));
            };
            rows.push((prompt, row.num_computed_tokens));
        }
        if rows.iter().any(|(prompt, computed)| *prompt.max(computed) > MOST) {
            return Err(case.error(format!("step {i}: longer than a replay takes")));
        }
        let (mut tkv, mut sampled) = (0, 0);
        for &(prompt, computed) in rows.iter().filter(|(prompt, computed)| computed < prompt) {
            let shape = PrefillShape::new(prompt, block, chunk);
            let at = shape.chunk_after(computed);
            tkv = Rules::Later.prefill_tkv(prompt, block, 0, true, shape.is_last(at));
            sampled += u32::from(shape.is_last(at));
        }
        let decoding = rows.iter().filter(|(prompt, computed)| computed >= prompt);
        let shape = Rectangle::of(block, decoding.map(|(_, computed)| *computed));
        if shape.rows() > 0 {
            tkv = shape.tkv();
            sampled += shape.rows();
        }
        let got = json!({"expected_tkv": tkv, "n_sampled": sampled});
        let asserted = |key: &&str| step.get(*key).is_some_and(|value| !value.is_null());
        let wanted = ["expected_tkv", "n_sampled"].into_iter().filter(asserted);
        let wanted: Map<_, _> = wanted.map(|key| (key.to_owned(), step[key].clone())).collect();
        if let Err(mismatch) = compare(&format!("step {i}"), &Value::Object(wanted), &got) {
            return Ok(Outcome::Failed(mismatch));
        }
    }
    Ok(Outcome::Passed)
}
