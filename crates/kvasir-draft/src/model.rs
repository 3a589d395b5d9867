//! [`ModelDrafter`]: speculative decoding with a draft model that runs behind the target, in the
//! same executor.
//!
//! After a step of the target, the first draft pass runs the tokens that the target has just
//! committed, with the target's states of them, and yields the first level of each draft tree. Each
//! further level is one pass over the frontiers of all trees. Nodes of an earlier tree are dropped:
//! accepted tokens always run again, from the target's states.
//!
//! The slot copies of the target's step run in the draft's pool in every step, also where no row
//! drafts.
//!
//! Drafts are advisory. A sequence of whose context the draft model has run only a part, since
//! drafting paused or a prompt was not worth reading, is not drafted for; few missing tokens are
//! tolerated. This may cost acceptance, never a wrong output.

use crate::plan::{DraftPlan, Visible};
use crate::tree::{Growth, Leaf, TreeShape};
use crate::written::WrittenSlots;
use kvasir_exec::{
    Batch, BatchRow, DraftCandidate, DraftProposal, DrawnDrafts, KvRows, PoolRow, SamplerRows, Step,
    StepError,
};
use kvasir_kv::{Position, Slot, SlotCopy, Span, Token};
use kvasir_sample::Acceptance;
use std::ops::Range;
use std::time::Instant;

/// A sequence is drafted for if at most this share of its context is missing: one in eight tokens.
const MISSING_SHARE: u32 = 8;

/// A draft program on a backend, with a KV pool of its own.
pub trait Forward: KvRows + Send {
    /// Number of token ids that it can be fed.
    fn vocab(&self) -> usize;
    /// Announces the final length of the sequence in a row, which long-context ropes depend on.
    fn bind(&mut self, row: PoolRow, final_len: u32);
    /// Prepares what a first step would prepare otherwise.
    fn warm_up(&mut self);
    /// Copies slots of its pool, as a step of the target does before it writes.
    fn copy_slots(&mut self, copies: &[SlotCopy]) -> Result<(), StepError>;
    /// Returns the memory of free slots of its pool to the system.
    fn release(&mut self, slots: &[Range<Slot>]) {
        let _ = slots;
    }
    /// Runs a step without sampling. `hidden` has a row per token if the program takes hidden
    /// states.
    fn forward(&mut self, step: &mut Step, hidden: &[f32]) -> Result<(), StepError>;
    /// Logits of the last pass: a row per token from `sample_from` on, over all rows of the batch.
    fn logits(&self) -> &[f32];
    /// Hidden states of the last pass to continue from, a row per token; empty if the program takes
    /// none.
    fn states(&self) -> &[f32];
}

/// How a draft model continues the target.
#[derive(Clone, Debug, Default)]
pub struct DraftModelKind {
    /// Width of the target's states that it takes; 0 for a model of its own.
    ///
    /// Such a model runs one token ahead: its row of token `i` combines the target's state of token
    /// `i` with the embedding of token `i + 1`.
    pub hidden: usize,
    /// Number of token ids of the target. The draft model's vocabulary may be padded further: it
    /// proposes no id beyond the target's.
    pub target_vocab: usize,
    /// Ids of the target by those of the draft model; `None` if they are the same.
    pub to_target: Option<Vec<Token>>,
    /// How the target accepts what is proposed.
    pub acceptance: Acceptance,
}

/// The tree of one sequence while it grows.
#[derive(Clone, Debug, Default)]
struct GrowingTree {
    /// The row of the target's step.
    row: usize,
    depth: u32,
    /// The newest token, which the target has not run yet.
    newest: Token,
    /// Position of the token before it.
    at: Position,
    /// What the token before it sees.
    visible: Visible,
    candidates: Vec<DraftCandidate>,
    /// For each candidate the node that ran for it; −1 if none did.
    nodes: Vec<i32>,
    /// Positions and parents of the nodes that ran.
    positions: Vec<Position>,
    parents: Vec<i32>,
    /// The leaves that the last pass ran and that are expanded next, each with its row in the pass.
    frontier: Vec<(Leaf, usize)>,
    /// The leaves that the next pass runs, each with the row of its parent in the last pass.
    chosen: Vec<(Leaf, usize)>,
    /// The drafts that were drawn at random.
    drawn: DrawnDrafts,
}

impl GrowingTree {
    fn begin(
        &mut self,
        row: usize,
        depth: u32,
        newest: Token,
        at: Position,
        visible: Visible,
        pass_row: usize,
    ) {
        self.candidates.clear();
        self.nodes.clear();
        self.positions.clear();
        self.parents.clear();
        self.frontier.clear();
        self.chosen.clear();
        self.drawn.reset(at + 2);
        (self.row, self.depth, self.newest, self.at, self.visible) = (row, depth, newest, at, visible);
        self.frontier.push((Leaf { candidate: -1, cumulative: 0.0 }, pass_row));
    }

    /// The node that ran for a candidate; −1 for the committed tokens.
    fn node_of(&self, candidate: i32) -> i32 {
        usize::try_from(candidate).map_or(if self.runs_newest() { 0 } else { -1 }, |at| self.nodes[at])
    }

    /// Whether the newest token ran as the first node.
    fn runs_newest(&self) -> bool {
        self.positions.len() > self.nodes.iter().filter(|node| **node >= 0).count()
    }
}

/// Proposes draft trees with a draft model.
pub struct ModelDrafter<F> {
    model: F,
    kind: DraftModelKind,
    shape: TreeShape,
    /// First scratch slot.
    scratch: u32,
    plan: DraftPlan,
    step: Step,
    growth: Growth,
    growing: Vec<GrowingTree>,
    /// Memory of trees that are not in use.
    spare: Vec<GrowingTree>,
    leaves: Vec<Leaf>,
    hidden: Vec<f32>,
    accepted: Vec<u32>,
    path: Vec<u32>,
    written: WrittenSlots,
    /// For each row of the target's step whether the draft model runs its committed tokens.
    runs: Vec<bool>,
    /// The token after each token of the target's step.
    next: Vec<Token>,
}

/// A row begins with a flag: whether the draft model has run the slot's token.
impl<F: Forward> KvRows for ModelDrafter<F> {
    fn slot_bytes(&self) -> usize {
        1 + self.model.slot_bytes()
    }

    fn read(&self, slot: Slot, into: &mut [u8]) {
        if let Some((written, row)) = into.split_first_mut() {
            *written = u8::from(self.written.has(slot));
            self.model.read(slot, row);
        }
    }

    fn write(&mut self, slot: Slot, from: &[u8]) {
        if let Some((written, row)) = from.split_first() {
            self.written.set(slot, *written == 1);
            self.model.write(slot, row);
        }
    }
}

impl<F: Forward> ModelDrafter<F> {
    /// A drafter whose model has [`scratch_slots`](Self::scratch_slots) more slots than the target,
    /// which has `slots`.
    pub fn new(model: F, kind: DraftModelKind, shape: TreeShape, slots: u32) -> Self {
        let growth = Growth::new(kind.acceptance, kind.target_vocab, kind.to_target.as_deref());
        Self {
            model,
            kind,
            shape,
            scratch: slots,
            plan: DraftPlan::default(),
            step: Step::default(),
            growth,
            growing: Vec::new(),
            spare: Vec::new(),
            leaves: Vec::new(),
            hidden: Vec::new(),
            accepted: Vec::new(),
            path: Vec::new(),
            written: WrittenSlots::new(slots),
            runs: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Slots that the draft model needs beyond the target's, for steps of up to `rows` rows.
    pub fn scratch_slots(shape: TreeShape, rows: u32) -> u32 {
        shape.most_run().saturating_mul(rows)
    }

    /// The draft model's program on its backend.
    pub fn model(&self) -> &F {
        &self.model
    }

    /// A sequence was bound to a row.
    pub fn bind(&mut self, row: PoolRow, final_len: u32) {
        self.model.bind(row, final_len);
    }

    /// Returns the memory of free slots to the system.
    pub fn release(&mut self, slots: &[Range<Slot>]) {
        self.model.release(slots);
    }

    /// Continues a step that the target has run and sampled: writes proposals into its output, and
    /// drafts that were drawn at random into the target's sampler rows.
    ///
    /// `tokens` are the step's with those in flight resolved, and `hidden` the target's states, a
    /// row per token. If the draft model fails, the step proposes nothing, and its output says why.
    /// A dummy step warms the draft model.
    pub fn propose(
        &mut self,
        step: &mut Step,
        tokens: &[Token],
        hidden: &[f32],
        rows: &mut impl SamplerRows,
    ) {
        let started = Instant::now();
        self.spare.append(&mut self.growing);
        if step.batch.is_dummy() {
            self.model.warm_up();
            return;
        }
        self.find_successors(step, tokens, rows);
        if let Err(error) = self.run_passes(step, tokens, hidden) {
            self.spare.append(&mut self.growing);
            step.plan.write_slots.iter().for_each(|slot| self.written.set(*slot, false));
            step.output.draft_error = Some(error.to_string());
        }
        for tree in &mut self.growing {
            let all = &mut step.output.candidates;
            self.growth.keep(&mut tree.candidates, self.shape.nodes);
            let candidates = Span::new(all.len(), tree.candidates.len());
            all.extend_from_slice(&tree.candidates);
            step.output.proposals.push(DraftProposal { row: tree.row as u32, candidates });
            let row = rows.sampler_row(step.batch.rows[tree.row].pool_row);
            std::mem::swap(row.drafts(), &mut tree.drawn);
        }
        step.output.draft_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    }

    /// Finds the token after each token of a step.
    fn find_successors(&mut self, step: &Step, tokens: &[Token], rows: &mut impl SamplerRows) {
        self.next.clear();
        for (row, output) in step.batch.rows.iter().zip(&step.output.rows) {
            let span = row.tokens.range();
            let sampled = &step.output.tokens[output.tokens.range()];
            let (tokens, positions) = (&tokens[span.clone()], &step.plan.positions[span]);
            let state = rows.sampler_row(row.pool_row);
            state.successors(row, tokens, positions, sampled, &mut self.next);
        }
    }

    /// Runs the slot copies and all passes behind a step of the target, which grows its trees.
    fn run_passes(&mut self, step: &Step, tokens: &[Token], hidden: &[f32]) -> Result<(), StepError> {
        self.model.copy_slots(&step.plan.moves)?;
        self.choose_rows(step);
        if !self.runs.contains(&true) {
            return Ok(());
        }
        self.first_pass(step, tokens, hidden)?;
        self.grow(step)
    }

    /// Chooses the rows whose tokens the draft model runs: those that feed it, unless it lacks much
    /// of what they read.
    fn choose_rows(&mut self, target: &Step) {
        let plan = &target.plan;
        self.written.copy(&plan.moves);
        // The step replaces what was in these slots.
        plan.write_slots.iter().for_each(|slot| self.written.set(*slot, false));
        self.runs.clear();
        for (row, planned) in target.batch.rows.iter().zip(&plan.rows) {
            let enough = || {
                let (written, context) = self.written.coverage(plan, planned);
                written >= context - context / MISSING_SHARE
            };
            self.runs.push(row.feeds_draft && enough());
        }
    }

    /// Runs the committed tokens of the step, and starts a tree for each row that wants one. Ids
    /// that the draft model lacks are fed as id 0, and nothing is proposed behind one.
    fn first_pass(&mut self, target: &Step, tokens: &[Token], hidden: &[f32]) -> Result<(), StepError> {
        let (width, vocab) = (self.kind.hidden, self.model.vocab());
        let is_known = |token: Token| (token as usize) < vocab;
        self.plan.begin(&target.plan);
        self.step.batch.reset(target.batch.step);
        self.step.batch.rows.clear();
        self.hidden.clear();
        for (i, (row, planned)) in target.batch.rows.iter().zip(&target.plan.rows).enumerate() {
            if !self.runs[i] {
                continue;
            }
            let sampled = target.output.rows.get(i).map_or(0, |output| output.tokens.len);
            self.find_path(target, row, i);
            let first = row.tokens.start as usize;
            let start = self.step.batch.tokens.len();
            for query in &self.path {
                let at = first + *query as usize;
                let token = if width > 0 { self.next[at] } else { tokens[at] };
                self.written.set(target.plan.write_slots[at], true);
                self.step.batch.tokens.push(if is_known(token) { token } else { 0 });
                self.hidden.extend_from_slice(hidden.get(at * width..(at + 1) * width).unwrap_or(&[]));
            }
            let (last, len) = (self.path.last().copied().unwrap_or(0), self.path.len());
            let newest = self.next[first + last as usize];
            let wanted = row.draft_depth > 0 && sampled > 0 && is_known(newest);
            let visible = if wanted || row.drafts.count > 0 {
                self.plan.visible(&target.plan, planned, last)
            } else {
                Visible::default()
            };
            match row.drafts.count {
                0 => self.plan.copy_row(&target.plan, planned),
                _ => self.plan.path_row(&target.plan, planned, &self.path, visible),
            }
            let yields = wanted && width > 0;
            self.step.batch.rows.push(BatchRow {
                seq: row.seq,
                tokens: Span::new(start, len),
                sample_from: len as u32 - u32::from(yields),
                pool_row: row.pool_row,
                ..BatchRow::default()
            });
            if wanted {
                let at = target.plan.positions[first + last as usize];
                let mut tree = self.spare.pop().unwrap_or_default();
                tree.begin(i, row.draft_depth.min(self.shape.depth), newest, at, visible, start + len - 1);
                self.growing.push(tree);
            }
        }
        self.run()
    }

    /// The queries of a row whose tokens are committed: all that are no drafts, and the accepted
    /// drafts.
    fn find_path(&mut self, target: &Step, row: &BatchRow, i: usize) {
        let fed = row.tokens.len - row.drafts.count;
        self.path.clear();
        self.path.extend(0..fed);
        if row.drafts.count == 0 {
            return;
        }
        self.accepted.clear();
        target.accepted(i, &mut self.accepted);
        self.path.extend(self.accepted.iter().map(|node| fed - 1 + node));
    }

    /// Runs the pass that stands in `plan` and `step`.
    fn run(&mut self) -> Result<(), StepError> {
        std::mem::swap(&mut self.step.plan, &mut self.plan.plan);
        let ran = self.model.forward(&mut self.step, &self.hidden);
        std::mem::swap(&mut self.step.plan, &mut self.plan.plan);
        ran
    }

    /// Grows all trees, one level per pass.
    fn grow(&mut self, target: &Step) -> Result<(), StepError> {
        let deepest = self.growing.iter().map(|tree| tree.depth).max().unwrap_or(0);
        // A model of its own has not run the newest token yet.
        if self.kind.hidden == 0 && deepest > 0 {
            self.run_newest(target)?;
        }
        for level in 1..=deepest {
            self.expand(target, level);
            if level < deepest {
                self.run_level(target, level)?;
            }
        }
        Ok(())
    }

    /// Runs the newest token of each tree as its first node.
    fn run_newest(&mut self, target: &Step) -> Result<(), StepError> {
        self.begin_pass(target);
        for tree in &mut self.growing {
            let row = self.step.batch.tokens.len();
            self.step.batch.tokens.push(tree.newest);
            tree.positions.push(tree.at + 1);
            tree.parents.push(-1);
            tree.frontier[0].1 = row;
            add_nodes(
                &mut self.plan,
                &mut self.step.batch,
                &target.batch,
                tree,
                (self.scratch, self.shape),
                1,
            );
        }
        self.run()
    }

    /// Expands the frontiers by the logits of the last pass, and chooses what the next pass runs.
    fn expand(&mut self, target: &Step, level: u32) {
        let grows = |tree: &GrowingTree| tree.depth >= level;
        let leaves: usize =
            self.growing.iter().filter(|tree| grows(tree)).map(|tree| tree.frontier.len()).sum();
        let logits = self.model.logits();
        let mut logits = logits.chunks_exact((logits.len() / leaves.max(1)).max(1));
        let (map, top_k) = (self.kind.to_target.as_deref(), self.shape.top_k);
        for tree in self.growing.iter_mut().filter(|tree| grows(tree)) {
            let draw = (&target.batch.rows[tree.row].sampling, tree.at + 1 + level);
            let before = tree.candidates.len();
            for (leaf, _) in &tree.frontier {
                let Some(logits) = logits.next() else { break };
                let candidates = &mut tree.candidates;
                if self.growth.draws(top_k, draw.0) {
                    self.growth.draw(*leaf, level, logits, map, draw, &mut tree.drawn, candidates)
                } else {
                    self.growth.expand(*leaf, level, top_k, logits, map, draw, candidates)
                }
            }
            tree.nodes.resize(tree.candidates.len(), -1);
            self.growth.frontier(&tree.candidates[before..], before as u32, top_k, &mut self.leaves);
            tree.chosen.clear();
            for leaf in &self.leaves {
                let parent = tree.candidates[leaf.candidate as usize].parent;
                let row = tree.frontier.iter().find(|(leaf, _)| leaf.candidate == parent);
                tree.chosen.push((*leaf, row.map_or(0, |(_, row)| *row)));
            }
        }
    }

    /// Runs the leaves that the last level has chosen.
    fn run_level(&mut self, target: &Step, level: u32) -> Result<(), StepError> {
        let width = self.kind.hidden;
        self.begin_pass(target);
        for tree in self.growing.iter_mut().filter(|tree| tree.depth > level) {
            tree.frontier.clear();
            let ahead = if width > 0 { level } else { level + 1 };
            for i in 0..tree.chosen.len() {
                let (leaf, parent_row) = tree.chosen[i];
                let candidate = tree.candidates[leaf.candidate as usize];
                let state = self.model.states().get(parent_row * width..(parent_row + 1) * width);
                self.hidden.extend_from_slice(state.unwrap_or(&[]));
                tree.frontier.push((leaf, self.step.batch.tokens.len()));
                self.step.batch.tokens.push(candidate.token);
                let parent = tree.node_of(candidate.parent);
                tree.positions.push(tree.at + ahead);
                tree.parents.push(parent);
                tree.nodes[leaf.candidate as usize] = tree.positions.len() as i32 - 1;
            }
            let queries = tree.chosen.len() as u32;
            add_nodes(
                &mut self.plan,
                &mut self.step.batch,
                &target.batch,
                tree,
                (self.scratch, self.shape),
                queries,
            );
        }
        self.run()
    }

    /// Empties step and plan for the next pass.
    fn begin_pass(&mut self, target: &Step) {
        self.plan.next_pass();
        self.step.batch.reset(target.batch.step);
        self.step.batch.rows.clear();
        self.hidden.clear();
    }
}

/// Adds the newest `queries` nodes of a tree as a row of a pass.
fn add_nodes(
    plan: &mut DraftPlan,
    batch: &mut Batch,
    target: &Batch,
    tree: &GrowingTree,
    (scratch, shape): (Slot, TreeShape),
    queries: u32,
) {
    let row = &target.rows[tree.row];
    let scratch = scratch + tree.row as Slot * shape.most_run();
    plan.nodes_row(row.seq, tree.visible, scratch, &tree.positions, &tree.parents, queries);
    let start = batch.tokens.len() - queries as usize;
    let tokens = Span::new(start, queries as usize);
    batch.rows.push(BatchRow { seq: row.seq, tokens, pool_row: row.pool_row, ..BatchRow::default() });
}
