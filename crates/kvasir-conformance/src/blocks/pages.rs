//! Replays `minisgl.page_allocator`, `minisgl.naive` and `minisgl.cache_manager` on the `radix`
//! cache.

use crate::blocks::manager::{list, numbers};
use crate::blocks::radix_tree::{check_final_tree, page_size};
use crate::case::{Case, CaseError};
use crate::compare::{Mismatch, compare};
use crate::outcome::Outcome;
use kvasir_kv::blocks::{BlockConfig, FreeOrder, Index, Offer};
use kvasir_kv::{
    BlockId, Cache, CacheError, ClaimRow, Inspect, Lookup, Prefix, Radix, RadixIndex, SeqId, StepId,
    TailBuffered, Token,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

fn config(case: &Case, blocks: u64) -> Result<BlockConfig, CaseError> {
    let block_size = page_size(case)?;
    let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks <= 1 << 20);
    let blocks = blocks.ok_or_else(|| case.error("`num_pages` must be at most 2^20"))?;
    Ok(BlockConfig { block_size, blocks, free_order: FreeOrder::Oldest, ..BlockConfig::default() })
}

fn num_pages(case: &Case) -> Result<u64, CaseError> {
    case.given("num_pages")?.as_u64().ok_or_else(|| case.error("`num_pages` must be a whole number"))
}

fn number(case: &Case, op: &Value, field: &str) -> Result<u32, CaseError> {
    let number = op.get(field).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    number.ok_or_else(|| case.error(format!("field `{field}` must be a whole number")))
}

fn failed(at: String, expected: &Value, got: Value) -> Outcome {
    Outcome::Failed(Box::new(Mismatch { at, expected: expected.clone(), got }))
}

/// Runs one `minisgl.naive` case: without prefix caching nothing is matched, retained or evicted.
pub(crate) fn run_naive(case: &Case) -> Result<Outcome, CaseError> {
    let bad = |error: CacheError| case.error(error.to_string());
    let ids = numbers(case, case.given("ids")?)?;
    let config = BlockConfig { sharing: false, ..config(case, ids.len() as u64 + 1)? };
    let mut cache = Radix::new(config).map_err(bad)?;
    let seq = cache.open().map_err(bad)?;
    let hit = cache.attach(seq, &ids, 0, u32::MAX, Lookup::default()).map_err(bad)?;
    let found = cache.table(seq).map_err(bad)?.to_vec();
    cache.claim(StepId(1), &[ClaimRow::new(seq, ids.len() as u32)]).map_err(bad)?;
    cache.retire(StepId(1)).map_err(bad)?;
    cache.publish(seq, &ids, ids.len() as u32).map_err(bad)?;
    let kept = cache.published_blocks(seq).map_err(bad)? * config.block_size;
    let tree = cache.index().tree();
    let mut got = json!({
        "match_len": hit.tokens, "match_indices": found, "insert_already_cached": kept,
        "insert_handle_len": kept, "evictable": tree.evictable(), "protected": tree.protected(),
        "evict0": [],
    });
    let expected = case.field("expected")?;
    // The recorded engine raises where an eviction frees less than requested.
    if cache.evict(1).map_err(bad)? == 0 {
        got["evict1"] = expected.get("evict1").cloned().unwrap_or_default();
    }
    Ok(match compare("expected", expected, &got) {
        Ok(()) => Outcome::Passed,
        Err(mismatch) => Outcome::Failed(mismatch),
    })
}

/// Runs one `minisgl.page_allocator` case on the radix index, without a cache around it.
pub(crate) fn run_page_allocator(case: &Case) -> Result<Outcome, CaseError> {
    let config = config(case, num_pages(case)?)?;
    let page = config.block_size;
    let mut index = RadixIndex::new(&config).map_err(|error| case.error(error.to_string()))?;
    let (mut taken, mut fresh): (Vec<BlockId>, Token) = (Vec::new(), 0);
    let mut used = vec![false; config.blocks as usize];
    let after = case.field("expected")?.get("after_each_op").unwrap_or(&Value::Null);
    for (at, (op, expected)) in list(case, case.given("ops")?)?.iter().zip(list(case, after)?).enumerate() {
        let name = op.get("op").and_then(Value::as_str).unwrap_or_default();
        let place = format!("ops[{at}] {name}");
        let mut got = json!({});
        match name {
            "take" => {
                let pages = number(case, op, "pages")?;
                if pages > index.free() + index.evictable() {
                    if expected.get("error").is_some() {
                        continue;
                    }
                    return Ok(failed(place, expected, json!("not enough pages")));
                }
                taken = (0..pages).map_while(|_| index.take()).collect();
                taken.iter().for_each(|&id| used[id as usize] = true);
                got["allocated"] = taken.iter().map(|id| id * page).collect();
            }
            "insert" => {
                let none = || case.error(format!("{place}: a page is inserted that was not taken"));
                let pages = number(case, op, "tokens")? / page;
                let end = fresh.checked_add(pages * page).filter(|_| pages as usize <= used.len());
                let end = end.ok_or_else(none)?;
                let from_last = op.get("indices").and_then(Value::as_str) == Some("of_last_take");
                let table: Vec<BlockId> = if from_last {
                    taken.iter().copied().take(pages as usize).collect()
                } else {
                    (0..pages).collect()
                };
                if table.iter().any(|&id| used.get(id as usize) != Some(&true)) {
                    return Err(none());
                }
                let tokens: Vec<Token> = (fresh..end).collect();
                fresh = end;
                let table = TailBuffered::new(table);
                index.publish(Offer { table: &table, tokens: &tokens, salt: 0, from: 0 }, &mut Vec::new());
                for id in table.iter() {
                    index.release(id);
                    used[id as usize] = false;
                }
            }
            // The format does not name the result field; it is any other field that the case
            // expects.
            "expand" => {
                let slots: Value = taken.iter().flat_map(|id| id * page..(id + 1) * page).collect();
                let names = expected.as_object().into_iter().flatten().map(|(name, _)| name);
                names.for_each(|name| got[name] = slots.clone());
            }
            "check_integrity" => {}
            _ => return Err(case.error(format!("operation `{name}` is not known"))),
        }
        let check = index.check(&|id| used[id as usize]);
        got["ok"] = json!(check.is_ok());
        if let Err(why) = check {
            return Ok(failed(place, expected, json!(why)));
        }
        got["free_pages"] = index.free_pages().map(|id| id * page).collect();
        got["evictable"] = json!(index.tree().evictable());
        if let Err(mismatch) = compare(&place, expected, &got) {
            return Ok(Outcome::Failed(mismatch));
        }
    }
    Ok(Outcome::Passed)
}

/// One request of a `minisgl.cache_manager` case.
struct Row {
    seq: SeqId,
    ids: Vec<Token>,
    cached: u32,
    device: u32,
    handle: u32,
}

/// State of a `minisgl.cache_manager` replay.
///
/// Page 0 of our cache is the dummy page, so that a step can name a request without taking a page.
/// The case's page `n` is our page `n + 1`.
struct Manager {
    cache: Radix,
    page: u32,
    rows: BTreeMap<u32, Row>,
    step: u64,
}

/// Runs one `minisgl.cache_manager` case.
pub(crate) fn run_cache_manager(case: &Case) -> Result<Outcome, CaseError> {
    let sharing = case.given("cache")?.as_str() != Some("naive");
    let config = BlockConfig { sharing, dummy: true, ..config(case, num_pages(case)?)? };
    let cache = Radix::new(config).map_err(|error| case.error(error.to_string()))?;
    let mut manager = Manager { cache, page: config.block_size, rows: BTreeMap::new(), step: 0 };
    let expected = case.field("expected")?;
    let after = expected.get("after_each_op").unwrap_or(&Value::Null);
    for (at, (op, expected)) in list(case, case.given("ops")?)?.iter().zip(list(case, after)?).enumerate() {
        let place = format!("ops[{at}] {}", op.get("op").and_then(Value::as_str).unwrap_or_default());
        let mut got = match manager.run(case, op)? {
            Ok(got) => got,
            Err(_) if expected.get("error").is_some() => json!({ "error": expected["error"] }),
            Err(error) => return Ok(failed(place, expected, json!(error.to_string()))),
        };
        manager.cache.check().map_err(|why| case.error(format!("{place}: {why}")))?;
        let expected = correct(expected);
        manager.describe(op, &expected, &mut got);
        if let Err(mismatch) = compare(&place, &expected, &got) {
            return Ok(Outcome::Failed(mismatch));
        }
    }
    let tree = manager.cache.index().tree();
    let owners = |node| tree.pages(node).first().map_or(0, |&id| manager.cache.owners(id));
    Ok(match check_final_tree(expected.get("final_tree"), tree, |id| (id - 1) * manager.page, owners) {
        Ok(()) => Outcome::Passed,
        Err(mismatch) => Outcome::Failed(mismatch),
    })
}

/// Replaces recorded faulty page table rows by the canonical rows of a correct engine.
fn correct(expected: &Value) -> Value {
    let mut expected = expected.clone();
    let correct_row = |row: &mut Value| {
        if let Some(canonical) = row.as_object_mut().and_then(|row| row.remove("canonical_row")) {
            row["page_table_row"] = canonical;
        }
    };
    if let Some(object) = expected.as_object_mut() {
        object.remove("stale_page_table_entries_now_free");
        object.get_mut("row").into_iter().for_each(correct_row);
        let rows = object.get_mut("rows").and_then(Value::as_object_mut);
        rows.into_iter().flatten().for_each(|(_, row)| correct_row(row));
    }
    expected
}

impl Manager {
    /// Runs one operation. The outer error means a malformed case.
    fn run(&mut self, case: &Case, op: &Value) -> Result<Result<Value, CacheError>, CaseError> {
        match op.get("op").and_then(Value::as_str) {
            Some("admit") => {
                let (row, ids) =
                    (number(case, op, "row")?, numbers(case, op.get("ids").unwrap_or(&Value::Null))?);
                Ok(self.admit(row, ids))
            }
            Some("allocate") => {
                let rows = numbers(case, op.get("rows").unwrap_or(&Value::Null))?;
                Ok(self.allocate(&rows))
            }
            Some("forward") => {
                let row = self.row(case, number(case, op, "row")?)?;
                row.cached = row.device;
                row.device += 1;
                Ok(Ok(json!({})))
            }
            Some("append") => {
                let token = number(case, op, "token")?;
                self.row(case, number(case, op, "row")?)?.ids.push(token);
                Ok(Ok(json!({})))
            }
            Some("cache_req") => {
                let finished = op.get("finished") == Some(&Value::Bool(true));
                let row = number(case, op, "row")?;
                self.row(case, row)?;
                Ok(self.keep(row, finished).map(|()| json!({})))
            }
            Some("lazy_region") => {
                self.lazy_region(case, list(case, op.get("cache_req").unwrap_or(&Value::Null))?)
            }
            other => Err(case.error(format!("operation {other:?} is not known"))),
        }
    }

    fn row(&mut self, case: &Case, row: u32) -> Result<&mut Row, CaseError> {
        self.rows.get_mut(&row).ok_or_else(|| case.error(format!("no request in row {row}")))
    }

    fn admit(&mut self, row: u32, ids: Vec<Token>) -> Result<Value, CacheError> {
        let seq = self.cache.open()?;
        let hit = self.cache.attach(seq, &ids, 0, u32::MAX, Lookup::default())?.tokens;
        let device = ids.len() as u32;
        self.rows.insert(row, Row { seq, ids, cached: hit, device, handle: hit });
        Ok(json!({ "matched": hit }))
    }

    fn allocate(&mut self, rows: &[u32]) -> Result<Value, CacheError> {
        let mut claims = Vec::new();
        for row in rows.iter().filter_map(|row| self.rows.get(row)) {
            let tokens = row.device.saturating_sub(self.cache.claimed_len(row.seq)?);
            claims.push(ClaimRow::new(row.seq, tokens));
        }
        claims.retain(|claim| claim.tokens > 0);
        if !claims.is_empty() {
            self.step += 1;
            self.cache.claim(StepId(self.step), &claims)?;
            self.cache.retire(StepId(self.step))?;
        }
        Ok(json!({}))
    }

    /// Publishes a request's computed tokens to the radix tree; a finished request releases its
    /// pages.
    fn keep(&mut self, at: u32, finished: bool) -> Result<(), CacheError> {
        let Some(row) = self.rows.get_mut(&at) else { return Ok(()) };
        self.cache.publish(row.seq, &row.ids, row.cached)?;
        row.handle = self.cache.published_blocks(row.seq)? * self.page;
        if finished && let Some(row) = self.rows.remove(&at) {
            self.cache.close(row.seq)?;
        }
        Ok(())
    }

    /// Lazy free region: pages released by requests stay allocated while a step that names them is
    /// in flight.
    fn lazy_region(
        &mut self,
        case: &Case,
        requests: &[Value],
    ) -> Result<Result<Value, CacheError>, CaseError> {
        let rows: Vec<u32> = requests.iter().map(|op| number(case, op, "row")).collect::<Result<_, _>>()?;
        for &row in &rows {
            self.row(case, row)?;
        }
        let seqs = rows.iter().filter_map(|row| self.rows.get(row));
        let claims: Vec<_> =
            seqs.map(|row| ClaimRow { redirected: 1, ..ClaimRow::new(row.seq, 0) }).collect();
        self.step += 1;
        let step = StepId(self.step);
        if let Err(error) = self.cache.claim(step, &claims) {
            return Ok(Err(error));
        }
        let mut seen = Vec::new();
        for (op, row) in requests.iter().zip(rows) {
            if let Err(error) = self.keep(row, op.get("finished") == Some(&Value::Bool(true))) {
                return Ok(Err(error));
            }
            seen.push(self.cache.index().free());
        }
        let retired = self.cache.retire(step);
        Ok(retired.map(|()| json!({ "free_count_seen_inside_region": seen })))
    }

    /// Adds the observable state after an operation, limited to the rows that the case checks.
    fn describe(&self, op: &Value, expected: &Value, got: &mut Value) {
        let index = self.cache.index();
        let (evictable, protected) = (index.tree().evictable(), index.tree().protected());
        let pages = index.free() + (evictable + protected) / self.page;
        let is_whole = pages == self.cache.config().blocks;
        got["free_pages"] = index.free_pages().map(|id| (id - 1) * self.page).collect();
        got["evictable"] = json!(evictable);
        got["protected"] = json!(protected);
        got["available"] = json!(evictable + index.free() * self.page);
        got["integrity"] = json!(if is_whole { "ok" } else { "pages held by requests" });
        if let (Some(wanted), Some(row)) = (expected.get("row"), op.get("row").and_then(Value::as_u64)) {
            got["row"] = self.row_state(row, wanted);
        }
        if let Some(Value::Object(rows)) = expected.get("rows") {
            let state =
                |name: &String, wanted| name.parse().map_or(Value::Null, |row| self.row_state(row, wanted));
            let rows = rows.iter().map(|(name, wanted)| (name.clone(), state(name, wanted)));
            got["rows"] = rows.collect::<Map<_, _>>().into();
        }
    }

    fn row_state(&self, row: u64, wanted: &Value) -> Value {
        let row = u32::try_from(row).ok().and_then(|row| self.rows.get(&row));
        let Some((row, table)) = row.and_then(|row| Some((row, self.cache.table(row.seq).ok()?))) else {
            return Value::Null;
        };
        let mut pages: Vec<Value> = table.iter().map(|id| json!((id - 1) * self.page)).collect();
        // Entries past the allocated ones are leftovers of the row's previous request.
        let wanted = wanted.get("page_table_row").and_then(Value::as_array);
        pages.extend(wanted.into_iter().flatten().skip(table.len()).cloned());
        json!({
            "cached_len": row.cached, "device_len": row.device, "handle_len": row.handle, "page_table_row": pages,
        })
    }
}
