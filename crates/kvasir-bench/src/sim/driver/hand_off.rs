//! Disaggregated prefill: a prefill replica computes a prompt and sends its K and V to a decode
//! replica, where the request continues.
//!
//! Export and import of K/V blocks and the routing are those of `kvasir serve --role`.
//! [`ReplicaLinks`](crate::sim::links::ReplicaLinks) models the time of a transfer. A transfer
//! begins when the step that computed its blocks ends, so it overlaps with later prefill chunks. The
//! sender decodes the request until its last transfer has arrived; then the request continues on its
//! target, the decode replica. The target computes the blocks that were not sent, lost or refused.

use crate::sim::driver::placement::WaitingRequest;
use crate::sim::driver::{Driver, FleetEvent};
use crate::sim::fleet_series::ReplicaSample;
use crate::sim::observer::lock;
use crate::sim::open_request::RequestHistory;
use crate::sim::step_account::MoveCause;
use kvasir_engine::{KvExport, KvImport, Nanos, Request, RequestId, RoleCharge, RouteRequest};

/// A transfer of K/V blocks between replicas.
pub(super) struct KvTransfer {
    from: usize,
    to: usize,
    /// Failures of `from` and `to` before the transfer began. If either has failed since, the
    /// transfer is lost.
    failures: [u32; 2],
    import: KvImport,
}

/// A request between its prefill replica and the decode replica that was charged for it.
pub(super) struct HandedOffRequest {
    request: Request,
    history: RequestHistory,
    arrived: Nanos,
    charge: RoleCharge,
    /// Failures of the decode replica before the request was handed off.
    failures: u32,
}

impl Driver<'_> {
    /// Numbers of failures of these replicas so far.
    fn failure_counts<const N: usize>(&self, replicas: [usize; N]) -> [u32; N] {
        replicas.map(|index| self.replicas[index].report.failures)
    }

    /// Sends the blocks that the last step of a replica has computed.
    pub(super) fn send_exports(&mut self, index: usize) {
        let exports = std::mem::take(&mut self.replicas[index].results.exports);
        for KvExport { tag, start, tokens, is_last, .. } in exports {
            let replica = &mut self.replicas[index];
            let Some(id) = replica.handing_off.get(&tag).copied() else { continue };
            if is_last {
                replica.handing_off.remove(&tag);
                replica.exported.push(id);
            }
            let Some(open) = replica.open.get_mut(&id) else { continue };
            let sequence = replica.engine.core().sequence(id);
            let prefix = sequence.and_then(|sequence| sequence.prompt().get(..(start + tokens) as usize));
            let to = open.target.as_ref().map(RoleCharge::replica);
            let (Some(to), Some(links), Some(prefix)) = (to, &mut self.links, prefix) else {
                replica.report.transfers.unsent_tokens += u64::from(tokens);
                continue;
            };
            if tokens == 0 {
                continue;
            }
            let Some(at) = links.send(self.now, index, to, tokens) else {
                replica.report.transfers.unsent_tokens += u64::from(tokens);
                continue;
            };
            open.transferred_at = open.transferred_at.max(at);
            replica.report.transfers.sent_tokens += u64::from(tokens);
            let import = KvImport { salt: 0, tokens: prefix.to_vec(), start, rows: Vec::new() };
            let failures = self.failure_counts([index, to]);
            self.events.push(at, FleetEvent::Import(KvTransfer { from: index, to, failures, import }));
        }
    }

    /// Hands off the requests of a replica that have an output token, and whose K and V have
    /// arrived.
    pub(super) fn hand_off_exported(&mut self, index: usize) {
        for id in std::mem::take(&mut self.replicas[index].exported) {
            self.hand_off(index, id);
        }
    }

    /// Hands off a request, or retries after the next step if it has no output token yet.
    fn hand_off(&mut self, index: usize, id: RequestId) {
        let replica = &mut self.replicas[index];
        let (Some(open), Some(sequence)) = (replica.open.get_mut(&id), replica.engine.core().sequence(id))
        else {
            return;
        };
        if sequence.outputs_len() == 0 || open.transferred_at > self.now {
            return replica.exported.push(id);
        }
        let tokens = u64::from(sequence.prompt_len() + sequence.outputs_len());
        let route = RouteRequest { tokens, ..RouteRequest::new(sequence.prompt(), 0) };
        let target = open.target.take().or_else(|| self.router.pick_decode(&route));
        // Without a decode replica the request stays on this one.
        let Some(charge) = target else { return };
        let mut history = open.history;
        let arrived = sequence.timings().arrived;
        let hit = sequence.hit();
        let at = self.now + self.links.as_ref().map_or(0, |links| links.latency());
        let request = history.end_run(sequence, replica.last_token(id), self.now);
        history.before.cause = MoveCause::HandOff;
        replica.report.handed_off += 1;
        replica.report.prompt_tokens += request.prompt.len() as u64;
        replica.report.cached_tokens += u64::from(hit);
        if let Some(open) = replica.detach(id) {
            self.router.release(open.charge);
        }
        let [failures] = self.failure_counts([charge.replica()]);
        self.in_transit += 1;
        let handed_off = HandedOffRequest { request, history, arrived, charge, failures };
        self.events.push(at, FleetEvent::HandOff(Box::new(handed_off)));
    }

    /// Imports the K/V blocks of a transfer that has arrived, unless a failure has lost it.
    pub(super) fn import(&mut self, transfer: KvTransfer) {
        let KvTransfer { from, to, failures, import } = transfer;
        let tokens = (import.tokens.len() as u32).saturating_sub(import.start);
        if failures != self.failure_counts([from, to]) {
            self.replicas[to].report.transfers.lost_tokens += u64::from(tokens);
            return;
        }
        let replica = &mut self.replicas[to];
        replica.engine.import_kv(import);
        let outbox = replica.engine.core_mut().outbox();
        let imports = std::mem::take(&mut outbox.imports);
        replica.results.kv_events.append(&mut outbox.kv_events);
        replica.report.transfers.received_tokens += u64::from(imports.stored);
        replica.report.transfers.refused_tokens += u64::from(imports.refused);
        if let (Some(series), Some(links)) = (&self.shared.series, &self.links) {
            let sample = ReplicaSample { transferred_bytes: links.bytes(tokens), ..ReplicaSample::default() };
            [from, to].into_iter().for_each(|index| lock(series).add(index, self.now, sample));
        }
        if !self.replicas[to].is_scheduled {
            self.deliver(to);
        }
    }

    /// Queues a handed-off request on its decode replica, or on another one if that has failed.
    pub(super) fn start_handed_off(&mut self, handed_off: HandedOffRequest) {
        let HandedOffRequest { request, history, arrived, charge, failures } = handed_off;
        self.in_transit -= 1;
        let is_up = self.failure_counts([charge.replica()]) == [failures]
            && !self.replicas[charge.replica()].report.lost;
        let chosen = if is_up {
            Some(charge)
        } else {
            self.router.release(charge);
            None
        };
        self.place(WaitingRequest { request, history, arrived }, chosen);
    }
}
