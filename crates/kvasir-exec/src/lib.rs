//! The interface between the engine and a backend: [`Batch`] plus [`Plan`](kvasir_kv::Plan) in,
//! [`Output`] out.
//!
//! A minimal executor, and one step through it as the engine runs it:
//!
//! ```
//! use kvasir_exec::{ Abilities, BatchRow, Executor, PoolRow, Ran, Refused, SamplerRow,
//! SequenceSpec, Step, StepError, }; use kvasir_kv::{Cache, ClaimRow, Contiguous, Span, StepId};
//!
//! const VOCAB: usize = 16;
//!
//! /// A model without weights: after token `t` the most likely one is `t + 1`.
//! struct Counter {
//!     rows: Vec<SamplerRow>,
//! }
//!
//! impl Counter {
//!     fn run(&mut self, step: &mut Step) -> Result<(), StepError> {
//!         step.check_sizes(self.abilities().max_tokens)?;
//!         step.output.reset();
//!         let Step { batch, plan, output } = step;
//!         for row in &batch.rows {
//!             let (state, mut tokens) = (&mut self.rows[row.pool_row.0 as usize], Vec::new());
//!             if !state.resolve(&batch.tokens[row.tokens.range()], &mut tokens) {
//!                 return Err(StepError::Failed("a token was never sampled".into()));
//!             }
//!             // The forward pass. A real one writes K and V to `plan.write_slots` and attends to
//!             // `plan.rows`.
//!             let mut logits = vec![];
//!             for token in &tokens[row.logits_from() as usize..] {
//!                 logits.extend((0..VOCAB).map(|id| f32::from(id as u32 == token + 1)));
//!             }
//!             let positions = &plan.positions[row.tokens.range()];
//!             state.draw(row, &tokens, positions, &[], &logits, VOCAB, &mut vec![]);
//!             output.push(state.drawn());
//!         }
//!         Ok(())
//!     }
//! }
//!
//! impl Executor for Counter {
//!     type Pending = Ran;
//!     fn abilities(&self) -> Abilities {
//!         Abilities::all(1, 64, self.rows.len() as u32)
//!     }
//!     fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
//!         self.rows[row.0 as usize] = SamplerRow::bind(spec);
//!     }
//!     fn submit(&mut self, step: Box<Step>) -> Result<Ran, Refused> {
//!         Ok(Ran::now(step, |step| self.run(step)))
//!     }
//!     fn wait(&mut self, pending: Ran) -> (Box<Step>, Result<(), StepError>) {
//!         pending.into_parts()
//!     }
//! }
//!
//! let mut executor = Counter { rows: vec![SamplerRow::default()] };
//! executor.bind(PoolRow(0), SequenceSpec { prompt: vec![3, 4, 5], ..SequenceSpec::default() });
//! let mut cache = Contiguous::new(8);
//! let (seq, id, mut step) = (cache.open()?, StepId(1), Box::<Step>::default());
//! cache.claim(id, &[ClaimRow::new(seq, 3)])?;
//! cache.plan(id, &mut step.plan)?;
//! step.batch.reset(id);
//! step.batch.tokens.extend([3, 4, 5]);
//! let tokens = Span::new(0, 3);
//! step.batch.rows.push(BatchRow { seq, tokens, sample_from: 2, ..BatchRow::default() });
//!
//! let pending = executor.submit(step).map_err(|refused| refused.error)?;
//! let (step, result) = executor.wait(pending);
//! result?;
//! cache.retire(id)?;
//! assert_eq!(step.output.only_token(0), Some(6));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading order; each file imports only from those before it:
//!
//! 1. `batch.rs`: the rows of one step (continuous batching: prefill, decode and draft tokens).
//! 2. `output.rs`: sampled tokens, log-probabilities, logits.
//! 3. `executor.rs`: the [`Executor`] trait with asynchronous `submit` and `wait`, and [`Step`].
//! 4. `padding.rs`: dummy rows and blocks for executors of static shapes, and dummy steps.
//! 5. `fitting.rs`: a step in the form that its executor accepts, and back.
//! 6. `sampler_row.rs`: per-sequence sampler state, and verification of speculative drafts.
//!
//! `background.rs` runs an executor on its own thread. `ranks.rs` defines all-reduce and all-gather
//! for tensor parallelism. `experts.rs` defines dispatch and combine for expert parallelism.
//! `ranked.rs` keeps the executor of a rank, or of an expert-parallel replica, in lockstep with the
//! others. `whole_sequences.rs` validates the steps of encoders, `state_rows.rs` those of models
//! with recurrent layers.
//!
//! Plain data with opaque ids. No scheduling decision is taken here, and nothing here knows a
//! request, a policy or a kernel.

#![forbid(unsafe_code)]

mod background;
mod batch;
mod executor;
mod experts;
mod fitting;
mod kv_rows;
mod output;
mod padding;
mod ranked;
mod ranks;
mod sampler_row;
mod state_rows;
mod whole_sequences;

pub use crate::background::Background;
pub use crate::batch::{Batch, BatchRow, Drafts, IN_FLIGHT, PoolRow, RowKind, StepKind};
pub use crate::executor::{Abilities, Executor, Ran, Refused, SequenceSpec, Step, StepError};
pub use crate::experts::{ComputeExperts, DispatchRows, ExpertExchange, NO_EXPERT, StoreOutput};
pub use crate::fitting::{Fitting, Original};
pub use crate::kv_rows::{KvAccess, KvLayout, KvRows, NoKvAccess};
pub use crate::output::{DraftCandidate, DraftProposal, Drawn, NO_TOKEN, Output, OutputRow, TokenLogprobs};
pub use crate::padding::Padding;
pub use crate::ranked::{RankControl, RankExecutor};
pub use crate::ranks::{AllGatherBuffers, Ranks};
pub use crate::sampler_row::{DrawnDrafts, SamplerRow, SamplerRows};
pub use crate::state_rows::StateRowValidator;
