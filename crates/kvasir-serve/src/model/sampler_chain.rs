//! Sampler chains of requests. Caches the tokens of DRY's sequence breakers.

use crate::error::ApiError;
use crate::model::Model;
use crate::request::samplers::SamplerFields;
use kvasir_sample::{Breakers, SamplerChain};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum cached lists of breakers. Clients repeat theirs, and each prompt of a request needs its
/// list.
const MAX_CACHED: usize = 8;

/// Tokens of sequence breakers by their texts, oldest entry first.
#[derive(Default)]
pub(crate) struct BreakerCache(Mutex<Vec<(Vec<String>, Breakers)>>);

impl BreakerCache {
    fn get(&self, texts: &[String]) -> Option<Breakers> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|(known, _)| known == texts).map(|(_, breakers)| breakers.clone())
    }

    fn insert(&self, texts: &[String], breakers: &Breakers) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() == MAX_CACHED {
            entries.remove(0);
        }
        entries.push((texts.to_vec(), breakers.clone()));
    }
}

impl Model {
    /// The sampler chain of a request. Scans the whole vocabulary if its sequence breakers are not
    /// cached.
    pub(crate) fn sampler_chain(&self, fields: &SamplerFields) -> Result<Arc<SamplerChain>, ApiError> {
        let mut chain = fields.chain.clone();
        if let Some(dry) = &mut chain.dry {
            dry.breakers = match self.breakers.get(&fields.breakers) {
                Some(breakers) => breakers,
                None => {
                    let breakers = fields.breaker_tokens(self.chat.tokenizer())?;
                    self.breakers.insert(&fields.breakers, &breakers);
                    breakers
                }
            };
        }
        Ok(Arc::new(chain))
    }
}
