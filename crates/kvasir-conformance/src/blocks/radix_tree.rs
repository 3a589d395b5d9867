//! Replays `minisgl.radix`: match, insert, lock, unlock and LRU eviction on the radix tree itself.

use crate::blocks::manager::{list, numbers};
use crate::case::{Case, CaseError};
use crate::compare::{Mismatch, compare};
use crate::outcome::Outcome;
use kvasir_kv::{NodeId, RadixTree};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::BTreeMap;

struct Tree {
    tree: RadixTree,
    page: usize,
    /// Saved handles: node and length in tokens.
    handles: BTreeMap<String, (NodeId, u32)>,
    locks: BTreeMap<NodeId, u32>,
}

/// Runs one case.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    let page = page_size(case)?;
    let tree = RadixTree::new(page);
    let mut tree = Tree { tree, page: page as usize, handles: BTreeMap::new(), locks: BTreeMap::new() };
    let expected = case.field("expected")?;
    let after = list(case, expected.get("after_each_op").unwrap_or(&Value::Null))?;
    for (at, (op, expected)) in list(case, case.given("ops")?)?.iter().zip(after).enumerate() {
        let mut got = tree.run(case, op)?;
        tree.tree
            .check(|node, _| tree.locks.get(&node).copied().unwrap_or(0))
            .map_err(|why| case.error(why))?;
        got["evictable"] = json!(tree.tree.evictable());
        got["protected"] = json!(tree.tree.protected());
        got["nodes"] = json!(tree.tree.nodes());
        let place = format!("ops[{at}] {}", op.get("op").and_then(Value::as_str).unwrap_or_default());
        if let Err(mismatch) = compare(&place, expected, &got) {
            return Ok(Outcome::Failed(mismatch));
        }
    }
    let locks = |node| lock_sum(&tree.tree, &tree.locks, node);
    Ok(match check_final_tree(expected.get("final_tree"), &tree.tree, |page| page, locks) {
        Ok(()) => Outcome::Passed,
        Err(mismatch) => Outcome::Failed(mismatch),
    })
}

/// `given.page_size`, 1 to 256.
pub(crate) fn page_size(case: &Case) -> Result<u32, CaseError> {
    let page = case.given("page_size")?.as_u64().filter(|page| (1..=256).contains(page));
    page.map(|page| page as u32).ok_or_else(|| case.error("`page_size` must be 1 to 256"))
}

/// Sum of the locks on a node and its descendants, as engines count that lock the whole path to the
/// root.
fn lock_sum(tree: &RadixTree, locks: &BTreeMap<NodeId, u32>, node: NodeId) -> u32 {
    let below: u32 = tree.children(node).into_iter().map(|child| lock_sum(tree, locks, child)).sum();
    below + locks.get(&node).copied().unwrap_or(0)
}

impl Tree {
    fn run(&mut self, case: &Case, op: &Value) -> Result<Value, CaseError> {
        let root = self.tree.root(0);
        match op.get("op").and_then(Value::as_str) {
            Some("match") => {
                let ids = numbers(case, op.get("ids").unwrap_or(&Value::Null))?;
                let mut pages = Vec::new();
                let reached = self.tree.walk(root, &ids, |_| 0, &mut pages);
                self.save(op, reached.node, reached.tokens);
                Ok(json!({ "matched": reached.tokens, "handle_len": reached.tokens, "pages": pages }))
            }
            Some("insert") => {
                let ids = numbers(case, op.get("ids").unwrap_or(&Value::Null))?;
                let given = numbers(case, op.get("pages").unwrap_or(&Value::Null))?;
                let ids = &ids[..ids.len() / self.page * self.page];
                let mut pages = Vec::new();
                let reached = self.tree.walk(root, ids, |_| 0, &mut pages);
                let new = given.get(pages.len()..ids.len() / self.page);
                let new = new.ok_or_else(|| case.error("insert: too few pages for the ids"))?;
                let leaf = self.tree.add_leaf(reached.node, &ids[reached.tokens as usize..], new);
                pages.extend_from_slice(new);
                self.save(op, leaf.unwrap_or(reached.node), ids.len() as u32);
                Ok(json!({ "already_cached": reached.tokens, "handle_len": ids.len(), "pages": pages }))
            }
            Some(verb @ ("lock" | "unlock")) => {
                let handle = op.get("handle").and_then(Value::as_str).and_then(|name| self.handles.get(name));
                let &(node, _) = handle.ok_or_else(|| case.error(format!("{verb}: no such handle")))?;
                let locks = self.locks.entry(node).or_default();
                if verb == "lock" {
                    *locks += 1;
                    self.tree.pin(node, 1);
                } else if *locks == 0 {
                    return Ok(json!({ "error": "assertion" }));
                } else {
                    *locks -= 1;
                    self.tree.unpin(node, 1);
                }
                Ok(json!({}))
            }
            Some("evict") => {
                let size = op.get("size").and_then(Value::as_u64);
                let size = size.ok_or_else(|| case.error("evict: field `size` must be a whole number"))?;
                if size > u64::from(self.tree.evictable()) {
                    return Ok(json!({ "error": "assertion" }));
                }
                let (mut pages, mut evicted) = (Vec::new(), 0);
                while evicted < size {
                    evicted += u64::from(self.tree.evict_leaf(&mut pages).unwrap_or(0));
                }
                Ok(json!({ "evicted": evicted, "pages": pages }))
            }
            other => Err(case.error(format!("operation {other:?} is not known"))),
        }
    }

    fn save(&mut self, op: &Value, node: NodeId, len: u32) {
        if let Some(name) = op.get("save").and_then(Value::as_str) {
            self.handles.insert(name.to_owned(), (node, len));
        }
    }
}

/// Compares the final tree. LRU timestamps are compared by order only.
pub(crate) fn check_final_tree(
    expected: Option<&Value>,
    tree: &RadixTree,
    page: impl Fn(u32) -> u32 + Copy,
    refs: impl Fn(NodeId) -> u32 + Copy,
) -> Result<(), Box<Mismatch>> {
    let (Some(expected), Some(root)) = (expected, tree.find_root(0)) else { return Ok(()) };
    let mut times = Vec::new();
    let got = branches(tree, root, Some(expected), page, refs, &mut times);
    compare("final_tree", expected, &got)?;
    for (i, a) in times.iter().enumerate() {
        let differs = times[i..].iter().find(|b| order(a.0, b.0) != order(a.1, b.1));
        if let Some(b) = differs {
            let (expected, got) = (json!([a.0, b.0]), json!([a.1, b.1]));
            return Err(Box::new(Mismatch { at: "final_tree: order of ts".into(), expected, got }));
        }
    }
    Ok(())
}

fn order(a: u64, b: u64) -> Ordering {
    a.cmp(&b)
}

/// Renders the subtree below `node` in the case's format; pairs expected and actual timestamps in
/// `times`.
fn branches(
    tree: &RadixTree,
    node: NodeId,
    expected: Option<&Value>,
    page: impl Fn(u32) -> u32 + Copy,
    refs: impl Fn(NodeId) -> u32 + Copy,
    times: &mut Vec<(u64, u64)>,
) -> Value {
    let children = tree.children(node).into_iter().enumerate().map(|(i, child)| {
        let expected = expected.and_then(|expected| expected.get(i));
        let time = expected.and_then(|expected| expected.get("ts"));
        if let Some(time) = time.and_then(Value::as_u64) {
            times.push((time, tree.used_at(child)));
        }
        let pages: Vec<u32> = tree.pages(child).iter().map(|&id| page(id)).collect();
        json!({
            "key": tree.key(child),
            "pages": pages,
            "ref": refs(child),
            "ts": time,
            "children": branches(tree, child, expected.and_then(|e| e.get("children")), page, refs, times),
        })
    });
    children.collect()
}
