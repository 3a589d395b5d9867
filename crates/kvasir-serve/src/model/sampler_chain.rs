//! Sampler chains of requests. Caches the tokens of DRY's sequence breakers.

use crate::context::request_context::{RequestContext, Tenant};
use crate::error::ApiError;
use crate::model::Model;
use crate::request::samplers::SamplerFields;
use kvasir_sample::{Breakers, SamplerChain};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum cached lists of breakers. Clients repeat theirs, and each prompt of a request needs its
/// list.
const MAX_CACHED: usize = 8;

/// Tokens of sequence breakers by their texts, least recently used first. A full cache evicts the
/// least recently used entry of the tenant with the most entries, so no tenant evicts all others.
#[derive(Default)]
pub(crate) struct BreakerCache(Mutex<Vec<Entry>>);

struct Entry {
    tenant: Tenant,
    texts: Vec<String>,
    breakers: Breakers,
}

impl BreakerCache {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, texts: &[String]) -> Option<Breakers> {
        let mut entries = self.lock();
        let at = entries.iter().position(|entry| entry.texts == texts)?;
        let used = entries.remove(at);
        let breakers = used.breakers.clone();
        entries.push(used);
        Some(breakers)
    }

    fn insert(&self, tenant: Tenant, texts: &[String], breakers: &Breakers) {
        let mut entries = self.lock();
        if entries.len() == MAX_CACHED {
            let held = |of: &Entry| entries.iter().filter(|entry| entry.tenant == of.tenant).count();
            let most = entries.iter().map(held).max();
            let evicted = entries.iter().position(|entry| Some(held(entry)) == most);
            evicted.map(|at| entries.remove(at));
        }
        entries.push(Entry { tenant, texts: texts.to_vec(), breakers: breakers.clone() });
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
                    let tenant = RequestContext::current().tenant();
                    self.breakers.insert(tenant, &fields.breakers, &breakers);
                    breakers
                }
            };
        }
        Ok(Arc::new(chain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_with_many_lists_evicts_its_own() {
        let (cache, breakers) = (BreakerCache::default(), Breakers::default());
        let texts = |name: &str| vec![name.to_owned()];
        cache.insert(Tenant::Key(1), &texts("other"), &breakers);
        for i in 0..3 * MAX_CACHED {
            cache.insert(Tenant::Key(2), &texts(&i.to_string()), &breakers);
            assert!(cache.get(&texts("0")).is_some(), "a used entry is kept");
        }
        assert!(cache.get(&texts("other")).is_some() && cache.get(&texts("1")).is_none());
        assert_eq!(cache.lock().len(), MAX_CACHED);
    }
}
