//! Arrival of requests: validation, insertion into the request table, and queueing.

use crate::core::Core;
use crate::request::finish::{Parameter, Refusal};
use crate::request::ids::RequestId;
use crate::request::params::Request;
use crate::request::sequence::Sequence;
use crate::request::timings::{Nanos, Timings};
use crate::scheduler::record::Arrival;

impl Core {
    /// Queues a request. A request that can never run is refused: the error is returned and a final
    /// event is emitted.
    pub fn add(&mut self, request: Request, now: Nanos) -> Result<RequestId, Refusal> {
        let refused = self.check(&request, 1).err();
        self.enter(request, refused, now)
    }

    /// Queues `n` requests with one prompt (parallel sampling), with consecutive tags and seeds.
    /// The first computes the prompt; if the cache has prefix sharing or forks, the others wait for
    /// it. All are queued, or all are refused, each with a final event; a bad `n` emits no event.
    pub fn add_siblings(&mut self, request: Request, n: u32, now: Nanos) -> Result<Vec<RequestId>, Refusal> {
        if n == 0 || (n > 1 && request.params.resumption.is_some()) {
            return Err(Refusal::BadParameter(Parameter::N));
        }
        let refused = self.check(&request, n).err();
        let mut ids: Vec<RequestId> = Vec::new();
        for i in 0..n {
            let sibling = request.sibling(i);
            let Ok(id) = self.enter(sibling, refused, now) else { continue };
            if i > 0 && self.state.kv.shares_prompts() {
                let sibling = &mut self.state.requests[id.index()];
                sibling.cold.leader = Some(ids[0]);
                // Only the leader's blocks are exported.
                sibling.cold.export = sibling.cold.export.map(|(_, upto)| (upto, upto));
            }
            ids.push(id);
        }
        refused.map_or(Ok(ids), Err)
    }

    /// Inserts a request into the table, assigns its arrival number and stop conditions, restores
    /// the state of a resumed one, records the arrival, and queues or refuses it.
    fn enter(
        &mut self,
        request: Request,
        refused: Option<Refusal>,
        now: Nanos,
    ) -> Result<RequestId, Refusal> {
        let prompt_len = request.prompt.len() as u32;
        let number = self.next_number;
        self.next_number += 1;
        let mut sequence = Sequence::new(request);
        let context = self.state.context_of(&sequence);
        sequence.fit_context(context);
        match sequence.cold.params.resumption.take() {
            Some(resumption) => sequence.resume(&resumption, context),
            None => sequence.cold.timings = Timings { arrived: now, ..Timings::default() },
        }
        sequence.cold.export = sequence.cold.params.hand_off.map(|held| (held, sequence.len()));
        sequence.cold.number = number;
        let entry = self.state.requests.insert(sequence);
        let sequence = &self.state.requests[entry];
        self.state.arrived.push(Arrival {
            request: sequence.id,
            number,
            tag: sequence.tag,
            prompt: prompt_len,
            max_tokens: sequence.cold.params.max_tokens,
        });
        let id = sequence.id;
        if let Some(refusal) = refused {
            self.state.refuse(entry, refusal, now);
            return Err(refusal);
        }
        self.state.requests.enqueue(entry);
        Ok(id)
    }

    /// Validation that does not depend on the running requests: prompt length, KV capacity, state
    /// slots, queue limit, parameters, policy.
    fn check(&self, request: &Request, n: u32) -> Result<(), Refusal> {
        let limits = &self.state.limits;
        let tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        if tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if tokens > limits.longest_prompt() {
            return Err(Refusal::TooLong { tokens, limit: limits.longest_prompt() });
        }
        if tokens <= self.state.kv.base() {
            return Err(Refusal::WithinPrefix { tokens, prefix: self.state.kv.base() });
        }
        let (needed, capacity) = (self.state.kv.own_slots(tokens), self.state.kv.cache().shape().capacity);
        if needed > capacity {
            return Err(Refusal::NeverFits { needed, capacity });
        }
        if request.params.stateful && limits.state_slots == Some(0) {
            return Err(Refusal::NoState);
        }
        if self.state.requests.waiting().len() + n as usize > limits.max_waiting as usize {
            return Err(Refusal::QueueFull { limit: limits.max_waiting });
        }
        request.params.check()?;
        self.policy.accepts(tokens, limits)
    }
}
