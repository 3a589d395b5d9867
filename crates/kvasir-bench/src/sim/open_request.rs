//! `OpenRequest`: a request that runs on a replica, and what earlier runs of it have left.

use crate::sim::step_account::ComputedBefore;
use kvasir_engine::{Nanos, Params, Request, Resumption, RoleCharge, Sequence, SessionId, Summary};

/// Number of successive failures of replicas that have admitted a request, without a token in
/// between, at which the request fails; as in `kvasir serve --dp`.
const MAX_LOSSES: u32 = 5;

/// Nanoseconds that a request spent between replicas: K/V transfers and queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Between its first admission and its first token.
    pub(crate) in_prefill: Nanos,
    /// After its first token.
    pub(crate) in_decode: Nanos,
}

/// What the earlier runs of a request have left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct History {
    /// Output tokens after which the client disconnects.
    pub(crate) abort_after: Option<u32>,
    /// For routing.
    pub(crate) session: Option<SessionId>,
    pub(crate) before: ComputedBefore,
    /// Outputs of earlier runs, and the time of the newest.
    pub(crate) outputs: u32,
    pub(crate) last_token: Option<Nanos>,
    /// Cached tokens and time of the first admission.
    first_admission: Option<(u32, Nanos)>,
    losses: u32,
    /// When its last run ended, if it had been admitted.
    moved_at: Option<Nanos>,
    moves: Moves,
}

/// A request on a replica.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    pub(crate) charge: RoleCharge,
    /// The charge on the replica that will decode it, if it is to be handed off.
    pub(crate) target: Option<RoleCharge>,
    /// Whether all blocks of its prompt were exported.
    pub(crate) is_exported: bool,
    /// When its last K/V transfer arrives.
    pub(crate) transferred_at: Nanos,
    pub(crate) history: History,
}

impl OpenRequest {
    pub(crate) fn new(charge: RoleCharge, target: Option<RoleCharge>, history: History) -> Self {
        Self { charge, target, is_exported: false, transferred_at: 0, history }
    }
}

impl History {
    /// A request without earlier runs. `known` leading prompt tokens were computed by any replica.
    pub(crate) fn new(abort_after: Option<u32>, session: Option<SessionId>, known: u32) -> Self {
        let before = ComputedBefore { known, ..ComputedBefore::default() };
        Self { abort_after, session, before, ..Self::default() }
    }

    /// Ends a run of a sequence at `now`, whose newest output came at `last_token`. Returns the request
    /// that continues it.
    pub(crate) fn end_run(&mut self, sequence: &Sequence, last_token: Option<Nanos>, now: Nanos) -> Request {
        let mut timings = *sequence.timings();
        timings.last_token = last_token;
        let outputs = sequence.outputs_len();
        if let Some(admitted) = timings.admitted {
            self.count_move(admitted);
            self.first_admission.get_or_insert((sequence.hit(), admitted));
        }
        self.losses = if outputs > self.outputs { 0 } else { self.losses };
        self.before.moved = sequence.prompt_len() + outputs;
        (self.outputs, self.last_token) = (outputs, last_token);
        // Before its first admission a request is in the queue, wherever it waits.
        self.moved_at = self.moved_at.or(self.first_admission.map(|_| now));
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

    /// Counts a failure of its replica. True if the request fails: it may be the cause.
    pub(crate) fn lose(&mut self, was_admitted: bool) -> bool {
        self.losses += u32::from(was_admitted);
        self.losses >= MAX_LOSSES
    }

    /// Ends a move with an admission.
    fn count_move(&mut self, admitted: Nanos) {
        let Some(moved) = self.moved_at.take() else { return };
        let part = if self.outputs > 0 { &mut self.moves.in_decode } else { &mut self.moves.in_prefill };
        *part += admitted.saturating_sub(moved);
    }

    /// Sets cached tokens and admission of the first run in the summary of the last. Returns the time
    /// between runs.
    pub(crate) fn complete(mut self, summary: &mut Summary) -> Moves {
        let admitted = summary.timings.admitted.or(summary.timings.finished);
        admitted.into_iter().for_each(|admitted| self.count_move(admitted));
        if let Some((cached, admitted)) = self.first_admission {
            (summary.cached, summary.timings.admitted) = (cached, Some(admitted));
        }
        self.moves
    }
}
