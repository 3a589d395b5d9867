//! Sampler chains of requests: their sequence breakers as tokens of the vocabulary, which are kept for
//! the next request.

use crate::error::ApiError;
use crate::model::Model;
use crate::request::samplers::SamplerFields;
use kvasir_sample::{Breakers, SamplerChain};
use std::sync::{Arc, Mutex, PoisonError};

/// Lists of breakers that are kept: clients send the same again, and requests have many prompts.
const MAX_KEPT: usize = 8;

/// The tokens of lists of sequence breakers, the newest last.
#[derive(Default)]
pub(crate) struct BreakerCache(Mutex<Vec<(Vec<String>, Breakers)>>);

impl BreakerCache {
    fn kept(&self, texts: &[String]) -> Option<Breakers> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(known, _)| known == texts).map(|(_, breakers)| breakers.clone())
    }

    fn keep(&self, texts: &[String], breakers: &Breakers) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == MAX_KEPT {
            kept.remove(0);
        }
        kept.push((texts.to_vec(), breakers.clone()));
    }
}

impl Model {
    /// The sampler chain of a request. Reads the whole vocabulary for sequence breakers that are new.
    pub(crate) fn sampler_chain(&self, fields: &SamplerFields) -> Result<Arc<SamplerChain>, ApiError> {
        let mut chain = fields.chain.clone();
        if let Some(dry) = &mut chain.dry {
            dry.breakers = match self.breakers.kept(&fields.breakers) {
                Some(breakers) => breakers,
                None => {
                    let breakers = fields.breaker_tokens(self.chat.tokenizer())?;
                    self.breakers.keep(&fields.breakers, &breakers);
                    breakers
                }
            };
        }
        Ok(Arc::new(chain))
    }
}
