//! Placement of requests on replicas: arrivals, failures and restarts.
//!
//! A request of a failed replica continues on another and keeps its outputs. The new replica
//! computes the part of prompt and outputs that its prefix cache does not hold. Requests wait while
//! no replica is available.

use crate::sim::driver::{Driver, FleetEvent};
use crate::sim::failures::nanos;
use crate::sim::observer::lock;
use crate::sim::open_request::{OpenRequest, RequestHistory};
use crate::sim::step_account::MoveCause;
use crate::workload::{At, Job};
use kvasir_engine::{
    Fault, Finish, Nanos, Params, Phase, Request, Role, RoleCharge, RouteRequest, SessionId, Summary, Timings,
};
use kvasir_kv::prefix_hashes;
use kvasir_sample::Sampling;

/// A request that is to be placed on a replica.
pub(super) struct WaitingRequest {
    pub(super) request: Request,
    pub(super) history: RequestHistory,
    /// When it arrived from the workload.
    pub(super) arrived: Nanos,
}

impl Driver<'_> {
    /// Routes a request of the workload and queues it.
    pub(super) fn add(&mut self, job: Job) {
        let arrived = match job.at {
            At::Time(at) => at,
            At::Step(_) => self.now,
        };
        if let Some(name) = self.workload.name(job.tag) {
            self.names.push((job.tag, name.to_owned()));
        }
        let length = job.max_tokens.max(1);
        let disconnects = self.aborts > 0 && self.rng.between(1, 1000) <= self.aborts;
        let abort_after = job.abort_after.or(disconnects.then(|| self.rng.between(0, length - 1)));
        let prompt = job.prompt.tokens();
        let block_size = self.router.block_size();
        let computed = self.computed_blocks.prefix_len(prefix_hashes(&prompt, 0, block_size)) * block_size;
        let history = RequestHistory::new(abort_after, job.session.map(SessionId), computed);
        let request = Request {
            tag: job.tag,
            prompt,
            params: Params {
                max_tokens: job.max_tokens,
                eos: vec![crate::workload::text::EOS],
                priority: job.priority,
                key: job.key,
                sampling: Sampling { seed: job.answer.0, ..Sampling::default() },
                ..Params::default()
            },
        };
        self.place(WaitingRequest { request, history, arrived }, None);
    }

    /// Queues a request and wakes its replica: that of the charge `chosen`, else the router's
    /// choice. The request waits in `unplaced` if no replica is available.
    pub(super) fn place(&mut self, waiting: WaitingRequest, chosen: Option<RoleCharge>) {
        let WaitingRequest { mut request, history, arrived } = waiting;
        let phase = if history.outputs == 0 { Phase::Prefill } else { Phase::Decode };
        let prompt = std::mem::take(&mut request.prompt);
        let tokens = prompt.len() as u64 + u64::from(history.outputs);
        let route = RouteRequest { session: history.session, tokens, ..RouteRequest::new(&prompt, 0) };
        let Some(charge) = chosen.or_else(|| self.router.pick(phase, &route).ok()) else {
            request.prompt = prompt;
            return self.unplaced.push_back(WaitingRequest { request, history, arrived });
        };
        let index = charge.replica();
        let may_hand_off = history.outputs == 0 && request.params.max_tokens > 1;
        let is_prefill_role = self.router.role(index) == Role::Prefill;
        let target = if may_hand_off && is_prefill_role { self.router.pick_decode(&route) } else { None };
        request.params.hand_off =
            target.as_ref().map(|target| self.router.held_tokens(target.replica(), &route));
        request.prompt = prompt;
        let replica = &mut self.replicas[index];
        replica.has_arrivals = true;
        if !replica.is_scheduled {
            replica.clock.advance(self.now);
            replica.is_scheduled = true;
            self.turns.push(std::cmp::Reverse((replica.clock.now(), index)));
        }
        let tag = request.tag;
        match replica.engine.core_mut().add(request, arrived) {
            Ok(id) => {
                if target.is_some() {
                    replica.handing_off.insert(tag, id);
                }
                replica.track(id, OpenRequest::new(charge, target, history));
            }
            // A refusal is delivered as the request's last event.
            Err(_) => self.release(charge, target),
        }
        self.update_waiting(index);
    }

    /// Releases the charges of a request on its replica and on its decode replica.
    pub(super) fn release(&mut self, charge: RoleCharge, target: Option<RoleCharge>) {
        self.router.release(charge);
        target.into_iter().for_each(|target| self.router.release(target));
    }

    /// Makes a replica that has failed or is lost unavailable, and releases the charges of requests
    /// that were to be handed off to it.
    pub(super) fn take_out_of_service(&mut self, index: usize) {
        self.router.set_available(index, false);
        self.router.restarted(index);
        for open in self.replicas.iter_mut().flat_map(|replica| replica.open.values_mut()) {
            let target = open.target.take_if(|target| target.replica() == index);
            target.into_iter().for_each(|target| self.router.release(target));
        }
    }

    /// Fails a replica: its requests continue on others, and it restarts without its cache.
    pub(super) fn fail(&mut self, index: usize) {
        self.take_out_of_service(index);
        let now = self.now;
        let replica = &mut self.replicas[index];
        let mut open: Vec<_> = replica.open.drain().collect();
        let core = replica.engine.core();
        open.sort_by_key(|(id, _)| core.sequence(*id).map(|sequence| sequence.number()));
        let (mut moved, mut failed) = (Vec::new(), Vec::new());
        for (id, OpenRequest { charge, target, mut history, .. }) in open {
            self.release(charge, target);
            let core = self.replicas[index].engine.core();
            let Some(sequence) = core.sequence(id) else { continue };
            let is_admitted = sequence.timings().admitted.is_some();
            let arrived = sequence.timings().arrived;
            let request = history.end_run(sequence, self.replicas[index].last_token(id), now);
            history.before.cause = MoveCause::Failure;
            let has_failed = history.count_loss(is_admitted);
            let list = if has_failed { &mut failed } else { &mut moved };
            list.push(WaitingRequest { request, history, arrived });
        }
        self.rebuild(index);
        for WaitingRequest { request, history, arrived } in failed {
            let timings = request.params.resumption.as_ref().map(|resumption| resumption.timings);
            let timings = Timings { arrived, finished: Some(now), ..timings.unwrap_or_default() };
            let (prompt, outputs) = (request.prompt.len() as u32, history.outputs);
            let finish = Finish::Failed(Fault::DeviceLost);
            let empty = Summary::empty(request.tag, finish);
            let mut summary = Summary { prompt, outputs, timings, ..empty };
            let transit = history.complete(&mut summary);
            self.end_request(index, &summary, transit);
        }
        moved.into_iter().for_each(|waiting| self.place(waiting, None));
    }

    /// Replaces the engine of a failed replica, and schedules the end of its restart. Without a new
    /// engine the replica stays lost.
    fn rebuild(&mut self, index: usize) {
        let Some((failures, _)) = &mut self.failures else { return };
        let until = self.now + nanos(failures.restart_seconds);
        let rebuilt = (failures.rebuild)(index);
        let replica = &mut self.replicas[index];
        let Some(rebuilt) = rebuilt else {
            replica.report.lost = true;
            return;
        };
        replica.restart(rebuilt, index, &self.shared);
        replica.clock.advance(self.now);
        replica.down_until = Some(until);
        replica.report.restart_ns += until - self.now;
        self.links.iter_mut().for_each(|links| links.reset(index));
        if let Some(series) = &self.shared.series {
            lock(series).add_down(index, self.now, until);
        }
        self.events.push(until, FleetEvent::Restart(index));
        self.update_waiting(index);
    }

    /// Makes a restarted replica available, schedules its next failure, and places the requests
    /// that wait.
    pub(super) fn finish_restart(&mut self, index: usize) {
        self.replicas[index].down_until = None;
        self.router.set_available(index, true);
        if let Some((_, times)) = &mut self.failures {
            self.events.push(times.next(index, self.now), FleetEvent::Fail(index));
        }
        let waiting = std::mem::take(&mut self.unplaced);
        waiting.into_iter().for_each(|waiting| self.place(waiting, None));
    }
}
