//! Library entry point: `Kvasir` loads a model and generates, in the caller's thread, without
//! server or async runtime.

use crate::answer::{Answer, Piece};
use crate::backend::BackendKind;
use crate::cache_options::CacheOptions;
use crate::draft_trace::{DraftObserver, DraftTrace};
use crate::error::Error;
use crate::model::Model;
use crate::opened::OpenedModel;
use crate::prefill_progress::{PrefillProgress, PrefillState};
use crate::prompt::Prompt;
use crate::runner::Runner;
use crate::session::Session;
use crate::shared_prefix::{PrefixOptions, SharedPrefix};
use crate::stream::Stream;
use kvasir_cpu::Precision;
use kvasir_engine::{Core, Params, RequestId};
use std::{path::Path, sync::Arc};

/// Options of the library.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Backend.
    pub backend: BackendKind,
    /// Numeric precision.
    pub precision: Precision,
    /// Threads of the CPU backend; the machine's parallelism if `None`.
    pub threads: Option<usize>,
    /// KV cache and engine of requests outside sessions.
    pub cache: CacheOptions,
}

/// A loaded model and its engine: the library's entry point.
///
/// Scheduling runs in the caller's thread, inside calls of this type; there is no server and no
/// async runtime. Requests that are active together share each step (continuous batching).
///
/// ```
/// use kvasir::{Kvasir, Options, Params};
/// # fn main() -> Result<(), kvasir::Error> {
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/models/qwen3");
/// let mut kvasir = Kvasir::load(path, Options::default())?;
/// let params = Params { max_tokens: 8, ..Params::default() };
///
/// // One prompt. The test model has no tokenizer, so the prompt is token ids; other models also
/// // take text.
/// let answer = kvasir.generate([5, 6, 7], &params)?;
/// assert_eq!(answer.ids.len(), 8);
///
/// // A batch of prompts, each with its own parameters.
/// let longer = Params { max_tokens: 12, ..params.clone() };
/// let answers = kvasir.generate_many([([5, 6, 7], params.clone()), ([8, 9, 10], longer)])?;
/// assert_eq!((answers[0].ids.clone(), answers[1].ids.len()), (answer.ids, 12));
///
/// // Streaming. Dropping the stream cancels the request.
/// for piece in kvasir.stream([5, 6, 7], &params)?.take(3) {
///     println!("{:?}", piece?.ids);
/// }
/// # Ok(()) }
/// ```
pub struct Kvasir {
    runner: Runner,
}

impl Kvasir {
    /// Loads a GGUF file, a directory in the Hugging Face layout, or a model of the hub by its
    /// [name](crate::hub::HubName).
    pub fn load(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        Self::of(OpenedModel::find(path.as_ref())?, options)
    }

    /// Loads the built-in model.
    ///
    /// ```
    /// # fn main() -> Result<(), kvasir::Error> {
    /// let mut kvasir = kvasir::Kvasir::built_in(kvasir::Options::default())?;
    /// let prompt = "<|im_start|>user\nWhat is 7 + 8?<|im_end|>\n<|im_start|>assistant\n";
    /// let answer = kvasir.generate(prompt, &kvasir::Params { max_tokens: 20, ..Default::default() })?;
    /// assert_eq!(answer.text.as_deref(), Some("7 + 8 = 15"));
    /// # Ok(()) }
    /// ```
    pub fn built_in(options: Options) -> Result<Self, Error> {
        Self::of(OpenedModel::built_in()?, options)
    }

    /// Loads an opened model.
    pub fn of(opened: OpenedModel, options: Options) -> Result<Self, Error> {
        let model = Model::new(opened.load(options.backend, options.precision, options.threads)?)?;
        let engine = model.engine(&options.cache, None)?;
        Ok(Self { runner: Runner::new(model, engine) })
    }

    /// Runs a loaded model under a custom policy, cache and limits. With `overlap`, step n + 1 is scheduled
    /// while step n runs.
    pub fn with_core(model: Arc<Model>, core: Core, overlap: bool) -> Result<Self, Error> {
        let engine = model.loaded.engine(core, overlap)?;
        Ok(Self { runner: Runner::new(model, engine) })
    }

    /// Records every round of speculative decoding from now on.
    pub fn trace_drafts(&mut self) -> DraftTrace {
        let (observer, trace) = DraftObserver::new();
        self.runner.engine.add_observer(Box::new(observer));
        trace
    }

    /// Calls `watch` after each prefill chunk of the newest request, from now on.
    ///
    /// ```
    /// # fn main() -> Result<(), kvasir::Error> {
    /// let mut kvasir = kvasir::Kvasir::built_in(kvasir::Options::default())?;
    /// kvasir.watch_prefill(|state| println!("{:.0} % of {} tokens", state.share * 100.0, state.tokens));
    /// kvasir.generate("What is 7 + 8?", &kvasir::Params::default())?;
    /// # Ok(()) }
    /// ```
    pub fn watch_prefill(&mut self, watch: impl FnMut(PrefillState) + Send + 'static) {
        let observer = PrefillProgress::watched(&self.runner.model.loaded, watch);
        self.runner.engine.add_observer(observer);
    }

    /// Follows how much of a prompt has been read, from now on.
    pub fn trace_prefill(&mut self) -> PrefillProgress {
        let (progress, observer) = PrefillProgress::of(&self.runner.model.loaded);
        self.runner.engine.add_observer(observer);
        progress
    }

    /// The model, to be shared.
    pub fn model(&self) -> &Arc<Model> {
        &self.runner.model
    }

    /// A session over the same weights with a KV cache of its own, independent of this value and
    /// other sessions.
    pub fn session(&self, options: CacheOptions) -> Result<Session, Error> {
        Session::new(Arc::clone(self.model()), &options)
    }

    /// Prefills a prompt once, as a shared prefix of any number of sessions.
    pub fn freeze(&self, prompt: impl Into<Prompt>, options: PrefixOptions) -> Result<SharedPrefix, Error> {
        SharedPrefix::new(Arc::clone(self.model()), prompt.into(), options)
    }

    /// Generates the answer to one prompt.
    pub fn generate(&mut self, prompt: impl Into<Prompt>, params: &Params) -> Result<Answer, Error> {
        self.generate_many([(prompt, params.clone())])?
            .pop()
            .ok_or_else(|| Error::Failed("one prompt got no answer".into()))
    }

    /// Generates answers to many prompts, batched as capacity allows; results are in order. If one
    /// prompt is invalid, none is run.
    pub fn generate_many<P: Into<Prompt>>(
        &mut self,
        prompts: impl IntoIterator<Item = (P, Params)>,
    ) -> Result<Vec<Answer>, Error> {
        let mut ids = Vec::new();
        for (index, (prompt, params)) in prompts.into_iter().enumerate() {
            match self.runner.add(prompt.into(), &params) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    ids.iter().for_each(|id| self.runner.cancel(*id));
                    return Err(Error::Prompt { index, error: Box::new(error) });
                }
            }
        }
        self.runner.answers(&ids)
    }

    /// Streams the answer to one prompt.
    pub fn stream(&mut self, prompt: impl Into<Prompt>, params: &Params) -> Result<Stream<'_>, Error> {
        let id = self.runner.add(prompt.into(), params)?;
        Ok(Stream::new(&mut self.runner, id, None))
    }

    /// The engine with its requests.
    pub(crate) fn into_runner(self) -> Runner {
        self.runner
    }

    /// Queues a request; the caller drives the loop with [`Kvasir::step`].
    ///
    /// ```
    /// use kvasir::{Kvasir, Options, Params};
    /// # fn main() -> Result<(), kvasir::Error> {
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/models/qwen3");
    /// let mut kvasir = Kvasir::load(path, Options::default())?;
    /// let params = Params { max_tokens: 4, ..Params::default() };
    /// let first = kvasir.add_request([5, 6, 7], &params)?;
    /// let second = kvasir.add_request([5, 6, 8], &params)?;
    /// let mut done = Vec::new();
    /// while !kvasir.is_idle() {
    ///     done.extend(kvasir.step()?.into_iter().filter(|piece| piece.answer.is_some()));
    /// }
    /// assert_eq!(done.len(), 2);
    /// assert!(done.iter().any(|piece| piece.request == first) && first != second);
    /// # Ok(()) }
    /// ```
    pub fn add_request(&mut self, prompt: impl Into<Prompt>, params: &Params) -> Result<RequestId, Error> {
        self.runner.add(prompt.into(), params)
    }

    /// Runs one engine step, if anything is runnable, and returns all pending output.
    pub fn step(&mut self) -> Result<Vec<Piece>, Error> {
        self.runner.turn()?;
        Ok(self.runner.take_all())
    }

    /// Aborts a request; it produces no further output.
    pub fn cancel(&mut self, request: RequestId) {
        self.runner.cancel(request);
    }

    /// Whether no request is queued, running or has pending output.
    pub fn is_idle(&self) -> bool {
        self.runner.is_idle()
    }
}
