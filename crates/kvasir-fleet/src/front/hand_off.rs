//! Hand-off of requests: one worker computes the prompt and another decodes (disaggregated
//! prefill).
//!
//! 1. A request is placed on a worker of the prefill role. The front also picks and charges the
//!    *target*, the worker that will decode the request.
//! 2. The first worker reports each record that it has written to its segment while it computes the
//!    prompt. The front sends the target an import of these blocks.
//! 3. After the last export and the first token, the request moves as from a drained worker. The
//!    blocks are a cached prefix of the target.
//!
//! A transfer has no state: the target computes blocks that are lost, refused or late. A request
//! without a target stays on its worker.

use crate::front::{Front, WorkerMessage, route_of};
use crate::message::{Exported, RecordLocation};
use kvasir_engine::{ImportCounts, KvImport, Message, Role, RoleCharge, TransferCounts};
use std::sync::Arc;

impl Front {
    /// K/V transfer counters of a worker.
    pub(crate) fn transfers(&self, replica: usize) -> TransferCounts {
        self.transfers.get(replica).copied().unwrap_or_default()
    }

    /// Role of a worker.
    pub(crate) fn role(&self, replica: usize) -> Role {
        self.router.role(replica)
    }

    /// Picks one target for all siblings that prefill on `replica`, and charges it for each.
    /// Returns the charges, each with the number of prompt tokens that the target has cached. Empty
    /// if the requests are not handed off.
    pub(super) fn targets(&mut self, tag: u64, replica: usize, n: u32) -> Vec<(RoleCharge, u32)> {
        let Some(open) = self.requests.get(&tag) else { return Vec::new() };
        if self.router.role(replica) != Role::Prefill || !open.can_be_handed_off() {
            return Vec::new();
        }
        let (request, tokens) = (Arc::clone(&open.request), open.tokens());
        let mut targets = Vec::<(RoleCharge, u32)>::with_capacity(n as usize);
        for i in 0..n {
            let requested = targets.first().map(|(charge, _)| charge.replica());
            let route = route_of(&request, if i == 0 { tokens } else { 0 }, requested);
            let Some(charge) = self.router.pick_decode(&route) else { break };
            let held = self.router.held_tokens(charge.replica(), &route);
            targets.push((charge, held));
        }
        targets
    }

    /// Releases all targets on a worker.
    pub(super) fn drop_targets(&mut self, replica: usize) {
        for open in self.requests.values_mut() {
            let target = open
                .placement
                .as_mut()
                .and_then(|placement| placement.target.take_if(|charge| charge.replica() == replica));
            target.into_iter().for_each(|charge| self.router.release(charge));
        }
    }

    /// Handles an export of a worker: sends the target an import of its blocks, and moves the
    /// request after the last export.
    pub(crate) fn exported(&mut self, replica: usize, exported: Exported) {
        let Exported { run, start, tokens, rows, is_last } = exported;
        let Some(tag) = self.runs.get(&run).copied() else { return };
        let Some(open) = self.requests.get_mut(&tag) else { return };
        let request = Arc::clone(&open.request);
        let placement = open.placement.as_mut().filter(|placement| placement.replica == replica);
        let Some(placement) = placement else { return };
        placement.is_exported |= is_last;
        let target = placement.target.as_ref().map(RoleCharge::replica);
        let blocks = u64::from(tokens / self.router.block_size().max(1));
        let end = start.checked_add(tokens).map_or(usize::MAX, |end| end as usize);
        let counts = &mut self.transfers[replica];
        match (target, rows, request.prompt.get(..end)) {
            (Some(target), Some(record), Some(tokens)) => {
                let record = RecordLocation { segment: replica as u32, ..record };
                counts.sent_blocks += blocks;
                counts.sent_bytes += record.bytes;
                let salt = request.params.salt;
                let import = KvImport { salt, tokens: tokens.to_vec(), start, rows: Vec::new() };
                let message = Message::Import(Box::new(import));
                self.sends.push(WorkerMessage { replica: target, message, recipe: None, rows: Some(record) });
            }
            _ => counts.unsent_blocks += blocks,
        }
        self.hand_off(tag);
    }

    /// Moves a request to its target, or to another worker that decodes, if it should be handed off
    /// now. It stays if no such worker is available.
    pub(super) fn hand_off(&mut self, tag: u64) {
        let Some(open) = self.requests.get_mut(&tag).filter(|open| open.should_hand_off()) else { return };
        let (request, tokens) = (Arc::clone(&open.request), open.tokens());
        let chosen = open.placement.as_mut().and_then(|placement| placement.target.take());
        let target = chosen.or_else(|| self.router.pick_decode(&route_of(&request, tokens, None)));
        let Some(open) = self.requests.get_mut(&tag) else { return };
        let Some(target) = target else {
            return open.placement.iter_mut().for_each(|placement| placement.is_exported = false);
        };
        let Some(placement) = open.displace() else { return self.router.release(target) };
        let (replica, run) = (placement.replica, placement.tag);
        self.runs.remove(&run);
        self.release(placement);
        self.send(replica, Message::Abort { tag: run });
        self.start(tag, vec![target], false);
    }

    /// Adds the outcomes of imports to the counters of a worker.
    pub(super) fn count_imports(&mut self, replica: usize, imports: ImportCounts) {
        let block = self.router.block_size().max(1);
        if let Some(counts) = self.transfers.get_mut(replica) {
            counts.received_blocks += u64::from(imports.stored / block);
            counts.refused_blocks += u64::from(imports.refused / block);
        }
    }
}
