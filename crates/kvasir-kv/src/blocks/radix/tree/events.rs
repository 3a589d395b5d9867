//! KV events of a [`RadixTree`]: records stored pages, and announces all pages after the log has
//! overflowed.

use crate::blocks::event_log::EventLog;
use crate::blocks::radix::tree::{NONE, NodeId, RadixTree};
use crate::contract::ids::{BlockId, Token};
use crate::contract::kv_event::KvEvent;
use std::collections::HashMap;

impl RadixTree {
    /// Starts recording KV events. The tree must be empty.
    pub(crate) fn record_events(&mut self) {
        self.log.get_or_insert_default();
    }

    /// Moves the recorded KV events to `into`.
    pub(crate) fn take_events(&mut self, into: &mut Vec<KvEvent>) {
        if let Some(log) = &mut self.log
            && log.take(into)
        {
            self.announce_all(into);
        }
    }

    /// The block hash of a page of a node, if KV events are recorded. Linear in the node's pages.
    pub(crate) fn page_hash(&self, node: NodeId, page: BlockId) -> Option<u64> {
        let node = &self.nodes[node as usize];
        let found = node.pages.iter().zip(&node.hashes).find(|(other, _)| **other == page);
        found.map(|(_, &hash)| hash)
    }

    /// Appends events that store all pages.
    fn announce_all(&self, into: &mut Vec<KvEvent>) {
        let mut children = HashMap::<NodeId, Vec<NodeId>>::new();
        self.edges.iter().for_each(|(&(parent, _), &child)| children.entry(parent).or_default().push(child));
        let mut log = EventLog::with_limit(usize::MAX);
        let mut pending: Vec<(NodeId, Option<u64>, u64)> =
            self.roots.iter().map(|(&salt, &root)| (root, None, salt)).collect();
        while let Some((at, mut parent, salt)) = pending.pop() {
            let node = &self.nodes[at as usize];
            log.begin_publication();
            for (&hash, page) in node.hashes.iter().zip(node.key.chunks_exact(self.page)) {
                log.stored(hash, parent, salt, page);
                parent = Some(hash);
            }
            let children = children.remove(&at).unwrap_or_default();
            pending.extend(children.into_iter().map(|child| (child, parent, salt)));
        }
        log.take(into);
    }

    /// Removes all nodes; KV events continue to be recorded.
    pub(crate) fn clear(&mut self) {
        let mut log = self.log.take();
        log.as_mut().into_iter().for_each(|log| log.cleared());
        *self = Self { log, ..Self::new(self.page as u32) };
    }

    /// Records the pages of a new leaf under `parent`; returns their hashes.
    pub(super) fn log_stored(&mut self, parent: NodeId, tokens: &[Token]) -> Vec<u64> {
        let Some(log) = &mut self.log else { return Vec::new() };
        let node = &self.nodes[parent as usize];
        // Only events of a root's children carry the salt.
        let salt = if node.parent == NONE { node.edge } else { 0 };
        let mut hashes = Vec::with_capacity(tokens.len() / self.page);
        log.stored_all(node.hashes.last().copied(), salt, tokens, self.page, &mut hashes);
        hashes
    }
}
