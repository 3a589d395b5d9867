//! Disaggregated prefill: a replica of the prefill role computes a prompt, its K and V travel to the
//! replica that decodes, and the request follows.
//!
//! Blocks, their export and import, and the routing are those of `kvasir serve --role`; the time of a
//! transfer is that of [`ReplicaLinks`](crate::sim::links::ReplicaLinks). A transfer begins when the
//! step that computed its blocks ends, so it overlaps with later chunks. The sender decodes the request
//! until its last transfer has arrived; then the request moves. Its target computes what was not sent,
//! lost or refused.

use crate::sim::driver::placement::WaitingRequest;
use crate::sim::driver::{Driver, FleetEvent};
use crate::sim::fleet_series::ReplicaSample;
use crate::sim::observer::lock;
use crate::sim::open_request::History;
use crate::sim::step_account::MoveCause;
use kvasir_engine::{KvExport, KvImport, Nanos, Request, RequestId, RoleCharge, RouteRequest};

/// K and V on their way to a replica.
pub(super) struct Transfer {
    from: usize,
    to: usize,
    /// Of both replicas when it began: a replica that has failed since receives nothing.
    generations: [u32; 2],
    import: KvImport,
}

/// A request on its way to the replica that was charged for it.
pub(super) struct Moving {
    request: Request,
    history: History,
    arrived: Nanos,
    charge: RoleCharge,
    generation: u32,
}

impl Driver<'_> {
    /// Releases the targets on a replica that fails.
    pub(super) fn drop_targets(&mut self, index: usize) {
        if self.links.is_none() {
            return;
        }
        let open = self.replicas.iter_mut().flat_map(|replica| replica.open.values_mut());
        for open in open {
            let target = open.target.take_if(|target| target.replica() == index);
            target.into_iter().for_each(|target| self.router.release(target));
        }
    }

    /// Sends the blocks that the last step of a replica has computed.
    pub(super) fn send_exports(&mut self, index: usize) {
        let exports = std::mem::take(&mut self.replicas[index].results.exports);
        for KvExport { tag, start, tokens, is_last, .. } in exports {
            let generation = self.replicas[index].generation;
            let replica = &mut self.replicas[index];
            let Some(id) = replica.handing_off.get(&tag).copied() else { continue };
            if is_last {
                replica.handing_off.remove(&tag);
                replica.exported.push(id);
            }
            let Some(open) = replica.open.get_mut(&id) else { continue };
            open.is_exported |= is_last;
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
            let generations = [generation, self.replicas[to].generation];
            self.events.push(at, FleetEvent::Import(Transfer { from: index, to, generations, import }));
        }
    }

    /// Moves the requests of a replica that have a token, and whose K and V have arrived.
    pub(super) fn hand_off_exported(&mut self, index: usize) {
        for id in std::mem::take(&mut self.replicas[index].exported) {
            self.hand_off(index, id);
        }
    }

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
        // Without a replica that decodes it stays.
        let Some(charge) = target else { return };
        let mut history = open.history;
        let arrived = sequence.timings().arrived;
        let hit = sequence.hit();
        let at = self.now + self.links.as_ref().map_or(0, |links| links.latency());
        let last_token = replica.last_token(id);
        let Some(sequence) = replica.engine.core().sequence(id) else { return };
        let request = history.end_run(sequence, last_token, self.now);
        history.before.cause = MoveCause::HandOff;
        replica.report.handed_off += 1;
        replica.report.prompt_tokens += request.prompt.len() as u64;
        replica.report.cached_tokens += u64::from(hit);
        if let Some(open) = replica.displace(id) {
            self.router.release(open.charge);
        }
        let generation = self.replicas[charge.replica()].generation;
        self.moving += 1;
        let moving = Moving { request, history, arrived, charge, generation };
        self.events.push(at, FleetEvent::Start(Box::new(moving)));
    }

    /// K and V arrive at a replica.
    pub(super) fn import(&mut self, transfer: Transfer) {
        let Transfer { from, to, generations, import } = transfer;
        let tokens = (import.tokens.len() as u32).saturating_sub(import.start);
        if generations != [from, to].map(|index| self.replicas[index].generation) {
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
            let sample = ReplicaSample { transferred: links.bytes(tokens), ..ReplicaSample::default() };
            [from, to].into_iter().for_each(|index| lock(series).add(index, self.now, sample));
        }
        if !self.replicas[to].is_scheduled {
            self.deliver(to);
        }
    }

    /// A handed-off request arrives at its replica, or at another one if that has failed.
    pub(super) fn start_moved(&mut self, moving: Moving) {
        let Moving { request, history, arrived, charge, generation } = moving;
        self.moving -= 1;
        let is_up = self.replicas[charge.replica()].generation == generation
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
