//! Replays `kv.metadata`: parsing of a model's KV cache geometry (layers, KV heads, head size).

use crate::case::{Case, CaseError};
use crate::compare::{Mismatch, compare};
use crate::outcome::Outcome;
use kvasir_kv::{Fact, KvFacts};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Runs one `kv.metadata` case.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    let expected = case.field("expected")?;
    let facts = facts(case.given("config")?, case.given("metadata")?);
    let refused = expected.get("error").is_some_and(|error| error != &Value::Bool(false));
    let got = match (&facts, refused) {
        (Err(_), true) => return Ok(Outcome::Passed),
        (Err(why), false) => json!(format!("refused: {why}")),
        (Ok(facts), _) => described(facts),
    };
    let expected = if refused { &json!("a refusal") } else { expected };
    Ok(match compare("facts", expected, &got) {
        Ok(()) => Outcome::Passed,
        Err(mismatch) => Outcome::Failed(Box::new(Mismatch { got, ..*mismatch })),
    })
}

fn facts(config: &Value, metadata: &Value) -> Result<KvFacts, String> {
    let mut read = BTreeMap::new();
    let facts = metadata.as_object().into_iter().flatten();
    for (key, value) in facts.filter(|(key, _)| key.starts_with("kv_cache.")) {
        let int = |value: &Value| value.as_i64().ok_or_else(|| format!("{key} must be a whole number"));
        let fact = match value {
            Value::Array(values) => Fact::PerLayer(values.iter().map(int).collect::<Result<_, _>>()?),
            value => Fact::One(int(value)?),
        };
        read.insert(key.clone(), fact);
    }
    match (KvFacts::read(&read).map_err(|error| error.to_string())?, derived(config)?) {
        (Some(facts), Some(derived)) => match KvFacts::check(&read, &derived) {
            Ok(()) => Ok(facts),
            Err(error) => Err(error.to_string()),
        },
        (facts, derived) => facts.or(derived).ok_or_else(|| "metadata and config are incomplete".into()),
    }
}

/// The shape of a model whose layers are alike, from its `config.json`; `None` if a field is
/// missing. Loading takes it from the model's program.
fn derived(config: &Value) -> Result<Option<KvFacts>, String> {
    let field = |name: &str| match config.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_i64().and_then(|value| u32::try_from(value).ok()) {
            Some(value @ 1..=0x100_0000) => Ok(Some(value)),
            _ => Err(format!("{name} is {value}, which is out of range")),
        },
    };
    let (layers, queries) = (field("num_hidden_layers")?, field("num_attention_heads")?);
    let heads = field("num_key_value_heads")?.or(queries);
    let head_dim = match (field("head_dim")?, field("hidden_size")?, queries) {
        (None, Some(hidden), Some(queries)) if hidden % queries == 0 => Some(hidden / queries),
        (None, Some(_), Some(_)) => return Err("hidden_size is no multiple of num_attention_heads".into()),
        (head_dim, ..) => head_dim,
    };
    let Some(((layers, heads), head_dim)) = layers.zip(heads).zip(head_dim) else { return Ok(None) };
    Ok(Some(KvFacts::uniform(layers, heads, head_dim)))
}

fn described(facts: &KvFacts) -> Value {
    let of = |value: fn(&kvasir_kv::LayerForm) -> u32| {
        let values: Vec<_> = facts.layers.iter().map(value).collect();
        match values.first() {
            Some(first) if values.iter().all(|value| value == first) => json!(first),
            _ => json!(values),
        }
    };
    let (heads, dim) = (of(|layer| layer.n_kv_heads), of(|layer| layer.head_dim));
    json!({ "n_layers": facts.layers.len(), "n_kv_heads": heads, "head_dim": dim })
}
