//! `OpenRequest`: a request that runs on a replica, with the state that its earlier runs on other
//! replicas have left.

use crate::sim::step_account::ComputedBefore;
use kvasir_engine::{
    Nanos, Params, PrefixMatch, Request, Resumption, RoleCharge, Sequence, SessionId, Summary,
};

/// A request fails after this number of successive replicas that admitted it and failed before its
/// next token: the request may be the cause. `kvasir serve --dp` isolates such a request first.
const MAX_LOSSES: u32 = 5;

/// Nanoseconds that a request spent between two runs: K/V transfers and queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TransitTimes {
    /// Before its first token.
    pub(crate) in_prefill: Nanos,
    /// After its first token.
    pub(crate) in_decode: Nanos,
}

/// State of a request that outlives its runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestHistory {
    /// Output tokens after which the client disconnects.
    pub(crate) abort_after: Option<u32>,
    /// The session by which it is routed.
    pub(crate) session: Option<SessionId>,
    pub(crate) before: ComputedBefore,
    /// Number of output tokens of earlier runs, and the time of the newest.
    pub(crate) outputs: u32,
    pub(crate) last_token: Option<Nanos>,
    /// Prefix hit and time of its first admission.
    first_admission: Option<(u32, PrefixMatch, Nanos)>,
    /// Successive failures of its replicas; see `MAX_LOSSES`.
    losses: u32,
    /// When its last run ended; `None` before its first admission.
    run_ended_at: Option<Nanos>,
    transit: TransitTimes,
}

/// A request on a replica.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    pub(crate) charge: RoleCharge,
    /// The charge on its decode replica, if it is to be handed off.
    pub(crate) target: Option<RoleCharge>,
    /// When its last K/V transfer arrives.
    pub(crate) transferred_at: Nanos,
    pub(crate) history: RequestHistory,
}

impl OpenRequest {
    pub(crate) fn new(charge: RoleCharge, target: Option<RoleCharge>, history: RequestHistory) -> Self {
        Self { charge, target, transferred_at: 0, history }
    }
}

impl RequestHistory {
    /// History of a request without earlier runs. Any replica has computed its first `computed`
    /// prompt tokens.
    pub(crate) fn new(abort_after: Option<u32>, session: Option<SessionId>, computed: u32) -> Self {
        let before = ComputedBefore { by_any_replica: computed, ..ComputedBefore::default() };
        Self { abort_after, session, before, ..Self::default() }
    }

    /// Ends the run of a sequence at `now`; its newest output came at `last_token`. Returns the
    /// request that continues it on another replica.
    pub(crate) fn end_run(&mut self, sequence: &Sequence, last_token: Option<Nanos>, now: Nanos) -> Request {
        let mut timings = *sequence.timings();
        timings.last_token = last_token;
        let outputs = sequence.outputs_len();
        if let Some(admitted) = timings.admitted {
            self.end_transit(admitted);
            self.first_admission.get_or_insert((sequence.hit(), sequence.prefix_match(), admitted));
        }
        self.losses = if outputs > self.outputs { 0 } else { self.losses };
        self.before.by_earlier_runs = sequence.prompt_len() + outputs;
        (self.outputs, self.last_token) = (outputs, last_token);
        // The time before the first admission counts as queue time.
        self.run_ended_at = self.run_ended_at.or(self.first_admission.map(|_| now));
        let resumption =
            Resumption { outputs: sequence.outputs().into_owned(), timings, ..Resumption::default() };
        Request {
            tag: sequence.tag(),
            prompt: sequence.prompt().to_vec(),
            params: Params {
                hand_off: None,
                resumption: Some(Box::new(resumption)),
                ..sequence.params().clone()
            },
        }
    }

    /// Counts a failure of its replica. Returns whether the request fails, too.
    pub(crate) fn count_loss(&mut self, was_admitted: bool) -> bool {
        self.losses += u32::from(was_admitted);
        self.losses >= MAX_LOSSES
    }

    /// Adds the time between two runs, which ends with an admission.
    fn end_transit(&mut self, admitted: Nanos) {
        let Some(run_ended) = self.run_ended_at.take() else { return };
        let sum = if self.outputs > 0 { &mut self.transit.in_decode } else { &mut self.transit.in_prefill };
        *sum += admitted.saturating_sub(run_ended);
    }

    /// Sets prefix hit and admission time in the summary of the last run to those of the first.
    /// Returns the times between runs.
    pub(crate) fn complete(mut self, summary: &mut Summary) -> TransitTimes {
        let admitted = summary.timings.admitted.or(summary.timings.finished);
        admitted.into_iter().for_each(|admitted| self.end_transit(admitted));
        if let Some((cached, prefix, admitted)) = self.first_admission {
            (summary.cached, summary.prefix, summary.timings.admitted) = (cached, prefix, Some(admitted));
        }
        self.transit
    }
}
