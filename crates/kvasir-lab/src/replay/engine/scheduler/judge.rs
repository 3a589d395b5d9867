//! What of an operation's result is compared with what was recorded.

use super::Bench;
use crate::replay::{Mismatch, compare};
use serde_json::{Value, json};

impl Bench {
    /// Compares, block tables by what is shared and kept, everything else as it stands.
    pub(super) fn judge(&mut self, at: &str, expected: &Value, got: &Value) -> Result<(), Box<Mismatch>> {
        let mut expected = expected.clone();
        let mut got = got.clone();
        if self.placeholders {
            strip_placeholders(&mut expected);
        }
        self.meet_tables(at, &mut expected, &mut got)?;
        compare(at, &expected, &got)
    }

    fn meet_tables(&mut self, at: &str, expected: &mut Value, got: &mut Value) -> Result<(), Box<Mismatch>> {
        let wrong = |what: String, expected: &Value, got: &Value| {
            Box::new(Mismatch { at: format!("{at}: {what}"), expected: expected.clone(), got: got.clone() })
        };
        let batch = |value: &mut Value| match value["returns"].get("batch").is_some() {
            true => value["returns"]["batch"].take(),
            false => value["returns"].clone(),
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
        for (key, state) in expected["state"].as_object().into_iter().flatten() {
            if let (Some(name), Some(table)) = (key.strip_prefix("seq:"), state.get("block_table")) {
                pairs.push((
                    name.to_owned(),
                    table.clone(),
                    got["state"][key]["block_table"].clone(),
                    usize::MAX,
                ));
            }
        }
        for (name, expected, got, hit) in pairs {
            let numbers = |value: &Value| -> Vec<u64> {
                value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
            };
            let own: Vec<u32> = numbers(&got).into_iter().map(|block| block as u32).collect();
            let theirs = numbers(&expected);
            let live = self.known.get(&name).and_then(|known| self.core.sequence(known.id?));
            let promised = live.map_or(0, |one| one.promised() / self.block) as usize;
            if theirs.len() != own.len() + promised && !own.is_empty() || own.is_empty() != theirs.is_empty()
            {
                return Err(wrong(format!("block table of {name}"), &expected, &got));
            }
            // The state repeats the table of the batch, which has been met already.
            let hit = if hit == usize::MAX { 0 } else { hit };
            self.blocks.meet(&name, &theirs, &own, hit).map_err(|what| wrong(what, &expected, &got))?;
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

/// Fields that hold placeholders in the recorded engines.
fn strip_placeholders(value: &mut Value) {
    const FIELDS: [&str; 9] = [
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
    if let Some(returns) = value.get_mut("returns") {
        let batch = if returns.get("batch").is_some() { &mut returns["batch"] } else { returns };
        match batch {
            Value::Object(map) if map.contains_key("kind") => FIELDS.iter().for_each(|field| {
                map.remove(*field);
            }),
            Value::Array(_) => *batch = json!({ "not_compared": true }),
            _ => {}
        }
    }
    if let Some(Value::Object(state)) = value.get_mut("state") {
        state.remove("free_blocks");
        for one in state.values_mut().filter_map(Value::as_object_mut) {
            FIELDS.iter().for_each(|field| {
                one.remove(*field);
            });
        }
    }
    drop_tables(value);
}
