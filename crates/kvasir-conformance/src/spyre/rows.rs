//! Tables of recorded scheduler steps: parsing, filling in omitted rows, and comparison.

use crate::case::{Case, CaseError};
use crate::compare::{Mismatch, compare};
use crate::spyre::blocks::{BlockNames, TablePair, ids};
use serde_json::{Map, Value, json};

/// Highest step number, a bound on the table length after filling.
const MOST_STEPS: u64 = 1 << 20;

/// One row of a step table.
#[derive(Clone, Debug)]
pub(super) struct StepRow {
    pub(super) step: u64,
    fields: Map<String, Value>,
}

/// A step table in step order.
pub(crate) struct Rows(Vec<StepRow>);

impl Rows {
    pub(super) fn read(case: &Case) -> Result<Self, CaseError> {
        let Value::Array(listed) = case.field("steps")? else {
            return Err(case.error("field `steps` must be a list"));
        };
        let mut rows: Vec<StepRow> = Vec::new();
        for row in listed {
            let (Some(fields), Some(step)) = (row.as_object(), row.get("step").and_then(Value::as_u64))
            else {
                return Err(case.error("a row of `steps` has no `step`"));
            };
            if rows.last().is_some_and(|last| last.step >= step) || step > MOST_STEPS {
                return Err(case.error(format!("row `step` {step} is out of order")));
            }
            rows.push(StepRow { step, fields: fields.clone() });
        }
        Ok(Self(rows))
    }

    /// All rows from step 0 to the last listed one.
    ///
    /// An omitted row repeats the previous one with `tkv` advanced by one per step. Rows before the
    /// first listed one assert nothing.
    pub(super) fn filled(&self) -> impl Iterator<Item = StepRow> + '_ {
        let first = self.0.first().map_or(0, |row| row.step);
        let unlisted = (0..first).map(|step| StepRow { step, fields: Map::new() });
        let ends = self.0.iter().skip(1).map(|row| row.step).chain(self.0.last().map(|row| row.step + 1));
        let listed = self.0.iter().zip(ends).flat_map(|(row, end)| {
            (row.step..end).map(move |step| {
                let mut fields = row.fields.clone();
                if let Some(tkv) = fields.get("tkv").and_then(Value::as_u64) {
                    fields.insert("tkv".into(), json!(tkv.saturating_add(step - row.step)));
                }
                StepRow { step, fields }
            })
        });
        unlisted.chain(listed)
    }
}

impl StepRow {
    /// Compares the fields that the row asserts with `got`; block ids are compared up to renaming.
    pub(super) fn compare(&self, got: &Value, names: &mut BlockNames) -> Result<(), Box<Mismatch>> {
        if self.fields.is_empty() {
            return Ok(());
        }
        let at = format!("step {}", self.step);
        let mut wanted = self.fields.clone();
        wanted.remove("step");
        for key in ["request_outputs", "finished_requests"] {
            wanted.entry(key).or_insert_with(|| json!([]));
        }
        if let Some(Value::Array(keys)) = wanted.remove("not_asserted_by_source") {
            keys.iter().filter_map(Value::as_str).for_each(|key| drop(wanted.remove(key)));
        }
        if self.step == 0 {
            wanted.retain(|key, _| !key.starts_with("n_"));
            wanted.remove("ran");
        }
        let tables = wanted.remove("block_tables");
        let counts = wanted.remove("block_ref_count");
        let targets = wanted.remove("prefill_slot_mappings");
        compare(&at, &Value::Object(wanted), got)?;
        let (Some(tables), Some(own)) = (tables, got.get("block_tables").and_then(Value::as_object)) else {
            return Ok(());
        };
        let differs = || Box::new(Mismatch { at: at.clone(), expected: tables.clone(), got: json!(own) });
        let expected = tables.as_object().ok_or_else(differs)?;
        if expected.len() != own.len() || expected.keys().any(|name| !own.contains_key(name)) {
            return Err(differs());
        }
        let pairs: Vec<_> = expected.iter().map(|(name, table)| pair(name, table, got)).collect();
        names.tables(&at, &pairs)?;
        if let Some(counts) = counts {
            let own = got.get("block_ref_count").unwrap_or(&Value::Null);
            names.counts(&format!("{at}.block_ref_count"), &counts, own)?;
        }
        let targets = targets.as_ref().and_then(Value::as_object);
        targets.into_iter().flatten().try_for_each(|(name, blocks)| {
            let own = got.get("prefill_slot_mappings").and_then(|all| all.get(name));
            let at = format!("{at}.prefill_slot_mappings.{name}");
            names.list(&at, &ids(blocks), &ids(own.unwrap_or(&Value::Null)))
        })
    }
}

fn pair(name: &str, table: &Value, got: &Value) -> TablePair {
    let own = got.get("block_tables").and_then(|all| all.get(name)).unwrap_or(&Value::Null);
    let hit = got.get("hit_blocks").and_then(|all| all.get(name)).and_then(Value::as_u64).unwrap_or(0);
    TablePair { name: name.to_owned(), expected: ids(table), own: ids(own), hit: hit as usize }
}
