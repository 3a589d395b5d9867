//! Replays `atom.hash`, `atom.block_pool` and `nano.hash`: block hashes and allocation order of the
//! `paged` cache.
//!
//! Exercises `HashIndex`, the prefix cache index over chained block hashes, without a cache around
//! it.

use crate::blocks::manager::{list, numbers};
use crate::case::{Case, CaseError};
use crate::compare::compare;
use crate::outcome::Outcome;
use kvasir_kv::blocks::{BlockConfig, Index, Offer};
use kvasir_kv::{BlockId, HashIndex, TailBuffered, Token, block_hash};
use serde_json::{Map, Value, json};

/// Runs one `atom.hash` case: tables of block hashes, and of pairs compared for equality.
pub(crate) fn run_hash(case: &Case) -> Result<Outcome, CaseError> {
    let expected = case.field("expected")?;
    let mut got = Map::new();
    if let Ok(vectors) = case.given("vectors") {
        let hash = |vector| Ok(json!(hash_of(case, vector)?.to_string()));
        let hashes: Vec<Value> = list(case, vectors)?.iter().map(hash).collect::<Result<_, CaseError>>()?;
        got.insert("hash_u64_as_string".into(), hashes.into());
    }
    if let Ok(pairs) = case.given("pairs") {
        let side = |pair: &Value, at: usize| {
            let side = pair.get(at).ok_or_else(|| case.error("a pair has two sides"))?;
            hash_of(case, &json!({ "tokens": side.get(0), "prefix": side.get(1) }))
        };
        let equal = |pair: &Value| Ok(json!(side(pair, 0)? == side(pair, 1)?));
        let equal: Vec<Value> = list(case, pairs)?.iter().map(equal).collect::<Result<_, CaseError>>()?;
        got.insert("equal".into(), equal.into());
    }
    Ok(verdict(compare("expected", expected, &Value::Object(got))))
}

/// Runs one `nano.hash` case: block hashes as 16 hex digits.
pub(crate) fn run_nano_hash(case: &Case) -> Result<Outcome, CaseError> {
    let given = list(case, case.field("given")?)?;
    let hash = |vector| Ok(json!(format!("{:016x}", hash_of(case, vector)?)));
    let hashes: Vec<Value> = given.iter().map(hash).collect::<Result<_, CaseError>>()?;
    Ok(verdict(compare("expected", case.field("expected")?, &hashes.into())))
}

fn hash_of(case: &Case, vector: &Value) -> Result<u64, CaseError> {
    let tokens: Vec<Token> = match vector.get("tokens") {
        // `"256 zeros"` abbreviates 256 tokens of id 0.
        Some(Value::String(text)) => match text.split_once(' ').map(|(n, what)| (n.parse::<usize>(), what)) {
            Some((Ok(n @ 0..=1024), "zeros")) => vec![0; n],
            _ => return Err(case.error(format!("tokens `{text}` make no sense"))),
        },
        Some(tokens) => numbers(case, tokens)?,
        None => return Err(case.error("field `tokens` is missing")),
    };
    let prefix = match vector.get("prefix") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => {
            let prefix = u64::from_str_radix(text, 16);
            Some(prefix.map_err(|_| case.error(format!("prefix `{text}` is not hexadecimal")))?)
        }
        Some(value) => Some(value.as_u64().ok_or_else(|| case.error("a prefix must be a whole number"))?),
    };
    Ok(block_hash(prefix, &tokens))
}

fn verdict(compared: Result<(), Box<crate::compare::Mismatch>>) -> Outcome {
    match compared {
        Ok(()) => Outcome::Passed,
        Err(mismatch) => Outcome::Failed(mismatch),
    }
}

/// The hash index of a `paged` cache with a reference count per block.
struct Pool {
    index: HashIndex,
    owners: Vec<u32>,
    pops: Vec<BlockId>,
    /// Symbolic hash names. The `n`-th stands for a block holding the single token `n`.
    names: Vec<String>,
}

/// Runs one `atom.block_pool` case.
pub(crate) fn run_pool(case: &Case) -> Result<Outcome, CaseError> {
    let blocks = case.given("num_blocks")?.as_u64().and_then(|n| u32::try_from(n).ok());
    let blocks = blocks.filter(|&blocks| blocks <= 1 << 20);
    let blocks = blocks.ok_or_else(|| case.error("`num_blocks` must be a whole number up to 2^20"))?;
    let config = BlockConfig { block_size: 1, blocks, ..BlockConfig::default() };
    let index = HashIndex::new(&config).map_err(|error| case.error(error.to_string()))?;
    let mut pool = Pool { index, owners: vec![0; blocks as usize], pops: Vec::new(), names: Vec::new() };
    for op in list(case, case.given("ops")?)? {
        let op = op.as_str().ok_or_else(|| case.error("an operation must be text"))?;
        pool.run(op).ok_or_else(|| case.error(format!("operation `{op}` makes no sense")))?;
    }
    let expected = case.field("expected")?;
    let last_two = &pool.pops[pool.pops.len().saturating_sub(2)..];
    let mut got = json!({ "pops": pool.pops, "last two pops": last_two });
    if let Some(Value::Object(lookup)) = expected.get("lookup") {
        let found = lookup.keys().map(|name| (name.clone(), pool.lookup(name)));
        got["lookup"] = found.collect::<Map<_, _>>().into();
    }
    Ok(verdict(compare("expected", expected, &got)))
}

impl Pool {
    fn content(&mut self, name: &str) -> Token {
        let known = self.names.iter().position(|known| known == name);
        let at = known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        at as Token
    }

    fn lookup(&mut self, name: &str) -> Value {
        let mut found = Vec::new();
        let token = self.content(name);
        self.index.find(&[token], 0, 1, &mut found);
        found.first().map_or(json!(-1), |block| json!(block))
    }

    /// Runs one operation. `None` means a malformed operation.
    fn run(&mut self, op: &str) -> Option<()> {
        let words: Vec<&str> = op.split_whitespace().collect();
        let ids =
            |text: &str| text.split(',').map(|id| id.trim().parse().ok()).collect::<Option<Vec<BlockId>>>();
        match words[..] {
            ["pop"] => self.pop(),
            ["pop", times] => (0..times.strip_prefix('x')?.parse().ok()?).try_for_each(|_: u32| self.pop()),
            ["publish", block, name] => self.publish(*ids(block)?.first()?, name),
            ["free", blocks] => ids(blocks)?.into_iter().try_for_each(|block| self.free(block)),
            ["claim" | "allocate", blocks] => ids(blocks)?.into_iter().try_for_each(|block| self.hold(block)),
            ["cache", block, "as", name] => {
                let block = *ids(block)?.first()?;
                self.hold(block)?;
                self.publish(block, name)?;
                self.free(block)
            }
            _ => None,
        }
    }

    fn pop(&mut self) -> Option<()> {
        let block = self.index.take()?;
        self.owners[block as usize] = 1;
        self.pops.push(block);
        Some(())
    }

    fn hold(&mut self, block: BlockId) -> Option<()> {
        let owners = self.owners.get_mut(block as usize)?;
        *owners += 1;
        if *owners == 1 {
            self.index.hold(block);
        }
        Some(())
    }

    fn free(&mut self, block: BlockId) -> Option<()> {
        let owners = self.owners.get_mut(block as usize)?;
        *owners = owners.checked_sub(1)?;
        if *owners == 0 {
            self.index.release(block);
        }
        Some(())
    }

    fn publish(&mut self, block: BlockId, name: &str) -> Option<()> {
        let tokens = [self.content(name)];
        self.owners.get(block as usize).filter(|&&owners| owners > 0)?;
        self.index.publish(
            Offer { table: &TailBuffered::new(vec![block]), tokens: &tokens, salt: 0, from: 0 },
            &mut Vec::new(),
        );
        Some(())
    }
}
