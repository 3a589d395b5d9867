//! Cancellation of a running tokenization, checked once per pre-tokenized word.
//!
//! The flag is thread-local, because the library's model has no parameter for it.

use serde::Deserialize;
use std::{
    cell::RefCell,
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokenizers::{Model, ModelWrapper, Token};

thread_local! {
    static CANCELED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// What a canceled tokenization says.
pub(super) const CANCELED_TEXT: &str = "was canceled";

/// Whether the tokenization that runs on this thread is canceled.
pub(super) fn is_canceled() -> bool {
    CANCELED.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)))
}

/// Runs a tokenization that ends with an error soon after `flag` is set.
pub(super) fn cancelable<T>(flag: &Arc<AtomicBool>, work: impl FnOnce() -> T) -> T {
    CANCELED.set(Some(flag.clone()));
    let done = work();
    CANCELED.set(None);
    done
}

/// The library's model; a canceled tokenization fails at its next word.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Cancelable(ModelWrapper);

impl Model for Cancelable {
    type Trainer = <ModelWrapper as Model>::Trainer;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        if is_canceled() {
            return Err(CANCELED_TEXT.into());
        }
        self.0.tokenize(word)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.0.save(folder, prefix)
    }

    fn get_trainer(&self) -> Self::Trainer {
        self.0.get_trainer()
    }
}
