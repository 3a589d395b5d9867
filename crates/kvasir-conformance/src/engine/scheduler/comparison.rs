//! Comparison rules for scheduler operations: block tables up to renaming, placeholder tokens
//! ignored.

use crate::compare::{Mismatch, compare};
use crate::engine::scheduler::Harness;
use serde_json::{Value, json};

impl Harness {
    /// Compares one operation: block tables by sharing and identity, everything else exactly.
    pub(super) fn compare_op(
        &mut self,
        at: &str,
        op: &Value,
        expected: &Value,
        got: &Value,
    ) -> Result<(), Box<Mismatch>> {
        let mut expected = expected.clone();
        let mut got = got.clone();
        if self.placeholders {
            strip_placeholders(op, &mut expected);
        }
        self.meet_tables(at, op, &mut expected, &mut got)?;
        compare(at, &expected, &got)
    }

    fn meet_tables(
        &mut self,
        at: &str,
        op: &Value,
        expected: &mut Value,
        got: &mut Value,
    ) -> Result<(), Box<Mismatch>> {
        let batch = |value: &mut Value| {
            if value["returns"].get("batch").is_some() {
                value["returns"]["batch"].take()
            } else {
                value["returns"].clone()
            }
        };
        let (theirs, ours) = (batch(&mut expected.clone()), batch(&mut got.clone()));
        let mut pairs = Vec::new();
        if let (Some(tables), Some(own)) =
            (theirs["block_tables"].as_array(), ours["block_tables"].as_array())
        {
            for (i, (expected, got)) in tables.iter().zip(own).enumerate() {
                let cached = ours["cached"][i].as_u64().unwrap_or(0) as usize;
                let name = ours["seqs"][i].as_str().unwrap_or_default().to_owned();
                pairs.push((name, expected.clone(), got.clone(), cached / self.block as usize));
            }
        }
        if op["op"] == "get" && op["field"] == "block_table" {
            let name = op["seq"].as_str().unwrap_or_default().to_owned();
            pairs.push((name, expected["returns"].take(), got["returns"].take(), 0));
        }
        for (key, state) in expected["state"].as_object().into_iter().flatten() {
            if let (Some(name), Some(table)) = (key.strip_prefix("seq:"), state.get("block_table")) {
                // The state repeats the batch's block table, which was compared above.
                pairs.push((name.to_owned(), table.clone(), got["state"][key]["block_table"].clone(), 0));
            }
        }
        for (name, expected, got, hit) in pairs {
            let count = |value: &Value| value.as_array().map_or(0, Vec::len);
            let own = got.as_array().into_iter().flatten().filter_map(Value::as_u64);
            let own: Vec<u32> = own.map(|block| block as u32).collect();
            let live = self.known.get(&name).and_then(|known| self.core.sequence(known.id?));
            let reserved = live.map_or(0, |one| one.reserved() / self.block) as usize;
            let (at, theirs) = (format!("{at}: block table of {name}"), count(&expected));
            if theirs != own.len() + reserved && !own.is_empty() || own.is_empty() != (theirs == 0) {
                return Err(Box::new(Mismatch { at, expected, got }));
            }
            self.blocks.meet(&at, &name, &expected, &own, hit)?;
        }
        drop_tables(expected);
        if let Some(all) = got["returns"]["final_chunk"].as_array()
            && all.iter().all(|one| one == true)
        {
            got["returns"]["final_chunk"] = Value::Null;
        }
        Ok(())
    }
}

fn drop_tables(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("block_tables");
            map.remove("block_table");
            map.values_mut().for_each(drop_tables);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_tables),
        _ => {}
    }
}

/// Result fields that contain placeholder tokens in the recorded engines.
const PLACEHOLDERS: [&str; 9] = [
    "tokens",
    "context_lens",
    "last_block_tokens",
    "total_tokens",
    "num_scheduled",
    "num_tokens",
    "completion",
    "free_blocks",
    "token_ids",
];

/// Whether an operation reads a field derived from placeholder tokens.
fn reads_placeholders(op: &Value) -> bool {
    const MADE_OF_THEM: [&str; 8] = [
        "block_table",
        "num_blocks",
        "last_block_num_tokens",
        "last_token",
        "completion_token_ids",
        "num_completion_tokens",
        "output_tokens",
        "token_ids",
    ];
    match op["op"].as_str() {
        Some("block") => true,
        Some("get") => op["field"]
            .as_str()
            .is_some_and(|field| PLACEHOLDERS.contains(&field) || MADE_OF_THEM.contains(&field)),
        _ => false,
    }
}

/// Removes the recorded fields derived from placeholder tokens.
fn strip_placeholders(op: &Value, value: &mut Value) {
    if reads_placeholders(op) {
        value["returns"] = json!({ "not_compared": true });
    }
    if let Some(returns) = value.get_mut("returns") {
        let batch = if returns.get("batch").is_some() { &mut returns["batch"] } else { returns };
        match batch {
            Value::Object(map) if map.contains_key("kind") => PLACEHOLDERS.iter().for_each(|field| {
                map.remove(*field);
            }),
            _ => {}
        }
    }
    if let Some(Value::Object(state)) = value.get_mut("state") {
        state.remove("free_blocks");
        for one in state.values_mut().filter_map(Value::as_object_mut) {
            PLACEHOLDERS.iter().for_each(|field| {
                one.remove(*field);
            });
        }
    }
    drop_tables(value);
}
