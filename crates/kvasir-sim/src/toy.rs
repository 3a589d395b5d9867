use crate::{
    Faults,
    fault::{Fate, Injector},
};
use kvasir_exec::{
    Abilities, BatchRow, Executor, IN_FLIGHT, OutputRow, PoolRow, Refused, SequenceSpec, Step, StepError,
};
use kvasir_kv::{Plan, PlanRow, PoolId, Position, Slot, Span, Token};
use std::{collections::VecDeque, sync::mpsc};

/// A device whose every output depends on every slot that is read.
///
/// Arithmetic is modulo 2^61 − 1. F starts at 1; a token t at position p folds in the slots of all visible positions
/// before p, stores e = mix(F, t) in its own slot and samples from mix(F, e). So a wrong hit, an unwritten slot, a lost
/// or phantom token changes the tokens that follow.
///
/// Beside the values it keeps a shadow of what each slot was written for, and notes every read that touches a slot
/// written for another prefix, and every token that is fed twice differently. Steps run as late as the contract allows: when they are waited for.
#[derive(Debug, Default)]
pub struct Toy {
    slots: Vec<Cell>,
    rows: Vec<PoolState>,
    queue: VecDeque<(u64, Box<Step>)>,
    next: u64,
    violations: Vec<String>,
    faults: Injector,
    depth: u32,
    entries: Vec<(Slot, Position)>,
    moved: Vec<Cell>,
    /// What the next step that is waited for waits for itself.
    hang: Option<mpsc::Receiver<()>>,
}

/// One slot: its value, and what it was written for.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    value: u64,
    token: Token,
    /// Digest of the prefix that ends with this token; 0 in a slot that was never written.
    tag: u64,
    /// Digest of the prefix before it.
    before: u64,
    /// A step that failed did not write it. Reading it is no breach, but whatever comes of that must not be delivered.
    spoiled: bool,
}

/// What the device keeps for a place in the token pool.
#[derive(Clone, Debug, Default)]
struct PoolState {
    /// Tokens that are known for sure, by position.
    known: Vec<Token>,
    /// Digests of the prefixes that end with them.
    tags: Vec<u64>,
    /// Newest sampled token.
    newest: Token,
}

const PRIME: u128 = (1 << 61) - 1;
/// Value of F before anything is folded in.
const START: u64 = 1;
/// End of sequence of the toy model.
const EOS: Token = 2;

fn mix(a: u64, b: u64) -> u64 {
    ((u128::from(a) * 1_000_003 + u128::from(b) * 7919 + 12345) % PRIME) as u64
}

fn digest(before: u64, token: Token) -> u64 {
    let z =
        (before ^ 0x9E37_79B9_7F4A_7C15).wrapping_add(u64::from(token)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z ^ z >> 29).wrapping_mul(0x94D0_49BB_1331_11EB) | 1
}

fn sample(f: u64) -> Token {
    match f % 29 {
        0 => EOS,
        _ => 10 + (f % 40) as Token,
    }
}

impl Toy {
    /// A device without faults.
    pub fn new() -> Self {
        Self { depth: 2, ..Self::default() }
    }

    /// With faults.
    pub fn with_faults(faults: Faults) -> Self {
        Self { faults: Injector::new(faults), ..Self::new() }
    }

    /// Steps that may be submitted before the first is waited for.
    pub fn with_depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }

    /// Lets the next step that is waited for fail, with or without having written what it had to.
    pub fn fail_next(&mut self, wrote: bool) {
        self.faults.plan(Fate::Failed { error: StepError::Failed("as planned".into()), wrote });
    }

    /// Lets the next step that is waited for never come back.
    pub fn lose_next(&mut self) {
        self.faults.plan(Fate::Lost(StepError::Lost("as planned".into())));
    }

    /// Lets the next step that is waited for hang until the sender has sent or is dropped.
    pub fn hang_next(&mut self) -> mpsc::Sender<()> {
        let (sender, receiver) = mpsc::channel();
        self.hang = Some(receiver);
        sender
    }

    /// The end-of-sequence token of its model.
    pub const EOS: Token = EOS;

    /// What its model says after `prompt`, alone: up to `max_tokens` tokens, or unless ignored to [`Toy::EOS`], which is
    /// included.
    pub fn alone(prompt: &[Token], max_tokens: u32, ignore_eos: bool) -> Vec<Token> {
        // A step starts from 1 and folds in everything that is stored; that is the same as carrying F on.
        let mut f = START;
        let mut feed = |token: Token| {
            f = mix(f, mix(f, token.into()));
            f
        };
        let mut outputs = Vec::new();
        let mut last = prompt.iter().map(|token| feed(*token)).last().unwrap_or(START);
        while outputs.len() < max_tokens as usize {
            let token = sample(last);
            outputs.push(token);
            if token == EOS && !ignore_eos {
                break;
            }
            last = feed(token);
        }
        outputs
    }

    /// Reads of slots that were written for something else, tokens fed differently at one position, and other breaches of
    /// the contract. Must be empty.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    fn note(&mut self, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }

    fn run(&mut self, step: &mut Step) {
        if !step.batch.is_dummy() {
            self.move_rows(&step.plan);
        }
        let Step { batch, plan, output } = step;
        output.reset();
        if batch.is_dummy() {
            return output.rows.resize(batch.rows.len(), OutputRow::default());
        }
        if batch.rows.len() != plan.rows.len() || batch.tokens.len() != plan.positions.len() {
            self.note(format!("step {}: batch and plan differ in size", batch.step.0));
            return;
        }
        for (row, planned) in batch.rows.iter().zip(&plan.rows) {
            let start = output.tokens.len();
            if row.seq != planned.seq || row.tokens != planned.queries {
                self.note(format!("step {}: batch and plan name different rows", batch.step.0));
            }
            for query in 0..planned.queries.len {
                let at = (planned.queries.start + query) as usize;
                let known = query < row.tokens.len - row.drafts.count;
                let f = self.query(row, plan, planned, query, at, batch.tokens[at], known);
                if query >= row.sample_from {
                    output.tokens.push(sample(f));
                }
            }
            let span = Span::new(start, output.tokens.len() - start);
            output.rows.push(OutputRow { tokens: span });
            if let (Some(token), Some(state)) =
                (output.tokens.last().filter(|_| span.len > 0), self.rows.get_mut(row.pool_row.0 as usize))
            {
                state.newest = *token;
            }
        }
    }

    /// What a step had to write is not there.
    fn spoil(&mut self, plan: &Plan) {
        let destinations = plan.moves.iter().map(|m| m.to).chain(plan.write_slots.iter().copied());
        for slot in destinations {
            *self.slot_mut(slot) = Cell { value: 99, spoiled: true, ..Cell::default() };
        }
    }

    /// All sources are read before any destination is written.
    fn move_rows(&mut self, plan: &Plan) {
        let mut moved = std::mem::take(&mut self.moved);
        moved.clear();
        moved.extend(plan.moves.iter().map(|m| self.slots.get(m.from as usize).copied().unwrap_or_default()));
        for (m, cell) in plan.moves.iter().zip(&moved) {
            *self.slot_mut(m.to) = *cell;
        }
        self.moved = moved;
    }

    fn slot_mut(&mut self, slot: Slot) -> &mut Cell {
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize(slot + 1, Cell::default());
        }
        &mut self.slots[slot]
    }

    /// Runs one token of a row and returns what it is sampled from.
    #[allow(clippy::too_many_arguments)] // the coordinates of one token
    fn query(
        &mut self,
        row: &BatchRow,
        plan: &Plan,
        planned: &PlanRow,
        query: u32,
        at: usize,
        token: Token,
        known: bool,
    ) -> u64 {
        let position = plan.positions[at];
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        let mut foreign = false;
        for (i, (pool, slot, position)) in plan.entries(planned).enumerate() {
            if plan.sees(planned, query, i as u32) {
                foreign |= pool != PoolId(0);
                entries.push((slot, position));
            }
        }
        if foreign {
            self.note(format!("step {}: reads a pool that the toy has not", plan.step.0));
        }
        let own = entries.pop();
        if own.map(|(_, position)| position) != Some(position) {
            self.note(format!(
                "step {}: a query at {position} does not see itself last: {own:?}",
                plan.step.0
            ));
        }
        let token = match token {
            IN_FLIGHT => self.rows.get(row.pool_row.0 as usize).map_or(0, |state| state.newest),
            token => token,
        };
        let spoiled =
            entries.iter().any(|(slot, _)| self.slots.get(*slot as usize).is_some_and(|cell| cell.spoiled));
        let f = entries.iter().fold(START, |f, (slot, _)| {
            mix(f, self.slots.get(*slot as usize).copied().unwrap_or_default().value)
        });
        let before = self.check_prefix(row, plan, &entries, position);
        if known && !spoiled {
            self.learn(row, plan, &entries, token, before);
        }
        let value = mix(f, token.into());
        let tag = digest(before, token);
        *self.slot_mut(plan.write_slots[at]) = Cell { value, token, tag, before, spoiled };
        if let Some((slot, _)) = own {
            let stored = *self.slot_mut(slot);
            let redirected = query < planned.redirected;
            if (slot != plan.write_slots[at]) != redirected {
                self.note(format!("step {}: the write of position {position} goes elsewhere", plan.step.0));
            }
            if stored.tag != tag && !stored.spoiled {
                self.note(format!("step {}: slot {slot} holds another prefix at {position}", plan.step.0));
            }
            self.entries = entries;
            return mix(f, stored.value);
        }
        self.entries = entries;
        mix(f, value)
    }

    /// Checks that what a query sees before itself was written for one and the same prefix, this row's own as far as it is
    /// known; returns the digest of that prefix.
    fn check_prefix(
        &mut self,
        row: &BatchRow,
        plan: &Plan,
        entries: &[(Slot, Position)],
        position: Position,
    ) -> u64 {
        let mut before = 0;
        let mut wrong = None;
        for (i, (slot, at)) in entries.iter().enumerate() {
            let cell = self.slots.get(*slot as usize).copied().unwrap_or_default();
            let own = self.rows.get(row.pool_row.0 as usize).and_then(|state| state.tags.get(*at as usize));
            let holds = cell.tag != 0 && cell.before == before && own.is_none_or(|tag| *tag == cell.tag);
            if cell.spoiled {
                return cell.tag;
            }
            if *at != i as u32 || !holds {
                wrong = wrong.or(Some((*slot, *at)));
            }
            before = cell.tag;
        }
        if entries.len() != position as usize {
            self.note(format!("step {}: position {position} sees {} before it", plan.step.0, entries.len()));
        }
        if let Some((slot, at)) = wrong {
            self.note(format!(
                "step {}: request {} reads slot {slot} for position {at}, which was written for another prefix",
                plan.step.0, row.request
            ));
        }
        before
    }

    /// Takes note of a token that is certain, and complains if it was another one before. Accepted drafts were fed as
    /// drafts; they are certain now that something is fed after them.
    fn learn(
        &mut self,
        row: &BatchRow,
        plan: &Plan,
        entries: &[(Slot, Position)],
        token: Token,
        before: u64,
    ) {
        let Some(state) = self.rows.get_mut(row.pool_row.0 as usize) else {
            return self.note(format!("step {}: pool row {} was never bound", plan.step.0, row.pool_row.0));
        };
        for (slot, _) in entries.iter().skip(state.known.len()) {
            let cell = self.slots.get(*slot as usize).copied().unwrap_or_default();
            state.known.push(cell.token);
            state.tags.push(cell.tag);
        }
        match state.known.get(entries.len()).copied() {
            None => {
                state.known.push(token);
                state.tags.push(digest(before, token));
            }
            Some(other) if other != token => {
                let (request, at) = (row.request, entries.len());
                self.note(format!(
                    "step {}: request {request} is fed {token} at {at}, it has {other}",
                    plan.step.0
                ));
            }
            Some(_) => {}
        }
    }
}

impl Executor for Toy {
    type Pending = u64;

    fn abilities(&self) -> Abilities {
        Abilities::all(self.depth, u32::MAX, u32::MAX)
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        let at = row.0 as usize;
        if self.rows.len() <= at {
            self.rows.resize(at + 1, PoolState::default());
        }
        let state = &mut self.rows[at];
        state.known = spec.prompt;
        state.known.extend(spec.output);
        state.tags.clear();
        let mut before = 0;
        for token in &state.known {
            before = digest(before, *token);
            state.tags.push(before);
        }
        state.newest = Token::MAX;
    }

    fn submit(&mut self, step: Box<Step>) -> Result<u64, Refused> {
        if self.queue.len() >= self.depth as usize {
            self.note(format!("step {}: more steps than the depth of {}", step.batch.step.0, self.depth));
        }
        if let Err(error) = self.faults.submit() {
            return Err(Refused { step, error });
        }
        let ticket = self.next;
        self.next += 1;
        self.queue.push_back((ticket, step));
        Ok(ticket)
    }

    fn wait(&mut self, pending: u64) -> (Box<Step>, Result<(), StepError>) {
        let Some((ticket, mut step)) = self.queue.pop_front() else {
            return (Box::default(), Err(StepError::Lost("nothing was submitted".into())));
        };
        if ticket != pending {
            self.note(format!("ticket {pending} is waited for before {ticket}"));
        }
        if let Some(hang) = self.hang.take() {
            // Either way it is over.
            let _ = hang.recv();
        }
        let fate = self.faults.complete();
        match fate {
            Fate::Lost(error) => return (step, Err(error)),
            Fate::Failed { error, wrote } => {
                match wrote {
                    true => self.run(&mut step),
                    false => self.spoil(&step.plan),
                }
                return (step, Err(error));
            }
            Fate::Late | Fate::InTime => self.run(&mut step),
        }
        step.output.device_ns = if fate == Fate::Late { 1_000_000 } else { 1_000 };
        (step, Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answers, Clock, CostDevice, Preset};
    use kvasir_exec::{BatchRow, Phase, StepKind};
    use kvasir_kv::{Cache, ClaimRow, Contiguous, SeqId, StepId};

    /// The step that feeds `tokens` to `seq`.
    fn step(cache: &mut Contiguous, id: u64, seq: SeqId, tokens: &[Token]) -> Box<Step> {
        let mut step = Box::new(Step::default());
        let count = tokens.len() as u32;
        cache.claim(StepId(id), &[ClaimRow::new(seq, count)]).unwrap();
        cache.plan(StepId(id), &mut step.plan).unwrap();
        step.batch.reset(StepId(id));
        step.batch.tokens.extend_from_slice(tokens);
        step.batch.rows.push(BatchRow {
            request: 1,
            seq,
            phase: Phase::Prefill,
            tokens: Span::new(0, tokens.len()),
            cached: 0,
            context_len: count,
            last_block_tokens: 1,
            sample_from: count - 1,
            pool_row: PoolRow(0),
            scored: Span::default(),
            drafts: Default::default(),
            sampling: Default::default(),
        });
        step
    }

    /// How many tokens each row of a step of this kind yields.
    fn yields(device: &mut impl Executor, id: u64, kind: StepKind) -> Vec<u32> {
        let mut cache = Contiguous::new(64);
        let seq = cache.open().unwrap();
        let mut step = step(&mut cache, id, seq, &[103, 104]);
        step.batch.kind = kind;
        device.bind(PoolRow(0), SequenceSpec { prompt: vec![103, 104], ..SequenceSpec::default() });
        let Ok(pending) = device.submit(step) else { panic!("refused") };
        let (step, result) = device.wait(pending);
        assert_eq!(result, Ok(()));
        step.output.rows.iter().map(|row| row.tokens.len).collect()
    }

    struct One;

    impl Answers for One {
        fn token(&self, _: u64, _: u32) -> Token {
            1
        }
    }

    #[test]
    fn a_dummy_run_writes_nothing_and_yields_nothing() {
        let mut toy = Toy::new();
        assert_eq!(yields(&mut toy, 1, StepKind::Dummy), [0]);
        assert!(toy.slots.iter().all(|cell| cell.tag == 0));
        assert_eq!(yields(&mut toy, 2, StepKind::Prefill), [1]);
        assert!(toy.slots.iter().any(|cell| cell.tag != 0));
        assert_eq!(toy.violations(), [""; 0]);

        let clock = Clock::default();
        let preset = Preset::parse("h200:qwen3-0.6b").unwrap();
        let mut cost = CostDevice::new(preset, clock.clone(), Box::new(One));
        assert_eq!(yields(&mut cost, 1, StepKind::Dummy), [0]);
        assert!(clock.now() > 0, "it takes its time");
        assert_eq!(yields(&mut cost, 2, StepKind::Prefill), [1]);
    }

    #[test]
    fn alone_is_the_recorded_model() {
        // Completions of recorded case toy-roomy-200001.
        assert_eq!(Toy::alone(&[103], 11, false), [33, 44, 30, 10, 15, 27, 37, 19, 19, 28, 33]);
        assert_eq!(Toy::alone(&[100; 6], 3, false), [14, 47, 28]);
        assert_eq!(
            Toy::alone(&[102, 100, 101, 100, 102, 103, 101, 102, 103, 102], 6, false),
            [48, 39, 30, 44, 16, 2]
        );
    }
}
