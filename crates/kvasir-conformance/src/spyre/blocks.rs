//! Maps recorded Spyre block ids to ours, so that block tables compare up to renaming of fresh
//! blocks.

use crate::compare::Mismatch;
use kvasir_kv::BlockId;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A bijection between the case's block ids and ours.
///
/// Retained and prefix-hit blocks keep their identity. A fresh block may take any id that no table
/// of the step uses, since the allocation order is not specified. The dummy block is 0 on both
/// sides.
#[derive(Debug, Default)]
pub(crate) struct BlockNames {
    ours: BTreeMap<BlockId, BlockId>,
    theirs: BTreeMap<BlockId, BlockId>,
    /// Each request's last compared table, as pairs of the case's block and ours.
    known: BTreeMap<String, Vec<(BlockId, BlockId)>>,
}

/// One request's table on both sides, and its prefix cache hit in blocks.
#[derive(Debug)]
pub(crate) struct TablePair {
    pub(super) name: String,
    pub(super) expected: Vec<BlockId>,
    pub(super) own: Vec<BlockId>,
    pub(super) hit: usize,
}

/// Parses a list of block ids.
pub(crate) fn ids(value: &Value) -> Vec<BlockId> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|id| id.as_u64().map_or(BlockId::MAX, |id| id as BlockId)).collect()
}

impl BlockNames {
    /// Compares all block tables of a step: known blocks first, then fresh ones, which may be
    /// renamed.
    pub(super) fn tables(&mut self, at: &str, pairs: &[TablePair]) -> Result<(), Box<Mismatch>> {
        let differs = |pair: &TablePair| {
            let at = format!("{at}.block_tables.{}", pair.name);
            Box::new(Mismatch { at, expected: json!(pair.expected), got: json!(pair.own) })
        };
        let mut taken = (BTreeSet::new(), BTreeSet::new());
        for want_fresh in [false, true] {
            for pair in pairs {
                let before = self.known.get(&pair.name).map(Vec::as_slice).unwrap_or_default();
                let both: Vec<_> = pair.expected.iter().copied().zip(pair.own.iter().copied()).collect();
                if pair.expected.len() != pair.own.len() || both.iter().zip(before).any(|(a, b)| a != b) {
                    return Err(differs(pair));
                }
                let known = before.len().max(pair.hit);
                let (old, fresh) = both.split_at(known.min(both.len()));
                for &(theirs, ours) in if want_fresh { fresh } else { old } {
                    if want_fresh && !taken.0.contains(&theirs) && !taken.1.contains(&ours) {
                        self.rename(theirs, ours);
                    }
                    if !self.same(theirs, ours) {
                        return Err(differs(pair));
                    }
                    taken.0.insert(theirs);
                    taken.1.insert(ours);
                }
            }
        }
        for pair in pairs {
            let both = pair.expected.iter().copied().zip(pair.own.iter().copied());
            self.known.insert(pair.name.clone(), both.collect());
        }
        Ok(())
    }

    fn rename(&mut self, theirs: BlockId, ours: BlockId) {
        if let Some(old) = self.ours.insert(theirs, ours) {
            self.theirs.remove(&old);
        }
        if let Some(old) = self.theirs.insert(ours, theirs)
            && old != theirs
        {
            self.ours.remove(&old);
        }
    }

    /// Whether two blocks correspond; two unmapped blocks are bound to each other.
    fn same(&mut self, theirs: BlockId, ours: BlockId) -> bool {
        if theirs == 0 || ours == 0 {
            return theirs == ours;
        }
        match (self.ours.get(&theirs), self.theirs.get(&ours)) {
            (None, None) => {
                self.rename(theirs, ours);
                true
            }
            (Some(&known), _) => known == ours,
            (None, Some(_)) => false,
        }
    }

    /// Compares a list of mapped blocks or dummies.
    pub(super) fn list(
        &mut self,
        at: &str,
        expected: &[BlockId],
        own: &[BlockId],
    ) -> Result<(), Box<Mismatch>> {
        let equal = expected.len() == own.len();
        if equal && expected.iter().zip(own).all(|(theirs, ours)| self.same(*theirs, *ours)) {
            Ok(())
        } else {
            Err(Box::new(Mismatch { at: at.into(), expected: json!(expected), got: json!(own) }))
        }
    }

    /// Compares a count per block, such as reference counts.
    pub(super) fn counts(&mut self, at: &str, expected: &Value, got: &Value) -> Result<(), Box<Mismatch>> {
        let differs = || Box::new(Mismatch { at: at.into(), expected: expected.clone(), got: got.clone() });
        let (Some(wanted), Some(have)) = (expected.as_object(), got.as_object()) else {
            return Err(differs());
        };
        let equal = |(key, count): (&String, &Value)| {
            let ours = key.parse().ok().and_then(|id: BlockId| self.ours.get(&id));
            ours.is_some_and(|ours| have.get(&ours.to_string()) == Some(count))
        };
        if wanted.len() == have.len() && wanted.iter().all(equal) { Ok(()) } else { Err(differs()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, expected: &[u32], own: &[u32], hit: usize) -> TablePair {
        TablePair { name: name.into(), expected: expected.into(), own: own.into(), hit }
    }

    #[test]
    fn fresh_blocks_may_be_renamed_and_others_may_not() {
        let mut names = BlockNames::default();
        names.tables("0", &[pair("a", &[1, 2, 3], &[1, 2, 3], 0)]).unwrap();
        // After `a` has ended, `b` hits two of its blocks; either free block may become its fresh
        // one.
        names.tables("1", &[pair("b", &[1, 2, 5], &[1, 2, 3], 2)]).unwrap();
        assert!(names.tables("2", &[pair("b", &[1, 2, 3, 4], &[1, 2, 4, 3], 2)]).is_err(), "b had 5");
        assert!(names.tables("3", &[pair("c", &[2], &[1], 1)]).is_err(), "found ones keep their names");
        assert!(
            names.tables("4", &[pair("b", &[1, 2, 5], &[1, 2, 3], 2), pair("d", &[5], &[9], 0)]).is_err()
        );
        names.tables("5", &[pair("b", &[1, 2, 5], &[1, 2, 3], 2), pair("d", &[1, 8], &[1, 9], 1)]).unwrap();
        assert!(names.list("6", &[0, 8], &[0, 9]).is_ok() && names.list("6", &[0], &[9]).is_err());
        let counts = (json!({"1": 2, "8": 1}), json!({"1": 2, "9": 1}));
        assert!(names.counts("7", &counts.0, &counts.1).is_ok());
        assert!(names.counts("7", &counts.0, &json!({"1": 1, "9": 1})).is_err());
    }
}
