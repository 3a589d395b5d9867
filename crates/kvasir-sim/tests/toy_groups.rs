//! The toy device with sliding windows and recurrent states, over caches of every kind. Its outputs
//! equal the reference without a cache, under chunked prefill, drafts, forks and prefix hits. It
//! reports plans that read or write a wrong state.

#![allow(clippy::unwrap_used, clippy::panic)]

use kvasir_exec::{BatchRow, Drafts, Executor, PoolRow, RowKind, SequenceSpec, Step};
use kvasir_kv::{
    Cache, CacheConfig, CacheKind, ClaimRow, Lookup, Position, SeqId, Span, StateConfig, StepId, Token,
    WindowConfig, build,
};
use kvasir_sim::{Toy, ToyShape};
use kvasir_testkit::Random;

/// A request that decodes greedily.
struct Request {
    seq: SeqId,
    row: PoolRow,
    prompt_len: usize,
    /// Prompt and outputs.
    tokens: Vec<Token>,
}

struct Simulation {
    cache: Box<dyn Cache>,
    toy: Toy,
    shape: ToyShape,
    random: Random,
    step: u64,
    rows: u32,
}

impl Simulation {
    fn new(kind: CacheKind, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let states = StateConfig { live: 3, checkpoints: random.between(0, 8), tail_rows: 4, interval: 8 };
        let block_size = random.pick(&[1, 4]);
        let windows: Vec<u32> = random.pick(&[&[][..], &[1], &[3, 7]]).to_vec();
        // The windows of other caches join the full group.
        let has_groups = !kind.holds_one_sequence() && random.chance(60);
        let groups = windows.iter().filter(|_| has_groups);
        let config = CacheConfig {
            block_size,
            states: Some(states),
            windows: groups.map(|&window| WindowConfig { window, capacity: 100, longest_draft: 4 }).collect(),
            ..CacheConfig::new(400)
        };
        let shape = ToyShape { windows, state: true };
        let (cache, toy) = (build(kind, &config).unwrap(), Toy::new().with_shape(shape.clone()));
        Self { cache, toy, shape, random, step: 0, rows: 0 }
    }

    fn bind(&mut self, seq: SeqId, tokens: Vec<Token>, prompt_len: usize) -> Request {
        let row = PoolRow(self.rows);
        self.rows += 1;
        self.toy.bind(row, SequenceSpec { prompt: tokens.clone(), ..SequenceSpec::default() });
        Request { seq, row, prompt_len, tokens }
    }

    fn open(&mut self, prompt: &[Token]) -> Request {
        let seq = self.cache.open().unwrap();
        if let Ok(prefix) = self.cache.prefix() {
            prefix.attach(seq, prompt, 0, u32::MAX, Lookup::default()).unwrap();
        }
        self.bind(seq, prompt.to_vec(), prompt.len())
    }

    /// Claims and plans the step that feeds `tokens`, the last `drafts` of which are drafts.
    fn plan(&mut self, request: &Request, tokens: &[Token], drafts: u32) -> Box<Step> {
        self.step += 1;
        let (mut step, count) = (Box::new(Step::default()), tokens.len() as u32);
        let claim = ClaimRow { drafts, ..ClaimRow::new(request.seq, count) };
        let cached = self.cache.next_position(request.seq).unwrap();
        self.cache.claim(StepId(self.step), &[claim]).unwrap();
        self.cache.plan(StepId(self.step), &mut step.plan).unwrap();
        step.batch.reset(StepId(self.step));
        step.batch.tokens.extend_from_slice(tokens);
        step.batch.rows.push(BatchRow {
            request: u64::from(request.row.0),
            seq: request.seq,
            kind: if drafts > 0 { RowKind::MultiDecode } else { RowKind::Prefill },
            tokens: Span::new(0, tokens.len()),
            cached,
            context_len: cached + count,
            sample_from: count - 1 - drafts,
            pool_row: request.row,
            drafts: Drafts { count: drafts, tree: None },
            ..BatchRow::default()
        });
        step
    }

    fn run(&mut self, step: Box<Step>) -> Vec<Token> {
        let id = step.plan.step;
        let Ok(pending) = self.toy.submit(step) else { panic!("refused") };
        let (step, result) = self.toy.wait(pending);
        result.unwrap();
        self.cache.retire(id).unwrap();
        step.output.tokens
    }

    /// Runs a prefill chunk, or all unfed tokens and drafts after them. Appends the sampled tokens.
    fn advance(&mut self, request: &mut Request) {
        let from = self.cache.next_position(request.seq).unwrap() as usize;
        let known = &request.tokens[from..];
        if known.len() > 1 && self.random.chance(70) {
            // A chunk of the prompt, whose sample is not used.
            let chunk = self.random.between(1, known.len() as u32 - 1) as usize;
            let (tokens, marks) = (known[..chunk].to_vec(), [request.prompt_len as Position]);
            self.cache.mark_checkpoints(request.seq, &marks).unwrap();
            let step = self.plan(request, &tokens, 0);
            if self.random.chance(15) {
                return self.cache.cancel(step.plan.step).unwrap();
            }
            self.run(step);
            return;
        }
        let mut tokens = known.to_vec();
        let drafts = if self.random.chance(50) { self.random.between(0, 3) } else { 0 };
        let correct = self.shape.alone(&request.tokens, drafts, true);
        for draft in correct {
            let is_wrong = self.random.chance(30);
            tokens.push(if is_wrong { 5 } else { draft });
        }
        let fed = from + tokens.len();
        let step = self.plan(request, &tokens, drafts);
        let sampled = self.run(step);
        let drafted = &tokens[tokens.len() - drafts as usize..];
        let accepted = drafted.iter().zip(&sampled).take_while(|(draft, sample)| draft == sample).count();
        request.tokens.extend(&sampled[..=accepted]);
        if accepted < drafts as usize {
            let to = (fed - drafts as usize + accepted) as Position;
            self.cache.rewind().unwrap().rewind_to(request.seq, to).unwrap();
        }
    }

    /// A fork of a request, which continues from its last checkpoint.
    fn fork(&mut self, request: &Request) -> Option<Request> {
        let seq = *self.cache.sequences().ok()?.fork(request.seq, 1).ok()?.first()?;
        Some(self.bind(seq, request.tokens.clone(), request.prompt_len))
    }

    /// Checks the outputs of a request against the reference, publishes its tokens and closes it.
    fn finish(&mut self, request: Request) {
        let outputs = &request.tokens[request.prompt_len..];
        let expected = self.shape.alone(&request.tokens[..request.prompt_len], outputs.len() as u32, true);
        assert_eq!(outputs, expected);
        let computed = self.cache.len(request.seq).unwrap();
        if let Ok(prefix) = self.cache.prefix() {
            prefix.publish(request.seq, &request.tokens, computed).unwrap();
        }
        self.cache.close(request.seq).unwrap();
        self.cache.check().unwrap();
    }
}

#[test]
fn outputs_equal_the_reference_in_every_cache() {
    for &kind in CacheKind::ALL {
        for seed in 0..60 {
            let mut run = Simulation::new(kind, seed);
            for _ in 0..6 {
                let (stem, len) = (run.random.between(0, 1), run.random.between(1, 30));
                let mut prompt: Vec<Token> = (0..len).map(|i| 100 + stem * 7 + i % 5).collect();
                prompt.push(run.random.between(100, 200));
                let mut request = run.open(&prompt);
                let mut fork = None;
                while request.tokens.len() < request.prompt_len + 20 {
                    run.advance(&mut request);
                    if fork.is_none() && run.random.chance(5) {
                        fork = run.fork(&request);
                    }
                }
                if let Some(mut fork) = fork {
                    (0..9).for_each(|_| run.advance(&mut fork));
                    run.finish(fork);
                }
                run.finish(request);
            }
            assert_eq!(run.toy.violations(), [""; 0], "{kind} seed {seed}");
        }
    }
}

/// Breaks the plan of the second of two steps. Returns the first violation that the device reports.
fn violation(break_plan: impl Fn(&mut Step)) -> String {
    let mut run = Simulation::new(CacheKind::Paged, 1);
    run.shape = ToyShape { windows: vec![4], state: true };
    run.toy = Toy::new().with_shape(run.shape.clone());
    let config = CacheConfig {
        states: Some(StateConfig { live: 3, checkpoints: 4, tail_rows: 4, interval: 8 }),
        windows: vec![WindowConfig { window: 4, capacity: 64, longest_draft: 4 }],
        ..CacheConfig::new(64)
    };
    run.cache = build(CacheKind::Paged, &config).unwrap();
    let request = run.open(&[101, 102, 103, 104, 105, 106]);
    for (i, tokens) in [&[101, 102, 103, 104][..], &[105, 106]].into_iter().enumerate() {
        let mut step = run.plan(&request, tokens, 0);
        if i == 1 {
            break_plan(&mut step);
        }
        run.run(step);
    }
    run.toy.violations().first().cloned().unwrap_or_default()
}

#[test]
fn wrong_states_and_windows_are_reported() {
    assert_eq!(violation(|_| ()), "");
    let no_state = violation(|step| step.plan.states.rows[0].from = None);
    assert!(no_state.contains("fed to the state of another prefix, of 0 tokens"), "{no_state}");
    let unwritten = violation(|step| step.plan.states.rows[0].from = Some((Default::default(), 3)));
    assert!(unwritten.contains("never written"), "{unwritten}");
    let replayed = violation(|step| step.plan.states.rows[0].replay = 1);
    assert!(replayed.contains("fed to the state"), "{replayed}");
    let skipped = violation(|step| step.plan.states.rows[0].skip = 1);
    assert!(skipped.contains("fed to the state"), "{skipped}");
    let absent = violation(|step| step.plan.states.reset());
    assert!(absent.contains("layer groups of the plan"), "{absent}");
    let window = violation(|step| {
        let section = &mut step.plan.windows[0];
        let first = section.segments[0];
        section.segments[0].len = first.len - 3;
        section.rows[0].read_len -= 3;
    });
    assert!(window.contains("lacks a row"), "{window}");
}
