//! Logits of a prompt, computed without an engine.

use crate::error::Error;
use crate::load::LoadedModel;
use crate::prefill::{CHUNK, Wanted, feed};
use kvasir_engine::Fault;
use kvasir_kv::{Contiguous, Token};

impl LoadedModel {
    /// Next-token logits after the last token of a prompt, or with `all` after each token.
    pub fn logits(&self, prompt: &[Token], all: bool) -> Result<Vec<Vec<f32>>, Error> {
        self.check_prompt(prompt)?;
        if self.simulated().is_some() {
            return Err(Error::invalid("backend", "the sim backend computes no logits"));
        }
        let length = prompt.len() as u32;
        let mut executor = self.executor(length, CHUNK as u32, 1, None)?;
        let wanted = if all { Wanted::All } else { Wanted::Last };
        let logits = feed(&mut executor, &mut Contiguous::new(length), prompt, length, wanted)?;
        if !kvasir_sample::can_be_drawn_from(&logits) {
            return Err(Error::Failed(Fault::NotFinite.to_string()));
        }
        Ok(logits.chunks(self.program().vocab.max(1)).map(<[f32]>::to_vec).collect())
    }
}
