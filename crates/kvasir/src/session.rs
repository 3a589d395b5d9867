//! Library sessions: branching conversations over one KV cache, with append, generate, fork, rewind,
//! cut and keep.
//!
//! Invariant: a branch's token list is authoritative. Its K/V may be evicted and is recomputed when
//! needed, so no branch is ever lost.

use crate::answer::Answer;
use crate::cache_options::CacheOptions;
use crate::error::Error;
use crate::model::Model;
use crate::prompt::Prompt;
use crate::runner::Runner;
use crate::shared_prefix::{Extent, SharedPrefix};
use crate::stream::Stream;
use kvasir_engine::{Params, SessionId};
use kvasir_kv::{Cache, CacheError, Capability, Token};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// A conversation of a session; the first is [`Session::main`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Branch(u64);

/// Branching conversations over one KV cache.
///
/// A branch is a list of tokens; generation continues at its end and appends the answer. Its K/V is
/// retained between calls. A fork shares the K/V of its source, and branches are batched together.
/// When the cache is full, the least recently used K/V is evicted and recomputed on next use; a
/// branch is never lost.
///
/// ```
/// use kvasir::{CacheKind, CacheOptions, Kvasir, KvType, Options, Params};
/// # fn main() -> Result<(), kvasir::Error> {
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/models/qwen3");
/// let kvasir = Kvasir::load(path, Options::default())?;
/// let mut session = kvasir.session(CacheOptions::new(CacheKind::Cells).kv(KvType::Q8_0).capacity(1024))?;
/// let params = Params { max_tokens: 6, ..Params::default() };
///
/// let main = session.main();
/// session.append(main, [5, 6, 7, 8])?;
/// let first = session.generate(main, &params)?;
/// assert_eq!(session.len(main)?, 4 + first.ids.len());
///
/// // Fork for two agents: the common tokens are computed and stored once.
/// let agents = session.fork(main, 2)?;
/// session.append(agents[0], [9])?;
/// session.append(agents[1], [10])?;
/// let answers = session.generate_all(&agents, &params)?;
/// assert_eq!(answers[0].cached, answers[1].cached);
///
/// // Rewind to the prompt: the same prompt gives the same answer.
/// session.rewind(main, 4)?;
/// assert_eq!(session.generate(main, &params)?.ids, first.ids);
///
/// session.keep(agents[1])?;
/// assert!(session.len(main).is_err(), "only the branch that is kept is left");
/// # Ok(()) }
/// ```
pub struct Session {
    runner: Runner,
    branches: BTreeMap<Branch, Vec<Token>>,
    next: u64,
    /// The shared prefix of all branches.
    prefix: Option<Extent>,
}

impl Session {
    pub(crate) fn new(model: Arc<Model>, options: &CacheOptions) -> Result<Self, Error> {
        let engine = model.engine(options, None)?;
        Ok(Self::over(Runner::new(model, engine), Vec::new(), None))
    }

    /// A session whose branches begin with a shared prefix.
    pub(crate) fn on(prefix: &SharedPrefix, options: &CacheOptions) -> Result<Self, Error> {
        let engine = prefix.model().engine(options, Some(prefix))?;
        let runner = Runner::new(Arc::clone(prefix.model()), engine);
        Ok(Self::over(runner, prefix.tokens().to_vec(), Some(prefix.extent())))
    }

    fn over(runner: Runner, main: Vec<Token>, prefix: Option<Extent>) -> Self {
        Self { runner, branches: BTreeMap::from([(Branch(0), main)]), next: 1, prefix }
    }

    /// The initial branch.
    pub fn main(&self) -> Branch {
        Branch(0)
    }

    /// All branches.
    pub fn branches(&self) -> impl Iterator<Item = Branch> {
        self.branches.keys().copied()
    }

    /// Tokens of a branch.
    pub fn tokens(&self, branch: Branch) -> Result<&[Token], Error> {
        self.branches.get(&branch).map(Vec::as_slice).ok_or_else(|| unknown(branch))
    }

    /// Number of tokens of a branch.
    pub fn len(&self, branch: Branch) -> Result<usize, Error> {
        self.tokens(branch).map(<[Token]>::len)
    }

    /// Tokens of a branch whose K/V is cached.
    pub fn cached(&self, branch: Branch) -> Result<u32, Error> {
        let kept = self.runner.engine.core().retained_len(SessionId(branch.0));
        self.tokens(branch).map(|_| kept.max(self.cache().shape().base))
    }

    /// The KV cache's bookkeeping, read-only.
    pub fn cache(&self) -> &dyn Cache {
        self.runner.engine.core().cache()
    }

    /// Appends to a branch; computed lazily. Returns the new length. Unchanged on error.
    pub fn append(&mut self, branch: Branch, prompt: impl Into<Prompt>) -> Result<usize, Error> {
        let begins = self.tokens(branch)?.is_empty();
        let ids = self.runner.model.ids(prompt.into(), begins)?;
        let tokens = self.branches.get_mut(&branch).ok_or_else(|| unknown(branch))?;
        if !ids.is_empty() {
            let all: Vec<Token> = tokens.iter().chain(&ids).copied().collect();
            self.runner.model.loaded.check_prompt(&all)?;
            *tokens = all;
        }
        Ok(tokens.len())
    }

    /// Generates at the end of a branch and appends the answer.
    pub fn generate(&mut self, branch: Branch, params: &Params) -> Result<Answer, Error> {
        let answers = self.generate_all(&[branch], params)?.pop();
        answers.ok_or_else(|| Error::Failed("one branch got no answer".into()))
    }

    /// Generates at the ends of several branches, batched, and appends each answer.
    pub fn generate_all(&mut self, branches: &[Branch], params: &Params) -> Result<Vec<Answer>, Error> {
        if let Some(twice) = branches.iter().enumerate().find(|(n, branch)| branches[..*n].contains(branch)) {
            return Err(Error::invalid("branches", format!("branch `{}` is named twice", twice.1.0)));
        }
        let mut requests = Vec::with_capacity(branches.len());
        for branch in branches {
            match self.submit(*branch, params) {
                Ok(request) => requests.push(request),
                Err(error) => {
                    requests.iter().for_each(|request| self.runner.cancel(*request));
                    return Err(error);
                }
            }
        }
        let answers = self.runner.answers(&requests)?;
        for (branch, answer) in branches.iter().zip(&answers) {
            if let Some(tokens) = self.branches.get_mut(branch) {
                tokens.extend_from_slice(&answer.ids);
            }
        }
        Ok(answers)
    }

    /// Streams generation at the end of a branch. Received tokens are appended, even if the stream
    /// is dropped early.
    pub fn stream(&mut self, branch: Branch, params: &Params) -> Result<Stream<'_>, Error> {
        let request = self.submit(branch, params)?;
        Ok(Stream::new(&mut self.runner, request, self.branches.get_mut(&branch)))
    }

    fn submit(&mut self, branch: Branch, params: &Params) -> Result<kvasir_engine::RequestId, Error> {
        let tokens = self.tokens(branch)?.to_vec();
        if let Some(prefix) = self.prefix {
            prefix.check(&self.runner.model, tokens.len().saturating_add(params.max_tokens as usize))?;
            if params.sampling.prompt_logprobs.is_some() {
                return Err(Error::invalid("prompt_logprobs", "a shared prefix is not computed again"));
            }
        }
        let params = Params { session: Some(SessionId(branch.0)), ..params.clone() };
        self.runner.add(Prompt::Ids(tokens), &params)
    }

    /// Prefills the uncached part of a branch, in whole blocks.
    pub fn fill(&mut self, branch: Branch) -> Result<(), Error> {
        let missing = self.len(branch)? as u32 - self.cached(branch)?;
        if missing < self.cache().shape().block_size {
            return Ok(());
        }
        let params = Params { max_tokens: 0, ..Params::default() };
        let request = self.submit(branch, &params)?;
        self.runner.answers(&[request]).map(|_| ())
    }

    /// Forks a branch into `n` new ones. Its K/V is computed first and shared (copy-on-write).
    /// Fails for caches that hold one sequence.
    pub fn fork(&mut self, branch: Branch, n: usize) -> Result<Vec<Branch>, Error> {
        let kind = self.cache().shape().kind;
        if kind.holds_one_sequence() {
            let missing = CacheError::NoCapability { kind, capability: Capability::Sequences };
            return Err(Error::invalid("cache", missing));
        }
        let tokens = self.tokens(branch)?.to_vec();
        self.fill(branch)?;
        let forks: Vec<Branch> = (self.next..).take(n).map(Branch).collect();
        self.next += n as u64;
        for fork in &forks {
            let (from, into) = (SessionId(branch.0), SessionId(fork.0));
            self.runner.engine.core_mut().fork_session(from, into, tokens.len() as u32);
            self.branches.insert(*fork, tokens.clone());
        }
        Ok(forks)
    }

    /// Truncates a branch to its first `to` tokens. Unchanged on error.
    pub fn rewind(&mut self, branch: Branch, to: usize) -> Result<(), Error> {
        let tokens = self.branches.get_mut(&branch).ok_or_else(|| unknown(branch))?;
        if to > tokens.len() {
            return Err(Error::invalid("to", format!("`{to}`: the branch has {} tokens", tokens.len())));
        }
        if let Some(prefix) = self.prefix.filter(|prefix| to < prefix.rows as usize) {
            return Err(Error::invalid(
                "to",
                format!("`{to}`: the shared prefix has {} tokens", prefix.rows),
            ));
        }
        tokens.truncate(to);
        self.runner.engine.core_mut().rewind_session(SessionId(branch.0), to as u32);
        Ok(())
    }

    /// Cuts a range of tokens out of a branch, such as an old tool result. The tokens behind it keep their
    /// K/V, which was computed in the presence of the range, and their positions, which count against
    /// the model's context. Unchanged on error.
    pub fn cut(&mut self, branch: Branch, range: Range<usize>) -> Result<(), Error> {
        if let Some(why) = self.runner.engine.core().cut_obstacle() {
            return Err(Error::invalid("range", why));
        }
        let shared = self.prefix.map_or(0, |prefix| prefix.rows as usize);
        let tokens = self.branches.get_mut(&branch).ok_or_else(|| unknown(branch))?;
        let len = tokens.len();
        if range.start < shared || range.start >= range.end || range.end > len {
            return Err(Error::invalid("range", format!("`{range:?}`: {shared} to {len} tokens can be cut")));
        }
        tokens.drain(range.clone());
        let range = range.start as u32..range.end as u32;
        self.runner.engine.core_mut().cut_session(SessionId(branch.0), range);
        Ok(())
    }

    /// Closes all other branches.
    pub fn keep(&mut self, branch: Branch) -> Result<(), Error> {
        self.tokens(branch)?;
        let others: Vec<Branch> = self.branches().filter(|other| *other != branch).collect();
        others.into_iter().try_for_each(|other| self.close(other))
    }

    /// Closes a branch and releases its K/V.
    pub fn close(&mut self, branch: Branch) -> Result<(), Error> {
        self.branches.remove(&branch).ok_or_else(|| unknown(branch))?;
        self.runner.engine.core_mut().end_session(SessionId(branch.0));
        Ok(())
    }
}

fn unknown(branch: Branch) -> Error {
    Error::invalid("branch", format!("there is no branch {}", branch.0))
}

impl SharedPrefix {
    /// A session whose branches begin with this prefix, with `options.capacity` further tokens.
    /// Block caches share whole blocks and recompute the remainder of the prefix. With recurrent
    /// layers, they share the prefix up to its last frozen state at a multiple of their block size.
    /// A block size without such a state is refused. Powers of two up to 256 have one in every
    /// prefix of at least 256 tokens.
    pub fn session(&self, options: CacheOptions) -> Result<Session, Error> {
        Session::on(self, &options)
    }
}
