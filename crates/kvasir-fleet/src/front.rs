//! State of the front process: places each request on a worker, and moves requests away from
//! workers that are lost or drained.
//!
//! Pure state machine. Inputs: messages of the caller, results and losses of workers. Outputs:
//! messages to workers ([`WorkerMessage`]) and final events of requests. `fleet` connects it to
//! sockets and processes.
//!
//! A *run* is one execution of a request on one worker, with its own tag; a moved request has
//! several.
//!
//! Invariants: each request gets exactly one final event. A request runs on at most one worker.
//! Results of an earlier run are dropped. Each charge of the router is released once. Guarded by
//! `front/tests.rs`.

mod hand_off;
mod isolation;
#[cfg(test)]
mod tests;

use crate::front::isolation::Isolation;
use crate::message::RecordLocation;
use crate::open_request::{Ending, LossState, OpenRequest, Placement};
use crate::session_homes::SessionHomes;
use kvasir_engine::{
    Fault, Finish, FirstAdmission, Message, Nanos, Outbox, Request, RoleCharge, RoleRouter, RouteRequest,
    SessionId, TransferCounts,
};
use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::Arc,
};

/// A message to a worker, with the recipe of the constraint if it adds a constrained request, and
/// the location of the rows if it imports K/V blocks.
#[derive(Debug, PartialEq)]
pub(crate) struct WorkerMessage {
    pub(crate) replica: usize,
    pub(crate) message: Message,
    pub(crate) recipe: Option<String>,
    pub(crate) rows: Option<RecordLocation>,
}

/// The open requests and the sessions of a fleet.
pub(crate) struct Front {
    router: RoleRouter,
    /// Whether each worker accepts requests.
    is_ready: Vec<bool>,
    /// The suspect that each worker is reserved for.
    isolations: Vec<Option<Isolation>>,
    /// Whether the loss of one worker ends all others (expert parallelism), so that only one
    /// suspect may run at a time.
    pub(crate) workers_fail_together: bool,
    /// By the caller's tag.
    requests: BTreeMap<u64, OpenRequest>,
    /// The caller's tag by the tag of a run.
    runs: HashMap<u64, u64>,
    next_run: u64,
    sessions: SessionHomes,
    /// Number of runs on each worker.
    run_counts: Vec<u64>,
    /// K/V transfer counters of each worker.
    transfers: Vec<TransferCounts>,
    /// Messages to workers, in order.
    pub(crate) sends: Vec<WorkerMessage>,
    /// Events of requests and sessions that no worker reports.
    pub(crate) outbox: Outbox,
}

impl Front {
    /// A front over `replicas` workers, none of which is ready.
    pub(crate) fn new(router: impl Into<RoleRouter>, replicas: usize) -> Self {
        let mut router = router.into();
        (0..replicas).for_each(|replica| router.set_available(replica, false));
        Self {
            router,
            is_ready: vec![false; replicas],
            isolations: vec![None; replicas],
            workers_fail_together: false,
            requests: BTreeMap::new(),
            runs: HashMap::new(),
            next_run: 1,
            sessions: SessionHomes::default(),
            run_counts: vec![0; replicas],
            transfers: vec![TransferCounts::default(); replicas],
            sends: Vec::new(),
            outbox: Outbox::default(),
        }
    }

    /// Whether no request is open.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// The requests on a worker, and the tokens that they add to its load.
    pub(crate) fn load(&self, replica: usize) -> (u64, u64) {
        let load = self.router.load(replica);
        (load.requests, load.tokens)
    }

    /// Number of runs on a worker. Its load also includes requests that another worker still
    /// prefills.
    pub(crate) fn run_count(&self, replica: usize) -> u64 {
        self.run_counts.get(replica).copied().unwrap_or_default()
    }

    /// Handles a message of the caller; ignores `Import`, `JoinStep`, `Drain` and `Exit`.
    pub(crate) fn take(&mut self, message: Message, now: Nanos) {
        self.take_message(message, now);
        self.end_isolations();
    }

    /// Handles a message without ending isolations.
    fn take_message(&mut self, message: Message, now: Nanos) {
        match message {
            Message::Add { mut request, n } => {
                let constrained = std::mem::take(&mut request.params.constraint);
                let recipe = constrained.0.as_ref().map(|constraint| constraint.recipe());
                let (request, lacks_recipe) = (Arc::<_>::from(request), recipe == Some(None));
                let recipe = recipe.flatten().map(Arc::<str>::from);
                for sibling in 0..n {
                    let open = OpenRequest::new(Arc::clone(&request), recipe.clone(), sibling, now);
                    if lacks_recipe {
                        // Another process cannot build its constraint.
                        open.end(Finish::Failed(Fault::Constraint), now, &mut self.outbox);
                    } else {
                        self.requests.insert(open.tag(), open);
                    }
                }
                self.place(request.tag, n);
            }
            Message::Abort { tag } => self.end(tag, Ending::Abort, now),
            Message::StopAt { tag, keep } => self.end(tag, Ending::StopAt(keep), now),
            Message::Fork { from, into, at } => {
                let Some(replica) = self.home_of(from) else {
                    for session in into {
                        self.end_session(session);
                        self.outbox.retained.push((session, 0));
                    }
                    return;
                };
                into.iter().for_each(|session| self.set_home(*session, replica));
                self.send(replica, Message::Fork { from, into, at });
            }
            Message::Rewind { session, .. } | Message::Cut { session, .. } => match self.home_of(session) {
                Some(replica) => self.send(replica, message),
                None => self.outbox.retained.push((session, 0)),
            },
            Message::EndSession(session) => self.end_session(session),
            Message::Import(_) | Message::JoinStep | Message::Drain | Message::Exit => {}
        }
    }

    /// Handles the results of a worker: replaces the tags of runs by the caller's, and blanks or
    /// removes the results of earlier runs. False if tokens are missing.
    pub(crate) fn results(&mut self, replica: usize, outbox: &mut Outbox, now: Nanos) -> bool {
        self.count_imports(replica, std::mem::take(&mut outbox.imports));
        let Outbox { events, tokens, ended, admitted, progress, mirostat, retained, kv_events, .. } = outbox;
        kv_events.drain(..).for_each(|event| self.router.apply(replica, &event));
        // Only the first admission is reported to the client.
        admitted.retain_mut(|admission| {
            let FirstAdmission { cached, prefix, .. } = *admission;
            self.rename(replica, &mut admission.tag).is_some_and(|open| open.admitted(cached, prefix, now))
        });
        progress.retain_mut(|(tag, _)| self.rename(replica, tag).is_some());
        let (mut finished, mut is_gapless, mut loses_runs) = (HashMap::new(), true, false);
        let mut moving = Vec::new();
        for (index, event) in events.iter_mut().enumerate() {
            let (run, is_lost) = (event.tag, event.finish == Some(Finish::Failed(Fault::DeviceLost)));
            let new = tokens.get(event.tokens.range()).unwrap_or(&[]);
            let mu = mirostat.binary_search_by_key(&(index as u32), |(at, _)| *at).ok();
            let mu = mu.and_then(|at| mirostat.get(at)).map(|(_, mu)| *mu);
            let open = self.rename(replica, &mut event.tag).filter(|_| !is_lost);
            let is_taken = open.is_some_and(|open| {
                // A client's `StopAt` may end an answer before its newest tokens.
                let is_next = open.extend(event.first, new, mu, now) || event.finish.is_some();
                is_gapless &= is_next;
                if open.should_hand_off() && event.finish.is_none() {
                    moving.push(open.tag());
                }
                is_next
            });
            if is_taken {
                let ended = event.finish.and_then(|_| self.forget(run));
                finished.extend(ended.map(|open| (event.request, open)));
            } else {
                (event.tag, event.finish, event.tokens) = (0, None, Default::default());
                if is_lost {
                    loses_runs = true;
                    self.lose_run(run, now);
                }
            }
        }
        ended.retain_mut(|summary| {
            finished.get(&summary.request).map(|open| open.complete(summary)).is_some()
        });
        retained.retain(|(session, tokens)| {
            let is_home = self.sessions.get(*session) == Some(replica);
            if is_home && *tokens == 0 {
                self.sessions.remove(*session);
            }
            is_home
        });
        moving.into_iter().for_each(|tag| self.hand_off(tag));
        self.end_isolations();
        if loses_runs {
            self.place_waiting();
        }
        is_gapless
    }

    /// Marks these workers as ready, and then places the waiting requests.
    pub(crate) fn workers_ready(&mut self, replicas: impl IntoIterator<Item = usize>) {
        for replica in replicas {
            self.is_ready[replica] = true;
            self.router.set_available(replica, true);
        }
        self.place_waiting();
    }

    /// A worker was lost: its requests continue on others, and its sessions lose their K/V.
    pub(crate) fn worker_lost(&mut self, replica: usize, now: Nanos) {
        self.stop_using(replica);
        self.router.restarted(replica);
        for tag in self.tags_on(replica) {
            let Some(open) = self.requests.get_mut(&tag) else { continue };
            let run = open.placement.as_ref().map(|placement| placement.tag);
            run.into_iter().for_each(|run| self.lose_run(run, now));
        }
        self.end_isolations();
        self.place_waiting();
    }

    /// Drains a worker: moves its requests to others, or queues them until one is ready. Its
    /// sessions lose their K/V. Requests that their client has ended stay until the worker reports
    /// their end.
    pub(crate) fn drain(&mut self, replica: usize) {
        self.stop_using(replica);
        self.displace_all(replica);
        self.end_isolations();
        self.place_waiting();
    }

    /// Removes all requests from a worker, except those that their client has ended. Returns their
    /// tags.
    fn displace_all(&mut self, replica: usize) -> Vec<u64> {
        let mut displaced = Vec::new();
        for tag in self.tags_on(replica) {
            let Some(open) = self.requests.get_mut(&tag).filter(|open| open.ending.is_none()) else {
                continue;
            };
            if let Some(placement) = open.displace() {
                let run = placement.tag;
                self.runs.remove(&run);
                self.release(placement);
                self.send(replica, Message::Abort { tag: run });
                displaced.push(tag);
            }
        }
        displaced
    }

    /// Fails the requests of runs whose `Add` message or results exceed the maximum message size.
    pub(crate) fn fail_oversized(&mut self, runs: Range<u64>, now: Nanos) {
        for run in runs {
            if let Some(open) = self.forget(run) {
                open.end(Finish::Failed(Fault::MessageSize), now, &mut self.outbox);
            }
        }
        self.end_isolations();
    }

    /// Ends all open requests as aborted.
    pub(crate) fn abort_all(&mut self, now: Nanos) {
        for open in std::mem::take(&mut self.requests).into_values() {
            open.end(Finish::Aborted, now, &mut self.outbox);
            open.placement.into_iter().for_each(|placement| self.release(placement));
        }
        self.runs.clear();
        self.isolations.fill(None);
    }

    /// Routes no further requests to a worker, and reports that its sessions have no K/V.
    fn stop_using(&mut self, replica: usize) {
        self.is_ready[replica] = false;
        self.router.set_available(replica, false);
        self.drop_targets(replica);
        let sessions = self.sessions.remove_all_on(replica);
        self.outbox.retained.extend(sessions.into_iter().map(|session| (session, 0)));
    }

    fn tags_on(&self, replica: usize) -> Vec<u64> {
        let is_there = |open: &OpenRequest| {
            open.placement.as_ref().is_some_and(|placement| placement.replica == replica)
        };
        self.requests.iter().filter(|(_, open)| is_there(open)).map(|(tag, _)| *tag).collect()
    }

    /// The open request of a run on a worker; replaces the run's `tag` by the caller's.
    fn rename(&mut self, replica: usize, tag: &mut u64) -> Option<&mut OpenRequest> {
        let own = *self.runs.get(tag)?;
        let open = self.requests.get_mut(&own)?;
        open.placement.as_ref().filter(|placement| placement.replica == replica)?;
        *tag = own;
        Some(open)
    }

    /// A run was lost: its request ends, or waits for another worker.
    fn lose_run(&mut self, run: u64, now: Nanos) {
        let Some(tag) = self.runs.remove(&run) else { return };
        let Some(open) = self.requests.get_mut(&tag) else { return };
        let Some(placement) = open.displace() else { return };
        let isolation = self.isolation(placement.replica).filter(|isolation| isolation.tag == tag);
        let state = match isolation {
            Some(Isolation { was_empty: true, .. }) => LossState::Isolated,
            Some(_) => LossState::IsolatedAfterMoves,
            None if placement.is_admitted => LossState::Admitted,
            None => LossState::Queued,
        };
        self.release(placement);
        let Some(open) = self.requests.get_mut(&tag) else { return };
        if let Some(finish) = open.on_worker_lost(state) {
            open.end(finish, now, &mut self.outbox);
            self.requests.remove(&tag);
        }
    }

    /// Removes a run that has ended, and its request.
    fn forget(&mut self, run: u64) -> Option<OpenRequest> {
        let mut open = self.requests.remove(&self.runs.remove(&run)?)?;
        open.placement.take().into_iter().for_each(|placement| self.release(placement));
        Some(open)
    }

    /// Releases the charges of a run that has ended, and counts it as ended.
    fn release(&mut self, placement: Placement) {
        self.run_counts[placement.replica] -= 1;
        self.router.release(placement.charge);
        placement.target.into_iter().for_each(|charge| self.router.release(charge));
    }

    /// Ends a request for its client: through its worker if it is placed, else at once.
    fn end(&mut self, tag: u64, ending: Ending, now: Nanos) {
        let Some(open) = self.requests.get_mut(&tag) else { return };
        open.ending.get_or_insert(ending);
        match &open.placement {
            Some(Placement { replica, tag, .. }) => {
                let (replica, tag) = (*replica, *tag);
                let message = match ending {
                    Ending::Abort => Message::Abort { tag },
                    Ending::StopAt(keep) => Message::StopAt { tag, keep },
                };
                self.send(replica, message);
            }
            None => {
                let finish = open.apply_ending().unwrap_or(Finish::Aborted);
                open.end(finish, now, &mut self.outbox);
                self.requests.remove(&tag);
            }
        }
    }

    /// Places all requests that wait for a worker: suspects first, because placing one moves other
    /// requests; otherwise in the order of their arrival.
    fn place_waiting(&mut self) {
        if !self.is_ready.contains(&true) {
            return;
        }
        let waiting = self.requests.iter().filter(|(_, open)| open.placement.is_none());
        let (suspects, others): (Vec<_>, Vec<_>) = waiting.partition(|(_, open)| open.is_suspect());
        let tags: Vec<u64> = suspects.into_iter().chain(others).map(|(tag, _)| *tag).collect();
        tags.into_iter().for_each(|tag| self.place(tag, 1));
    }

    /// Places `n` siblings, the first of which has this tag, on one worker. If none is ready, they
    /// wait.
    fn place(&mut self, tag: u64, n: u32) {
        let Some(open) = self.requests.get(&tag) else { return };
        if open.is_suspect() {
            return self.place_suspect(tag);
        }
        let (request, phase, tokens) = (Arc::clone(&open.request), open.phase(), open.tokens());
        let home = request.params.session.and_then(|session| self.home_of(session));
        let home = home.filter(|replica| self.isolation(*replica).is_none());
        let mut charges = Vec::with_capacity(n as usize);
        for i in 0..n {
            // All siblings share one prompt, so they go to one worker.
            let requested = charges.first().map(RoleCharge::replica).or(home);
            let route = route_of(&request, if i == 0 { tokens } else { 0 }, requested);
            let Ok(charge) = self.router.pick(phase, &route) else {
                return charges.into_iter().for_each(|charge| self.router.release(charge));
            };
            charges.push(charge);
        }
        // K and V of a session may depend on tokens that were cut out of it, so they are not
        // transferred.
        self.start(tag, charges, home.is_none());
    }

    /// Starts runs of siblings, the first of which has this tag, on the worker that was charged.
    /// `may_hand_off`: whether another worker may decode them.
    fn start(&mut self, tag: u64, charges: Vec<RoleCharge>, may_hand_off: bool) {
        let (Some(open), n) = (self.requests.get(&tag), charges.len() as u32) else { return };
        let Some(replica) = charges.first().map(RoleCharge::replica) else { return };
        let (request, recipe) = (Arc::clone(&open.request), open.recipe.clone());
        let first_run = self.next_run;
        self.next_run += u64::from(n);
        let mut run = match n {
            1 if open.was_moved() => open.resumed(first_run),
            _ => Request { tag: first_run, ..request.sibling(open.sibling) },
        };
        let targets = if may_hand_off { self.targets(tag, replica, n) } else { Vec::new() };
        run.params.hand_off = targets.first().map(|(_, held)| *held);
        let message = Message::Add { request: Box::new(run), n };
        let mut targets = targets.into_iter().map(|(charge, _)| charge);
        for (i, charge) in charges.into_iter().enumerate() {
            let (own, run, target) = (tag.wrapping_add(i as u64), first_run + i as u64, targets.next());
            if let Some(open) = self.requests.get_mut(&own) {
                let (is_admitted, is_exported) = (false, false);
                open.placement =
                    Some(Placement { replica, tag: run, is_admitted, charge, target, is_exported });
                self.run_counts[replica] += 1;
                self.runs.insert(run, own);
            }
        }
        let params = &request.params;
        let pins = params.pins.iter().map(|pin| pin.session);
        for session in params.session.into_iter().chain(pins) {
            self.set_home(session, replica);
        }
        let recipe = recipe.map(|recipe| recipe.to_string());
        self.sends.push(WorkerMessage { replica, message, recipe, rows: None });
    }

    /// The worker that retains a session's K/V, if it accepts requests.
    fn home_of(&self, session: SessionId) -> Option<usize> {
        self.sessions.get(session).filter(|replica| self.is_ready[*replica])
    }

    /// Makes a worker the home of a session. The previous home releases the session. Sessions
    /// beyond the limit are released at their workers.
    fn set_home(&mut self, session: SessionId, replica: usize) {
        if let Some(other) = self.sessions.set(session, replica).filter(|other| *other != replica) {
            self.send(other, Message::EndSession(session));
        }
        while let Some((session, replica)) = self.sessions.evict_excess() {
            self.send(replica, Message::EndSession(session));
            self.outbox.retained.push((session, 0));
        }
    }

    /// Ends a session at the worker that retains it.
    fn end_session(&mut self, session: SessionId) {
        if let Some(replica) = self.sessions.remove(session) {
            self.send(replica, Message::EndSession(session));
        }
    }

    fn send(&mut self, replica: usize, message: Message) {
        self.sends.push(WorkerMessage { replica, message, recipe: None, rows: None });
    }
}

/// A request as the router sees it.
fn route_of(request: &Request, tokens: u64, requested: Option<usize>) -> RouteRequest<'_> {
    let params = &request.params;
    RouteRequest { prompt: &request.prompt, tokens, salt: params.salt, session: params.session, requested }
}
