//! The pool's threads, and the future that waits for a job.
//!
//! 1. `run` queues a job under the tenant of the current request context and awaits its result.
//! 2. A thread starts it when [`FairQueue`] allows, in that request context.
//! 3. If the waiting future is dropped or the deadline passes, a queued job is removed, and
//!    `RequestContext::gone` is set, which tokenizers, templates and formulas poll.
//!
//! Threads start on demand, up to one more than a tenant may occupy, so one is left for other
//! tenants. A job that panics fails only its own request.

use crate::context::request_context::{RequestContext, Tenant};
use crate::error::ApiError;
use crate::work_pool::fair_queue::{Cost, FairQueue, QueueFull, QueueLimits, Ticket};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    thread,
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};

/// Queued jobs of all tenants. Each may hold a parsed body, whose memory has a budget of its own.
const MAX_QUEUED: usize = 8192;
/// Queued jobs of one tenant.
const MAX_QUEUED_PER_TENANT: usize = 2048;
/// Least number of jobs that run at once. On small machines they share processors: a tenant's heavy job
/// must not be the only one that may run.
const MIN_JOBS: usize = 3;
/// Time limit of a job, with its time in the queue.
const DEADLINE: Duration = Duration::from_secs(60);

/// A job: runs with the request's context and sends its result to the waiting future.
type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs of requests on threads of its own.
pub(crate) struct WorkPool(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Notified for each queued job, and when the pool is dropped.
    wake: Condvar,
    max_threads: usize,
    deadline: Duration,
}

struct State {
    queue: FairQueue<Job>,
    threads: usize,
    idle: usize,
    is_dropped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No holder of this lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for WorkPool {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::new(processors.max(MIN_JOBS), DEADLINE)
    }
}

impl Drop for WorkPool {
    fn drop(&mut self) {
        self.0.lock().is_dropped = true;
        self.0.wake.notify_all();
    }
}

impl WorkPool {
    /// A pool that runs up to `jobs` jobs of one tenant, and half as many heavy ones in all.
    fn new(jobs: usize, deadline: Duration) -> Self {
        let limits = QueueLimits {
            heavy: jobs.div_ceil(2),
            heavy_per_tenant: jobs.div_ceil(4),
            running_per_tenant: jobs,
            queued: MAX_QUEUED,
            queued_per_tenant: MAX_QUEUED_PER_TENANT,
        };
        let state = State { queue: FairQueue::new(limits), threads: 0, idle: 0, is_dropped: false };
        let (state, wake) = (Mutex::new(state), Condvar::new());
        Self(Arc::new(Shared { state, wake, max_threads: jobs + 1, deadline }))
    }

    /// Runs `work` on a thread of the pool, in the current request context. Dropping the future
    /// cancels the work.
    ///
    /// Fails with 429 or 503 when the queue is full, and with 503 when the deadline passes.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        cost: Cost,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let context = RequestContext::current();
        let (sender, receiver) = oneshot::channel();
        let job = {
            let context = context.clone();
            // Sending fails if the waiting future is gone.
            Box::new(move || drop(sender.send(context.scope_sync(work))))
        };
        let ticket = self.enqueue(context.tenant(), cost, job)?;
        let waiting = Waiting { shared: &self.0, ticket, context: &context, has_ended: false };
        match timeout(self.0.deadline, receiver).await {
            Ok(received) => {
                waiting.end();
                received.unwrap_or_else(|_| Err(ApiError::failed("preparing the request failed")))
            }
            Err(_) => {
                let seconds = self.0.deadline.as_secs();
                Err(ApiError::unavailable(format!(
                    "the request was not prepared within {seconds} s; send less, or try again"
                )))
            }
        }
    }

    fn enqueue(&self, tenant: Tenant, cost: Cost, job: Job) -> Result<Ticket, ApiError> {
        let mut state = self.0.lock();
        let needs_thread = state.idle <= state.queue.len() && state.threads < self.0.max_threads;
        if needs_thread && spawn(&self.0) {
            state.threads += 1;
        }
        if state.threads == 0 {
            return Err(ApiError::unavailable("no thread can be started; try again"));
        }
        let ticket = state.queue.push(tenant, cost, job).map_err(|full| match full {
            QueueFull::Tenant => {
                ApiError::too_many("too many of your requests are being prepared; try again")
            }
            QueueFull::All => ApiError::unavailable("too many requests are being prepared; try again"),
        })?;
        drop(state);
        self.0.wake.notify_one();
        Ok(ticket)
    }
}

fn spawn(shared: &Arc<Shared>) -> bool {
    let shared = shared.clone();
    thread::Builder::new().name("request-work".into()).spawn(move || run_jobs(&shared)).is_ok()
}

/// A thread of the pool: runs jobs until the pool is dropped.
fn run_jobs(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.is_dropped {
            return;
        }
        let Some((ticket, job)) = state.queue.pop() else {
            state.idle += 1;
            state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            continue;
        };
        // The end of one job may allow several to start: each thread that takes one wakes the next.
        if state.idle > 0 && state.queue.len() > 0 {
            shared.wake.notify_one();
        }
        drop(state);
        // The result channel closes without a value, which fails the request.
        let _ = catch_unwind(AssertUnwindSafe(job));
        state = shared.lock();
        state.queue.finish(ticket);
    }
}

/// A job whose result is awaited. Dropping it before the end cancels the job.
struct Waiting<'a> {
    shared: &'a Shared,
    ticket: Ticket,
    context: &'a RequestContext,
    has_ended: bool,
}

impl Waiting<'_> {
    fn end(mut self) {
        self.has_ended = true;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.context.gone.store(true, Ordering::Relaxed);
            let job = self.shared.lock().queue.remove(self.ticket);
            // Outside of the lock: it may free a large body.
            drop(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{atomic::AtomicUsize, mpsc};
    use tokio::{runtime::Runtime, task::JoinSet};

    const MINUTE: Duration = Duration::from_secs(60);

    fn of_key(key: u64) -> Arc<RequestContext> {
        Arc::new(RequestContext { key, ..RequestContext::default() })
    }

    #[test]
    fn jobs_run_in_their_request_context() {
        let pool = WorkPool::new(2, MINUTE);
        let key = of_key(7).scope(pool.run(Cost::Light, || Ok(RequestContext::current().key)));
        assert_eq!(Runtime::new().unwrap().block_on(key), Ok(7));
    }

    #[test]
    fn a_panic_fails_its_own_request_only() {
        let pool = WorkPool::new(1, MINUTE);
        let run =
            |work: fn() -> u8| Runtime::new().unwrap().block_on(pool.run(Cost::Light, move || Ok(work())));
        assert_eq!(run(|| panic!("boom")).unwrap_err().status, 500);
        assert_eq!(run(|| 5), Ok(5));
    }

    #[test]
    fn a_blocked_tenant_leaves_a_thread_to_others() {
        let (pool, runtime) = (Arc::new(WorkPool::new(2, MINUTE)), Runtime::new().unwrap());
        let (release, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let mut waiting = JoinSet::new();
        for cost in [Cost::Heavy, Cost::Light, Cost::Light, Cost::Heavy] {
            let (pool, blocked) = (pool.clone(), blocked.clone());
            let work = move || Ok(blocked.lock().unwrap().recv().is_ok());
            waiting.spawn_on(of_key(1).scope(async move { pool.run(cost, work).await }), runtime.handle());
        }
        for _ in 0..100 {
            assert_eq!(runtime.block_on(of_key(2).scope(pool.run(Cost::Light, || Ok(1)))), Ok(1));
        }
        drop(release);
        assert!(runtime.block_on(waiting.join_all()).iter().all(Result::is_ok));
    }

    #[test]
    fn dropped_and_late_requests_cancel_their_jobs() {
        let (pool, runtime) =
            (Arc::new(WorkPool::new(1, Duration::from_millis(50))), Runtime::new().unwrap());
        let (release, blocked) = mpsc::channel::<()>();
        let (runs, context) = (Arc::new(AtomicUsize::new(0)), of_key(1));
        let late = context.clone().scope(pool.run(Cost::Light, move || Ok(blocked.recv().is_ok())));
        // Queued behind it, for the same key, and removed when the deadline passes.
        let counts = runs.clone();
        let queued =
            of_key(1).scope(pool.run(Cost::Light, move || Ok(counts.fetch_add(1, Ordering::Relaxed))));
        let (late, queued) = runtime.block_on(async { tokio::join!(late, queued) });
        assert_eq!((late.unwrap_err().status, queued.unwrap_err().status), (503, 503));
        assert!(context.gone.load(Ordering::Relaxed), "the running job sees that it is canceled");
        drop(release);
        assert_eq!(runtime.block_on(of_key(1).scope(pool.run(Cost::Light, || Ok(2)))), Ok(2));
        assert_eq!(runs.load(Ordering::Relaxed), 0);
    }
}
