//! Restores the state of a request that another engine ran ([`Resumption`]).

use crate::request::resumption::Resumption;
use crate::request::sequence::Sequence;
use crate::request::timings::Timings;

impl Sequence {
    /// Restores the state of a request that another engine ran. `context` is the maximum length of
    /// its context, in tokens. Cost: linear in the outputs.
    pub(crate) fn resume(&mut self, resumption: &Resumption, context: u32) {
        for token in &resumption.outputs {
            self.append(&[*token]);
            // The other engine shifted its context at the same output.
            if self.outputs_len() >= self.cold.context_left && self.drop_half(context) {
                self.fit_context(context);
            }
        }
        if let (Some(mirostat), Some(mu)) = (&self.cold.mirostat, resumption.mu) {
            mirostat.resume(resumption.outputs.len(), mu);
        }
        self.cold.timings = Timings { admitted: None, finished: None, ..resumption.timings };
    }
}
