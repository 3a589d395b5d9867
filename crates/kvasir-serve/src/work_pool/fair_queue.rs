//! Job queue that is fair among tenants.
//!
//! The next job belongs to the tenant with the fewest running jobs; among equals, to the one served
//! longest ago. Within a tenant, jobs start in order of arrival, except that light jobs pass heavy
//! ones that have to wait.
//!
//! Invariants:
//!
//! - A tenant runs at most `running_per_tenant` jobs, of which `heavy_per_tenant` are heavy and one is
//!   exclusive.
//! - At most `heavy` heavy jobs run, so they never occupy all threads.
//! - A refused job changes nothing.
//!
//! Knows no thread and no clock. Guarded by the tests below, which compare it with its invariants
//! under random operations.

use crate::context::request_context::Tenant;
use std::collections::VecDeque;

/// Cost class of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Linear in a body of ordinary size.
    Light,
    /// May take long: a grammar, or a large body.
    Heavy,
    /// Heavy work that a tenant gets one at a time: a client's template, formulas.
    Exclusive,
}

/// Bounds of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    /// Heavy jobs that run at once.
    pub(crate) heavy: usize,
    /// Heavy jobs of one tenant that run at once.
    pub(crate) heavy_per_tenant: usize,
    /// Jobs of one tenant that run at once.
    pub(crate) running_per_tenant: usize,
    /// Queued jobs of all tenants.
    pub(crate) queued: usize,
    /// Queued jobs of one tenant.
    pub(crate) queued_per_tenant: usize,
}

/// The bound that refused a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFull {
    /// The tenant has too many queued jobs.
    Tenant,
    /// All tenants together have too many queued jobs.
    All,
}

/// Identifies a queued or running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    tenant: Tenant,
    cost: Cost,
    /// Order of arrival.
    number: u64,
}

/// The queue; `J` is a job.
#[derive(Debug)]
pub(crate) struct FairQueue<J> {
    limits: QueueLimits,
    /// Tenants with queued or running jobs, the one served last at the back.
    tenants: VecDeque<TenantJobs<J>>,
    queued: usize,
    running_heavy: usize,
    next_number: u64,
}

#[derive(Debug)]
struct TenantJobs<J> {
    tenant: Tenant,
    light: VecDeque<(Ticket, J)>,
    /// Heavy and exclusive jobs.
    heavy: VecDeque<(Ticket, J)>,
    running: usize,
    running_heavy: usize,
    running_exclusive: usize,
}

impl<J> TenantJobs<J> {
    fn new(tenant: Tenant) -> Self {
        let (light, heavy) = (VecDeque::new(), VecDeque::new());
        Self { tenant, light, heavy, running: 0, running_heavy: 0, running_exclusive: 0 }
    }

    fn queue(&mut self, cost: Cost) -> &mut VecDeque<(Ticket, J)> {
        match cost {
            Cost::Light => &mut self.light,
            Cost::Heavy | Cost::Exclusive => &mut self.heavy,
        }
    }

    fn queued(&self) -> usize {
        self.light.len() + self.heavy.len()
    }

    /// Counts a job that starts (`1`) or ends (`-1`).
    fn count(&mut self, cost: Cost, change: isize) {
        let add = |count: &mut usize, counts: bool| {
            *count = count.saturating_add_signed(change * isize::from(counts))
        };
        add(&mut self.running, true);
        add(&mut self.running_heavy, cost != Cost::Light);
        add(&mut self.running_exclusive, cost == Cost::Exclusive);
    }

    /// The class of the job that may start next, if any.
    fn startable(&self, limits: QueueLimits, allows_heavy: bool) -> Option<Cost> {
        if self.running >= limits.running_per_tenant {
            return None;
        }
        let front = |queue: &VecDeque<(Ticket, J)>| queue.front().map(|(ticket, _)| *ticket);
        let may_start = |ticket: &Ticket| {
            let is_free = ticket.cost != Cost::Exclusive || self.running_exclusive == 0;
            allows_heavy && self.running_heavy < limits.heavy_per_tenant && is_free
        };
        let fronts = [front(&self.light), front(&self.heavy).filter(may_start)];
        fronts.into_iter().flatten().min_by_key(|ticket| ticket.number).map(|ticket| ticket.cost)
    }
}

impl<J> FairQueue<J> {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        Self { limits, tenants: VecDeque::new(), queued: 0, running_heavy: 0, next_number: 0 }
    }

    /// Number of queued jobs.
    pub(crate) fn len(&self) -> usize {
        self.queued
    }

    /// Queues a job; refuses it beyond the limits.
    pub(crate) fn push(&mut self, tenant: Tenant, cost: Cost, job: J) -> Result<Ticket, QueueFull> {
        let at = self.tenants.iter().position(|jobs| jobs.tenant == tenant);
        if at.is_some_and(|at| self.tenants[at].queued() >= self.limits.queued_per_tenant) {
            return Err(QueueFull::Tenant);
        }
        if self.queued >= self.limits.queued {
            return Err(QueueFull::All);
        }
        let at = at.unwrap_or_else(|| {
            // In front: it has been served longest ago, or never.
            self.tenants.push_front(TenantJobs::new(tenant));
            0
        });
        let ticket = Ticket { tenant, cost, number: self.next_number };
        self.next_number += 1;
        self.tenants[at].queue(cost).push_back((ticket, job));
        self.queued += 1;
        Ok(ticket)
    }

    /// Starts the next job, if one may start. The caller must report its end with
    /// [`finish`](Self::finish).
    pub(crate) fn pop(&mut self) -> Option<(Ticket, J)> {
        let allows_heavy = self.running_heavy < self.limits.heavy;
        let startable = |(at, jobs): (usize, &TenantJobs<J>)| {
            let cost = jobs.startable(self.limits, allows_heavy)?;
            Some((jobs.running, at, cost))
        };
        let (_, at, cost) = self
            .tenants
            .iter()
            .enumerate()
            .filter_map(startable)
            .min_by_key(|(running, at, _)| (*running, *at))?;
        let mut jobs = self.tenants.remove(at)?;
        let started = jobs.queue(cost).pop_front();
        jobs.count(cost, 1);
        self.running_heavy += usize::from(cost != Cost::Light);
        self.queued -= 1;
        self.tenants.push_back(jobs);
        started
    }

    /// A started job has ended.
    pub(crate) fn finish(&mut self, ticket: Ticket) {
        let Some(at) = self.tenants.iter().position(|jobs| jobs.tenant == ticket.tenant) else { return };
        self.tenants[at].count(ticket.cost, -1);
        self.running_heavy -= usize::from(ticket.cost != Cost::Light);
        self.forget_idle(at);
    }

    /// Removes a job that has not started.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<J> {
        let at = self.tenants.iter().position(|jobs| jobs.tenant == ticket.tenant)?;
        let queue = self.tenants[at].queue(ticket.cost);
        let place = queue.iter().position(|(queued, _)| *queued == ticket)?;
        let removed = queue.remove(place).map(|(_, job)| job);
        self.queued -= 1;
        self.forget_idle(at);
        removed
    }

    fn forget_idle(&mut self, at: usize) {
        if self.tenants[at].running == 0 && self.tenants[at].queued() == 0 {
            self.tenants.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_testkit::Random;

    const LIMITS: QueueLimits =
        QueueLimits { heavy: 1, heavy_per_tenant: 1, running_per_tenant: 2, queued: 6, queued_per_tenant: 4 };

    fn key(key: u64) -> Tenant {
        Tenant::Key(key)
    }

    /// Starts all jobs that may run at once.
    fn start(queue: &mut FairQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop()).map(|(_, job)| job).collect()
    }

    #[test]
    fn tenants_take_turns() {
        let mut queue = FairQueue::new(QueueLimits { running_per_tenant: 1, ..LIMITS });
        for (tenant, job) in [(1, "a"), (1, "b"), (1, "c"), (2, "d"), (2, "e")] {
            queue.push(key(tenant), Cost::Light, job).unwrap();
        }
        let mut order = Vec::new();
        while let Some((ticket, job)) = queue.pop() {
            order.push(job);
            queue.finish(ticket);
        }
        assert_eq!(order, ["d", "a", "e", "b", "c"], "a new tenant comes first, then they alternate");
    }

    #[test]
    fn one_exclusive_job_of_a_tenant_runs_and_light_ones_pass() {
        let limits = QueueLimits { heavy: 3, heavy_per_tenant: 2, ..LIMITS };
        let mut queue = FairQueue::new(limits);
        for (job, cost) in [("e1", Cost::Exclusive), ("e2", Cost::Exclusive), ("l1", Cost::Light)] {
            queue.push(key(1), cost, job).unwrap();
        }
        queue.push(key(2), Cost::Heavy, "other").unwrap();
        assert_eq!(start(&mut queue), ["other", "e1", "l1"]);
    }

    #[test]
    fn heavy_jobs_leave_a_thread_free() {
        let mut queue = FairQueue::new(LIMITS);
        queue.push(key(1), Cost::Heavy, "h1").unwrap();
        queue.push(key(2), Cost::Heavy, "h2").unwrap();
        queue.push(key(3), Cost::Light, "l").unwrap();
        let first = queue.pop().unwrap();
        assert_eq!((first.1, queue.pop().unwrap().1), ("l", "h2"));
        assert!(queue.pop().is_none(), "one heavy job runs");
    }

    #[test]
    fn full_queues_refuse_and_change_nothing() {
        let mut queue = FairQueue::new(LIMITS);
        let mut tickets: Vec<_> = (0..4).map(|_| queue.push(key(1), Cost::Light, "a").unwrap()).collect();
        assert_eq!(queue.push(key(1), Cost::Light, "b"), Err(QueueFull::Tenant));
        tickets.extend((0..2).map(|_| queue.push(key(2), Cost::Light, "a").unwrap()));
        assert_eq!(queue.push(key(3), Cost::Light, "b"), Err(QueueFull::All));
        tickets.iter().for_each(|ticket| assert_eq!(queue.remove(*ticket), Some("a")));
        assert!(queue.pop().is_none() && queue.tenants.is_empty());
    }

    /// Random pushes, starts, ends and removals keep the invariants, and every job runs once.
    #[test]
    fn random_operations_keep_the_bounds() {
        let limits = QueueLimits {
            heavy: 3,
            heavy_per_tenant: 2,
            running_per_tenant: 3,
            queued: 12,
            queued_per_tenant: 5,
        };
        for seed in 0..kvasir_testkit::rounds(300) {
            let mut random = Random::new(seed);
            let mut queue = FairQueue::new(limits);
            let (mut queued, mut running): (Vec<Ticket>, Vec<Ticket>) = (Vec::new(), Vec::new());
            for step in 0..200 {
                let at = |random: &mut Random, list: &[Ticket]| random.below(list.len() as u64) as usize;
                match random.below(8) {
                    0..4 => {
                        let tenant = key(random.below(4));
                        let cost = random.pick(&[Cost::Light, Cost::Light, Cost::Heavy, Cost::Exclusive]);
                        let own = queued.iter().filter(|ticket| ticket.tenant == tenant).count();
                        match queue.push(tenant, cost, ()) {
                            Ok(ticket) => queued.push(ticket),
                            Err(QueueFull::Tenant) => assert_eq!(own, 5, "seed {seed}, step {step}"),
                            Err(QueueFull::All) => assert_eq!(queued.len(), 12, "seed {seed}, step {step}"),
                        }
                    }
                    4 | 5 => {
                        if let Some((ticket, ())) = queue.pop() {
                            queued.retain(|other| *other != ticket);
                            running.push(ticket);
                        }
                    }
                    6 if !running.is_empty() => queue.finish(running.remove(at(&mut random, &running))),
                    _ if !queued.is_empty() => {
                        let ticket = queued.remove(at(&mut random, &queued));
                        assert_eq!(queue.remove(ticket), Some(()), "seed {seed}, step {step}");
                    }
                    _ => {}
                }
                let heavy = |ticket: &&Ticket| ticket.cost != Cost::Light;
                let exclusive = |ticket: &&Ticket| ticket.cost == Cost::Exclusive;
                assert!(running.iter().filter(heavy).count() <= 3, "seed {seed}, step {step}");
                for tenant in (0..4).map(key) {
                    let own = || running.iter().filter(|ticket| ticket.tenant == tenant);
                    assert!(
                        own().count() <= 3 && own().filter(heavy).count() <= 2,
                        "seed {seed}, step {step}"
                    );
                    assert!(own().filter(exclusive).count() <= 1, "seed {seed}, step {step}");
                }
                assert_eq!(queue.queued, queued.len(), "seed {seed}, step {step}");
            }
            loop {
                running.extend(std::iter::from_fn(|| queue.pop()).map(|(ticket, ())| ticket));
                if running.is_empty() {
                    break;
                }
                running.drain(..).for_each(|ticket| queue.finish(ticket));
            }
            assert!(queue.tenants.is_empty() && queue.queued == 0, "seed {seed}");
        }
    }
}
